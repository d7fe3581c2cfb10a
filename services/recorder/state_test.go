package recorder_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// The state at any position is the fold of the events up to there, wherever the
// nearest one is kept.
func TestStateAt(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for i := range 3000 {
		p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": fmt.Sprint("make ", i)}), ToolOutput: wire.Null})
		if i%10 == 0 {
			p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "x"})
		}
		if i == 1500 {
			p.start("r2", "coder", nil)
		}
	}
	path := newTarget(t)
	s := openAt(t, path)
	defer closed(t, s)
	p.store(s, 700)
	want := run.New("r1")
	at := map[uint64]wire.Raw{}
	for _, e := range p.entries {
		if e.RunID == "r1" && e.Kind != wire.KindText && e.Kind != wire.KindDelta {
			if err := run.Apply(want, wire.Position{Incarnation: incarnation, Seq: e.Pos}, e.Event); err != nil {
				t.Fatal(err)
			}
		}
		at[e.Pos] = mustRaw(t, want)
	}
	var slowest time.Duration
	for pos := uint64(1); pos <= p.pos; pos += 131 {
		begin := time.Now()
		got, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r1", At: pos})
		slowest = max(slowest, time.Since(begin))
		if err != nil || !bytes.Equal(got.State, at[pos]) || got.RunID != "r1" {
			t.Fatalf("at %d: another state at %d, %v", pos, got.Position.Seq, err)
		}
	}
	t.Logf("the slowest of %d took %s", p.pos/131, slowest)
	got, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r1"})
	if err != nil || !bytes.Equal(got.State, at[p.pos]) {
		t.Errorf("now: another state at %d, %v", got.Position.Seq, err)
	}
	if beyond, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r1", At: p.pos + 100}); err != nil || !bytes.Equal(beyond.State, got.State) {
		t.Errorf("beyond the end: %d, %v", beyond.Position.Seq, err)
	}
	if _, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r2", At: 5}); codeOf(err) != wire.CodeNotFound {
		t.Errorf("before the run began: %v", err)
	}
	if _, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r9"}); codeOf(err) != wire.CodeRunNotFound {
		t.Errorf("of no run: %v", err)
	}
	db := openDB(t, path)
	defer db.Close()
	if n := rowsOf(t, db, `SELECT count(*) FROM keyframes`); n[0] == "count(*)=0 " {
		t.Error("no state is kept")
	}
}
