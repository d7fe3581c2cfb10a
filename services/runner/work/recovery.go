package work

import (
	"context"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// recoverCalls puts on record what the agent's own record of its session has of calls and the log
// lacks, since the agent went on when its runner was gone. It returns the calls that are open
// then. Without that record they all are.
func (r resumption) recoverCalls(ctx context.Context, c continuation, p *run.Past) ([]wire.ToolCall, error) {
	calls := run.OpenCalls(r.exec.state, r.exec.offer.NodeID, r.exec.offer.ExecID)
	if r.in.can.Recover == nil || c.session == "" || c.fork != nil {
		return calls, nil
	}
	known := agent.Calls{Ended: p.Ended, Counted: p.Counted, Whole: p.Whole}
	for _, call := range calls {
		if call.State == wire.ToolApprovalRequired { // its result would be of a call without approval
			known.Ended = append(slices.Clone(known.Ended), call.CallID)
		} else {
			known.Open = append(known.Open, call.CallID)
		}
	}
	request := r.exec.newRequest(r.in)
	c.adjustRequest(request)
	request.History = r.pastEvents(ctx)
	events, err := r.in.can.Recover(ctx, *request, known)
	if err != nil {
		r.exec.cfg.Logger.Warn("record of the session not compared with the log",
			"run", r.exec.offer.RunID, "node", r.exec.offer.NodeID, "error", err)
	}
	if len(events) == 0 {
		return calls, nil
	}
	if err := r.exec.log.appendEvents(ctx, events...); err != nil {
		return nil, err
	}
	for _, e := range events {
		p.Take(e)
		switch payload := e.Payload.(type) {
		case *wire.ToolIntent:
			calls = append(calls, wire.ToolCall{
				CallID: e.CallID, Tool: payload.ToolName, Input: payload.ToolInput, State: wire.ToolPending, Idempotent: payload.Idempotent,
			})
		case *wire.CCMessage:
			if payload.Priority != wire.PriorityInfo { // the agent waits for the answer
				r.exec.entry.Asked = append(slices.Clone(r.exec.entry.Asked), wire.Question{ID: e.CallID})
			}
		case *wire.AgentTool:
			calls = slices.DeleteFunc(calls, func(call wire.ToolCall) bool { return call.CallID == e.CallID })
		}
	}
	return calls, nil
}
