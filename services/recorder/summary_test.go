package recorder_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

func TestLogSummary(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "go test ./..."}), ToolOutput: mustRaw(t, "FAIL"), Error: "exit code 1"})
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Write", ToolInput: mustRaw(t, map[string]any{"file_path": "a.go"}), ToolOutput: wire.Null})
	p.add("r1", "coder", exec, &wire.Usage{MessageID: "m1", InputTokens: 100, OutputTokens: 7})
	p.add("r1", "coder", exec, &wire.TurnEnd{TurnCostUsd: new(0.25)})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "I am "})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "done."})
	p.add("r1", "judge", "judge#1", &wire.AgentText{Content: "Not so fast."})
	s := openStore(t)
	p.store(s, 3)
	ask := func(q wire.LogRequest, now int64) wire.LogResponse {
		t.Helper()
		q.Run, q.Summary = "r1", true
		r, err := s.Answers.Log(t.Context(), q, time.UnixMilli(now), 1<<20)
		if err != nil || r.Summary == nil || len(r.Lines) > 0 || r.BufferLines == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r
	}
	r := ask(wire.LogRequest{Grep: "nothing", Type: wire.LineUser}, p.clock)
	want := wire.LogSummary{
		Asked: []string{"coder: Do it."}, Failures: []string{"coder: Bash failed: exit code 1"}, Files: []string{"a.go"},
		Builds: []string{"go test ./...: failed"}, LastWords: "Not so fast.", State: "active", CostUsd: 0.25, CostBasis: "reported",
		TokensIn: 100, TokensOut: 7, ToolsUsed: 2, ToolErrors: 1, Text: r.Summary.Text,
	}
	if diff := cmp.Diff(want, *r.Summary); diff != "" || r.Position != 0 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(r.Summary.Text, "active, $0.25, 100 tokens in, 7 out, 2 tool calls, 1 failed\nAsked:\n") {
		t.Errorf("text %q", r.Summary.Text)
	}
	if r := ask(wire.LogRequest{Node: "coder"}, p.clock); r.Summary.LastWords != "I am done." || r.Summary.State != "active" || r.Summary.CostUsd != 0.25 {
		t.Errorf("of a node: %+v", r.Summary)
	}
	if r := ask(wire.LogRequest{Node: "judge"}, p.clock); r.Summary.LastWords != "Not so fast." || len(r.Summary.Files) > 0 || r.Summary.ToolsUsed != 0 {
		t.Errorf("of another node: %+v", r.Summary)
	}
	if r := ask(wire.LogRequest{Since: 1500}, p.clock); len(r.Summary.Asked) > 0 || r.Summary.LastWords != "Not so fast." {
		t.Errorf("of the last 1.5s: %+v", r.Summary)
	}
	if r := ask(wire.LogRequest{Details: true}, p.clock); r.Position != p.pos {
		t.Errorf("position %d, want %d", r.Position, p.pos)
	}
}

// What is told of a session that was recorded later is of the time in which it happened, as its lines are.
func TestSummaryOfLateRecord(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Write", ToolInput: mustRaw(t, map[string]any{"file_path": "a.go"}), ToolOutput: wire.Null})
	now := time.UnixMilli(p.clock).Add(30 * 24 * time.Hour)
	for i := range p.entries {
		p.entries[i].Time = now
	}
	s := openStore(t)
	p.store(s, 3)
	for _, since := range []wire.Ago{0, wire.Ago(time.Hour.Milliseconds())} {
		r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Since: since, Summary: true}, now, 1<<20)
		if err != nil || r.Summary == nil || (len(r.Summary.Files) > 0) != (since == 0) {
			t.Errorf("since %d: %+v, %v", since, r.Summary, err)
		}
	}
}
