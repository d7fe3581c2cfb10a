package eventlog_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"wake/internal/eventlog"
	"wake/internal/natstest"
	"wake/internal/topology"
)

// cluster starts three servers with the streams of wake.
func cluster(t *testing.T) *natstest.Cluster {
	t.Helper()
	c := natstest.NewCluster(t, 3)
	setUp(t, c.Conn(t), topology.Config{Replicas: 3})
	c.WaitReady(t, "WAKE_EVENTS")
	return c
}

// every calls f at the given pace until the returned function is called, which
// waits for the last call and returns how many there were.
func every(ctx context.Context, pace time.Duration, f func(context.Context)) (stop func() int) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan int, 1)
	go func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				done <- n
				return
			case <-tick.C:
				f(ctx)
			}
		}
	}()
	return func() int {
		cancel()
		return <-done
	}
}

// load is events of many nodes, written at once.
type load struct {
	runs, nodes, events int           // nodes per run, events per node
	pace                time.Duration // between two bursts of a node
}

func (l load) total() int { return l.runs * l.nodes * (l.events + 1) }

// write claims every node and writes its events, in bursts of ten of which the
// last is awaited.
func (l load) write(t *testing.T, p process) {
	t.Helper()
	var writing sync.WaitGroup
	for r := range l.runs {
		for n := range l.nodes {
			writing.Go(func() {
				if err := l.writeNode(t.Context(), p, fmt.Sprint("run", r), fmt.Sprint("node", n)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	writing.Wait()
}

func (l load) writeNode(ctx context.Context, p process, run, node string) error {
	w, err := p.Claim(ctx, run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		return err
	}
	for i := range l.events {
		if i%10 != 9 {
			err = w.Enqueue(ctx, text(fmt.Sprint(i)))
		} else if _, err = w.Append(ctx, text(fmt.Sprint(i))); err == nil && l.pace > 0 {
			<-time.After(l.pace)
		}
		if err != nil {
			return err
		}
	}
	return w.Close(ctx)
}

// check reads the whole log: every event is there once, in order.
func (l load) check(t *testing.T, p process) {
	t.Helper()
	next := map[string]uint64{}
	total := 0
	for e, err := range p.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		node := e.RunID + "/" + e.NodeID
		next[node]++
		total++
		if e.Event == nil || e.Event.Seq != next[node] {
			t.Fatalf("position %d: %s, want seq %d of %s", e.Pos, line(e), next[node], node)
		}
		if want := fmt.Sprintf("%s 1.%d agent:text %d", node, e.Event.Seq, e.Event.Seq-2); e.Event.Seq > 1 && line(e) != want {
			t.Fatalf("position %d: %s, want %s", e.Pos, line(e), want)
		}
	}
	if total != l.total() {
		t.Errorf("the log has %d events, want %d", total, l.total())
	}
}

// run writes and checks while f happens at a pace.
func (l load) run(t *testing.T, p process, pace time.Duration, f func(context.Context)) {
	t.Helper()
	stop := every(t.Context(), pace, f)
	began := time.Now()
	l.write(t, p)
	took := time.Since(began).Round(time.Millisecond)
	if n := stop(); n < 10 {
		t.Errorf("%d events in %s: only %d faults, that shows little", l.total(), took, n)
	} else {
		t.Logf("%d events in %s, %d faults", l.total(), took, n)
	}
	l.check(t, p)
}

// 40 000 events while the stream's leader steps down four times a second.
func TestClusterStepDown(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t), eventlog.Options{Lanes: 3})
	nc := c.Conn(t)
	l := load{runs: 20, nodes: 4, events: 499, pace: 100 * time.Millisecond}
	l.run(t, p, 250*time.Millisecond, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		_ = c.StepDown(ctx, nc, "WAKE_EVENTS") // fails while there is no leader
	})
}

// Connections are cut, so that acknowledgements are lost and the client
// reconnects to another server.
func TestClusterLostAcknowledgements(t *testing.T) {
	c := cluster(t)
	proxy := newProxy(t, c)
	p := start(t, proxy.conn(t), eventlog.Options{Lanes: 2})
	l := load{runs: 10, nodes: 4, events: 499, pace: 50 * time.Millisecond}
	l.run(t, p, 150*time.Millisecond, func(context.Context) { proxy.cut() })
}

// The server that leads the stream is killed and comes back, again and again.
func TestClusterKill(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t, nats.ReconnectBufSize(-1)), eventlog.Options{Lanes: 2})
	l := load{runs: 5, nodes: 4, events: 299, pace: 300 * time.Millisecond}
	var writing sync.WaitGroup
	writing.Go(func() { l.write(t, p) })
	kills := 0
	for range 4 {
		c.WaitReady(t, "WAKE_EVENTS")
		if leader := c.Leader("WAKE_EVENTS"); leader >= 0 {
			c.Kill(leader)
			<-time.After(time.Second)
			c.Restart(t, leader)
			kills++
		}
	}
	c.WaitReady(t, "WAKE_EVENTS")
	writing.Wait()
	t.Logf("%d events, %d kills", l.total(), kills)
	l.check(t, p)
}
