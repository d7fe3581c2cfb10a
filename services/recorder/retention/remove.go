package retention

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// deleteSomeText removes some rows of a run.
func deleteSomeText(t table.Table) string {
	return fmt.Sprintf("DELETE FROM %[1]s WHERE (%[2]s) IN (SELECT %[2]s FROM %[1]s WHERE %[3]s LIMIT %[4]d)",
		t.Name, strings.Join(t.Key, ", "), t.RowsOf("?1"), cmp.Or(t.Batch, 1000))
}

// someUses are the large fields of a run that are looked at at once.
const someUses = 16

// Remove removes a part of what was deleted, once its time is over, in one short
// transaction. It returns the run that it removed the last of, or "", and whether
// there is more to do. It may be ended at any moment, by a crash too: what was
// begun is gone on with.
func (d *Deleter) Remove(ctx context.Context, now time.Time) (run string, more bool, err error) {
	lines := int64(0)
	err = d.kept.Change(ctx, func(t *archive.Tx) error {
		of, err := runInRemoval(ctx, t, now)
		if errors.Is(err, sql.ErrNoRows) {
			more, err = retireNext(ctx, t, now)
			return err
		}
		if err != nil {
			return err
		}
		more = true
		removed, err := removeSome(ctx, t, of)
		if err == nil && !removed {
			run = of.Run
			lines, err = removeLast(ctx, t, of)
		}
		return err
	})
	if err != nil {
		return "", false, fmt.Errorf("recorder: remove: %w", err)
	}
	d.stale += lines
	return run, more, nil
}

// Due returns how many runs are past their time, those that are losing their events among them.
func (d *Deleter) Due(ctx context.Context, now time.Time) (runs int64, err error) {
	return archive.Ask(ctx, d.kept, func(t *archive.Tx) (n int64, err error) {
		err = t.Row(ctx, `SELECT count(*) FROM deleted WHERE gone_at <= ?1`, now.UnixMilli()).Scan(&n)
		return n, err
	})
}

// runInRemoval returns a run that is losing its events.
func runInRemoval(ctx context.Context, t *archive.Tx, now time.Time) (of request.Target, err error) {
	// It is deleted as long, and its time is over. Of those that were removed there are more and more.
	text := `SELECT r.id, r.run FROM deleted d JOIN runs r ON r.run = d.run WHERE d.gone_at <= ?1 AND EXISTS (SELECT 1 FROM retired WHERE run = d.run) ORDER BY d.gone_at LIMIT 1`
	err = t.Row(ctx, text, now.UnixMilli()).Scan(&of.ID, &of.Run)
	return of, err
}

// putOff is how long a run stays that is needed when its time is over.
const putOff = time.Hour

// retireNext begins the removal of the next run that is past its time. From then on
// nothing of it is recorded or answered.
func retireNext(ctx context.Context, t *archive.Tx, now time.Time) (more bool, err error) {
	if late, err := isBehind(ctx, t); err != nil || late {
		return false, err
	}
	var of request.Target
	var reason string
	var forced, goesOn bool
	err = t.Row(ctx, `SELECT r.id, r.run, d.reason, d.forced <> 0, `+goesOnAgain+`
		FROM deleted d JOIN runs r ON r.run = d.run WHERE d.gone_at <= ?1 ORDER BY d.gone_at LIMIT 1`, now.UnixMilli()).
		Scan(&of.ID, &of.Run, &reason, &forced, &goesOn)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if goesOn {
		_, err := t.Do(ctx, `DELETE FROM deleted WHERE run = ?1`, of.Run)
		return true, err
	}
	if !forced {
		why, err := neededBy(ctx, t, of)
		needed := why != ""
		if err == nil && !needed && reason != deletedByUser {
			needed, err = hasFork(ctx, t, of.Run)
		}
		if err != nil {
			return false, err
		}
		if needed { // it was forked since
			_, err := t.Do(ctx, `UPDATE deleted SET gone_at = ?1 WHERE run = ?2`, now.Add(putOff).UnixMilli(), of.Run)
			return true, err
		}
	}
	if _, err = t.Do(ctx, `INSERT INTO retired (run, at, events, head) SELECT run, ?1, events, head FROM runs WHERE id = ?2`, now.UnixMilli(), of.ID); err != nil {
		return true, err
	}
	return true, noteRemains(ctx, t, of, now)
}

