package main

import (
	"bytes"
	"context"
	"io"

	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/kahn"
)

// kahnFlags are the flags of wake export that are about its format kahn.
func kahnFlags(flags *pflag.FlagSet, p *kahn.Projection) {
	flags.BoolVar(&p.Strict, "strict", false, "of kahn: leave out the transitions that KAHN doesn't know; how many is told")
	flags.BoolVar(&p.AuditScore, "audit-score", false, "of kahn: score agents without a score by the audits that passed")
}

// exportKahn writes a run as agent transition events: one write for the lines of an
// event, as soon as it has come. The events are all of the run's, in the order of
// the log, with their large fields. dropped counts the lines that are left out, see
// [kahn.Projector].
func (a fileVerbs) exportKahn(
	ctx context.Context, runID string, events export.Events, w io.Writer, o kahn.Projection,
) (r export.Result, dropped int, err error) {
	r.RunID = runID
	p := kahn.NewProjector(o)
	for e, err := range events {
		if err != nil {
			return r, p.Dropped, err
		}
		if e.Event == nil {
			r.Skipped++
			continue
		}
		r.Events++
		lines, err := p.Add(e.Pos, e.Event)
		if err != nil {
			a.log.WarnContext(ctx, "not all can be judged", "position", e.Pos, "type", e.Event.Type(), "error", err)
		}
		if len(lines) > 0 {
			if _, err := w.Write(append(bytes.Join(lines, []byte("\n")), '\n')); err != nil {
				return r, p.Dropped, err
			}
			r.Written += len(lines)
		}
	}
	if p.Dropped > 0 {
		a.log.WarnContext(ctx, "lines are left out", "run", runID, "dropped", p.Dropped)
	}
	return r, p.Dropped, nil
}
