package runner

import (
	"context"
	"iter"
	"slices"

	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/pkg/wire"
)

// nativeProvider is the agent whose conversation is the log: it goes on from its own
// events, and takes up calls that haven't begun.
const nativeProvider = "native"

// history yields what agents and tools did in the execution so far, whole. What the
// run was forked from comes first.
func (w *worker) history(ctx context.Context, n wire.NodeState) iter.Seq2[*wire.Event, error] {
	queries := []eventlog.Query{{Run: w.offer.RunID}}
	for _, a := range w.state.Lineage {
		queries = append(queries, eventlog.Query{Run: a.RunID, To: a.Position})
	}
	slices.Reverse(queries)
	return func(yield func(*wire.Event, error) bool) {
		for _, q := range queries {
			q.Node, q.From, q.Kinds = w.offer.NodeID, n.Started, []wire.Kind{wire.KindAgent, wire.KindTool}
			for e, err := range w.runner.log.Read(ctx, q) {
				if err != nil {
					yield(nil, err)
					return
				}
				if e.Event == nil || e.Event.ExecID != w.offer.ExecID {
					continue
				}
				if !yield(w.runner.log.Inline(ctx, e.Event)) {
					return
				}
			}
		}
	}
}

// carryOn is [worker.goOn] for an agent that goes on from the log. What the model said
// of a message that isn't whole is rolled back. Calls that were running, and may not
// be repeated, are sealed; the others stay open.
func (w *worker) carryOn(ctx context.Context, n wire.NodeState, in agentInput, resume wire.Resume) (c continuation, err error) {
	c = continuation{session: w.state.ExecSessions[n.Exec], fork: n.Fork, bare: true}
	p, err := w.past(ctx, n, in.Prompt)
	if err != nil {
		return c, err
	}
	events, err := w.unfinished(ctx, n)
	if err != nil {
		return c, err
	}
	if resume.Strategy != strategyManual {
		sealed, err := w.sealRunning(ctx, n, &p)
		if err != nil {
			return c, err
		}
		events = append(events, sealed...)
	}
	if len(events) > 0 {
		if err := w.append(ctx, events...); err != nil {
			return c, err
		}
	}
	c.opening = []*wire.Event{{SessionID: c.session, Payload: &wire.AgentResumed{Strategy: resume.Strategy, Sealed: p.sealed}}}
	c.message, c.seen, c.prompt = resume.Message, p.inputs, resume.Message
	if w.workdir.fresh {
		c.prompt = w.prompt(resume.Message, past{})
	}
	if !w.holds(n) {
		return c, nil
	}
	return c, w.append(ctx, c.opening...)
}

// unfinished returns the event that hides what there is of a message that the model
// hasn't come to the end of.
func (w *worker) unfinished(ctx context.Context, n wire.NodeState) ([]*wire.Event, error) {
	var begun uint64 // seq of the turn:start
	for e, err := range w.history(ctx, n) {
		if err != nil {
			return nil, err
		}
		if e.RunID != w.offer.RunID {
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
		SessionID: w.state.ExecSessions[n.Exec],
		Payload:   &wire.LogTruncated{AtSeq: begun - 1, Reason: "the model's message was interrupted"},
	}}, nil
}

// sealRunning closes the calls that were running and may not be repeated.
func (w *worker) sealRunning(ctx context.Context, n wire.NodeState, p *past) ([]*wire.Event, error) {
	calls := slices.DeleteFunc(run.OpenCalls(w.state, w.offer.NodeID, w.offer.ExecID), func(c wire.ToolCall) bool {
		return c.State != wire.ToolExecuting || c.Idempotent
	})
	if len(calls) == 0 {
		return nil, nil
	}
	s := sealing{session: w.state.ExecSessions[n.Exec], past: p}
	if w.node.Policy != nil {
		s.policy = w.node.Policy.Interrupted
	}
	if s.policy == run.SealRollback {
		s.rollBack(n)
	}
	for _, c := range calls {
		var err error
		if c.Input, err = w.runner.inline(ctx, w.offer.RunID, c.Input); err != nil {
			return nil, err
		}
		s.seal(c)
	}
	return s.events, nil
}
