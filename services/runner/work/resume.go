package work

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
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
		case <-r.exec.halt.orderGiven():
			return cmd, errHalted
		case <-ctx.Done():
			return cmd, context.Cause(ctx)
		}
	}
}

// readPast reads the events of the execution.
func (r resumption) readPast(ctx context.Context) (*run.Past, error) {
	n := r.exec.entry
	cause := ""
	if n.Fork != nil {
		cause = run.CauseForked
	}
	p := run.NewPast(r.in.Prompt, n.Point, r.in.begun, r.in.can.KeepsLate, cause)
	query := eventlog.Query{
		Run: r.exec.offer.RunID, Node: r.exec.offer.NodeID, From: n.Started, Kinds: []wire.Kind{wire.KindAgent, wire.KindTool},
	}
	for e, err := range history.ReadStored(ctx, r.exec.cfg.Log, query) {
		if err != nil {
			return p, err
		}
		if e.Event == nil || e.Event.ExecID != r.exec.offer.ExecID {
			continue
		}
		event := e.Event
		if event.Type() == wire.TypeAgentStart && len(event.Blobs) > 0 {
			if whole, err := snapshot.Inline(ctx, r.exec.cfg.Log, event); err == nil {
				event = whole
			}
		}
		p.Take(event)
	}
	return p, nil
}

// warnOfFork says that an agent whose session has no points begins with more than was asked for: with what came behind the point from which the run
// was forked, as far as that is kept. Nil: it doesn't.
func (r resumption) warnOfFork(ctx context.Context) (*wire.Event, error) {
	fork := r.exec.entry.Fork
	if fork == nil || fork.Point != "" || r.in.can.Recorded {
		return nil, nil
	}
	works := []wire.Type{wire.TypeToolIntent, wire.TypeAgentTool, wire.TypeUserMessage, wire.TypeTurnEnd}
	for _, a := range r.exec.state.Lineage {
		query := eventlog.Query{Run: a.RunID, Node: r.exec.offer.NodeID, From: a.Position + 1, Kinds: []wire.Kind{wire.KindAgent, wire.KindTool}}
		for e, err := range history.ReadStored(ctx, r.exec.cfg.Log, query) {
			if err != nil {
				return nil, err
			}
			if e.Event == nil || e.Event.SessionID != fork.Session || !slices.Contains(works, e.Event.Type()) {
				continue
			}
			return &wire.Event{SessionID: fork.Session, Payload: &wire.AgentError{
				ErrorType: agent.ErrorForkInexact, Severity: wire.SeverityWarning, Phase: "lifecycle",
				Message: "the agent's session has no points: the fork begins with all of it, also with what came behind the point",
			}}, nil
		}
	}
	return nil, nil
}

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

// pastEvents yields what agents and tools did in the execution so far, whole, and in the attempts
// before it that had its session. What the run was forked from comes first.
func (r resumption) pastEvents(ctx context.Context) iter.Seq2[*wire.Event, error] {
	queries := []eventlog.Query{{Run: r.exec.offer.RunID}}
	for _, a := range r.exec.state.Lineage {
		queries = append(queries, eventlog.Query{Run: a.RunID, To: a.Position})
	}
	slices.Reverse(queries)
	attempts, from := r.exec.attemptIDs(), r.exec.entry.Started
	if len(attempts) > 1 {
		from = 0
	}
	return func(yield func(*wire.Event, error) bool) {
		for _, q := range queries {
			q.Node, q.From, q.Kinds = r.exec.offer.NodeID, from, eventKinds(attempts)
			for e, err := range history.Read(ctx, r.exec.cfg.Log, q) {
				if err != nil {
					yield(nil, err)
					return
				}
				if e.Event == nil || !attempts[e.Event.ExecID] {
					continue
				}
				if !yield(r.exec.cfg.Log.Inline(ctx, e.Event)) {
					return
				}
			}
		}
	}
}

