package eventlog

import (
	"context"
	"errors"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
)

// Begin makes the caller the writer of a run of which the log has nothing, as [Log.Claim] does, and appends events behind
// the claim: what the claim alone would be followed by is one append less, and one sync. Together says that the events
// are stored together or not at all, else each may be the last that is stored. It fails with [ErrFenced] if the log has
// something of the run's node meanwhile; then none of this is stored.
func (l *Log) Begin(ctx context.Context, run string, c Claim, events []*wire.Event, together bool) (*Writer, error) {
	fail := func(err error) (*Writer, error) { return nil, fmt.Errorf("eventlog: begin %s: %w", run, err) }
	a, err := l.newClaimant(ctx, run, wire.RunNode, c)
	if err != nil {
		return fail(err)
	}
	// In one batch the server would take two that follow nothing.
	if _, another := l.beginning.LoadOrStore(run, true); another {
		return fail(fmt.Errorf("%w: it is about to be begun by this process", ErrFenced))
	}
	claim := a.claimEvent(writerTail{})
	w := newWriter(l, l.laneOf(run), run, wire.RunNode, claim.Epoch, claim.Seq-1, 0)
	all := append([]*wire.Event{claim}, events...)
	_, err = w.appendEvents(ctx, all, together || len(all) > smallBatch)
	if !errors.Is(err, ErrAmbiguous) { // else it may yet be stored
		l.beginning.Delete(run)
	}
	if err != nil {
		return fail(err)
	}
	return w, nil
}
