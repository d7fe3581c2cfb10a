// Package database opens what a recorder's store is in, a SQLite file or a schema of a
// PostgreSQL database, brings its tables to the current schema, and hides what differs
// between the two.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// DB is an open database.
type DB struct {
	Name   string // for people: the path, or the URL without user and password
	Path   string // of the file; "": it isn't one
	D      *Dialect
	Writer *sql.DB // one connection; of a database that is only read nil
	Reader *sql.DB
}

// Readers bounds the questions that are answered at the same time.
const Readers = 4

// errKind says that there are no stores of a kind.
var errKind = errors.New("a store is the path of a SQLite file, sqlite:PATH or postgres://USER@HOST/DATABASE; there are none of this kind")

// Open opens or creates a database, which is named by the path of a SQLite file,
// which may follow sqlite:, or by the URL of a PostgreSQL database, and brings it to
// the current schema, unless it is only read.
func Open(ctx context.Context, target string, readOnly bool) (*DB, error) {
	s := &DB{Name: "store"}
	if err := CheckKind(target); err != nil {
		return nil, err
	}
	var err error
	switch {
	case IsPostgres(target):
		err = s.openPostgres(ctx, target, readOnly)
	default:
		err = s.openSQLite(ctx, strings.TrimPrefix(target, "sqlite:"), readOnly)
	}
	if err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", s.Name, errors.Join(err, s.Close()))
	}
	return s, nil
}

// CheckKind fails for the URL of a store of which there are none.
func CheckKind(target string) error {
	kind, _, isURL := strings.Cut(target, "://")
	if !isURL || IsPostgres(target) || kind == "sqlite" || strings.ContainsAny(kind, `/\`) {
		return nil
	}
	return fmt.Errorf("recorder: open %s://…: %w: %q", kind, errKind, kind)
}

// Scratch opens an empty database in a file for which nothing is ever synced.
func Scratch(ctx context.Context, path string) (*DB, error) {
	s := &DB{Name: "scratch", Path: path, D: sqliteDialect()}
	var err error
	if s.Writer, err = sql.Open("sqlite", DSN(s.Path, "_pragma=synchronous(OFF)", writeCache, journal)); err != nil {
		return nil, err
	}
	s.Writer.SetMaxOpenConns(1)
	err = s.migrateSchema(ctx)
	if err == nil {
		_, err = s.Writer.ExecContext(ctx, "PRAGMA journal_mode = MEMORY")
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the database. No caller may use it any more.
func (s *DB) Close() (err error) {
	for _, db := range []*sql.DB{s.Reader, s.Writer} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

// View begins a transaction that only reads: all of its answers are of one
// moment. The caller rolls it back.
func (s *DB) View(ctx context.Context) (*Tx, error) {
	for broken := 0; ; broken++ {
		t, err := s.Reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: s.D.snapshot})
		if err == nil {
			return &Tx{t, s.D}, nil
		}
		if broken == Readers || !Away(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Begin begins a transaction that writes. Other writers may begin one, too, until it is locked. A file has it on disk when
// [DB.Sync] has returned, or one of SQLite's checkpoints; until then a loss of power takes it back whole, with all that came
// behind it.
func (s *DB) Begin(ctx context.Context) (*Tx, error) {
	begun, err := s.Writer.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &Tx{begun, s.D}, nil
}

// Lock keeps other writers out until the transaction ends.
func (t *Tx) Lock(ctx context.Context) error {
	if t.D.lock == "" {
		return nil
	}
	_, err := t.Do(ctx, t.D.lock)
	return err
}

// Change runs f in a transaction that writes, and keeps other writers out meanwhile.
// Behind it, everything that was committed is on disk.
func (s *DB) Change(ctx context.Context, f func(*Tx) error) error {
	if err := s.ChangeLater(ctx, f); err != nil {
		return err
	}
	return s.Sync()
}

// ChangeLater is [DB.Change] for what can be had again if it is lost, see [DB.Begin].
func (s *DB) ChangeLater(ctx context.Context, f func(*Tx) error) error {
	t, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := t.Lock(ctx); err != nil {
		return err
	}
	if err := f(t); err != nil {
		return err
	}
	return t.Commit()
}

// checkCurrent fails unless the store has the current schema.
func (s *DB) checkCurrent(ctx context.Context) error {
	t, err := s.View(ctx)
	if err != nil {
		return foreignError(err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	version, err := s.storedVersion(ctx, t)
	if err == nil && version < schemaVersion() {
		err = ErrOlder
	}
	return err
}
