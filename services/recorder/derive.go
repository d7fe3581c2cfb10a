package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"wake/pkg/wire"
)

// How far the rows are that are derived from the events. In older stores they were
// always as far as these.
const (
	sqliteLater = `
ALTER TABLE streams ADD COLUMN derived INTEGER NOT NULL DEFAULT 0; -- up to here what follows from the events is derived
UPDATE streams SET derived = position;
`
	postgresLater = `
ALTER TABLE streams ADD COLUMN derived BIGINT NOT NULL DEFAULT 0; -- up to here what follows from the events is derived
UPDATE streams SET derived = position;
`
)

// Derive derives, in one transaction, what follows from events that were recorded
// with Later, of at most so many positions. It is done when the report's Derived is
// its Position's. Like [Store.Record] it fails without a trace.
func (s *Store) Derive(ctx context.Context, most int) (Report, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	report, err := s.deriveSome(ctx, uint64(most))
	if err != nil {
		s.unsure()
		return Report{}, fmt.Errorf("recorder: derive: %w", err)
	}
	return report, nil
}

func (s *Store) deriveSome(ctx context.Context, most uint64) (Report, error) {
	begun, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return Report{}, err
	}
	t := &tx{begun, s.d, s.zip}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if s.d.lock != "" {
		if _, err := t.exec(ctx, s.d.lock); err != nil {
			return Report{}, err
		}
	}
	at, derived, err := t.reached(ctx)
	if err != nil || derived == at.Seq {
		return Report{Position: at, Derived: derived}, err
	}
	w, err := s.begin(ctx, t, Batch{Incarnation: at.Incarnation})
	if err != nil {
		return Report{}, err
	}
	if err := w.deriveTo(min(at.Seq, derived+most)); err != nil {
		return Report{}, err
	}
	if err := t.Commit(); err != nil {
		return Report{}, err
	}
	s.live.recorded(w)
	return w.report, nil
}

// reached returns the position up to which everything is recorded, and the one up
// to which what follows from that is derived. Of an empty store they are zero.
func (t *tx) reached(ctx context.Context) (recorded wire.Position, derived uint64, err error) {
	err = t.row(ctx, `SELECT incarnation, position, derived FROM streams`).Scan(&recorded.Incarnation, &recorded.Seq, &derived)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return recorded, derived, err
}

// deriveTo derives what follows from the recorded events up to a position, or up to
// an earlier one if they are large.
func (w *writer) deriveTo(to uint64) error {
	list, to, err := w.tx.within(w.ctx, w.derived+1, to, deriveBytes)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Mark != "" {
			continue
		}
		if err := w.again(&list[i]); err != nil {
			return fmt.Errorf("position %d: %w", list[i].Pos, err)
		}
	}
	w.derived = to
	return w.finish()
}

// again derives what follows from a recorded event.
func (w *writer) again(kept *Event) error {
	s := stored{pos: kept.Pos, time: kept.Time, data: kept.Data}
	e := s.entry()
	if e.Err != nil {
		return e.Err
	}
	run, err := w.run(kept.Run, e.Pos)
	if err != nil || run.gone {
		return err
	}
	writer, err := w.node(run, e.Event.NodeID)
	if err != nil {
		return err
	}
	about, err := w.node(run, e.Event.Node())
	if err != nil {
		return err
	}
	return w.derive(run, writer, about, &e)
}

// deriveMost bounds what is derived in one transaction: recording waits for it. A
// segment that was written while there was much to catch up with spans about as
// many positions.
const deriveMost = maxBatch

// deriveBytes bounds the events that are read for that.
const deriveBytes = 16 << 20

// deriveEvery is how often it is looked whether what comes in leaves time for
// deriving.
const deriveEvery = 100 * time.Millisecond

// deriveLater derives what was left for later until ctx ends. While there is much
// to record, that goes first.
func (r *Recorder) deriveLater(ctx context.Context) error {
	for behind := true; ; {
		if !behind {
			select {
			case <-r.later:
			case <-ctx.Done():
				return nil
			}
		}
		for _, busy := r.recorded.at(); busy; _, busy = r.recorded.at() {
			select {
			case <-time.After(deriveEvery):
			case <-ctx.Done():
				return nil
			}
		}
		var report Report
		err := r.reach(ctx, func() (err error) {
			report, err = r.store.Derive(ctx, deriveMost)
			return err
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err != nil {
			return err
		}
		r.metrics.refused.Add(float64(report.Refused))
		r.reports(ctx, report)
		behind = report.Derived < report.Position.Seq
	}
}
