package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// holding is a table that has rows of runs, in the order in which they are removed.
type holding struct {
	table string
	keys  string // by which some of its rows are chosen
	rows  int    // that are removed at once
	// derived says that the rows follow from the events.
	derived bool
}

// holdings are the tables that have rows of a run in a column run. Besides them
// there are lines_open, which has lines, blobs, and
// what isn't of runs.
func holdings() []holding {
	return []holding{
		{"lines", "pos", 1000, true},
		{"tool_calls", "pos", 1000, true},
		{"spend", "node, day, model", 1000, true},
		{"usage_seen", "node, message", 1000, true},
		{"chat_messages", "pos", 1000, true},
		{"chat_errors", "node, pos", 1000, true},
		{"chat_checkpoints", "node, pos", 1000, true},
		{"keyframes", "run, pos", 16, true},
		{"folds", "run", 1, true},
		{"labels", "run, key", 1000, true},
		{"bindings", "session, run, node", 1000, true},
		{"lineage", "run, ancestor", 1000, true},
		{"tail", "pos", 1000, false},
		{"segments", "run, n", 8, false},
		{"nodes", "id", 1000, true},
	}
}

// some are the rows of a holding that are removed next.
func (h holding) some() string {
	return fmt.Sprintf("DELETE FROM %[1]s WHERE (%[2]s) IN (SELECT %[2]s FROM %[1]s WHERE run = ?1 ORDER BY %[2]s LIMIT %[3]d)", h.table, h.keys, h.rows)
}

// someUses are the large fields of a run that are looked at at once.
const someUses = 16

// Remove removes a part of what was deleted and whose time is over, in one short
// transaction. It returns the run that it removed the last of, or "", and whether
// there is more to do. It may be ended at any moment, by a crash too: what was
// begun is gone on with.
func (s *Store) Remove(ctx context.Context, now time.Time) (run string, more bool, err error) {
	err = s.change(ctx, func(t *tx) error {
		of, err := underWay(ctx, t)
		if errors.Is(err, sql.ErrNoRows) {
			more, err = retireNext(ctx, t, now)
			return err
		}
		if err != nil {
			return err
		}
		more = true
		some, err := removeSome(ctx, t, of)
		if err == nil && !some {
			run, err = of.run, removeLast(ctx, t, of, s.d.find)
		}
		return err
	})
	if err != nil {
		return "", false, fmt.Errorf("recorder: remove: %w", err)
	}
	if run != "" {
		s.views.forget(run)
	}
	return run, more, nil
}

// underWay returns a run whose events are being removed.
func underWay(ctx context.Context, t *tx) (of target, err error) {
	err = t.row(ctx, `SELECT r.id, r.run FROM retired JOIN runs r ON r.run = retired.run LIMIT 1`).Scan(&of.id, &of.run)
	return of, err
}

// putOff is how long a run stays that is needed when its time is over.
const putOff = time.Hour

// retireNext begins the removal of the next run whose time is over. From then on
// nothing of it is recorded or answered.
func retireNext(ctx context.Context, t *tx, now time.Time) (more bool, err error) {
	if behind, err := t.behind(ctx); err != nil || behind {
		return false, err
	}
	var of target
	var forced bool
	err = t.row(ctx, `SELECT r.id, r.run, d.forced <> 0 FROM deleted d JOIN runs r ON r.run = d.run WHERE d.gone_at <= ?1 ORDER BY d.gone_at LIMIT 1`, now.UnixMilli()).
		Scan(&of.id, &of.run, &forced)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !forced {
		why, err := neededBy(ctx, t, of)
		if err != nil {
			return false, err
		}
		if why != "" { // it was forked since
			_, err := t.exec(ctx, `UPDATE deleted SET gone_at = ?1 WHERE run = ?2`, now.Add(putOff).UnixMilli(), of.run)
			return true, err
		}
	}
	_, err = t.exec(ctx, `INSERT INTO retired (run, at, events, head) SELECT run, ?1, events, head FROM runs WHERE id = ?2`, now.UnixMilli(), of.id)
	return true, err
}

// beside are statements that remove rows of a run from tables that know it only by
// its nodes.
func beside(find finder) []string {
	if !find.lags {
		return nil
	}
	return []string{`DELETE FROM lines_open WHERE writer IN (SELECT id FROM nodes WHERE run = ?1)`}
}

