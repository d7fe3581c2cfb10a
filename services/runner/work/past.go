package work

import (
	"context"

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
