package work

import (
	"context"
	"errors"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// TestAwaitThawed shows that a wait that the agent spent frozen, if only its beginning, bounds nothing.
func TestAwaitThawed(t *testing.T) {
	late := errors.New("late")
	for name, test := range map[string]struct {
		frozen []bool  // when each wait begins, and when the last one ends
		waits  []error // nil: stored
		want   int     // waits
	}{
		"stored at once":                {[]bool{false}, []error{nil}, 1},
		"late, at work":                 {[]bool{false, false}, []error{late}, 1},
		"frozen meanwhile":              {[]bool{false, true, false}, []error{late, late, nil}, 3},
		"thawed as the wait is over":    {[]bool{true, false}, []error{late, nil}, 2},
		"thawed, and then late at work": {[]bool{true, false, false}, []error{late, late}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			looks, waits := 0, 0
			isFrozen := func() bool {
				looks++
				return test.frozen[min(waits, len(test.frozen)-1)]
			}
			err := awaitThawed(isFrozen, func() (bool, error) {
				waits++
				err := test.waits[waits-1]
				return err != nil, err
			})
			if waits != test.want || !errors.Is(err, test.waits[test.want-1]) {
				t.Errorf("%d waits, %v; want %d", waits, err, test.want)
			}
		})
	}
}

// TestPlayedWaitsForNothing shows that an agent that only repeats what was recorded goes on before what it says is stored.
func TestPlayedWaitsForNothing(t *testing.T) {
	s := newSharing(t)
	s.a.cfg = &Config{Log: s.log, PersistTimeout: 50 * time.Millisecond}
	s.cut()
	begin := func() error {
		e := &wire.Event{SessionID: "s", Payload: &wire.AgentStart{Provider: "claude", Prompt: wire.Null}}
		s.a.stampEvents(e)
		return s.a.putEvents(t.Context(), e, []*wire.Event{e})
	}
	if err := begin(); !errors.Is(err, eventlog.ErrAmbiguous) {
		t.Errorf("an agent at work goes on: %v", err)
	}
	s.a.played = true
	if err := errors.Join(begin(), s.a.beginEvents(t.Context(), &wire.Event{Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}})); err != nil || s.a.isStored() {
		t.Errorf("%v; stored: %t", err, s.a.isStored())
	}
}

// What its agent doesn't wait for any more, since the runner ends, isn't taken for late.
func TestEndIsNoFailure(t *testing.T) {
	s := newSharing(t)
	s.a.cfg = &Config{Log: s.log, PersistTimeout: time.Minute}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	e := &wire.Event{SessionID: "s", Payload: &wire.AgentStart{Provider: "claude", Prompt: wire.Null}}
	s.a.stampEvents(e)
	if err := s.a.putEvents(ended, e, []*wire.Event{e}); err == nil {
		t.Error("it was stored, though nothing waits for it")
	}
	if failed := s.a.storageFailure(); failed != nil {
		t.Errorf("the log says that storage was away: %+v", failed.Payload)
	}
}
