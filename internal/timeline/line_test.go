package timeline_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func raw(t testing.TB, json string) wire.Raw {
	t.Helper()
	v, err := wire.RawFromJSON([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// payloads has at least one event of every type.
func payloads(t testing.TB) []wire.Payload {
	return []wire.Payload{
		&wire.RunClaimed{Runner: "runner-a", Nonce: "n"},
		&wire.RunForked{ParentRun: "r0", ParentPos: 17, Label: "sfp-3"},
		&wire.RunForked{ParentRun: "r0", ParentPos: 17},
		&wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", ParentRun: "r0"},
		&wire.FlowStart{Definition: wire.Null, DefinitionHash: "h"},
		&wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete, DurationMs: 185_000},
		&wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "test failed", DurationMs: 4_800_000},
		&wire.FlowPaused{Reason: "requires_action", Message: "deploy was interrupted"},
		&wire.FlowResumed{Strategy: "crash", Message: "continue"},
		&wire.FlowResumed{Strategy: "crash", Rerun: []string{"deploy"}, Fail: []string{"lint", "test"}, Overrides: raw(t, `{"model":"opus"}`)},
		&wire.FlowResumed{Strategy: "crash", Hold: true},
		&wire.FlowResumed{Strategy: "manual", Hold: true},
		&wire.FlowAborted{Reason: "operator"},
		&wire.NodeScheduled{Target: "coder", Attempt: 1},
		&wire.NodeScheduled{Target: "coder", Attempt: 2},
		&wire.NodeScheduled{Target: "coder", Error: "no such state: task"},
		&wire.NodeSkipped{Target: "coder", Reason: "edge"},
		&wire.NodeCancelled{Target: "coder", Reason: "timeout"},
		&wire.NodeWaiting{Target: "coder", Until: 1800000000000, Reason: "sleep"},
		&wire.EdgeFire{EdgeID: "a->b", From: "a", To: "b"},
		&wire.EdgeSkip{EdgeID: "a->b", From: "a", To: "b", Reason: "when"},
		&wire.LoopIterate{EdgeID: "test->plan", Iteration: 2},
		&wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "task.done", Value: raw(t, `{"ok":true}`)}},
		&wire.CommandReceived{Command: raw(t, `{"type":"send","message":"go on"}`), Accepted: true},
		&wire.CommandReceived{Command: raw(t, `{"type":"send"}`), Reason: "no such node"},
		&wire.CommandReceived{Command: raw(t, `{"type":"send","nodeId":"coder","by":"ann","message":"use tabs"}`), Accepted: true},
		&wire.CommandReceived{Command: raw(t, `{"type":"pause","by":"ann","reason":"lunch"}`), Accepted: true},
		&wire.CommandReceived{Command: raw(t, `{"type":"approve","callId":"c1"}`), Accepted: true},
		&wire.CommandReceived{Command: raw(t, `{"type":"notice","by":"run r1.t#1","message":"Completed"}`), Reason: "COMMAND_REJECTED: run r1 is complete"},
		&wire.CommandReceived{Command: raw(t, `"not a map"`), Reason: "BAD_REQUEST: not a command"},
		&wire.NodeClaimed{Runner: "runner-b", Nonce: "n"},
		&wire.NodeStart{NodeType: "agent", Attempt: 1},
		&wire.NodeComplete{Target: "judge", Output: wire.RawString("ok"), DurationMs: 4_500},
		&wire.NodeError{Error: "exit code 1", ErrorType: "exit", DurationMs: 59_960},
		&wire.NodeError{ErrorType: "timeout"},
		&wire.InputRequested{PromptID: "p1", Prompt: "Deploy?", Choices: []string{"yes", "no"}},
		&wire.InputReceived{PromptID: "p1", Content: wire.RawString("yes"), By: "ana"},
		&wire.InputReceived{PromptID: "p1", Content: raw(t, `{"go":true}`)},
		&wire.AgentStart{Prompt: wire.RawString("Plan the work.\nThen do it."), Provider: "claude"},
		&wire.AgentStart{Prompt: raw(t, `[{"role":"user","content":[{"type":"text","text":"one"},{"type":"image"},{"type":"text","text":"two"}]}]`)},
		&wire.AgentStart{Prompt: raw(t, `{"odd":1}`)},
		&wire.AgentStart{Prompt: wire.Null, Model: "opus"},
		&wire.AgentInit{Model: "opus", Cwd: "/w"},
		&wire.AgentThinkingDelta{Content: "let me"},
		&wire.AgentThinking{Content: strings.Repeat("hm ", 200)},
		&wire.AgentTextDelta{Content: "Here"},
		&wire.AgentText{Content: "Here are the last 3 commits:\n\n- one"},
		&wire.AgentText{},
		&wire.AgentTool{ToolName: "Bash", ToolInput: raw(t, `{"command":"cd /w && git log --oneline -3","description":"log"}`), ToolOutput: wire.Null, DurationMs: new(int64(2_100))},
		&wire.AgentTool{ToolName: "Bash", ToolInput: raw(t, `{"command":"npm test"}`), ToolOutput: wire.Null, DurationMs: new(int64(12)), Error: "Exit code 1\n\n  FAIL  a.test.ts\n"},
		&wire.AgentTool{ToolName: "Bash", ToolInput: raw(t, `{"command":"rm -rf /"}`), ToolOutput: wire.Null, Error: "not allowed", Denied: true},
		&wire.AgentTool{ToolName: "Bash", ToolInput: raw(t, fmt.Sprintf(`{"command":%q}`, strings.Repeat("é", 300))), ToolOutput: wire.Null, Error: strings.Repeat("ü", 300)},
		&wire.AgentTool{ToolName: "TodoWrite", ToolInput: raw(t, `{"todos":[{"content":"a"}]}`), ToolOutput: wire.Null},
		&wire.AgentTool{ToolName: "ListIt", ToolInput: raw(t, `{}`), ToolOutput: wire.Null, DurationMs: new(int64(65_000))},
		&wire.AgentError{ErrorType: "rate_limit", Message: "rate limited", Attempt: new(int64(2)), MaxAttempts: 5},
		&wire.AgentError{ErrorType: "error_max_turns"},
		&wire.AgentError{ErrorType: "overloaded", Message: "overloaded", Attempt: new(int64(1))},
		&wire.AgentError{ErrorType: "overloaded", Message: "overloaded (HTTP 529): retry 1/10", Attempt: new(int64(1)), MaxAttempts: 10},
		&wire.AgentError{ErrorType: "overloaded", Message: "overloaded", Severity: wire.SeverityError, Attempt: new(int64(3)), MaxAttempts: 3},
		&wire.AgentComplete{Result: "done", DurationMs: 12_000, NumTurns: 3, TotalCostUsd: new(0.34)},
		&wire.AgentComplete{Result: "done", NumTurns: 1, TotalCostUsd: new(0.0012)},
		&wire.AgentPaused{Reason: "operator"},
		&wire.AgentAborted{},
		&wire.AgentResumed{Strategy: "crash", Sealed: []string{"c1"}},
		&wire.SessionBound{OldSession: "s1", NewSession: "s2"},
		&wire.PromptSystem{SHA256: "0123456789abcdef", Bytes: 900},
		&wire.UserMessage{Content: "Use tabs.", Source: "command"},
		&wire.TurnStart{Model: "opus"},
		&wire.TurnEnd{StopReason: "end_turn", TurnCostUsd: new(0.5), DurationMs: 900},
		&wire.TurnEnd{Subtype: "error_max_turns", IsError: true, TurnCostUsd: new(1.5)},
		&wire.Usage{MessageID: "m", Model: "opus", InputTokens: 45_000, OutputTokens: 120},
		&wire.CCMessage{Text: "Build fails — missing dep X.\nInstall it?", Priority: wire.PriorityQuestion},
		&wire.TodoChanged{Items: []wire.Todo{{Content: "a", Status: "completed"}, {Content: "b", Status: "in_progress", ActiveForm: "doing b"}}, Done: 1, Total: 2},
		&wire.TodoChanged{Items: []wire.Todo{{Content: "a", Status: "completed"}}, Done: 1, Total: 1},
		&wire.TodoChanged{Items: []wire.Todo{{Content: "a", Status: "completed"}, {Content: "b", Status: "pending"}, {Content: "c", Status: "pending"}}, Done: 1, Total: 3},
		&wire.FileChanged{Path: "a.go", Change: "modified"},
		&wire.BreakpointChanged{Previous: "READY", Current: "PRE_MODEL"},
		&wire.Compaction{Trigger: "auto", PreTokens: 154_800, PostTokens: 9_600},
		&wire.Compaction{Trigger: "manual", Error: "too short"},
		&wire.HookFired{HookEvent: "PreToolUse", HookName: "guard", Decision: "deny", Output: "no network"},
		&wire.HookFired{HookEvent: "Stop", HookName: "notify", Decision: "continue"},
		&wire.RawMessage{Source: "claude", Name: "system/status", Data: raw(t, `{"a":1}`)},
		&wire.RawMessage{Source: "transcript", Data: wire.RawString("{"), Reason: "unexpected end", Line: 7},
		&wire.ToolIntent{ToolName: "Edit", ToolInput: raw(t, `{"file_path":"/w/src/bridge.ts"}`)},
		&wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting},
		&wire.ToolState{From: wire.ToolApprovalRequired, To: wire.ToolDenied, By: "ann", Note: "not now"},
		&wire.ToolSealed{ToolName: "Bash", From: wire.ToolExecuting, Message: "interrupted", Recommendations: []string{"check"}},
		&wire.PermissionRequired{ToolName: "Bash", ToolInput: raw(t, `{"command":"make deploy"}`)},
		&wire.PermissionDecided{Decision: wire.DecisionAllow, By: "operator", Note: "once"},
		&wire.PermissionDecided{Decision: wire.DecisionDeny},
		&wire.ExecStart{Command: "go test ./..."},
		&wire.ExecOutput{Stream: "stdout", Content: "ok\n"},
		&wire.ExecExit{ExitCode: 0, DurationMs: 2_100},
		&wire.ExecExit{ExitCode: 2, DurationMs: 2_100},
		&wire.ExecExit{ExitCode: -1, Signal: "SIGKILL", DurationMs: 2_100},
		&wire.ExecExit{ExitCode: -1, TimedOut: true, DurationMs: 2_100},
		&wire.Checkpoint{Kind: wire.CheckpointTurn, Label: "sfp-1"},
		&wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "before-deploy"},
		&wire.AuditCheckpoint{CheckpointID: "audit:unit", Result: wire.AuditPass, DurationMs: 700},
		&wire.AuditCheckpoint{CheckpointID: "audit:unit", Result: wire.AuditFail},
		&wire.LogTruncated{AtSeq: 12, Reason: "rollback"},
		&wire.LogTruncated{AtSeq: 12, Lost: 3, Reason: "the stream had dropped them"},
		&wire.StorageFailure{Message: "no space left", Dropped: 12},
		&wire.Opaque{Name: "future:thing"},
		&wire.AgentText{Content: "\x1b]0;owned\x07\x1b[31mred\x1b[0m \u202egnp.exe \x00"},
	}
}

