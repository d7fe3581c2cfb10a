package queries

import "testing"

// A view that was taken before calls were dropped may have those of a run that is removed: they aren't held.
func TestOlderViewHoldsNoCalls(t *testing.T) {
	var c calls
	drops := c.dropped()
	c.drop()
	if _, _, held, err := c.upTo(t.Context(), nil, drops); held || err != nil {
		t.Errorf("held %t, %v", held, err)
	}
}
