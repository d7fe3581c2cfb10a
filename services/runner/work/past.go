package work

import (
	"context"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

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
