package index

import (
	"context"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
)

// Replay derives again, in a transaction, what follows from events of a run that are
// recorded. It keeps none of them.
type Replay struct{ w *writer }

// Replay begins to derive again what follows from events up to position derived. What
// the batch has besides its entries counts: large fields may be added to its Blobs until
// the event comes that refers to them.
func (x *Index) Replay(ctx context.Context, t *archive.Tx, b Batch, derived uint64) (*Replay, error) {
	w, err := x.beginWriter(ctx, t, b)
	if err != nil {
		return nil, err
	}
	w.derived = derived
	return &Replay{w}, nil
}

// Add takes the next event, and returns it as it would be kept now.
func (p *Replay) Add(s *archive.Event) (archive.Event, error) {
	p.w.pos = s.Pos
	if s.Mark == archive.Bad || s.Mark == archive.Recorder {
		return *s, p.w.keepAside(*s)
	}
	e := s.Entry()
	if e.Err != nil {
		return *s, e.Err
	}
	if err := p.w.recordEvent(&e); err != nil {
		return *s, err
	}
	r := p.w.runs[e.RunID]
	if r.gone {
		return *s, nil
	}
	return r.fresh[len(r.fresh)-1], nil
}

// Finish writes what the events came to.
func (p *Replay) Finish() error { return p.w.finishBatch() }

// State is the state of a run after the events, or nil if none of them changes it.
func (p *Replay) State(run string) *wire.State {
	if f := p.w.x.folds.byRun[p.w.runs[run].ID]; f != nil {
		return f.state
	}
	return nil
}
