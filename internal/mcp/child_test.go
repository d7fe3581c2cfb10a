package mcp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// What waits in a child of the run that is named is answered there; of two nodes with a call of one id, that of the one that is named.
func TestAnswersWhereItWaits(t *testing.T) {
	var done []wire.Command
	p := fake(&done)
	p.Approvals = func(context.Context, wire.ApprovalsRequest) (wire.ApprovalsResponse, error) {
		return wire.ApprovalsResponse{Approvals: []wire.Approval{
			{Kind: wire.ApprovalCall, RunID: "child", NodeID: "coder", CallID: "t0", ToolName: "Bash"},
			{Kind: wire.ApprovalCall, RunID: "run1", NodeID: "a", CallID: "t1", ToolName: "Bash"},
			{Kind: wire.ApprovalCall, RunID: "run1", NodeID: "b", CallID: "t1", ToolName: "Bash"},
			{Kind: wire.ApprovalAsk, RunID: "child", NodeID: "ask", CallID: "q0", Text: "Tabs?"},
		}}, nil
	}
	s := connect(t, p)
	call(t, s, "approve", map[string]any{"run": "run1", "call": "t0"})
	if text := fmt.Sprint(call(t, s, "approve", map[string]any{"run": "run1", "call": "t1"})); !strings.Contains(text, "2 of run run1 wait") {
		t.Errorf("of two calls: %s", text)
	}
	call(t, s, "deny", map[string]any{"run": "run1", "call": "t1", "node": "b"})
	call(t, s, "reply", map[string]any{"run": "run1", "answer": "yes"})
	var got []string
	for _, c := range done {
		got = append(got, strings.Join([]string{c.Type, c.RunID, c.NodeID, c.CallID + c.PromptID}, " "))
	}
	if want := "approve child coder t0, deny run1 b t1, reply child ask q0"; strings.Join(got, ", ") != want {
		t.Errorf("given were %q, want %q", got, want)
	}
}
