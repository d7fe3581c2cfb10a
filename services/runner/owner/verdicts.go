package owner

import (
	"context"
	"slices"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// judgeReply answers the question that is named: of an ask node, of a call of AskUserQuestion, or
// of a message to the parent. The first ends in the node, the others go to the agent as
// what they are: a decision on the call, and a message.
func (j *judge) judgeReply(ctx context.Context) error {
	if j.cmd.PromptID == "" {
		return command.Reject(wire.CodeBadRequest, "promptId is required")
	}
	if j.cmd.Content == nil {
		return command.Reject(wire.CodeBadRequest, "content is required")
	}
	open := slices.DeleteFunc(ask.Pending(j.state), func(a wire.Approval) bool {
		return a.Kind == wire.ApprovalCall || a.CallID != j.cmd.PromptID || j.cmd.NodeID != "" && a.NodeID != j.cmd.NodeID
	})
	switch len(open) {
	case 0:
		return command.Reject(wire.CodeCommandRejected, "no agent waits for an answer to %q; wake approvals %s lists those that do", j.cmd.PromptID, j.state.RunID)
	case 1:
	default:
		return command.Reject(wire.CodeAmbiguousID, "%d agents ask %q%s; name one by nodeId", len(open), j.cmd.PromptID, listText(nodesOf(open)))
	}
	node := open[0].NodeID
	switch n := j.state.Nodes[node]; open[0].Kind {
	case wire.ApprovalQuestion:
		j.cmd.CallID, j.cmd.NodeID, j.cmd.Type = j.cmd.PromptID, node, "approve"
		j.fields["type"], j.fields["callId"] = "approve", j.cmd.PromptID
		return j.judgeDecision(ctx)
	case wire.ApprovalMessage:
		q := wire.Question{ID: j.cmd.PromptID}
		if j.beingAnswered(node, q) {
			return command.Reject(wire.CodeCommandRejected, "%q has its answer", q.ID)
		}
		j.tellAgent(node, q)
		j.fields["message"] = j.cmd.Content.Plain()
		return nil
	default:
		replies := run.RepliesTo(j.cmd.PromptID)
		if slices.ContainsFunc(j.state.Inbox, func(c wire.InboxEntry) bool { return replies(c.Command) }) {
			return command.Reject(wire.CodeCommandRejected, "%q has its answer", j.cmd.PromptID)
		}
		if choices, ok := flow.Acceptable(n.Input, j.cmd.Content); !ok {
			return command.Reject(wire.CodeBadRequest, "the answer is none of the choices%s", listText(choices))
		}
		return nil
	}
}

func nodesOf(open []wire.Approval) []string {
	nodes := make([]string, len(open))
	for i, a := range open {
		nodes[i] = a.NodeID
	}
	slices.Sort(nodes)
	return nodes
}

// tellAgent makes of the command the message that answers what the agent of a node has asked.
// From there on it is a message like others.
func (j *judge) tellAgent(node string, q wire.Question) {
	j.fields["nodeId"], j.fields["execId"], j.fields["type"], j.fields["steer"] = node, j.state.Nodes[node].Exec, "send", true
	if q.ID != "" {
		j.fields["answers"] = q.ID
	}
}

// beingAnswered reports whether an answer is on its way to an agent.
func (j *judge) beingAnswered(node string, q wire.Question) bool {
	return q.ID != "" && slices.ContainsFunc(j.state.Inbox, func(c wire.InboxEntry) bool {
		answers := c.Command.TextAt("answers")
		return answers == q.ID && c.Node == node
	})
}

// judgeDecision names the node of the call that is decided. A question is approved by its answer.
func (j *judge) judgeDecision(ctx context.Context) error {
	if j.cmd.CallID == "" {
		return command.Reject(wire.CodeBadRequest, "callId is required")
	}
	open := slices.DeleteFunc(ask.Pending(j.state), func(a wire.Approval) bool {
		call := a.Kind == wire.ApprovalCall || a.Kind == wire.ApprovalQuestion
		return !call || a.CallID != j.cmd.CallID || j.cmd.NodeID != "" && a.NodeID != j.cmd.NodeID
	})
	switch len(open) {
	case 0:
		return command.Reject(wire.CodeCommandRejected, "no call %q waits for approval; wake approvals %s lists what does", j.cmd.CallID, j.state.RunID)
	case 1:
	default:
		return command.Reject(wire.CodeAmbiguousID, "%d calls %q wait for approval%s; name one by nodeId", len(open), j.cmd.CallID, listText(nodesOf(open)))
	}
	node := open[0].NodeID
	if hasDecision(j.state, j.cmd.CallID, node) {
		return command.Reject(wire.CodeCommandRejected, "call %q has its decision", j.cmd.CallID)
	}
	j.fields["nodeId"] = node
	if open[0].Kind == wire.ApprovalQuestion && j.cmd.Type == "approve" && !ask.Answered(j.cmd.UpdatedInput) {
		return j.answerQuestion(ctx, open[0])
	}
	return nil
}

// answerQuestion makes of what the command says the answers in the call's input.
func (j *judge) answerQuestion(ctx context.Context, question wire.Approval) error {
	answer := j.cmd.Content
	if answer == nil && j.cmd.Note != "" {
		answer = wire.RawString(j.cmd.Note)
	}
	if answer == nil {
		return command.Reject(wire.CodeBadRequest, "call %q asks a question: give the answer (--choose, --note), or deny it", j.cmd.CallID)
	}
	input, err := j.runs.Inline(ctx, j.state.RunID, question.ToolInput)
	if err != nil {
		return err
	}
	updated, err := ask.Answer(input, answer)
	if err != nil {
		return command.Reject(wire.CodeBadRequest, "%v", err)
	}
	j.fields["updatedInput"] = updated
	return nil
}
