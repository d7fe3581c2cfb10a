package recorder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// maxCatchUp is how long a question waits for the recorder at most. A recorder
// that is further behind, for one because it is being rebuilt, answers from what
// it has.
const maxCatchUp = 500 * time.Millisecond

// catchUp waits until what was stored before the question is recorded, or derived
// from: the answer has each event that its caller has seen stored. Else it says how
// much is missing.
func (r *Recorder) catchUp(ctx context.Context, p *progress) wire.Lag {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	_, end, err := r.log.Bounds(ctx)
	if err != nil {
		return wire.Lag{}
	}
	p.awaitPos(ctx, end)
	if pos, _ := p.currentPos(); pos < end {
		return wire.Lag{Behind: end - pos}
	}
	return wire.Lag{}
}

// catchUpAlerts waits a moment until the alerts that are stored are recorded, too.
func (r *Recorder) catchUpAlerts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	if first, end, err := r.log.BoundsOf(ctx, r.log.Names().AlertsStream()); err == nil && first <= end { // else all have aged out
		r.alerted.awaitPos(ctx, end)
	}
}

// withLagHint is the error of an answer that lacks something. What wasn't found may be
// in that.
func withLagHint(err error, lag wire.Lag) error {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok || lag.Behind == 0 || e.Code != wire.CodeRunNotFound && e.Code != wire.CodeNodeNotFound {
		return err
	}
	said := *e
	said.Hint = fmt.Sprintf("the recorder has %d events to catch up with: ask again in a while", lag.Behind)
	return &said
}
