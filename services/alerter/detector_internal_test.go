package alerter

import (
	"strconv"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// Of very many open calls the first ones are remembered, which can still change and end.
func TestWithCall(t *testing.T) {
	var open map[string]bool
	for i := range maxCalls {
		open = withCall(open, strconv.Itoa(i), false)
	}
	if more := withCall(open, "more", true); len(more) != maxCalls || more["more"] {
		t.Errorf("%d calls are remembered, want %d", len(more), maxCalls)
	}
	if changed := withCall(open, "7", true); !changed["7"] || open["7"] {
		t.Error("a call that is remembered isn't changed, or was changed for others, too")
	}
	if next := withCall(withoutKey(open, "7"), "more", true); !next["more"] || len(next) != maxCalls {
		t.Error("there is no room behind one that has ended")
	}
}

// Of very many names, as agents make them up, the first ones are remembered; the epochs of a run's nodes all are.
func TestWithKey(t *testing.T) {
	names, epochs := map[string]bool{}, map[string]uint64{}
	for i := range maxKeys {
		names[strconv.Itoa(i)], epochs[strconv.Itoa(i)] = true, 1
	}
	if more := withKey(names, "more", true); len(more) != maxKeys || more["more"] {
		t.Errorf("%d names are remembered, want %d", len(more), maxKeys)
	}
	r := runRecord{Epochs: epochs}
	r, _ = r.applyInput(input{Limits: &limits{}, Event: &wire.Event{NodeID: "more", Epoch: 2, Payload: &wire.NodeClaimed{}}})
	if r.Epochs["more"] != 2 {
		t.Error("the epoch of a run's node is forgotten")
	}
}
