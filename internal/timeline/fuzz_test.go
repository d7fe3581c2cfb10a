package timeline_test

import (
	"bytes"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzTimeline takes any two events of a node, twice each, and reads the timeline
// back between them: the lines come out as if nothing had happened, no step names a
// line that isn't there, and a timeline stays small.
func FuzzTimeline(f *testing.F) {
	var seeds [][]byte
	for _, p := range slices.Concat(payloads(f), []wire.Payload{
		&wire.AgentTextDelta{Content: "two\nli", Block: 1}, &wire.AgentThinkingDelta{Content: "hm", Block: 2},
		&wire.ExecOutput{Content: "ok\x1b[2J\n", Stream: "stdout"},
	}) {
		b, err := wire.EncodeJSON(&wire.Event{RunID: "r1", NodeID: "a", ExecID: "a#1", SessionID: "s1", CallID: "c1", AgentID: "a1", Turn: 1, Epoch: 1, Seq: 1, Payload: p})
		if err == nil { // some lack what no line needs
			seeds = append(seeds, b)
		}
	}
	for i, s := range seeds {
		f.Add(s, seeds[len(seeds)-1-i])
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a, err := wire.DecodeJSON(first)
		if err != nil {
			return
		}
		b, err := wire.DecodeJSON(second)
		if err != nil {
			return
		}
		var whole, stored timeline.Timeline
		begun := map[uint64]bool{}
		for i, e := range []*wire.Event{a, b, a, b} {
			pos := uint64(i) + 1
			step := whole.Step(pos, e)
			if again := stored.Step(pos, e); !cmp.Equal(step, again) {
				t.Fatalf("behind a restart %s makes another step: %s", e.Type(), cmp.Diff(step, again))
			}
			checkStep(t, e, pos, step, begun)
			encoded, err := wire.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			if size := len(encoded) - len(whole.Command) - len(whole.Exec); size > 8*(2000+3*len(first)+3*len(second)) {
				t.Fatalf("the timeline has %d bytes", size)
			}
			stored = timeline.Timeline{}
			if err := wire.Unmarshal(encoded, &stored); err != nil {
				t.Fatal(err)
			}
			if again, err := wire.Marshal(stored); err != nil || !bytes.Equal(encoded, again) {
				t.Fatalf("the timeline comes back as %v: %v", again.Any(), err)
			}
		}
	})
}

func checkStep(t *testing.T, e *wire.Event, pos uint64, step timeline.Step, begun map[uint64]bool) {
	t.Helper()
	switch step.Op {
	case timeline.None:
		return
	case timeline.Add:
		if step.Pos != pos || begun[pos] || step.Text == "" || !step.Type.Valid() {
			t.Fatalf("%s adds %+v", e.Type(), step)
		}
		begun[pos] = true
	case timeline.Extend, timeline.Replace:
		if !begun[step.Pos] {
			t.Fatalf("%s changes a line that isn't there: %+v", e.Type(), step)
		}
	}
	if n := utf8.RuneCountInString(step.Text); step.Type == wire.LineThinking && n > timeline.MaxThinking {
		t.Fatalf("%s makes a thinking line of %d characters", e.Type(), n)
	}
}
