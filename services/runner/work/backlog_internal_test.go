package work

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"code.wake.dev/wake/pkg/wire"
)

// What is said while a snapshot is taken follows it, in order; no caller waits for it.
func TestBacklogKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backlog
		var recorded []string
		taken := make(chan struct{})
		record := func(e *wire.Event) error {
			recorded = append(recorded, e.CallID)
			return nil
		}
		b.openBacklog(func() error {
			<-taken
			return record(&wire.Event{CallID: "result"})
		}, record)
		for _, id := range []string{"text", "intent"} {
			if !b.holdEvent(&wire.Event{CallID: id}) {
				t.Fatalf("%s isn't held", id)
			}
		}
		synctest.Wait()
		if len(recorded) != 0 {
			t.Fatalf("%s were recorded before the snapshot", recorded)
		}
		close(taken)
		if err := b.wait(); err != nil || !slices.Equal(recorded, []string{"result", "text", "intent"}) {
			t.Errorf("recorded %s (%v)", recorded, err)
		}
		if b.holdEvent(&wire.Event{}) {
			t.Error("an event is held behind nothing")
		}
	})
}

// What can't be recorded is told to the caller that records next, and nothing is recorded behind it.
func TestBacklogTellsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backlog
		taken, failed := make(chan struct{}), errors.New("fenced")
		b.openBacklog(func() error {
			<-taken
			return failed
		}, func(*wire.Event) error {
			t.Error("recorded behind what wasn't")
			return nil
		})
		for range maxHeld {
			if !b.holdEvent(&wire.Event{}) {
				t.Fatal("not held")
			}
		}
		if b.holdEvent(&wire.Event{}) {
			t.Error("more is held than may be")
		}
		close(taken)
		if err := b.wait(); !errors.Is(err, failed) {
			t.Errorf("%v", err)
		}
	})
}
