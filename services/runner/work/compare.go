package work

import (
	"bytes"
	"context"
	"iter"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// compareSession returns the event that says whether the log has what the agent's own session file has, and the other way round;
// nil if the agent keeps no file, or if one of them can't be read: that ends no execution.
func (d *drive) compareSession(ctx context.Context, last []*wire.Event) *wire.Event {
	x, session := d.exec, d.outcome.SessionID
	if d.can.Recover == nil { // it has no record of its own
		return nil
	}
	content, err := x.cfg.Sessions.Load(ctx, session)
	if err != nil || len(content) == 0 {
		d.warnUncompared(ctx, err)
		return nil
	}
	if err := x.log.writer.Flush(ctx); err != nil {
		return nil // the next append says why
	}
	stream := completeness.NewFeed(session)
	for e, err := range x.cfg.Log.Read(ctx, eventlog.Query{Run: x.offer.RunID, Node: x.offer.NodeID, From: x.entry.Started}) {
		if err != nil {
			d.warnUncompared(ctx, err)
			return nil
		}
		if e.Event != nil {
			stream.AddEvent(e.Event, e.Pos)
		}
	}
	for _, e := range last {
		stream.AddEvent(e, 0)
	}
	kept := completeness.Read(fileLines(content))
	kept.MarkPartial() // the session may have been on another machine
	if d.can.SubAgents != nil {
		in, err := x.agentInput()
		if err != nil {
			d.warnUncompared(ctx, err)
			return nil
		}
		agents, err := d.can.SubAgents(in.Options, session)
		if err != nil {
			d.warnUncompared(ctx, err)
			return nil
		}
		for _, a := range agents {
			kept.ReadAgent(a.File, a.Call, fileLines(a.Content))
		}
	}
	v := completeness.Compare(*stream, kept)
	return &wire.Event{SessionID: session, Payload: v.Event()}
}

func (d *drive) warnUncompared(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		d.exec.cfg.Logger.Warn("session not compared with its file", "run", d.exec.offer.RunID, "node", d.exec.offer.NodeID, "error", err)
	}
}

func fileLines(content []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line := range bytes.Lines(content) {
			if !yield(line, nil) {
				return
			}
		}
	}
}
