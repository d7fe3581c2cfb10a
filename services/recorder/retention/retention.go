// Package retention deletes runs: at a request, for their age, for the size of the store;
// and removes what was deleted when its time is over.
package retention

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/states"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Policy says how long runs are kept. The zero value keeps all of them for
// ever.
type Policy struct {
	Age   time.Duration // a run is deleted that ended longer ago; 0: none is for its age
	Size  int64         // bytes the store may take: the oldest runs are deleted while it is larger; 0: none is for that
	Grace time.Duration // how long a run that was deleted can still be read and restored; default 7 days
	Every time.Duration // how often it is looked after, default 1 minute

	// Folders are the bytes that snapshots of folders may take: beyond them the snapshots of the runs that ended first go; 0: no bound.
	Folders int64
}

// WithDefaults returns the policy with its defaults, or an error if a value is negative.
func (r Policy) WithDefaults() (Policy, error) {
	if r.Age < 0 || r.Size < 0 || r.Folders < 0 || r.Grace < 0 || r.Every < 0 {
		return r, errors.New("recorder: how long runs are kept must not be negative")
	}
	r.Grace, r.Every = cmp.Or(r.Grace, 7*24*time.Hour), cmp.Or(r.Every, time.Minute)
	return r, nil
}

// Deleter deletes the runs of an archive, and removes them.
type Deleter struct {
	kept *archive.Archive
	// stale are lines that were removed since the full text was merged, of which it still has the words. What an earlier process removed isn't
	// known: it begins with as many as there may be.
	stale int64
}

// New returns the deleter of an archive.
func New(kept *archive.Archive) *Deleter { return &Deleter{kept, math.MaxInt32} }

// The reasons of deletions.
const (
	deletedByUser = "user"
	deletedByAge  = "age"
	deletedBySize = "size"
)

// Delete answers a [wire.DeleteRequest]. A run that is deleted is in no list any
// more, but can be read, exported and restored until its time is over. It fails
// with COMMAND_REJECTED if the run goes on, or if something needs it, unless that
// is forced.
func (d *Deleter) Delete(ctx context.Context, q wire.DeleteRequest, grace time.Duration, now time.Time) (wire.DeleteResponse, error) {
	if q.Now {
		grace = 0
	}
	var r wire.DeleteResponse
	err := d.kept.Change(ctx, func(t *archive.Tx) error {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return err
		}
		r.RunID = found.Run
		if q.Undo {
			return undeleteRun(ctx, t, found.Run)
		}
		r.DeletedAt, r.GoneAt = now.UnixMilli(), now.Add(grace).UnixMilli()
		return deleteRun(ctx, t, found, q.Force, r)
	})
	return r, request.Wrap("delete", err)
}

func undeleteRun(ctx context.Context, t *archive.Tx, run string) error {
	result, err := t.Do(ctx, `DELETE FROM deleted WHERE run = ?1`, run)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return &wire.APIError{Code: wire.CodeCommandRejected, Message: "run " + request.Shown(run) + " isn't deleted", Hint: "`wake runs --deleted` lists those that are"}
}

// deleteRun deletes a run at a user's request.
func deleteRun(ctx context.Context, t *archive.Tx, of request.Target, force bool, r wire.DeleteResponse) error {
	rejected := func(hint, format string, args ...any) error {
		return &wire.APIError{Code: wire.CodeCommandRejected, Message: fmt.Sprintf(format, args...), Hint: hint}
	}
	var status, reason, imported string
	if err := t.Row(ctx, `SELECT status, reason, imported FROM runs WHERE id = ?1`, of.ID).Scan(&status, &reason, &imported); err != nil {
		return err
	}
	over := isOver(status, reason, imported)
	late, err := isBehind(ctx, t)
	if err != nil {
		return err
	}
	switch {
	case late:
		return rejected("try it again in a while", "the recorder is behind: whether something needs run %s isn't known yet", request.Shown(of.Run))
	case of.Run == wire.NoRun:
		return request.Bad("%s is what belongs to no run", wire.NoRun)
	case !over && imported == "":
		return rejected("wait for its end, or `wake abort` it", "run %s hasn't ended", request.Shown(of.Run))
	case !over && !force:
		return rejected("wait until its session is idle, or delete it with --force", "run %s hasn't ended, as far as is recorded", request.Shown(of.Run))
	}
	if !force {
		why, err := neededBy(ctx, t, of)
		if err != nil {
			return err
		}
		if why != "" {
			return rejected("delete it with --force all the same", "run %s is kept: %s", request.Shown(of.Run), why)
		}
	}
	forced := 0
	if force {
		forced = 1
	}
	return markDeleted(ctx, t, of.Run, deletedByUser, forced, r.DeletedAt, r.GoneAt)
}