func event(p wire.Payload) *wire.Event {
	return &wire.Event{
		RunID: "r1", NodeID: "coder", Seq: 1, Epoch: 1, Timestamp: 1767400000000,
		ExecID: "coder#1", SessionID: "5e55", CallID: "c1", Turn: 1, Payload: p,
	}
}

func TestLines(t *testing.T) {
	var b strings.Builder
	for _, p := range payloads(t) {
		kind, text, ok := timeline.Of(event(p))
		if !ok {
			fmt.Fprintf(&b, "%-22s -\n", p.Type())
			continue
		}
		fmt.Fprintf(&b, "%-22s %-8s %q\n", p.Type(), kind, text)
	}
	golden(t, "lines.golden", b.String())
}

func TestSummaries(t *testing.T) {
	var b strings.Builder
	for _, p := range payloads(t) {
		s := timeline.Summary(event(p))
		if s != timeline.Sanitize(s) || strings.Contains(s, "\n") {
			t.Errorf("%s: not one safe line: %q", p.Type(), s)
		}
		fmt.Fprintf(&b, "%-8s|%s\n", timeline.Class(event(p)), s)
	}
	golden(t, "summaries.golden", b.String())
}

func TestSummaryNeedsNoText(t *testing.T) {
	got := timeline.Summary(&wire.Event{NodeID: strings.Repeat("n", 40), Payload: &wire.NodeScheduled{Target: "a/7"}})
	if want := "a/7            node:scheduled"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestActivity(t *testing.T) {
	for _, tt := range []struct {
		p    wire.Payload
		want string
	}{
		{&wire.ToolIntent{ToolName: "Edit", ToolInput: raw(t, `{"file_path":"/w/src/bridge.ts"}`)}, "editing src/bridge.ts"},
		{&wire.ToolIntent{ToolName: "Read", ToolInput: raw(t, `{"file_path":"/wider/a.ts"}`)}, "reading /wider/a.ts"},
		{&wire.ToolIntent{ToolName: "Bash", ToolInput: raw(t, `{"command":"npm run build\n# \u001b[31m"}`)}, "running npm run build #"},
		{&wire.ToolIntent{ToolName: "mcp__x__y", ToolInput: raw(t, `{"id":3}`)}, `using mcp__x__y: {"id":3}`},
		{&wire.ToolIntent{ToolName: "Mine", ToolInput: raw(t, `{}`)}, "using Mine"},
		{&wire.AgentTextDelta{Content: "x"}, "writing"},
		{&wire.ExecStart{Command: "make"}, "running make"},
		{&wire.PermissionRequired{ToolName: "Bash"}, "waiting for permission to use Bash"},
		{&wire.Usage{MessageID: "m"}, ""},
	} {
		got, ok := timeline.Activity(event(tt.p), "/w")
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %q, %v, want %q", tt.p.Type(), got, ok, tt.want)
		}
	}
}

