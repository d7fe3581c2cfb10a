package database

import (
	"context"
	"errors"
	"fmt"
)

// baseline is the version of the first schema that is released. Only the developers
// ever had stores of lower ones.
const baseline = 15

// upgrades lead from one released version to the next, the first of them from
// baseline, in SQLite and in PostgreSQL. A step is never changed once it is
// released; the declarations of the tables are what it leads to.
func upgrades() []map[string]string {
	return nil // {table.SQLite: `ALTER TABLE …`, table.Postgres: `ALTER TABLE …`}
}

// schemaVersion is that of the tables as they are declared.
func schemaVersion() int { return baseline + len(upgrades()) }

// ErrNewer is returned for a store that a newer wake has written.
var ErrNewer = errors.New("it was written by a newer wake: use that one, or another store")

// ErrUnreleased is returned for a store that was written by a wake from before the
// first release.
var ErrUnreleased = errors.New("it was written by a wake from before the first release, and can't be brought to this schema: " +
	"move it away, or name another one, and start again: the stream is recorded into a new one; what the stream has dropped since, only that wake can read and export")

// ErrForeign is returned for a file or a database that isn't a recorder's.
var ErrForeign = errors.New("it is not a recorder's: choose another one")

// ErrOlder is returned for a store that has to be brought to the current schema
// before it can be read.
var ErrOlder = errors.New("it has no tables, or was written by an older wake: start the recorder once, or open a copy of it for writing")

// migrateSchema makes the tables of an empty database, or brings those of an older one to
// the current schema, in one transaction.
func (s *DB) migrateSchema(ctx context.Context) error {
	t, err := s.Begin(ctx)
	if err != nil {
		return foreignError(err)
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if s.D.migrating != "" {
		if _, err := t.Do(ctx, s.D.migrating); err != nil {
			return err
		}
	}
	version, err := s.storedVersion(ctx, t)
	if err != nil {
		return err
	}
	for _, text := range s.missingSteps(version) {
		if _, err := t.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return t.Commit()
}

// missingSteps are the statements that lead from a version to the current one.
func (s *DB) missingSteps(version int) (texts []string) {
	switch version {
	case schemaVersion():
		return nil
	case 0:
		texts = []string{s.D.Tables.Create(s.D.Name) + s.D.extras}
	default:
		for _, step := range upgrades()[version-baseline:] {
			texts = append(texts, step[s.D.Name])
		}
	}
	return append(texts, s.D.mark(schemaVersion()))
}

// storedVersion returns the store's version of the schema, 0 of an empty one.
func (s *DB) storedVersion(ctx context.Context, t *Tx) (int, error) {
	version, err := s.D.version(ctx, t)
	switch {
	case err != nil:
		return 0, err
	case version > schemaVersion():
		return 0, fmt.Errorf("%w (its schema is %d, this one knows up to %d)", ErrNewer, version, schemaVersion())
	case version > 0 && version < baseline:
		return 0, fmt.Errorf("%w (its schema is %d, the first that was released is %d)", ErrUnreleased, version, baseline)
	}
	return version, nil
}
