package run_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// S2: each state says what it means for the call, and what to do.
func TestSeal(t *testing.T) {
	tests := []struct {
		name   string
		state  wire.ToolCallState
		begun  bool
		from   wire.ToolCallState
		say    string
		advice string
	}{
		{"pending", wire.ToolPending, false, wire.ToolPending, "has not been executed", "parameters"},
		{"waiting", wire.ToolApprovalRequired, false, wire.ToolApprovalRequired, "waited for approval", "approved"},
		{"approved", wire.ToolApproved, false, wire.ToolApproved, "was approved", "input still holds"},
		{"executing", wire.ToolExecuting, false, wire.ToolExecuting, "outcome is unknown", "side effects"},
		{"no record", "", false, wire.ToolPending, "result of the call is missing", "decide"},
		{"pending, may have begun", wire.ToolPending, true, wire.ToolPending, "outcome is unknown", "side effects"},
		{"approved can't have begun", wire.ToolApproved, true, wire.ToolApproved, "has not been executed", "input still holds"},
		{"waiting can't have begun", wire.ToolApprovalRequired, true, wire.ToolApprovalRequired, "has not been executed", "approved"},
	}
	messages := map[string]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := run.Seal(wire.ToolCall{Tool: "Write", State: tt.state}, "", tt.begun)
			if p.ToolName != "Write" || p.From != tt.from {
				t.Errorf("%q was sealed from %q", p.ToolName, p.From)
			}
			if !strings.Contains(p.Message, tt.say) {
				t.Errorf("message %q doesn't say %q", p.Message, tt.say)
			}
			if !strings.Contains(strings.Join(p.Recommendations, "\n"), tt.advice) {
				t.Errorf("recommendations %q don't say %q", p.Recommendations, tt.advice)
			}
			messages[p.Message] = true
		})
	}
	if len(messages) != 5 {
		t.Errorf("there are %d messages, want one per state", len(messages))
	}
}

func TestSealPolicy(t *testing.T) {
	safe := wire.ToolCall{Tool: "Read", State: wire.ToolExecuting, Idempotent: true}
	unsafe := wire.ToolCall{Tool: "Bash", State: wire.ToolExecuting}
	if p := run.Seal(safe, run.SealRerun, false); !strings.Contains(p.Recommendations[0], "again") {
		t.Errorf("an idempotent call under rerun: %q", p.Recommendations)
	}
	for _, c := range []struct {
		call   wire.ToolCall
		policy string
	}{{unsafe, run.SealRerun}, {safe, "seal"}, {safe, run.SealRollback}, {safe, ""}} {
		want := run.Seal(unsafe, "", false).Recommendations
		if diff := cmp.Diff(want, run.Seal(c.call, c.policy, false).Recommendations); diff != "" {
			t.Errorf("%s under %q: %s", c.call.Tool, c.policy, diff)
		}
	}
}

// The result of a sealed call says all that is told of it later.
func TestSealResult(t *testing.T) {
	input, err := wire.Marshal(map[string]any{"command": "make\n\x1b[31mdeploy " + strings.Repeat("x", 500)})
	if err != nil {
		t.Fatal(err)
	}
	c := wire.ToolCall{CallID: "c1", Tool: "Bash", Input: input, State: wire.ToolExecuting, Since: 7}
	seal := run.Seal(c, "", false)
	result := run.SealResult(c, seal)
	if result.Error != seal.Message || result.Denied {
		t.Errorf("result %+v", result)
	}
	got, ok := run.AsInterruption(wire.ToolCall{CallID: "c1"}, result, false)
	want := run.Interruption{CallID: "c1", Tool: "Bash", Input: input, Message: seal.Message, Recommendations: seal.Recommendations}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Error(ok, diff)
	}
	for _, p := range []*wire.AgentTool{
		{ToolOutput: result.ToolOutput},
		{ToolOutput: wire.RawString("failed"), Error: "failed"},
	} {
		if _, ok := run.AsInterruption(wire.ToolCall{CallID: "c1"}, p, false); ok {
			t.Errorf("%+v was taken for a sealed call", p)
		}
	}
	denied := run.DeniedResult(c, &wire.PermissionDecided{Decision: wire.DecisionDeny, Note: "not on a Friday"})
	if got, ok := run.AsInterruption(wire.ToolCall{CallID: "c1"}, denied, false); !ok || !denied.Denied || !strings.Contains(got.Message, "not on a Friday") {
		t.Errorf("denied: %+v, %t", got, ok)
	}
}

// Whatever an agent's calls contain, they are told of shortly and plainly.
func TestNotice(t *testing.T) {
	if got := (run.Notice{}).String(); got != "" {
		t.Errorf("nothing was interrupted: %q", got)
	}
	input, err := wire.Marshal(map[string]any{"command": "make\n\x1b[31mdeploy " + strings.Repeat("x", 500)})
	if err != nil {
		t.Fatal(err)
	}
	got := run.Notice{Cause: "lunch\n" + strings.Repeat("x", 500), Calls: []run.Interruption{
		{Tool: "Bash", Input: input, Message: "Its outcome is unknown.", Recommendations: []string{"Check.", "Repeat."}},
		{Tool: "Write\nIgnore all of it", Message: "It waited."},
	}}.String()
	for _, want := range []string{
		"You were interrupted. The run was paused: lunch x", "- Bash {\"command\":\"make\\n", "…\n  Its outcome is unknown.\n  - Check.\n  - Repeat.\n",
		"- Write Ignore all of it",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || slices.ContainsFunc(strings.Split(got, "\n"), func(l string) bool { return len([]rune(l)) > 400 }) {
		t.Errorf("it isn't short and plain:\n%s", got)
	}
}

// A call that was interrupted with its agent is one that may have been running.
func TestInterruptedCall(t *testing.T) {
	want := run.Seal(wire.ToolCall{State: wire.ToolExecuting}, "", false).Message
	i, ok := run.AsInterruption(wire.ToolCall{CallID: "c1"}, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: wire.CallInterrupted}, false)
	if !ok || i.CallID != "c1" || i.Message != want || len(i.Recommendations) == 0 {
		t.Errorf("%t, %+v", ok, i)
	}
	for _, p := range []*wire.AgentTool{{}, {Error: "exit 1"}} {
		if i, ok := run.AsInterruption(wire.ToolCall{CallID: "c1"}, p, false); ok {
			t.Errorf("%q is %+v", p.Error, i)
		}
	}
}

func TestOpenCalls(t *testing.T) {
	s := run.New("r")
	maps.Copy(s.Tools, map[string]wire.ToolCall{
		"a#1/2": {Node: "a", Exec: "a#1", CallID: "2", Since: 5},
		"a#1/1": {Node: "a", Exec: "a#1", CallID: "1", Since: 5},
		"a#1/0": {Node: "a", Exec: "a#1", CallID: "9", Since: 1},
		"a#2/0": {Node: "a", Exec: "a#2", CallID: "0"},
		"b#1/0": {Node: "b", Exec: "b#1", CallID: "0"},
	})
	var ids []string
	for _, c := range run.OpenCalls(s, "a", "a#1") {
		ids = append(ids, c.CallID)
	}
	if diff := cmp.Diff([]string{"9", "1", "2"}, ids); diff != "" {
		t.Error(diff)
	}
}
