package keys_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// bucket makes one whose keys live for ten seconds, with a mark behind them.
func bucket(t *testing.T, nc *nats.Conn) (jetstream.JetStream, jetstream.KeyValue) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", TTL: 10 * time.Second, LimitMarkerTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return js, kv
}

func put(t *testing.T, kv jetstream.KeyValue, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, err := kv.PutString(t.Context(), k, "of "+k); err != nil {
			t.Fatal(err)
		}
	}
}

// What there is comes first, the newest of each key, then that it is complete, then
// what changes: writes, removals by a client, and those by age.
func TestWatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, kv := bucket(t, natstest.Start(t))
		put(t, kv, "x.1", "x.2", "other", "x.1")
		if err := kv.Delete(t.Context(), "x.2"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for e, err := range keys.Watch(ctx, js, "b", "x.>") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s %q %d %t", e.Key, e.Value, e.Revision, e.Deleted))
			switch len(got) {
			case 3:
				put(t, kv, "other", "x.3")
			case 4:
				if err := kv.Purge(t.Context(), "x.3"); err != nil {
					t.Fatal(err)
				}
			case 6: // x.1 is too old
				cancel()
			}
		}
		want := []string{
			`x.1 "of x.1" 4 false`, `x.2 "" 5 true`, ` "" 0 false`,
			`x.3 "of x.3" 7 false`, `x.3 "" 8 true`, `x.1 "" 9 true`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// All returns what isn't deleted, be it nothing.
func TestAll(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, kv := bucket(t, natstest.Start(t))
		if all, err := keys.All(t.Context(), js, "b", "x.>"); err != nil || len(all) > 0 {
			t.Errorf("%v, %v", all, err)
		}
		for i := range 1000 { // more than are asked for at once
			put(t, kv, fmt.Sprintf("x.%d", i))
		}
		if err := kv.Delete(t.Context(), "x.7"); err != nil {
			t.Fatal(err)
		}
		all, err := keys.All(t.Context(), js, "b", "x.>")
		if err != nil || len(all) != 999 {
			t.Errorf("%d entries, %v", len(all), err)
		}
		if _, err := keys.All(t.Context(), js, "missing", ">"); err == nil {
			t.Error("no error for a bucket that isn't there")
		}
	})
}

// A watch that has lost its server says so at once.
func TestLost(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		js, _ := bucket(t, s.Conn(t))
		start := time.Now()
		var failed error
		for e, err := range keys.Watch(t.Context(), js, "b", ">") {
			if err != nil {
				failed = err
			} else if e.Key == "" {
				s.Stop()
			}
		}
		if failed == nil || time.Since(start) > 2*time.Second {
			t.Errorf("after %s: %v", time.Since(start), failed)
		}
	})
}

// Who watches sees that a key was removed; an hour later nothing is left of it. One that has changed meanwhile stays.
func TestDelete(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js, err := jetstream.New(natstest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", LimitMarkerTTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		put(t, kv, "a", "b")
		if err := keys.Delete(t.Context(), kv, "a", 2); !keys.IsConflict(err) {
			t.Errorf("of another revision: %v", err)
		}
		gone := 0
		for e, err := range keys.Watch(t.Context(), js, "b", ">") {
			switch {
			case err != nil:
				t.Fatal(err)
			case e.Key == "":
				if err := keys.Delete(t.Context(), kv, "a", 1); err != nil {
					t.Fatal(err)
				}
			case e.Deleted:
				gone++
			}
			if gone > 0 {
				break
			}
		}
		<-time.After(2 * time.Hour)
		s, err := js.Stream(t.Context(), "KV_b")
		if err != nil {
			t.Fatal(err)
		}
		if n := s.CachedInfo().State.Msgs; n != 1 {
			t.Errorf("%d messages are left, and one key", n)
		}
	})
}
