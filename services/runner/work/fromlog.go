package work

import (
	"context"
	"iter"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

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
	c.message, c.seen, c.prompt = resume.Message, p.Inputs, resume.Message
	if folder := r.newFolder(); folder != nil {
		c.prompt = new(run.Past).Prompt(resume.Message, folder)
	}
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

// sealRunning closes the calls that were running, may not be repeated, and have no command that can be gone on with.
func (r resumption) sealRunning(ctx context.Context, p *run.Past) ([]*wire.Event, error) {
	calls := slices.DeleteFunc(run.OpenCalls(r.exec.state, r.exec.offer.NodeID, r.exec.offer.ExecID), func(c wire.ToolCall) bool {
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
	for _, c := range calls {
		var err error
		if c.Input, err = r.exec.cfg.Runs.Inline(ctx, r.exec.offer.RunID, c.Input); err != nil {
			return nil, err
		}
		s.sealCall(c, "")
	}
	return s.events, nil
}
