package natstest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func TestStart(t *testing.T) {
	t.Parallel()
	publish(t, natstest.JetStream(t), 1, 1)
}

// A server that starts again has what it stored, and its connections come back.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	js := s.JetStream(t)
	publish(t, js, 1, 1)
	s.Stop()
	s.Start(t)
	publish(t, js, 1, 2)
}

// In a bubble an hour passes at once, for the server too.
func TestBubble(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := natstest.JetStream(t)
		kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		<-time.After(59 * time.Minute)
		if _, err := kv.Get(t.Context(), "k"); err != nil {
			t.Errorf("after 59 minutes: %v", err)
		}
		<-time.After(2 * time.Minute)
		if _, err := kv.Get(t.Context(), "k"); err == nil {
			t.Error("after 61 minutes the key is still there")
		}
	})
}

// The client's forms without a context work in each of several bubbles.
func TestBubblesShareNoTimers(t *testing.T) {
	for range 5 {
		natstest.Bubble(t, func(t *testing.T) {
			nc := natstest.Start(t)
			sub, err := nc.SubscribeSync("s")
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.NextMsg(time.Minute); !errors.Is(err, nats.ErrTimeout) {
				t.Errorf("NextMsg: %v", err)
			}
			if err := sub.Drain(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A cluster of three loses its leader and then a server without losing a
// message.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	nc := c.Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, 3, 1)
	c.WaitReady(t, "S")
	leader := c.Leader("S")
	if err := c.StepDown(t.Context(), nc, "S"); err != nil {
		t.Fatal(err)
	}
	c.WaitReady(t, "S")
	if c.Leader("S") == leader {
		t.Error("the leader is the same after it stepped down")
	}
	c.Kill(c.Leader("S"))
	c.WaitReady(t, "S")
	publish(t, js, 3, 2)
	for i := range c.Size() {
		c.Restart(t, i)
		c.WaitReady(t, "S")
	}
	publish(t, js, 3, 3)
}

func TestNodeConn(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	nc := c.NodeConn(t, 1, nats.Name("pinned"))
	if got := nc.ConnectedServerName(); got != "n1" {
		t.Errorf("connected to %s, want n1", got)
	}
	if got := len(nc.Servers()); got != 1 {
		t.Errorf("the connection knows %d servers, want 1", got)
	}
}

// publish appends to the stream S, created if needed, until that is stored, and
// checks that the message is the n-th.
func publish(t *testing.T, js jetstream.JetStream, replicas int, n uint64) {
	t.Helper()
	if n == 1 {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: replicas}); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for {
		err := publishOnce(t.Context(), js, n)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("publish message %d: %v", n, err)
		}
	}
}

// publishOnce succeeds too if the acknowledgement of an earlier try was lost.
func publishOnce(ctx context.Context, js jetstream.JetStream, n uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := js.Publish(ctx, "s", nil, jetstream.WithExpectLastSequence(n-1))
	if err == nil {
		return nil
	}
	s, infoErr := js.Stream(ctx, "S")
	if infoErr != nil {
		return errors.Join(err, infoErr)
	}
	if s.CachedInfo().State.LastSeq == n {
		return nil
	}
	return err
}