// isOver reports whether a run has ended. A session of a program that is watched never says that it has: it is over while nothing happens in it.
// In a copy nothing ever goes on.
func isOver(status, reason, imported string) bool {
	return status == string(wire.RunComplete) || status == string(wire.RunAborted) || status == string(wire.RunPaused) && reason == wire.PauseIdle ||
		imported == wire.ImportedCopy
}

// overRuns is [isOver] of the rows of runs r.
const overRuns = `(r.status IN ('complete', 'aborted') OR r.status = 'paused' AND r.reason = '` + wire.PauseIdle + `' OR r.imported = '` + wire.ImportedCopy + `')`

// What goes on of the ancestors p of a run, and of the runs r that descend from it.
const (
	liveAncestor = `(p.status NOT IN ('complete', 'aborted') AND p.imported <> '` + wire.ImportedCopy + `')`
	liveHeir     = `(r.status NOT IN ('complete', 'aborted') AND r.imported <> '` + wire.ImportedCopy + `')`
)

// markDeleted notes that a run is deleted. To delete it again may hasten its end.
func markDeleted(ctx context.Context, t *archive.Tx, run, reason string, forced int, at, goneAt int64) error {
	return t.Put(ctx, "deleted", &table.Deleted{Run: run, At: at, GoneAt: goneAt, Reason: reason, Forced: int64(forced)}, ` ON CONFLICT (run) DO UPDATE SET
		gone_at = CASE WHEN excluded.gone_at < deleted.gone_at THEN excluded.gone_at ELSE deleted.gone_at END,
		forced = CASE WHEN excluded.forced > deleted.forced THEN excluded.forced ELSE deleted.forced END`)
}

// isBehind reports whether there are recorded events from which nothing is derived
// yet. What is kept for how long isn't decided without them: a run may go on, or be
// forked, with one of them.
func isBehind(ctx context.Context, t *archive.Tx) (bool, error) {
	recorded, derived, err := t.Reached(ctx)
	return derived < recorded.Seq, err
}

var errBehind = errors.New("recorder: there are events from which nothing is derived yet: whether something needs a run isn't known")

// neededBy says why the record of a run has to stay, or "". It stays as long as the run that has
// begun it, at any distance, isn't deleted: the snapshots of that run's folder may be the child's.
// It stays, too, for a run that goes on and descends from it, and for a labelled point.
func neededBy(ctx context.Context, t *archive.Tx, of request.Target) (string, error) {
	var live string
	err := t.Row(ctx, `WITH RECURSIVE up (run, parent, live) AS (
			SELECT p.run, p.parent, `+liveAncestor+` FROM runs r JOIN runs p ON p.run = r.parent WHERE r.run = ?1
			UNION SELECT p.run, p.parent, `+liveAncestor+` FROM up JOIN runs p ON p.run = up.parent)
		SELECT run FROM up WHERE run <> ?1 AND (live OR NOT EXISTS (SELECT 1 FROM deleted WHERE deleted.run = up.run))
		ORDER BY run LIMIT 1`, of.Run).Scan(&live)
	if err == nil {
		return "run " + request.Shown(live) + " has begun it, and isn't deleted", nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", err
	}
	return pointsNeededBy(ctx, t, of)
}

// pointsNeededBy is [neededBy] of what there is besides the record, such as snapshots of the folder, but for the run that has begun this one.
func pointsNeededBy(ctx context.Context, t *archive.Tx, of request.Target) (string, error) {
	var live string
	err := t.Row(ctx, `WITH RECURSIVE kin (run, live) AS (
			SELECT r.run, `+liveHeir+` FROM lineage l JOIN runs r ON r.id = l.run WHERE l.ancestor = ?1
			UNION SELECT r.run, `+liveHeir+` FROM kin JOIN lineage l ON l.ancestor = kin.run JOIN runs r ON r.id = l.run)
		SELECT run FROM kin WHERE live ORDER BY run LIMIT 1`, of.Run).Scan(&live)
	if err == nil {
		return "run " + request.Shown(live) + ", which goes on, descends from it", nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", err
	}
	state, _, err := states.Load(ctx, t, of.ID, of.Run, 1<<63-1)
	if err != nil {
		return "", err
	}
	for _, b := range state.Bookmarks {
		if b.Run == "" && b.Kind == wire.CheckpointLabelled {
			return "it has the bookmark " + request.Shown(b.Label), nil
		}
	}
	return "", nil
}

