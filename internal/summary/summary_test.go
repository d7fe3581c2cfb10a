package summary_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/summary"
	"code.wake.dev/wake/pkg/wire"
)

func bash(t *testing.T, command, output, problem string) *wire.AgentTool {
	t.Helper()
	return &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": command}), ToolOutput: wire.RawOf(output), Error: problem}
}

func TestSummary(t *testing.T) {
	var b summary.Builder
	todo := func(done ...string) *wire.TodoChanged {
		p := &wire.TodoChanged{Total: 3, Done: len(done), Items: []wire.Todo{{Content: "next", Status: "in_progress"}}}
		for _, d := range done {
			p.Items = append(p.Items, wire.Todo{Content: d, Status: "completed"})
		}
		return p
	}
	edit := func(path string) *wire.AgentTool {
		return &wire.AgentTool{ToolName: "Edit", ToolInput: wire.RawOf(map[string]any{"file_path": path})}
	}
	for _, p := range []wire.Payload{
		&wire.AgentStart{Prompt: wire.RawOf("Fix the bug.\nSoon."), Cwd: "/w"},
		&wire.AgentThinking{Content: "Hm."},
		todo("Read it"),
		edit("/w/a.go"),
		edit("/w/a.go"),
		edit("/elsewhere/b.go"),
		bash(t, "cd x && go test ./... | tail", "FAIL", "exit code 1"),
		bash(t, "go test ./...", "FAIL", "exit code 2"),
		&wire.AgentText{Content: "I see."},
		todo("Read it", "Fix it"),
		bash(t, "go test ./...", "ok", ""),
		&wire.UserMessage{Source: "command", Content: "And commit."},
		bash(t, `git commit -am "fix: the bug"`, "[main abc1234] fix: the bug\n 1 file changed", ""),
		bash(t, `git commit -am "again"`, "nothing to commit", "exit code 1"),
		bash(t, `git commit -m root`, "[main (root-commit) abc1234] root", ""),
		bash(t, `echo makeshift`, "", ""),
		bash(t, "git commit -m \"$(cat <<'EOF'\nfix: make tests pass\n\nmake it so\nEOF\n)\"", "[main abc1234] fix: make tests pass", ""),
		bash(t, `git commit -m "make it faster"`, "[main abc1234] make it faster", ""),
		bash(t, "cd x\nCI=1 make lint\necho done", "", ""),
		&wire.AgentError{ErrorType: "rate_limit", Message: "rate limited", Severity: wire.SeverityError},
		&wire.AgentError{ErrorType: "config", Message: "an old model", Severity: wire.SeverityWarning}, // no failure
		&wire.ExecStart{Command: "make check"},
		&wire.ExecExit{ExitCode: 2},
		&wire.NodeComplete{Output: wire.Null},
	} {
		b.Add(&wire.Event{RunID: "r", NodeID: "coder", ExecID: "coder#1", Payload: p})
	}
	got := b.Summary()
	want := wire.LogSummary{
		Asked:      []string{"coder: Fix the bug. Soon.", "coder: [command] And commit."},
		Milestones: []string{"[1/3] Read it ✅", "[2/3] Fix it ✅", "coder done"},
		Failures: []string{
			"coder: Bash failed 2 times: exit code 2", "coder: Bash failed: exit code 1", "coder: rate_limit: rate limited",
			"coder: make check: ❌ exec exit code 2",
		},
		Files:   []string{"a.go", "/elsewhere/b.go"},
		Builds:  []string{"go test ./...: failed", "go test ./...: failed", "go test ./...: passed", "make lint: passed", "make check: failed"},
		Commits: []string{"fix: the bug", "root", "fix: make tests pass", "make it faster"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got.State, got.CostUsd, got.TokensIn, got.TokensOut, got.ToolsUsed, got.ToolErrors, got.LastWords, got.Omitted = "active", 0.5, 10, 2, 9, 3, "Done.\nAll of it.", 4
	const text = `active, $0.50, 10 tokens in, 2 out, 9 tool calls, 3 failed
Asked:
  coder: Fix the bug. Soon.
  coder: [command] And commit.
Milestones:
  [1/3] Read it ✅
  [2/3] Fix it ✅
  coder done
Failures:
  coder: Bash failed 2 times: exit code 2
  coder: Bash failed: exit code 1
  coder: rate_limit: rate limited
  coder: make check: ❌ exec exit code 2
Files:
  a.go
  /elsewhere/b.go
Builds:
  go test ./...: failed
  go test ./...: failed
  go test ./...: passed
  make lint: passed
  make check: failed
Commits:
  fix: the bug
  root
  fix: make tests pass
  make it faster
Last words:
  Done.
  All of it.
… 4 more`
	if diff := cmp.Diff(text, summary.Text(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Of what is too much the beginning and the end are kept.
func TestListsAreBounded(t *testing.T) {
	var b summary.Builder
	for i := range 100 {
		b.Add(&wire.Event{NodeID: fmt.Sprint("n", i), Payload: &wire.NodeComplete{Output: wire.Null}})
	}
	s := b.Summary()
	if len(s.Milestones) != 20 || s.Milestones[4] != "n4 done" || s.Milestones[5] != "n85 done" || s.Milestones[19] != "n99 done" || s.Omitted != 80 {
		t.Errorf("%d omitted of %q", s.Omitted, s.Milestones)
	}
}
