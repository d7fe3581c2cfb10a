package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// order is what has become of a command.
type order struct {
	Run      string `json:"run"`
	Recorded bool   `json:"recorded" jsonschema:"false: it waits for a runner"`
}

// sendCommand sends a command to the run that ref means, and says what has become of it.
func (p Pipeline) sendCommand(ctx context.Context, ref string, cmd wire.Command, done string) (string, order, error) {
	run, err := p.Find(ctx, ref)
	if err != nil {
		return "", order{}, err
	}
	cmd.RunID, cmd.By = run, "mcp"
	r, err := p.Do(ctx, cmd)
	if err != nil {
		return "", order{}, err
	}
	text := done + " run " + cleanLine(run)
	if !r.Recorded {
		text = "queued: no runner answers; it is obeyed when one comes"
	}
	return text, order{Run: cleanLine(run), Recorded: r.Recorded}, nil
}

type messageInput struct {
	Run     string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Message string `json:"message" jsonschema:"what to tell"`
	Node    string `json:"node,omitempty" jsonschema:"to the agent of this node, if several are at work"`
}

func (in messageInput) checkMessage() error {
	if strings.TrimSpace(in.Message) == "" {
		return badRequest("message is empty")
	}
	return nil
}

func (p Pipeline) sendMessage(ctx context.Context, in messageInput) (string, order, error) {
	if err := in.checkMessage(); err != nil {
		return "", order{}, err
	}
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "send", Message: in.Message, NodeID: in.Node}, "sent to")
}

func (p Pipeline) steerAgent(ctx context.Context, in messageInput) (string, order, error) {
	if err := in.checkMessage(); err != nil {
		return "", order{}, err
	}
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "steer", Message: in.Message, NodeID: in.Node}, "steered")
}

type replyInput struct {
	Run    string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Answer any    `json:"answer" jsonschema:"a text, or any JSON value that the question wants; of several questions an object, by header or number"`
	Prompt string `json:"prompt,omitempty" jsonschema:"id of the question, as approvals tells it; absent: the one that is open"`
}

func (p Pipeline) answerQuestion(ctx context.Context, in replyInput) (string, order, error) {
	content, err := wire.Marshal(in.Answer)
	if err != nil {
		return "", order{}, badRequest("answer: %v", err)
	}
	run, id, err := p.findOpen(ctx, in.Run, "question", "prompt", func(a wire.Approval) bool {
		return a.Kind != wire.ApprovalCall && a.CallID != "" && (in.Prompt == "" || in.Prompt == a.CallID)
	})
	if err != nil {
		return "", order{}, err
	}
	return p.sendCommand(ctx, run, wire.Command{Type: "reply", PromptID: id, Content: content}, "answered "+cleanLine(id)+" of")
}

// findOpen returns the run that ref means, and the id of what waits in it and is meant. It fails unless that is
// exactly one: what says what such a thing is called, field how one is named.
func (p Pipeline) findOpen(ctx context.Context, ref, what, field string, meant func(wire.Approval) bool) (run, id string, err error) {
	if run, err = p.Find(ctx, ref); err != nil {
		return "", "", err
	}
	waits, err := p.Approvals(ctx, wire.ApprovalsRequest{Run: run})
	if err != nil {
		return "", "", err
	}
	var open []string
	for _, a := range waits.Approvals {
		if meant(a) {
			open = append(open, a.CallID)
		}
	}
	slices.Sort(open)
	switch open = slices.Compact(open); len(open) {
	case 1:
		return run, open[0], nil
	case 0:
		return "", "", &wire.APIError{Code: wire.CodeCommandRejected, Message: fmt.Sprintf("no such %s of run %s waits", what, run), Hint: "see approvals"}
	}
	return "", "", &wire.APIError{
		Code: wire.CodeAmbiguousID, Message: fmt.Sprintf("%d of run %s wait: %s", len(open), run, strings.Join(open, ", ")),
		Hint: "name one by " + field,
	}
}

type decisionInput struct {
	Run  string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Call string `json:"call,omitempty" jsonschema:"id of the call; absent: the one that waits"`
	Note string `json:"note,omitempty" jsonschema:"why, for the agent and the log; of a call that asks a question, the answer"`
}

func (p Pipeline) approveCall(ctx context.Context, in decisionInput) (string, order, error) {
	return p.decideCall(ctx, in, "approve", "approved")
}

func (p Pipeline) denyCall(ctx context.Context, in decisionInput) (string, order, error) {
	return p.decideCall(ctx, in, "deny", "denied")
}

func (p Pipeline) decideCall(ctx context.Context, in decisionInput, kind, done string) (string, order, error) {
	run, id, err := p.findOpen(ctx, in.Run, "call", "call", func(a wire.Approval) bool {
		return (a.Kind == wire.ApprovalCall || a.Kind == wire.ApprovalQuestion) && (in.Call == "" || a.CallID == in.Call)
	})
	if err != nil {
		return "", order{}, err
	}
	return p.sendCommand(ctx, run, wire.Command{Type: kind, CallID: id, Note: in.Note}, done+" "+cleanLine(id)+" of")
}
