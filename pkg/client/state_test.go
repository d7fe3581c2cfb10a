package client_test

import (
	"testing"

	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// D-NATS Q7: the state at a position is what the events up to there make, with a
// snapshot before, at or behind it, or none.
func TestStateAt(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	patch := func(v string) uint64 {
		return s.decide("", &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "v", Value: wire.RawString(v)}})
	}
	before := s.act("", &wire.TurnStart{})
	one := patch("s1")
	between := s.act("c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, InputHash: "00"})
	two := patch("s2")
	behind := s.act("c1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null})
	three := patch("s3")
	store, err := snapshot.Open(t.Context(), s.log)
	if err != nil {
		t.Fatal(err)
	}
	stored := snapshot.Stored{}
	for _, at := range []uint64{0, before, two, three} {
		if at > 0 {
			state, err := s.c.StateAt(t.Context(), "r1", at)
			if err != nil {
				t.Fatal(err)
			}
			if stored, err = store.Save(t.Context(), state, stored); err != nil {
				t.Fatal(err)
			}
		}
		for pos, want := range map[uint64]string{before: "", one: "s1", between: "s1", two: "s2", behind: "s2", three: "s3", three + 1000: "s3", 0: "s3"} {
			state, err := s.c.StateAt(t.Context(), "r1", pos)
			if err != nil {
				t.Fatal(err)
			}
			if got := state.State.TextAt("v"); got != want || len(state.Tools) != 1 && (pos == between || pos == two) {
				t.Errorf("snapshot at %d: at %d it is %q, want %q; open calls %v", at, pos, got, want, state.Tools)
			}
		}
	}
	if _, err := s.c.StateAt(t.Context(), "nobody", 1); code(err) != wire.CodeRunNotFound {
		t.Errorf("of no run: %v", err)
	}
}