// hasFork reports whether a run has a fork, at any distance, that isn't gone for good, whatever has become of it and of those between: the
// points behind which the fork can be forked anew lie in part in its ancestors, and so does what its folder has of theirs. Deleting an
// ancestor by name doesn't ask for them.
func hasFork(ctx context.Context, t *archive.Tx, run string) (bool, error) {
	var fork string
	err := t.Row(ctx, `SELECT r.run FROM lineage l JOIN runs r ON r.id = l.run
		WHERE l.ancestor = ?1 AND r.parent <> ?1 LIMIT 1`, run).Scan(&fork)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// isNeeded reports whether a run has to stay where no operator deletes it by name.
func isNeeded(ctx context.Context, t *archive.Tx, of request.Target) (bool, error) {
	why, err := neededBy(ctx, t, of)
	if err != nil || why != "" {
		return true, err
	}
	return hasFork(ctx, t, of.Run)
}

// expiredRun is a run that may be too old.
type expiredRun struct {
	request.Target
	size int64 // bytes, its share of the store
}

// Expire deletes the runs that a retention has no place for, and returns how
// many. What goes on, or is needed, stays, and what goes on again after it was deleted is restored.
func (d *Deleter) Expire(ctx context.Context, r Policy, now time.Time) (deleted int, err error) {
	err = d.kept.Change(ctx, func(t *archive.Tx) error {
		_, err := t.Do(ctx, `DELETE FROM deleted WHERE run IN (SELECT d.run FROM deleted d JOIN runs r ON r.run = d.run
			WHERE (`+goesOnAgain+`) AND r.run NOT IN (SELECT run FROM retired))`)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("recorder: retention: %w", err)
	}
	if r.Age > 0 {
		if deleted, err = d.expireOld(ctx, r, now); err != nil {
			return deleted, fmt.Errorf("recorder: retention: %w", err)
		}
	}
	if r.Size > 0 {
		n, err := d.expireLarge(ctx, r, now)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("recorder: retention: %w", err)
		}
	}
	return deleted, nil
}

// goesOnAgain says that something has happened in a deleted run d, r since: it was resumed, or its session was taken up again. When that
// was is when the stream stored it: what is imported may be of the next century.
const goesOnAgain = `r.imported = '' AND NOT ` + overRuns + ` OR d.reason <> '` + deletedByUser + `' AND (
	EXISTS (SELECT 1 FROM tail x WHERE x.run = r.id AND x.last_time > d.at) OR EXISTS (SELECT 1 FROM segments x WHERE x.run = r.id AND x.last_time > d.at))`

// endedRuns are the runs that have ended and aren't deleted. When something ended is
// when the stream stored its end: times that were imported may be of another
// century.
const endedRuns = ` FROM runs r JOIN (SELECT run AS id, max(last_time) AS ended, sum(size) AS size FROM (
		SELECT run, last_time, length(data) AS size FROM segments UNION ALL SELECT run, last_time, length(data) FROM tail) stored GROUP BY run) s ON s.id = r.id
	WHERE r.run <> '` + wire.NoRun + `' AND ` + overRuns + `
	AND r.run NOT IN (SELECT run FROM deleted) AND r.run NOT IN (SELECT run FROM retired)`

// Ended returns the runs that have ended, also those that are deleted, the first one first.
func (d *Deleter) Ended(ctx context.Context) (runs []string, err error) {
	list, err := d.expiredRuns(ctx, `SELECT 0, run, 0 FROM runs WHERE run <> '`+wire.NoRun+`' AND status IN ('complete', 'aborted') ORDER BY last_pos, run`)
	for _, e := range list {
		runs = append(runs, e.Run)
	}
	return runs, err
}

// IsIdle reports whether a run has ended and nothing needs more than the record of it: it has no fork and no labelled point.
// So is one that was removed and has no fork: nothing can be started from a point of it. IsIdle fails while the recorder is behind.
func (d *Deleter) IsIdle(ctx context.Context, run string) (bool, error) {
	return archive.Ask(ctx, d.kept, func(t *archive.Tx) (bool, error) { return isIdle(ctx, t, run, maxDepth) })
}

// maxDepth bounds the runs that have begun each other which are looked at: an import may say that they go in a circle.
const maxDepth = 100

func isIdle(ctx context.Context, t *archive.Tx, run string, depth int) (idle bool, err error) {
	late, err := isBehind(ctx, t)
	if err != nil {
		return false, err
	}
	if late {
		return false, errBehind
	}
	of := request.Target{Run: run}
	var status, reason, imported string
	err = t.Row(ctx, `SELECT id, status, reason, imported FROM runs WHERE run = ?1`, run).Scan(&of.ID, &status, &reason, &imported)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if err = t.Row(ctx, `SELECT count(*) > 0 FROM retired WHERE run = ?1`, run).Scan(&idle); err != nil || !idle {
			return false, err
		}
		forked, err := hasFork(ctx, t, run)
		return err == nil && !forked, err
	case err != nil || !isOver(status, reason, imported):
		return false, err
	}
	if why, err := pointsNeededBy(ctx, t, of); err != nil || why != "" {
		return false, err
	}
	if forked, err := hasFork(ctx, t, run); err != nil || forked {
		return false, err
	}
	var parent string // whose folder it may have worked in
	err = t.Row(ctx, `SELECT p.run FROM runs r JOIN runs p ON p.run = r.parent WHERE r.id = ?1`, of.ID).Scan(&parent)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	if depth == 0 {
		return false, nil
	}
	return isIdle(ctx, t, parent, depth-1)
}

