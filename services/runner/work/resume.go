package work

import (
	"cmp"
	"context"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// continuation is how an agent goes on that has begun.
type continuation struct {
	session string           // to go on with; "": it begins a new one
	fork    *wire.AgentPoint // which begins as a copy of this one
	prompt  string           // "": the node's own
	first   string           // a message besides
	message string           // what it is told, in case it has to begin afresh
	opening []*wire.Event    // to be stored with its agent:start
	seen    []wire.Raw       // inputs of its calls so far
	facts   []agent.Fact     // which its session may have lost
	calls   agent.Calls      // that the log has
	denied  []string         // of which a decision refused these
	bare    bool             // it is told nothing but prompt
	worked  bool             // in its session, which has to be found
	kept    bool             // commands that it has begun are gone on with
}

// adjustRequest makes a request that begins a session one that goes on.
func (c continuation) adjustRequest(r *agent.Request) {
	switch {
	case c.prompt != "":
		r.Prompt = wire.RawString(c.prompt)
	case c.bare:
		r.Prompt = wire.Null
	}
	r.Facts, r.Calls, r.Denied = c.facts, c.calls, c.denied
	switch {
	case c.fork != nil:
		r.ForkOf, r.ForkAt = c.fork.Session, c.fork.Point
	case c.session != "":
		r.SessionID, r.Resume = c.session, true
	}
}

// resumption has an agent go on with an execution that began before.
type resumption struct {
	exec *execution
	in   *agentInput
}

// goOn deals with the calls that an interrupted agent has left open and says how
// it goes on. What is to be told of them is in the log, so that a crash at any
// point in here neither seals twice nor leaves anything untold. If the execution is
// only held, that is all, and is on record.
func (r resumption) goOn(ctx context.Context) (c continuation, err error) {
	n, in := r.exec.entry, r.in
	resume := wire.Resume{}
	if n.Resume != nil {
		resume = *n.Resume
	}
	resume.Strategy = cmp.Or(resume.Strategy, command.StrategyCrash)
	c.session, c.fork = r.exec.state.ExecSessions[n.Exec], n.Fork
	if in.can.ResumesFromLog && (c.session != "" || c.fork != nil) {
		return r.carryOn(ctx, resume)
	}
	resumed := &wire.AgentResumed{Strategy: resume.Strategy}
	if c.session == "" && c.fork == nil { // nothing was begun
		if n.Resume != nil {
			c.opening, c.first = []*wire.Event{{Payload: resumed}}, resume.Message
		}
	} else {
		p, err := r.readPast(ctx)
		if err != nil {
			return c, err
		}
		var calls []wire.ToolCall
		switch {
		case resume.Strategy != command.StrategyManual:
			if calls, err = r.recoverCalls(ctx, c, p); err != nil {
				return c, err
			}
		case !r.exec.isHoldOnly():
			calls = r.decidedCalls()
		}
		if err := r.sealCalls(ctx, p, calls); err != nil {
			return c, err
		}
		resumed.Sealed = p.Sealed
		c.opening = []*wire.Event{{SessionID: c.session, Payload: resumed}}
		if !r.exec.isHoldOnly() {
			if inexact, err := r.warnOfFork(ctx); err != nil {
				return c, err
			} else if inexact != nil {
				c.opening = append(c.opening, inexact)
			}
		}
		if p.RolledBack && n.Point != "" && cmp.Or(p.Session, c.session) != "" {
			c.fork = &wire.AgentPoint{Session: cmp.Or(p.Session, c.session), Point: n.Point}
		}
		c.prompt, c.message, c.seen = p.Prompt(resume.Message, r.newFolder()), p.Message(resume.Message), p.Inputs
		c.calls, c.denied = agent.Calls{Open: p.Open, Ended: p.Ended, Counted: p.Counted, Whole: p.Whole}, p.Denied
		for _, f := range p.Facts {
			c.facts = append(c.facts, agent.Fact(f))
		}
	}
	if !r.exec.isHoldOnly() || len(c.opening) == 0 {
		return c, nil
	}
	return c, r.exec.log.appendEvents(ctx, c.opening...)
}

// decidedCalls are the open calls of the execution that a command has allowed or denied since its agent is gone.
func (r resumption) decidedCalls() []wire.ToolCall {
	given := callDecisions(r.exec.state.Inbox, r.exec.offer.NodeID, r.exec.offer.ExecID)
	calls := run.OpenCalls(r.exec.state, r.exec.offer.NodeID, r.exec.offer.ExecID)
	return slices.DeleteFunc(calls, func(c wire.ToolCall) bool { _, decided := given[c.CallID]; return !decided })
}

// newFolder is where the agent goes on if that isn't the folder that it had.
func (r resumption) newFolder() *run.Folder {
	if !r.exec.workdir.fresh {
		return nil
	}
	return &run.Folder{Path: r.exec.workdir.path, Clone: r.exec.workdir.git}
}

// sealCalls closes open calls of the execution in one commit, and notes what the
// agent is to be told of them.
func (r resumption) sealCalls(ctx context.Context, p *run.Past, calls []wire.ToolCall) error {
	n, in := r.exec.entry, r.in
	policy := ""
	if r.exec.node.Policy != nil {
		policy = r.exec.node.Policy.Interrupted
	}
	if len(calls) == 0 {
		return nil
	}
	given := callDecisions(r.exec.state.Inbox, r.exec.offer.NodeID, r.exec.offer.ExecID)
	s := sealing{policy: policy, begun: in.begun, session: r.exec.state.ExecSessions[n.Exec], past: p}
	if policy == run.SealRollback {
		s.rollBack(n)
	}
	for _, c := range calls {
		var err error
		if c.Input, err = r.exec.cfg.Runs.Inline(ctx, r.exec.offer.RunID, c.Input); err != nil {
			return err
		}
		cmd, decided := given[c.CallID]
		if !decided && asksPerson(c) && !in.can.Recorded && !r.exec.isHoldOnly() {
			if cmd, err = r.awaitAnswer(ctx, c.CallID); err != nil {
				return err
			}
			decided = true
		}
		if !decided {
			s.sealCall(c, "")
			continue
		}
		s.decideCall(c, cmd)
	}
	return r.exec.log.appendEvents(ctx, s.events...)
}

// asksPerson reports whether a call is a question of the node's own agent that waits for
// its answer.
func asksPerson(c wire.ToolCall) bool {
	return c.Tool == ask.Tool && c.State == wire.ToolApprovalRequired && c.Parent == ""
}

// awaitAnswer waits for the answer to a question of an agent that is gone: the agent goes on
// with it, not before.
func (r resumption) awaitAnswer(ctx context.Context, call string) (wire.Command, error) {
	_ = r.exec.seat.setResting(ctx, true) // to leave a place takes no time
	for {
		cmd, ok, news := r.exec.asked.decisionOf(call)
		if ok {
			return cmd, r.exec.seat.setResting(ctx, false)
		}
		select {
		case <-news:
		case <-r.exec.halt.order:
			return cmd, errHalted
		case <-ctx.Done():
			return cmd, context.Cause(ctx)
		}
	}
}