// removeSome removes a bounded part of a run. It reports whether there was
// anything.
func removeSome(ctx context.Context, t *archive.Tx, of request.Target) (removed bool, err error) {
	steps := t.D.DeletesByNode()
	for _, held := range t.D.Tables.OfRuns() {
		if held.Name != "blob_uses" { // of which large fields depend
			steps = append(steps, deleteSomeText(held))
		}
	}
	for _, text := range steps {
		result, err := t.Do(ctx, text, of.ID)
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
func removeFields(ctx context.Context, t *archive.Tx, of request.Target) (removed bool, err error) {
	if err := noteFields(ctx, t, of, fmt.Sprintf(" ORDER BY sha256 LIMIT %d", someUses)); err != nil {
		return false, err
	}
	some := fmt.Sprintf("sha256 IN (SELECT sha256 FROM blob_uses WHERE run = ?1 ORDER BY sha256 LIMIT %d)", someUses)
	_, err = t.Do(ctx, "DELETE FROM blobs WHERE "+some+" AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.sha256 = blobs.sha256 AND u.run <> ?1)", of.ID)
	if err != nil {
		return false, err
	}
	result, err := t.Do(ctx, "DELETE FROM blob_uses WHERE run = ?1 AND "+some, of.ID)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// removeLast removes the last of a run, and returns how many lines it had.
func removeLast(ctx context.Context, t *archive.Tx, of request.Target) (lines int64, err error) {
	if err := t.Row(ctx, `DELETE FROM runs WHERE id = ?1 RETURNING lines`, of.ID).Scan(&lines); err != nil {
		return 0, err
	}
	for _, text := range []string{
		`DELETE FROM deleted WHERE run = ?1`,
		`UPDATE alerts_read SET stored = stored - (SELECT count(*) FROM alerts WHERE run = ?1)`,
		`DELETE FROM alerts WHERE run = ?1`,
		`DELETE FROM alert_counts WHERE run = ?1`,
	} {
		if _, err := t.Do(ctx, text, of.Run); err != nil {
			return 0, err
		}
	}
	return lines, nil
}

const (
	// mergePages bounds the part of SQLite's full text that is merged in a transaction.
	mergePages = 500
	// maxStale is the part (1/8) of its lines that may have been removed: the full text keeps their words until it is merged, which writes
	// all of it anew.
	maxStale = 8
)

// Merge takes the words of removed lines out of SQLite's full text, if they have become many, in short transactions. If the process ends
// meanwhile, the next one does it behind its first removal.
func (d *Deleter) Merge(ctx context.Context) error {
	if d.kept.Path == "" {
		return nil
	}
	lines, err := archive.Ask(ctx, d.kept, func(t *archive.Tx) (n int64, err error) {
		err = t.Row(ctx, `SELECT coalesce(sum(lines), 0) FROM runs`).Scan(&n)
		return n, err
	})
	if err != nil {
		return fmt.Errorf("recorder: merge the full text: %w", err)
	}
	if d.stale <= lines/maxStale {
		return nil
	}
	// By the documentation of FTS5 a negative number begins a merge of all, and positive ones go on with it.
	for pages, more := -mergePages, true; more; pages = mergePages {
		if more, err = d.mergeSome(ctx, pages); err != nil {
			return fmt.Errorf("recorder: merge the full text: %w", err)
		}
	}
	d.stale = 0
	return nil
}

// mergeSome merges so many pages of SQLite's full text, in a transaction. By the documentation of FTS5 nothing is left to be merged when that
// changes less than two rows.
func (d *Deleter) mergeSome(ctx context.Context, pages int) (more bool, err error) {
	err = d.kept.Change(ctx, func(t *archive.Tx) error {
		var before, after int64
		if err := t.Row(ctx, `SELECT total_changes()`).Scan(&before); err != nil {
			return err
		}
		if _, err := t.Do(ctx, `INSERT INTO lines_fts (lines_fts, rank) VALUES ('merge', ?1)`, pages); err != nil {
			return err
		}
		err := t.Row(ctx, `SELECT total_changes()`).Scan(&after)
		more = after-before >= 2
		return err
	})
	return more, err
}

// shrinkPages is how many pages of a file are given back at once.
const shrinkPages = 1024

// Shrink gives some of the space back that what was removed has left, and reports
// whether there is more. A file that an older wake has made doesn't shrink: what
// is recorded next takes its space; neither does PostgreSQL, which looks after
// that itself.
func (d *Deleter) Shrink(ctx context.Context) (more bool, err error) {
	if d.kept.Path == "" {
		return false, nil
	}
	conn, err := d.kept.Writer.Conn(ctx)
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