func TestSpan(t *testing.T) {
	for ms, want := range map[int64]string{
		-5: "0s", 0: "0s", 30_999: "30s", 60_000: "1m", 12*60_000 + 59_000: "12m",
		3_600_000: "1h", 3_900_000: "1h5m", 51 * 3_600_000: "2d3h", 48 * 3_600_000: "2d",
	} {
		if got := timeline.Span(ms); got != want {
			t.Errorf("Span(%d) = %q, want %q", ms, got, want)
		}
	}
}

// A person that has to allow a call sees what it does, whatever its agent says of it.
func TestPermissionShowsTheCommand(t *testing.T) {
	p := &wire.PermissionRequired{ToolName: "Bash", ToolInput: raw(t, `{"command":"rm -rf /srv","description":"Tidy up"}`), Description: "Tidy up"}
	if _, text, _ := timeline.Of(&wire.Event{Payload: p}); text != "Permission needed: Bash\nrm -rf /srv" {
		t.Errorf("%q", text)
	}
}

// Nothing of a call that a person decides on is hidden, whatever its agent writes into it.
func TestWholeInput(t *testing.T) {
	for _, test := range []struct {
		tool, input, want string
	}{
		{"Bash", `{"command":"ls","description":"Lists"}`, "ls"},
		{"Bash", `{"description":"Lists","command":"git status \u001b];rm -rf ~;\u0007"}`, "git status ␛];rm -rf ~;␇"},
		{"Bash", `{"command":"a\r\u009b2Kb","timeout":5}`, "a␍\\u009b2Kb\ntimeout: 5"},
		{"Bash", `{"command":"rm \u200b\u202e\u2028\u200dx 👩\u200d👧"}`, `rm \u200b\u202e\u2028\u200dx 👩‍👧`},
		{"mcp__db__run", `{"sql":"DROP TABLE t;\nCOMMIT","command":"SELECT 1","description":"harmless"}`, "SELECT 1\ndescription: harmless\nsql: DROP TABLE t;\n  COMMIT"},
		{"mcp__db__run", `{"questions":[{"question":"Well?"}],"sql":"DROP TABLE t"}`, `questions: [{"question":"Well?"}]` + "\nsql: DROP TABLE t"},
		{"Write", `{"file_path":"f","content":"one\ntwo"}`, "f\ncontent: one\n  two"},
		{"Write", `{"file_path":"f","a\nb\u001b":"c"}`, "f\na\\nb␛: c"},
		{"Write", `{"file_path":"f","content":"` + strings.Repeat("x", 20_000) + `"}`, "f\ncontent: " + strings.Repeat("x", 16<<10) + "\n  … 3616 more bytes"},
		{"Fetch", `["a","b"]`, `["a","b"]`},
		{"Fetch", `{"":"rm"}`, ": rm"},
		{"Bash", `{"command":"ls","command":"rm"}`, "rm"}, // as a tool reads it
		{"Codex", `{"command":["sh","-c","rm"]}`, `command: ["sh","-c","rm"]`},
		{"Fetch", `{}`, ""},
	} {
		got := timeline.WholeInput(test.tool, raw(t, test.input))
		if got != test.want {
			t.Errorf("%s %s:\n%q, want\n%q", test.tool, timeline.Line(test.input, 200), got, test.want)
		}
		if again := timeline.Sanitize(got); again != got {
			t.Errorf("%q isn't safe for a terminal", got)
		}
	}
}

func TestMeansTools(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{"tool_use": true, "tool|tool_use": true, "tool_": false, "^tool": false, "tool.*": true, "": false, "error": false} {
		if got := timeline.MeansTools(regexp.MustCompile("(?i)" + pattern)); got != want {
			t.Errorf("%q: %t", pattern, got)
		}
	}
}
