package runner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// TestNativeKilledWhileStreaming hides what there is of a message that the model hasn't come to
// the end of, and asks for it again by the same prompt; the turn has the same number.
func TestNativeKilledWhileStreaming(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		folder, hanging, script := t.TempDir(), newScript(), newScript()
		hanging.Replies[1].Hang = true
		r1 := b.native("r1", folder, hanging)
		b.submit("run1", shared(written))
		b.awaits("the second message to begin", func() bool { return count(b.read("run1"), wire.TypeBreakpointChanged) == 2 })
		r1.kill()
		b.native("r2", folder, script)
		entries := b.until("run1", wire.TypePermissionRequired)
		b.command("run1", wire.Command{Type: "approve", CallID: "t1"})
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Fatalf("run ended as %s:\n%s", state.Result, story(entries))
		}
		var begun []uint64
		for _, e := range entries {
			if e.Event.Type() == wire.TypeTurnStart && e.Event.Turn == 2 {
				begun = append(begun, e.Event.Seq)
			}
		}
		hidden := first[*wire.LogTruncated](t, entries)
		if count(entries, wire.TypeLogTruncated) != 1 || len(begun) != 2 || hidden.AtSeq != begun[0]-1 {
			t.Errorf("hidden after %d, turns begun at %v:\n%s", hidden.AtSeq, begun, story(entries))
		}
		before, again := prompts(t, hanging, folder), prompts(t, script, folder)
		if diff := cmp.Diff(before[1], again[1]); diff != "" || before[1] == "" || again[0] != "" {
			t.Errorf("the first turn is asked for again: %t; prompts of the second (-first +again):\n%s", again[0] != "", diff)
		}
	})
}