// removeSome removes a bounded part of a run. It reports whether there was
// anything.
func removeSome(ctx context.Context, t *tx, of target) (some bool, err error) {
	steps := beside(t.d.find)
	for _, h := range holdings() {
		steps = append(steps, h.some())
	}
	for _, text := range steps {
		result, err := t.exec(ctx, text, of.id)
		if err != nil {
			return false, err
		}
		if n, err := result.RowsAffected(); n > 0 || err != nil {
			return true, err
		}
	}
	return removeFields(ctx, t, of)
}

// removeFields removes large fields that no other run refers to.
func removeFields(ctx context.Context, t *tx, of target) (some bool, err error) {
	var names []any
	for rows, err := range t.query(ctx, `SELECT sha256 FROM blob_uses WHERE run = ?1 ORDER BY sha256 LIMIT ?2`, of.id, someUses) {
		var name string
		if err == nil {
			err = rows.Scan(&name)
		}
		if err != nil {
			return false, err
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return false, nil
	}
	for _, name := range names {
		if _, err := t.exec(ctx, `DELETE FROM blob_uses WHERE sha256 = ?1 AND run = ?2`, name, of.id); err != nil {
			return false, err
		}
		if _, err := t.exec(ctx, `DELETE FROM blobs WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.sha256 = blobs.sha256)`, name); err != nil {
			return false, err
		}
	}
	return true, nil
}

// mergePages bounds the part of the full text that is tidied up after a run.
const mergePages = 500

// removeLast removes the last of a run.
func removeLast(ctx context.Context, t *tx, of target, find finder) error {
	if _, err := t.exec(ctx, `DELETE FROM runs WHERE id = ?1`, of.id); err != nil {
		return err
	}
	for _, table := range []string{"deleted", "alerts"} {
		if _, err := t.exec(ctx, `DELETE FROM `+table+` WHERE run = ?1`, of.run); err != nil {
			return err
		}
	}
	if find.lags {
		_, err := t.exec(ctx, `INSERT INTO lines_fts (lines_fts, rank) VALUES ('merge', ?1)`, mergePages)
		return err
	}
	return nil
}

// shrinkPages is how many pages of a file are given back at once.
const shrinkPages = 1024

// Shrink gives some of the space back that what was removed has left, and reports
// whether there is more. A file that an older wake has made doesn't shrink: what
// is recorded next takes its space; neither does PostgreSQL, which looks after
// that itself.
func (s *Store) Shrink(ctx context.Context) (more bool, err error) {
	if s.path == "" {
		return false, nil
	}
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("recorder: shrink: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it goes back to its pool
	var mode, before, after int64
	free := func(n *int64) error { return conn.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(n) }
	if err := errors.Join(conn.QueryRowContext(ctx, "PRAGMA auto_vacuum").Scan(&mode), free(&before)); err != nil {
		return false, fmt.Errorf("recorder: shrink: %w", err)
	}
	if mode != incrementalVacuum || before == 0 {
		return false, nil
	}
	rows, err := conn.QueryContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", shrinkPages))
	if err != nil {
		return false, fmt.Errorf("recorder: shrink: %w", err)
	}
	for rows.Next() { // each is a page
	}
	if err := errors.Join(rows.Err(), rows.Close(), free(&after)); err != nil {
		return false, fmt.Errorf("recorder: shrink: %w", err)
	}
	return after > 0 && after < before, nil
}

// incrementalVacuum is SQLite's mode of files that can give space back bit by bit.
const incrementalVacuum = 2

// tidy looks after how long runs are kept until ctx ends: when it is due, and
// when somebody has deleted one. What fails is tried again the next time.
func (r *Recorder) tidy(ctx context.Context) {
	tick := time.NewTicker(r.c.Retain.Every)
	defer tick.Stop()
	for {
		if err := r.tidyOnce(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "runs whose time is over are not removed, tries again", "error", err)
		}
		select {
		case <-tick.C:
		case <-r.deleted:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Recorder) tidyOnce(ctx context.Context) error {
	n, err := r.store.Expire(ctx, r.c.Retain, time.Now())
	if n > 0 {
		r.logger.InfoContext(ctx, "deleted runs for their age or the store's size", "runs", n, "removed_in", r.c.Retain.Grace.String())
	}
	if err != nil {
		return err
	}
	gone := 0
	for more := true; more; {
		var run string
		if run, more, err = r.store.Remove(ctx, time.Now()); err != nil {
			return err
		}
		if run != "" {
			gone++
		}
	}
	if gone == 0 {
		return nil
	}
	r.logger.InfoContext(ctx, "removed deleted runs", "runs", gone)
	for more := true; more; {
		if more, err = r.store.Shrink(ctx); err != nil {
			return err
		}
	}
	return nil
}