// carryOn is [resumption.goOn] for an agent that goes on from the log. What the model said
// of a message that isn't whole is rolled back. Calls that were running, and may not
// be repeated, are sealed; the others stay open. So do calls with a command that is in the keeper still, or has come to
// its end there.
func (r resumption) carryOn(ctx context.Context, resume wire.Resume) (c continuation, err error) {
	c = continuation{session: r.exec.state.ExecSessions[r.exec.entry.Exec], fork: r.exec.entry.Fork, bare: true}
	p, err := r.readPast(ctx)
	if err != nil {
		return c, err
	}
	events, err := r.hideUnfinished(ctx)
	if err != nil {
		return c, err
	}
	if resume.Strategy != command.StrategyManual {
		sealed, err := r.sealRunning(ctx, p)
		if err != nil {
			return c, err
		}
		events = append(events, sealed...)
	}
	if len(events) > 0 {
		if err := r.exec.log.appendEvents(ctx, events...); err != nil {
			return c, err
		}
	}
	c.opening = []*wire.Event{{SessionID: c.session, Payload: &wire.AgentResumed{Strategy: resume.Strategy, Sealed: p.Sealed}}}
	c.kept = !p.RolledBack
	c.message, c.seen, c.prompt = resume.Message, p.Inputs, p.Addition(resume.Message, r.newFolder())
	if !r.exec.isHoldOnly() {
		return c, nil
	}
	return c, r.exec.log.appendEvents(ctx, c.opening...)
}

// hideUnfinished returns the event that hides what there is of a message that the model
// hasn't come to the end of.
func (r resumption) hideUnfinished(ctx context.Context) ([]*wire.Event, error) {
	var begun uint64 // seq of the turn:start
	for e, err := range r.pastEvents(ctx) {
		if err != nil {
			return nil, err
		}
		if e.RunID != r.exec.offer.RunID {
			continue
		}
		switch p := e.Payload.(type) {
		case *wire.TurnStart:
			begun = e.Seq
		case *wire.UserMessage: // it may be an answer to a message that was broken off
			if p.Source == "command" {
				begun = 0
			}
		case *wire.AgentMessage, *wire.LogTruncated, *wire.AgentStart:
			begun = 0
		}
	}
	if begun == 0 {
		return nil, nil
	}
	return []*wire.Event{{
		SessionID: r.exec.state.ExecSessions[r.exec.entry.Exec],
		Payload:   &wire.LogTruncated{AtSeq: begun - 1, Reason: "the model's message was interrupted"},
	}}, nil
}

// sealRunning closes the calls that were running, may not be repeated, and have no command that can be gone on with. Where the
// session is taken back for them, it closes all open ones: of the others nothing would be known any more, either.
func (r resumption) sealRunning(ctx context.Context, p *run.Past) ([]*wire.Event, error) {
	open := run.OpenCalls(r.exec.state, r.exec.offer.NodeID, r.exec.offer.ExecID)
	calls := slices.DeleteFunc(slices.Clone(open), func(c wire.ToolCall) bool {
		return c.State != wire.ToolExecuting || c.Idempotent || !r.exec.isHoldOnly() && r.exec.hold.hasCall(c.CallID)
	})
	if len(calls) == 0 {
		return nil, nil
	}
	s := sealing{session: r.exec.state.ExecSessions[r.exec.entry.Exec], past: p}
	if r.exec.node.Policy != nil {
		s.policy = r.exec.node.Policy.Interrupted
	}
	if s.policy == run.SealRollback {
		s.rollBack(r.exec.entry)
	}
	if p.RolledBack {
		calls = open
	}
	for _, c := range calls {
		var err error
		if c.Input, err = r.exec.cfg.Runs.Inline(ctx, r.exec.offer.RunID, c.Input); err != nil {
			return nil, err
		}
		s.sealCall(c, "")
	}
	return s.events, nil
}
