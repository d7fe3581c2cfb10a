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
	return p.giveCommand(ctx, run, cmd, done)
}

// giveCommand gives a command to a run; done says what that was.
func (p Pipeline) giveCommand(ctx context.Context, run string, cmd wire.Command, done string) (string, order, error) {
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
	Node   string `json:"node,omitempty" jsonschema:"its node"`
}

func (p Pipeline) answerQuestion(ctx context.Context, in replyInput) (string, order, error) {
	content, err := wire.Marshal(in.Answer)
	if err != nil {
		return "", order{}, badRequest("answer: %v", err)
	}
	asked, err := p.findOpen(ctx, in.Run, "question", "prompt", func(a wire.Approval) bool {
		return a.Kind != wire.ApprovalCall && a.CallID != "" && (in.Prompt == "" || in.Prompt == a.CallID) && (in.Node == "" || in.Node == a.NodeID)
	})
	if err != nil {
		return "", order{}, err
	}
	c := wire.Command{Type: "reply", NodeID: asked.NodeID, PromptID: asked.CallID, Content: content}
	return p.giveCommand(ctx, asked.RunID, c, "answered "+cleanLine(asked.CallID)+" of")
}

// findOpen returns what waits in the run that ref means, or in a run that it waits for, and is meant. It fails unless that is
// exactly one: what says what such a thing is called, field how one is named.
func (p Pipeline) findOpen(ctx context.Context, ref, what, field string, meant func(wire.Approval) bool) (open wire.Approval, err error) {
	run, err := p.Find(ctx, ref)
	if err != nil {
		return open, err
	}
	waits, err := p.Approvals(ctx, wire.ApprovalsRequest{Run: run})
	if err != nil {
		return open, err
	}
	var all []string
	for _, a := range waits.Approvals {
		if meant(a) {
			open, all = a, append(all, fmt.Sprintf("%s (node %s of run %s)", a.CallID, a.NodeID, a.RunID))
		}
	}
	switch len(all) {
	case 1:
		return open, nil
	case 0:
		return open, &wire.APIError{Code: wire.CodeCommandRejected, Message: fmt.Sprintf("no such %s of run %s waits", what, run), Hint: "see approvals"}
	}
	slices.Sort(all)
	return open, &wire.APIError{
		Code: wire.CodeAmbiguousID, Message: fmt.Sprintf("%d of run %s wait: %s", len(all), run, strings.Join(all, ", ")),
		Hint: "name one by " + field + ", node and run",
	}
}

type decisionInput struct {
	Run  string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Call string `json:"call,omitempty" jsonschema:"id of the call; absent: the one that waits"`
	Node string `json:"node,omitempty" jsonschema:"its node, if several have that call"`
	Note string `json:"note,omitempty" jsonschema:"why, for the agent and the log; of a call that asks a question, the answer"`
}

func (p Pipeline) approveCall(ctx context.Context, in decisionInput) (string, order, error) {
	return p.decideCall(ctx, in, "approve", "approved")
}

func (p Pipeline) denyCall(ctx context.Context, in decisionInput) (string, order, error) {
	return p.decideCall(ctx, in, "deny", "denied")
}

func (p Pipeline) decideCall(ctx context.Context, in decisionInput, kind, done string) (string, order, error) {
	asked, err := p.findOpen(ctx, in.Run, "call", "call", func(a wire.Approval) bool {
		return (a.Kind == wire.ApprovalCall || a.Kind == wire.ApprovalQuestion) && (in.Call == "" || a.CallID == in.Call) && (in.Node == "" || in.Node == a.NodeID)
	})
	if err != nil {
		return "", order{}, err
	}
	if kind == "approve" && asked.Kind == wire.ApprovalCall && !canBeTold(asked) {
		return "", order{}, &wire.APIError{
			Code: wire.CodeCommandRejected, Message: "the call is longer than approvals can tell: nobody should allow what he hasn't seen",
			Hint: "deny it, or have a person decide with `wake approvals`, `wake attach` or the console",
		}
	}
	c := wire.Command{Type: kind, NodeID: asked.NodeID, CallID: asked.CallID, Note: in.Note}
	return p.giveCommand(ctx, asked.RunID, c, done+" "+cleanLine(asked.CallID)+" of")
}
