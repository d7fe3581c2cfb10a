package recorder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"wake/pkg/wire"
)

// Retention says how long runs are kept. The zero value keeps all of them for
// ever.
type Retention struct {
	Age   time.Duration // a run is deleted that ended longer ago; 0: none is for its age
	Size  int64         // bytes the store may take: the oldest runs are deleted while it is larger; 0: none is for that
	Grace time.Duration // how long a run that was deleted can still be read and restored; default 7 days
	Every time.Duration // how often it is looked after, default 1 minute
}

func (r Retention) withDefaults() (Retention, error) {
	if r.Age < 0 || r.Size < 0 || r.Grace < 0 || r.Every < 0 {
		return r, errors.New("recorder: how long runs are kept must not be negative")
	}
	r.Grace, r.Every = cmp.Or(r.Grace, 7*24*time.Hour), cmp.Or(r.Every, time.Minute)
	return r, nil
}

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
func (s *Store) Delete(ctx context.Context, q wire.DeleteRequest, grace time.Duration, now time.Time) (wire.DeleteResponse, error) {
	if q.Now {
		grace = 0
	}
	var r wire.DeleteResponse
	err := s.change(ctx, func(t *tx) error {
		found, err := resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return err
		}
		r.RunID = found.run
		if q.Undo {
			return undelete(ctx, t, found.run)
		}
		r.DeletedAt, r.GoneAt = now.UnixMilli(), now.Add(grace).UnixMilli()
		return deleteRun(ctx, t, found, q.Force, r)
	})
	if err != nil {
		return wire.DeleteResponse{}, wrap("delete", err)
	}
	return r, nil
}

// change does something in a transaction that writes, which nobody records in
// meanwhile.
func (s *Store) change(ctx context.Context, f func(*tx) error) error {
	begun, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	t := &tx{begun, s.d, s.zip}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if s.d.lock != "" {
		if _, err := t.exec(ctx, s.d.lock); err != nil {
			return err
		}
	}
	if err := f(t); err != nil {
		return err
	}
	return t.Commit()
}

func undelete(ctx context.Context, t *tx, run string) error {
	result, err := t.exec(ctx, `DELETE FROM deleted WHERE run = ?1`, run)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return &wire.APIError{Code: wire.CodeCommandRejected, Message: "run " + shown(run) + " isn't deleted", Hint: "`wake runs --deleted` lists those that are"}
}

// deleteRun deletes a run at a user's request.
func deleteRun(ctx context.Context, t *tx, of target, force bool, r wire.DeleteResponse) error {
	rejected := func(hint, format string, args ...any) error {
		return &wire.APIError{Code: wire.CodeCommandRejected, Message: fmt.Sprintf(format, args...), Hint: hint}
	}
	var status, imported string
	if err := t.row(ctx, `SELECT status, imported FROM runs WHERE id = ?1`, of.id).Scan(&status, &imported); err != nil {
		return err
	}
	behind, err := t.behind(ctx)
	if err != nil {
		return err
	}
	switch {
	case behind:
		return rejected("try it again in a while", "the recorder is behind: whether something needs run %s isn't known yet", shown(of.run))
	case of.run == wire.NoRun:
		return badRequest("%s is what belongs to no run", wire.NoRun)
	case !over(status) && imported == "":
		return rejected("wait for its end, or `wake abort` it", "run %s hasn't ended", shown(of.run))
	case !over(status) && !force:
		return rejected("delete it with --force", "run %s hasn't ended, as far as was imported", shown(of.run))
	}
	if !force {
		why, err := neededBy(ctx, t, of)
		if err != nil {
			return err
		}
		if why != "" {
			return rejected("delete it with --force all the same", "run %s is kept: %s", shown(of.run), why)
		}
	}
	forced := 0
	if force {
		forced = 1
	}
	return mark(ctx, t, of.run, deletedByUser, forced, r.DeletedAt, r.GoneAt)
}

func over(status string) bool {
	return status == string(wire.RunComplete) || status == string(wire.RunAborted)
}

// mark notes that a run is deleted. To delete it again may hasten its end.
func mark(ctx context.Context, t *tx, run, reason string, forced int, at, goneAt int64) error {
	_, err := t.exec(ctx, `INSERT INTO deleted (run, at, gone_at, reason, forced) VALUES (?1, ?2, ?3, ?4, ?5)
		ON CONFLICT (run) DO UPDATE SET gone_at = CASE WHEN excluded.gone_at < deleted.gone_at THEN excluded.gone_at ELSE deleted.gone_at END,
		forced = CASE WHEN excluded.forced > deleted.forced THEN excluded.forced ELSE deleted.forced END`, run, at, goneAt, reason, forced)
	return err
}

// behind reports whether there are recorded events from which nothing is derived
// yet. What is kept for how long isn't decided without them: a run may go on, or be
// forked, with one of them.
func (t *tx) behind(ctx context.Context) (bool, error) {
	recorded, derived, err := t.reached(ctx)
	return derived < recorded.Seq, err
}

