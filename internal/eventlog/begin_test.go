package eventlog_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func opened(s string) *wire.Event { return &wire.Event{Payload: &wire.AgentText{Content: s}} }

// A run is claimed and begun in one append, by a writer that goes on behind it.
func TestBegin(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	for run, together := range map[string]bool{"alone": false, "whole": true} {
		w, err := p.Begin(t.Context(), run, eventlog.Claim{Runner: "x", MinEpoch: 7}, []*wire.Event{opened("a"), opened("b")}, together)
		if err != nil {
			t.Fatal(err)
		}
		appendTo(t, w, opened("c"))
		equal(t, run, p.read(eventlog.Query{Run: run}),
			run+"/_run 7.1 run:claimed", run+"/_run 7.2 agent:text a", run+"/_run 7.3 agent:text b", run+"/_run 7.4 agent:text c")
	}
}

// What the log has of a run, of whichever epoch, or by a stranger, isn't gone over: nothing is stored behind it.
func TestBeginIsFirst(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	appendTo(t, p.claim("begun", wire.RunNode), opened("a"))
	for run, data := range map[string][]byte{"strange": []byte("no event"), "later": encoded(t, &wire.Event{
		RunID: "later", NodeID: wire.RunNode, Seq: 1, Epoch: 1, Payload: &wire.RunClaimed{Runner: "y", Nonce: "n"},
	})} {
		if _, err := p.JetStream().Publish(t.Context(), subjects.Default.Event(run, wire.RunNode, "flow"), data); err != nil {
			t.Fatal(err)
		}
	}
	before := len(p.read(eventlog.Query{}))
	for _, run := range []string{"begun", "strange", "later"} {
		for _, together := range []bool{false, true} {
			_, err := p.Begin(t.Context(), run, eventlog.Claim{Runner: "x", MinEpoch: 7}, []*wire.Event{opened("b")}, together)
			wantErr(t, run, err, eventlog.ErrFenced)
		}
	}
	if after := p.read(eventlog.Query{}); len(after) != before {
		t.Errorf("stored behind what was there:\n%v", after)
	}
}

// Of several that begin a run at the same time, in one process or two, one does, whole.
func TestBeginsRace(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p, other := start(t, nc, eventlog.Options{}), start(t, nc, eventlog.Options{})
		for i := range 20 {
			run := fmt.Sprint("r", i)
			var racing sync.WaitGroup
			var mu sync.Mutex
			begun := 0
			for _, p := range []process{p, other, p, other} {
				racing.Go(func() {
					_, err := p.Begin(t.Context(), run, eventlog.Claim{Runner: "x"}, []*wire.Event{opened("a"), opened("b")}, i%2 == 0)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						begun++
					} else if !errors.Is(err, eventlog.ErrFenced) {
						t.Error(err)
					}
				})
			}
			racing.Wait()
			if n := len(p.read(eventlog.Query{Run: run})); begun != 1 || n != 3 {
				t.Errorf("%s: %d have begun it, with %d events", run, begun, n)
			}
		}
		if err := errors.Join(p.stop(), other.stop()); err != nil {
			t.Error(err)
		}
	})
}
