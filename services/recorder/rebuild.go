package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"wake/internal/rebuild"
)

// Rebuild derives everything again from the recorded events, of which the store
// has more than the stream: of one run after the other, each in one transaction, so
// that whoever asks meanwhile gets whole answers. Progress is told after each. An
// order that was obeyed isn't obeyed again; one that was cut off begins anew. It
// fails at a run whose events aren't as they were recorded, and leaves that as it
// is.
func (s *Store) Rebuild(ctx context.Context, order string, progress func(done, of int)) error {
	runs, obeyed, err := s.toRebuild(ctx, order)
	if err == nil && !obeyed {
		for i, of := range runs {
			if err = s.rebuildRun(ctx, of); err != nil {
				err = fmt.Errorf("run %s: %w", shown(of.run), err)
				break
			}
			progress(i+1, len(runs))
		}
	}
	if err == nil && !obeyed {
		err = s.change(ctx, func(t *tx) error {
			_, err := t.exec(ctx, `INSERT INTO rebuilds (id, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING`, order, time.Now().UnixMilli())
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("recorder: rebuild: %w", err)
	}
	return nil
}

// toRebuild returns all runs that there are, and whether an order was obeyed.
func (s *Store) toRebuild(ctx context.Context, order string) (runs []target, obeyed bool, err error) {
	t, err := s.view(ctx)
	if err != nil {
		return nil, false, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if err := t.row(ctx, `SELECT EXISTS (SELECT 1 FROM rebuilds WHERE id = ?1)`, order).Scan(&obeyed); err != nil || obeyed {
		return nil, obeyed, err
	}
	for rows, err := range t.query(ctx, `SELECT id, run FROM runs WHERE run NOT IN (SELECT run FROM retired) ORDER BY first_pos`) {
		var of target
		if err == nil {
			err = rows.Scan(&of.id, &of.run)
		}
		if err != nil {
			return nil, false, err
		}
		runs = append(runs, of)
	}
	return runs, false, nil
}

// errUnsound is returned for a run whose events aren't as they were recorded.
var errUnsound = errors.New("its events aren't as they were recorded: `wake verify` says where")

// rebuildRun derives everything again of one run. Its events stay untouched.
func (s *Store) rebuildRun(ctx context.Context, of target) error {
	again := &Store{name: s.name, d: s.d, write: s.write, stmts: s.stmts, folds: newFolds(), zip: s.zip, scratch: true}
	err := s.change(ctx, func(t *tx) error {
		if at, err := retiredAt(ctx, t, of.run); err != nil || at > 0 {
			return err // it was removed meanwhile
		}
		r := &rederiving{deriving: deriving{s: again, t: t}, of: of}
		if err := t.row(ctx, `SELECT incarnation, position FROM streams`).Scan(&r.incarnation, &r.position); err != nil {
			return err
		}
		return r.do(ctx)
	})
	s.views.forget(of.run)
	return err
}

// rederiving is one run while everything is derived from its events again.
type rederiving struct {
	deriving
	of target
}

func (r *rederiving) do(ctx context.Context) error {
	head, err := r.clear(ctx)
	if err != nil {
		return err
	}
	if err := r.run(ctx, r.of); err != nil {
		return err
	}
	var now []byte
	if err := r.t.row(ctx, `SELECT head FROM runs WHERE id = ?1`, r.of.id).Scan(&now); err != nil {
		return err
	}
	if !bytes.Equal(now, head) {
		return errUnsound
	}
	if _, err := r.t.exec(ctx, `UPDATE streams SET position = ?1`, r.position); err != nil {
		return err
	}
	return r.index(ctx)
}

// clear removes what is derived from the run's events and returns the end of their
// hash chain.
func (r *rederiving) clear(ctx context.Context) (head []byte, err error) {
	for _, text := range beside(r.t.d.find) {
		if _, err := r.t.exec(ctx, text, r.of.id); err != nil {
			return nil, err
		}
	}
	for _, h := range slices.Backward(holdings()) {
		if !h.derived {
			continue
		}
		if _, err := r.t.exec(ctx, `DELETE FROM `+h.table+` WHERE run = ?1`, r.of.id); err != nil {
			return nil, err
		}
	}
	if _, err := r.t.exec(ctx, `DELETE FROM blob_uses WHERE run = ?1`, r.of.id); err != nil {
		return nil, err
	}
	var first, segments, events, size int64
	if err := r.t.row(ctx, `SELECT first_pos, head, segments, tail_events, tail_bytes FROM runs WHERE id = ?1`, r.of.id).Scan(&first, &head, &segments, &events, &size); err != nil {
		return nil, err
	}
	if _, err := r.t.exec(ctx, `DELETE FROM runs WHERE id = ?1`, r.of.id); err != nil {
		return nil, err
	}
	_, err = r.t.exec(ctx, `INSERT INTO runs (id, run, first_pos, segments, tail_events, tail_bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`,
		r.of.id, r.of.run, first, segments, events, size)
	return head, err
}

// index takes the lines into the full text that were in it, if they don't get
// there by themselves. One that grows is indexed anew when it does.
func (r *rederiving) index(ctx context.Context) error {
	if !r.t.d.find.lags {
		return nil
	}
	_, err := r.t.exec(ctx, `INSERT INTO lines_fts (rowid, text) SELECT pos, text FROM lines WHERE run = ?1 AND pos <= (SELECT pos FROM lines_indexed)`, r.of.id)
	return err
}

// rebuilds obeys orders to derive everything again until ctx ends. What fails is
// tried again with the next look.
func (r *Recorder) rebuilds(ctx context.Context) {
	tick := time.NewTicker(rebuild.Every)
	defer tick.Stop()
	obeyed := ""
	for {
		if id, err := r.obey(ctx, obeyed); err != nil && ctx.Err() == nil {
			r.logger.ErrorContext(ctx, "what is derived wasn't derived again", "error", err)
			obeyed = id // not again and again
		} else if err == nil {
			obeyed = id
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// obey looks for an order besides the last one, and obeys it. It returns the last
// one.
func (r *Recorder) obey(ctx context.Context, last string) (string, error) {
	desk, err := rebuild.Open(ctx, r.log.JetStream(), r.log.Names(), name)
	if err != nil {
		return last, nil //nolint:nilerr // the server is away
	}
	order, err := desk.Order(ctx)
	if err != nil || order.ID == "" || order.ID == last {
		return last, nil //nolint:nilerr // likewise
	}
	told := time.Time{}
	tell := func(p rebuild.Progress) {
		told = time.Now()
		p.ID, p.Unit = order.ID, "runs"
		if err := desk.Report(ctx, p); err != nil {
			r.logger.WarnContext(ctx, "progress is not shown", "error", err)
		}
	}
	runs := 0
	err = r.store.Rebuild(ctx, order.ID, func(done, of int) {
		if runs = of; time.Since(told) >= time.Second {
			tell(rebuild.Progress{Part: uint64(done), Of: uint64(of)})
		}
	})
	p := rebuild.Progress{Part: uint64(runs), Of: uint64(runs), Done: err == nil}
	if err != nil {
		p.Error = err.Error()
	}
	if ctx.Err() == nil {
		tell(p)
	}
	if err == nil && runs > 0 {
		r.logger.InfoContext(ctx, "derived everything again", "runs", runs)
	}
	return order.ID, err
}
