package alerter

import (
	"strconv"
	"testing"
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
