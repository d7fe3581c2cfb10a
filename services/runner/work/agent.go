package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// beginAgent has the agent of the node begin, or returns the events that end the
// execution.
func (x *execution) beginAgent(ctx context.Context) ([]*wire.Event, error) {
	in, err := x.agentInput()
	if errors.Is(err, errNoProvider) {
		return nil, &failure{message: err.Error(), kind: wire.ErrorNoProvider}
	}
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	if !in.can.Recorded {
		if x.hold, err = graspKeeper(x.outer, x); err != nil { //nolint:contextcheck // an agent that is withdrawn by now ends
			return nil, err
		}
	}
	if x.hold.hasProgram(agentProgram) {
		return x.beginSession(ctx, in, x.attachAgent(ctx, in))
	}
	return x.startAgent(ctx, in)
}

// startAgent has an agent begin, or go on in its session.
func (x *execution) startAgent(ctx context.Context, in *agentInput) ([]*wire.Event, error) {
	if x.isHalted() && !x.isHoldOnly() {
		return nil, x.endHalted()
	}
	d, err := x.prepareAgent(ctx, in)
	if d == nil {
		return nil, err
	}
	return x.beginSession(ctx, in, d)
}

// beginSession begins a session of the agent, or returns the events that end the execution.
func (x *execution) beginSession(ctx context.Context, in *agentInput, d *drive) ([]*wire.Event, error) {
	events, err := d.begin(ctx, in)
	if err == nil {
		x.drive = d
		return nil, nil
	}
	return x.replaceSession(ctx, d, events, err)
}

// endSession ends the session of the agent, which may go on in another. last and err are how the agent's events have ended.
func (x *execution) endSession(last []*wire.Event, err error) {
	d := x.drive
	x.drive, x.lingered = nil, d.can.Lingers
	events, err := d.end(x.ctx, last, err)
	x.events, x.err = x.replaceSession(x.ctx, d, events, err)
}

// replaceSession begins another session in place of one that was lost, or that the agent doesn't know; events and err are how that
// has ended. Else it returns these.
func (x *execution) replaceSession(ctx context.Context, d *drive, events []*wire.Event, err error) ([]*wire.Event, error) {
	switch {
	case errors.Is(err, errSessionNotFound):
		return x.startAfresh(ctx, d)
	case errors.Is(err, errLate):
		return x.goOnWith(ctx, d.late)
	case !errors.Is(err, agent.ErrLost):
		return events, err
	case d.attaches:
	default:
		if x.lost++; x.lost == maxLost {
			return events, &failure{message: fmt.Sprintf("%d keepers of the agent have ended, one after the other", x.lost), kind: wire.ErrorException}
		}
	}
	if err := x.refreshState(ctx); err != nil {
		return nil, err
	}
	in, err := x.agentInput()
	if err != nil {
		return nil, err
	}
	return x.startAgent(ctx, in)
}

// attachAgent returns the session of an agent that is at work, or of what there is of one that was.
func (x *execution) attachAgent(ctx context.Context, in *agentInput) *drive {
	request := x.newRequest(in)
	request.SessionID, request.Resume = x.state.ExecSessions[x.entry.Exec], true
	request.History = resumption{x, in}.pastEvents(ctx)
	x.begun = true
	x.span.End()
	return &drive{exec: x, request: request, can: in.can, attaches: true}
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
	x.setState(run.Clone(v.State()))
	x.entry.Input = input
	x.workdir.fresh = false // the agent that was lost has worked in it
	return nil
}

// startAfresh begins a new session of the agent, which doesn't know the session of d.
func (x *execution) startAfresh(ctx context.Context, d *drive) ([]*wire.Event, error) {
	x.cfg.Logger.Warn("session not found: the agent begins afresh",
		"run", x.offer.RunID, "node", x.offer.NodeID, "session", d.id)
	if err := x.refreshState(ctx); err != nil {
		return nil, err
	}
	in, err := x.agentInput()
	if err != nil {
		return nil, err
	}
	if err := x.hold.renewKeeper(ctx); err != nil {
		return nil, err
	}
	request := x.newRequest(in)
	request.SessionID = d.id // the agent doesn't know it: it is free
	return x.beginSession(ctx, in, &drive{exec: x, request: request, can: in.can, opening: d.opening, first: d.message, again: d.given})
}

// goOnWith has the agent go on in its session with messages that it hasn't read when its program ended.
func (x *execution) goOnWith(ctx context.Context, messages []wire.InboxEntry) ([]*wire.Event, error) {
	if err := x.refreshState(ctx); err != nil {
		return nil, err
	}
	in, err := x.agentInput()
	if err != nil {
		return nil, err
	}
	if x.isHalted() {
		return nil, x.endHalted()
	}
	x.entry.Resume = &wire.Resume{Strategy: command.StrategyManual}
	d, err := x.prepareAgent(ctx, in)
	if d == nil {
		return nil, err
	}
	d.request.Prompt, d.again = wire.Null, messages
	return x.beginSession(ctx, in, d)
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
	if r := x.entry.Resume; r != nil && r.Message != "" && x.entry.Started == 0 { // it came between two executions
		next.first, next.opening = r.Message, append(next.opening, &wire.Event{Payload: &wire.AgentResumed{Strategy: r.Strategy}})
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
	r.Expects = slices.ContainsFunc(x.state.Inbox, func(m wire.InboxEntry) bool { return isTo(m, x.offer) })
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