// neededBy says why the record of a run has to stay, or "": a run that goes on
// descends from it, or somebody has labelled a point of it to come back to.
func neededBy(ctx context.Context, t *tx, of target) (string, error) {
	var live string
	err := t.row(ctx, `WITH RECURSIVE kin (run, status) AS (
			SELECT r.run, r.status FROM lineage l JOIN runs r ON r.id = l.run WHERE l.ancestor = ?1
			UNION SELECT r.run, r.status FROM kin JOIN lineage l ON l.ancestor = kin.run JOIN runs r ON r.id = l.run)
		SELECT run FROM kin WHERE status NOT IN ('complete', 'aborted') ORDER BY run LIMIT 1`, of.run).Scan(&live)
	if err == nil {
		return "run " + shown(live) + ", which goes on, descends from it", nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", err
	}
	state, _, err := loadState(ctx, t, of.id, of.run, 1<<63-1)
	if err != nil {
		return "", err
	}
	for _, b := range state.Bookmarks {
		if b.Run == "" && b.Kind == wire.CheckpointLabelled {
			return "it has the bookmark " + shown(b.Label), nil
		}
	}
	return "", nil
}

// expired is a run that may be too old.
type expired struct {
	target
	size int64 // bytes, its share of the store
}

// Expire deletes the runs that a retention has no place for, and returns how
// many. What goes on, or is needed, stays.
func (s *Store) Expire(ctx context.Context, r Retention, now time.Time) (deleted int, err error) {
	if r.Age > 0 {
		if deleted, err = s.expireOld(ctx, r, now); err != nil {
			return deleted, fmt.Errorf("recorder: retention: %w", err)
		}
	}
	if r.Size > 0 {
		n, err := s.expireLarge(ctx, r, now)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("recorder: retention: %w", err)
		}
	}
	return deleted, nil
}

// endedRuns are the runs that have ended and aren't deleted. When something ended is
// when the stream stored its end: times that were imported may be of another
// century.
const endedRuns = ` FROM runs r JOIN (SELECT run AS id, max(last_time) AS ended, sum(length(data)) AS size FROM segments GROUP BY run) s ON s.id = r.id
	WHERE r.run <> '` + wire.NoRun + `' AND r.status IN ('complete', 'aborted')
	AND r.run NOT IN (SELECT run FROM deleted) AND r.run NOT IN (SELECT run FROM retired)`

func (s *Store) expireOld(ctx context.Context, r Retention, now time.Time) (deleted int, err error) {
	old, err := s.expired(ctx, `SELECT r.id, r.run, s.size`+endedRuns+`
		AND s.ended < ?1 AND NOT EXISTS (SELECT 1 FROM tail WHERE tail.run = r.id AND tail.time >= ?1) ORDER BY s.ended`, now.Add(-r.Age).UnixMilli())
	for _, e := range old {
		done, markErr := s.expire(ctx, e.target, deletedByAge, r, now)
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
func (s *Store) expireLarge(ctx context.Context, r Retention, now time.Time) (deleted int, err error) {
	total, packed, pending, err := s.size(ctx)
	if err != nil || packed == 0 || total <= r.Size {
		return 0, err
	}
	share := func(size int64) int64 { return int64(float64(total) * float64(size) / float64(packed)) }
	excess := total - share(pending) - r.Size
	if excess <= 0 {
		return 0, nil
	}
	list, err := s.expired(ctx, `SELECT r.id, r.run, s.size`+endedRuns+` ORDER BY s.ended`)
	for _, e := range list {
		if excess <= 0 {
			break
		}
		done, markErr := s.expire(ctx, e.target, deletedBySize, r, now)
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

// size returns the bytes that the store takes, those of all packed events, and
// those of the packed events that are deleted but still there.
func (s *Store) size(ctx context.Context) (total, packed, pending int64, err error) {
	t, err := s.view(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if err := t.row(ctx, s.d.size).Scan(&total); err != nil {
		return 0, 0, 0, err
	}
	err = t.row(ctx, `SELECT coalesce((SELECT sum(length(data)) FROM segments), 0),
		coalesce((SELECT sum(length(data)) FROM segments WHERE run IN (SELECT id FROM runs WHERE run IN (SELECT run FROM deleted))), 0)`).Scan(&packed, &pending)
	return total, packed, pending, err
}

func (s *Store) expired(ctx context.Context, text string, args ...any) (list []expired, err error) {
	t, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	for rows, err := range t.query(ctx, text, args...) {
		if err != nil {
			return nil, err
		}
		var e expired
		if err := rows.Scan(&e.id, &e.run, &e.size); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// expire deletes a run unless it is needed.
func (s *Store) expire(ctx context.Context, of target, reason string, r Retention, now time.Time) (done bool, err error) {
	err = s.change(ctx, func(t *tx) error {
		if behind, err := t.behind(ctx); err != nil || behind {
			return err
		}
		why, err := neededBy(ctx, t, of)
		if err != nil || why != "" {
			return err
		}
		done = true
		return mark(ctx, t, of.run, reason, 0, now.UnixMilli(), now.Add(r.Grace).UnixMilli())
	})
	return done, err
}

// retiredAt returns when the removal of a run's events began, or 0.
func retiredAt(ctx context.Context, t *tx, run string) (at int64, err error) {
	err = t.row(ctx, `SELECT at FROM retired WHERE run = ?1`, run).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return at, err
}

// removed says that a run isn't there any more.
func removed(run string, at int64) *wire.APIError {
	return &wire.APIError{
		Code:    wire.CodeRunNotFound,
		Message: fmt.Sprintf("run %s was deleted, and its events were removed on %s", shown(run), time.UnixMilli(at).UTC().Format(time.DateTime)),
	}
}
