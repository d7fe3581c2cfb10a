package recorder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// migrate brings the file to the current schema, in one transaction.
func (s *Store) migrate(ctx context.Context) error {
	begun, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return foreign(err)
	}
	t := &tx{begun, s.d, s.zip}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if s.d.migrating != "" {
		if _, err := t.exec(ctx, s.d.migrating); err != nil {
			return err
		}
	}
	version, err := s.version(ctx, t)
	if err != nil {
		return err
	}
	for _, step := range s.d.steps[version:] {
		if _, err := t.ExecContext(ctx, step.text); err != nil {
			return err
		}
	}
	for _, step := range s.d.steps[version:] { // with all tables there, since recording needs them
		if step.then == nil {
			continue
		}
		if err := step.then(ctx, s, t); err != nil {
			return err
		}
	}
	if version < len(s.d.steps) {
		if _, err := t.ExecContext(ctx, s.d.mark(len(s.d.steps))); err != nil {
			return err
		}
	}
	return t.Commit()
}

// version returns the store's version of the schema, 0 of an empty one.
func (s *Store) version(ctx context.Context, t *tx) (int, error) {
	version, err := s.d.version(ctx, s, t)
	if err == nil && version > len(s.d.steps) {
		err = fmt.Errorf("%w (its schema is %d, this one knows up to %d)", ErrNewer, version, len(s.d.steps))
	}
	return version, err
}

func sqliteVersion(ctx context.Context, _ *Store, t *tx) (int, error) {
	var application, version, tables int
	err := t.row(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&application, &version, &tables)
	switch {
	case err != nil:
		return 0, foreign(err)
	case application != applicationID && tables > 0:
		return 0, ErrForeign
	}
	return version, nil
}

// refillBatch is the number of events that are recorded again at once.
const refillBatch = 1024

// refill records again what a file of schema 1 holds. What it says of lost
// positions follows from those that are there.
func refill(ctx context.Context, s *Store, t *tx) error {
	var incarnation string
	for rows, err := range t.query(ctx, `SELECT incarnation FROM streams`) {
		if err == nil {
			err = rows.Scan(&incarnation)
		}
		if err != nil {
			return err
		}
	}
	for last := uint64(0); ; {
		list, err := oldEvents(ctx, t, last)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		b := Batch{Incarnation: incarnation}
		for _, e := range list {
			last = e.pos
			if e.mark != markRecorder {
				b.Entries = append(b.Entries, e.entry())
			}
		}
		if _, err := s.fill(ctx, t, b); err != nil {
			return err
		}
	}
	_, err := t.ExecContext(ctx, `DROP TABLE events_1`)
	s.folds.forget()
	return err
}

func oldEvents(ctx context.Context, t *tx, after uint64) (list []stored, err error) {
	for rows, err := range t.query(ctx, `SELECT pos, time, mark, note, data FROM events_1 WHERE pos > ?1 ORDER BY pos LIMIT ?2`, after, refillBatch) {
		if err != nil {
			return nil, err
		}
		var e stored
		if err := rows.Scan(&e.pos, &e.time, &e.mark, &e.note, &e.data); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// entry is what the stream gave, as far as recording it again needs that.
func (s *stored) entry() eventlog.Entry {
	e := eventlog.Entry{Pos: s.pos, Time: time.UnixMilli(s.time), Data: s.data}
	if s.mark == markBad {
		e.Err = errors.New(s.note)
		return e
	}
	if e.Event, e.Err = wire.Decode(s.data); e.Err == nil {
		e.RunID, e.NodeID, e.Kind = e.Event.RunID, e.Event.NodeID, e.Event.Type().Kind()
	}
	return e
}
