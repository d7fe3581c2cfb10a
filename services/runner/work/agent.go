package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// runAgent drives the agent of the node and returns the events that end the
// execution.
func (x *execution) runAgent(ctx context.Context) ([]*wire.Event, error) {
	in, err := x.agentInput()
	if errors.Is(err, errNoProvider) {
		return nil, &failure{message: err.Error(), kind: wire.ErrorNoProvider}
	}
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	if !in.can.Recorded {
		if x.hold, err = graspKeeper(ctx, x); err != nil {
			return nil, err
		}
	}
	if x.hold.hasProgram(agentProgram) {
		events, err := x.attachAgent(ctx, in)
		if !errors.Is(err, agent.ErrLost) {
			return events, err
		}
		if err := x.refreshState(ctx); err != nil {
			return nil, err
		}
	}
	if x.isHalted() && !x.isHoldOnly() {
		return nil, x.endHalted()
	}
	for lost := 1; ; lost++ {
		events, err := x.startAgent(ctx, in)
		if !errors.Is(err, agent.ErrLost) {
			return events, err
		}
		if lost == maxLost {
			return events, &failure{message: fmt.Sprintf("%d keepers of the agent have ended, one after the other", lost), kind: wire.ErrorException}
		}
		if err := x.refreshState(ctx); err != nil {
			return nil, err
		}
	}
}

// attachAgent goes on with an agent that is at work, or with what there is of one that was.
func (x *execution) attachAgent(ctx context.Context, in *agentInput) ([]*wire.Event, error) {
	request := x.newRequest(in)
	request.SessionID, request.Resume = x.state.ExecSessions[x.entry.Exec], true
	request.History = resumption{x, in}.pastEvents(ctx)
	x.begun, x.started = true, time.UnixMilli(x.entry.StartedAt)
	x.span.End()
	d := &drive{exec: x, request: request, can: in.can, attaches: true}
	return d.run(ctx, in)
}

// refreshState takes the state as it is now: an agent that was lost has left events behind the
// claim.
func (x *execution) refreshState(ctx context.Context) error {
	x.hold.replaceLost()
	if err := x.log.writer.Flush(ctx); err != nil {
		return err
	}
	v, err := x.cfg.Runs.Open(ctx, x.offer.RunID)
	if err != nil {
		return err
	}
	defer v.Close()
	input := x.entry.Input
	x.state = run.Clone(v.State)
	x.entry = x.state.Nodes[x.offer.NodeID]
	x.entry.Input = input
	x.workdir.fresh = false // the agent that was lost has worked in it
	return nil
}

// startAgent has an agent begin, or go on in its session.
func (x *execution) startAgent(ctx context.Context, in *agentInput) ([]*wire.Event, error) {
	d, err := x.prepareAgent(ctx, in)
	if d == nil {
		return nil, err
	}
	events, err := d.run(ctx, in)
	if !errors.Is(err, errSessionNotFound) {
		return events, err
	}
	return x.startAfresh(ctx, in, d)
}

// startAfresh has an agent begin in place of d, whose session it doesn't know.
func (x *execution) startAfresh(ctx context.Context, in *agentInput, d *drive) ([]*wire.Event, error) {
	x.cfg.Logger.Warn("session not found: the agent begins afresh",
		"run", x.offer.RunID, "node", x.offer.NodeID, "session", d.request.SessionID)
	if err := x.hold.renewKeeper(ctx); err != nil {
		return nil, err
	}
	request := x.newRequest(in)
	request.SessionID = d.request.SessionID // the agent doesn't know it: it is free
	d = &drive{exec: x, request: request, can: in.can, opening: d.opening, first: d.message, again: d.given}
	return d.run(ctx, in)
}

// prepareAgent has everything ready for an agent that begins, or goes on in its session; nil if there is nothing to be done.
func (x *execution) prepareAgent(ctx context.Context, in *agentInput) (*drive, error) {
	var next continuation
	var err error
	again := resumption{x, in}
	if x.entry.Started != 0 {
		if next, err = again.goOn(ctx); err != nil || x.isHoldOnly() {
			return nil, err
		}
	}
	if next.session == "" && next.fork == nil && len(x.attemptIDs()) > 1 {
		if err := again.retryAgent(ctx, &next); err != nil {
			return nil, err
		}
	}
	prepare := x.hold.renewKeeper
	if next.kept {
		prepare = x.hold.carryOver
	}
	if err := prepare(ctx); err != nil {
		return nil, err
	}
	request := x.newRequest(in)
	next.adjustRequest(request)
	if request.Resume || request.ForkOf != "" {
		request.History = again.pastEvents(ctx)
	}
	return &drive{
		exec: x, request: request, can: in.can, opening: next.opening, first: next.first, message: next.message, seen: next.seen,
		// A session without a turn has nothing to lose: it begins afresh.
		lenient: x.entry.Turns == 0 && !next.worked && (request.Resume || request.ForkOf != ""),
	}, nil
}

// newRequest asks for a session that begins.
func (x *execution) newRequest(in *agentInput) *agent.Request {
	r := &agent.Request{
		RunID: x.offer.RunID, NodeID: x.offer.NodeID, ExecID: x.offer.ExecID,
		SessionID: agent.NewSessionID(), Prompt: in.Prompt, Options: in.Options,
		Host:       process.Direct{Home: x.cfg.Home},
		Transcript: agent.Transcript{Load: x.cfg.Sessions.Load, Save: x.cfg.Sessions.Save},
	}
	if x.hold != nil {
		r.Host, r.Decided = x.hold.host, x.hold.decided
	}
	if p := x.node.Policy; p != nil {
		r.StartTimeout = time.Duration(p.StartTimeoutMs) * time.Millisecond
	}
	r.Hooks = hook.New(hook.Config{
		Hooks: x.def.HooksOf(x.node), RunID: r.RunID, NodeID: r.NodeID, ExecID: r.ExecID, Host: x.processHost(), Dir: in.Cwd,
		Env: agent.CommandEnvironment(os.Environ(), in.Env), Ask: x.cfg.Ask, Logger: x.cfg.Logger,
	})
	for _, q := range x.entry.Asked {
		r.Asked = append(r.Asked, q.ID)
	}
	if in.can.StartsRuns && !x.isSubAgent() {
		parts := parts{x}
		r.Delegate = func(ctx context.Context, call, prompt string) (agent.Part, error) {
			return parts.delegatePrompt(ctx, in.name, call, prompt)
		}
		r.RunFlow, r.Flows = parts.runFlow, x.node.Flows
	}
	return r
}

// isSubAgent reports whether an agent has started this one, which starts none itself.
func (x *execution) isSubAgent() bool {
	return x.state.ParentCall != "" && x.state.FlowName == subAgentName
}