func (d *Deleter) expireOld(ctx context.Context, r Policy, now time.Time) (deleted int, err error) {
	old, err := d.expiredRuns(ctx, `SELECT r.id, r.run, s.size`+endedRuns+`
		AND s.ended < ?1 ORDER BY s.ended`, now.Add(-r.Age).UnixMilli())
	for _, e := range old {
		done, markErr := d.expireRun(ctx, e.Target, deletedByAge, r, now)
		if markErr != nil {
			return deleted, markErr
		}
		if done {
			deleted++
		}
	}
	return deleted, err
}

// expireLarge deletes the runs that ended first until what isn't deleted fits. A
// run's share of the store is that of its packed events in all of them.
func (d *Deleter) expireLarge(ctx context.Context, r Policy, now time.Time) (deleted int, err error) {
	total, packed, pending, err := d.storeSizes(ctx)
	if err != nil || packed == 0 || total <= r.Size {
		return 0, err
	}
	share := func(size int64) int64 { return int64(float64(total) * float64(size) / float64(packed)) }
	excess := total - share(pending) - r.Size
	if excess <= 0 {
		return 0, nil
	}
	list, err := d.expiredRuns(ctx, `SELECT r.id, r.run, s.size`+endedRuns+` ORDER BY s.ended`)
	for _, e := range list {
		if excess <= 0 {
			break
		}
		done, markErr := d.expireRun(ctx, e.Target, deletedBySize, r, now)
		if markErr != nil {
			return deleted, markErr
		}
		if done {
			deleted++
			excess -= share(e.size)
		}
	}
	return deleted, err
}

// storeSizes returns the bytes that the store takes, those of all packed events, and
// those of the packed events that are deleted but still there.
func (d *Deleter) storeSizes(ctx context.Context) (total, packed, pending int64, err error) {
	total, err = archive.Ask(ctx, d.kept, func(t *archive.Tx) (total int64, err error) {
		if err = t.Row(ctx, t.D.Size).Scan(&total); err != nil {
			return 0, err
		}
		return total, t.Row(ctx, `SELECT coalesce((SELECT sum(length(data)) FROM segments), 0),
			coalesce((SELECT sum(length(data)) FROM segments WHERE run IN (SELECT id FROM runs WHERE run IN (SELECT run FROM deleted))), 0)`).Scan(&packed, &pending)
	})
	return total, packed, pending, err
}

func (d *Deleter) expiredRuns(ctx context.Context, text string, args ...any) (list []expiredRun, err error) {
	return archive.Ask(ctx, d.kept, func(t *archive.Tx) (list []expiredRun, err error) {
		var e expiredRun
		for err := range t.Each(ctx, text, args, &e.ID, &e.Run, &e.size) {
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		return list, nil
	})
}

// expireRun deletes a run unless it is needed.
func (d *Deleter) expireRun(ctx context.Context, of request.Target, reason string, r Policy, now time.Time) (done bool, err error) {
	err = d.kept.Change(ctx, func(t *archive.Tx) error {
		if late, err := isBehind(ctx, t); err != nil || late {
			return err
		}
		if needed, err := isNeeded(ctx, t, of); err != nil || needed {
			return err
		}
		done = true
		return markDeleted(ctx, t, of.Run, reason, 0, now.UnixMilli(), now.Add(r.Grace).UnixMilli())
	})
	return done, err
}
