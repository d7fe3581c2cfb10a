package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"

	"wake/pkg/wire"
)

// ErrNewer is returned for a file that a newer wake has written.
var ErrNewer = errors.New("the file was written by a newer wake: use that one, or another file")

// ErrForeign is returned for a file that isn't a recorder's.
var ErrForeign = errors.New("the file is not a recorder's: choose another one")

// Store is the recorder's file. One goroutine may record into it while many ask.
type Store struct {
	path  string
	write *sql.DB // one connection
	read  *sql.DB
	stmts *statements
	folds *folds
}

// readers bounds the questions that are answered at the same time.
const readers = 4

// Open opens or creates the file at path and brings it to the current schema.
// Its folder is created too.
func Open(ctx context.Context, path string) (*Store, error) {
	s, err := open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	s := &Store{path: path, folds: newFolds()}
	if s.write, err = sql.Open("sqlite", dsn(path, "_txlock=immediate", "_pragma=synchronous(FULL)")); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if err = migrate(ctx, s.write); err == nil {
		s.stmts, err = prepare(ctx, s.write)
	}
	if err == nil {
		s.read, err = sql.Open("sqlite", dsn(path, "_pragma=query_only(1)"))
	}
	if err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.read.SetMaxOpenConns(readers)
	return s, nil
}

// dsn names the file whatever characters its path has.
func dsn(path string, options ...string) string {
	options = append(options, "_pragma=busy_timeout(10000)", "_pragma=foreign_keys(1)")
	return (&url.URL{Scheme: "file", Path: path}).String() + "?" + strings.Join(options, "&")
}

// migrate brings the file to the current schema.
func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return foreign(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	var application, version, tables int
	row := tx.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`)
	if err := row.Scan(&application, &version, &tables); err != nil {
		return foreign(err)
	}
	steps := migrations()
	switch {
	case application != applicationID && tables > 0:
		return ErrForeign
	case version > len(steps):
		return fmt.Errorf("%w (its schema is %d, this one knows up to %d)", ErrNewer, version, len(steps))
	}
	for _, step := range steps[version:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return err
		}
	}
	mark := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(steps))
	if _, err := tx.ExecContext(ctx, mark); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "PRAGMA journal_mode = WAL") // stays with the file
	return err
}

// notDatabase is SQLite's code for a file that isn't one of its own.
const notDatabase = 26

func foreign(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == notDatabase {
		return ErrForeign
	}
	return err
}

// Close closes the file. Nobody may use the store any more.
func (s *Store) Close() error {
	err := errors.Join(s.stmts.close(), s.read.Close(), s.write.Close())
	if err != nil {
		return fmt.Errorf("recorder: close %s: %w", s.path, err)
	}
	return nil
}

// Position returns the position up to which everything is recorded. Of an empty
// file it is zero.
func (s *Store) Position(ctx context.Context) (wire.Position, error) {
	var p wire.Position
	err := s.read.QueryRowContext(ctx, `SELECT incarnation, position FROM streams`).Scan(&p.Incarnation, &p.Seq)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return p, fmt.Errorf("recorder: position: %w", err)
	}
	return p, nil
}
