package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"

	"wake/pkg/wire"
)

// ErrNewer is returned for a store that a newer wake has written.
var ErrNewer = errors.New("it was written by a newer wake: use that one, or another store")

// ErrForeign is returned for a file or a database that isn't a recorder's.
var ErrForeign = errors.New("it is not a recorder's: choose another one")

// ErrOlder is returned for a store that has to be brought to the current schema
// before it can be read.
var ErrOlder = errors.New("it was written by an older wake: start the recorder once, or open a copy of it for writing")

// Store is what the recorder records into: a SQLite file or a PostgreSQL
// database. One goroutine may record into it, and one derive, while many ask.
type Store struct {
	name  string // for people: the path, or the URL without user and password
	path  string // of the file
	d     *dialect
	write *sql.DB // one connection; of a file that is only read nil
	read  *sql.DB
	stmts *statements
	folds *folds
	views views
	live  live
	said  *slog.Logger // what takes long while it is opened
	zip   *zipper
	chain chain
	spare spare

	turn    sync.Mutex // of who records or derives
	last    uint64     // position after the last transaction; 0: unknown
	derived uint64     // up to where what follows from the events was derived then

	scratch bool // events aren't kept, only what is derived from them
}

// readers bounds the questions that are answered at the same time.
const readers = 4

// Open opens or creates a store and brings it to the current schema. A store is
// named by the path of a SQLite file, which may follow sqlite:, and whose folder
// is created too, or by the URL of a PostgreSQL database (postgres://…), of which
// it uses the first schema in the search path. It fails with [ErrNewer] or
// [ErrForeign]. The password in a URL is never part of an error.
func Open(ctx context.Context, store string) (*Store, error) {
	return OpenLogging(ctx, store, slog.New(slog.DiscardHandler))
}

// OpenLogging is [Open] and tells logger how far it is with bringing an older
// store to the current schema.
func OpenLogging(ctx context.Context, store string, logger *slog.Logger) (*Store, error) {
	return open(ctx, store, false, logger)
}

// OpenReadOnly opens a store as [Open] does, into which somebody else may be
// recording. It fails with [ErrOlder] if the store has to be brought to the
// current schema before.
func OpenReadOnly(ctx context.Context, store string) (*Store, error) {
	return open(ctx, store, true, slog.New(slog.DiscardHandler))
}

func open(ctx context.Context, target string, readOnly bool, logger *slog.Logger) (*Store, error) {
	s := &Store{name: "store", folds: newFolds(), said: logger}
	var err error
	if s.zip, err = newZipper(); err != nil {
		return nil, fmt.Errorf("recorder: open: %w", err)
	}
	if isPostgres(target) {
		err = s.openPostgres(ctx, target, readOnly)
	} else {
		err = s.openSQLite(ctx, strings.TrimPrefix(target, "sqlite:"), readOnly)
	}
	if err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", s.name, errors.Join(err, s.close()))
	}
	return s, nil
}

// Name names the store for people: by its path, or by its URL without user and
// password.
func (s *Store) Name() string { return s.name }

// openSQLite opens the file at a path.
func (s *Store) openSQLite(ctx context.Context, path string, readOnly bool) (err error) {
	s.name, s.d = path, sqliteDialect()
	if s.path, err = filepath.Abs(path); err != nil {
		return err
	}
	if readOnly {
		return s.openRead(ctx)
	}
	return s.openBoth(ctx)
}

// Sizes of SQLite's own memory.
const (
	writeCache = "_pragma=cache_size(-32768)"       // KiB
	spacious   = "_pragma=auto_vacuum(2)"           // of a new file: it can give space back bit by bit
	journal    = "_pragma=temp_store(MEMORY)"       // where a statement notes what it may have to undo
	readCache  = "_pragma=cache_size(-8192)"        // KiB, per reader
	checkpoint = "_pragma=wal_autocheckpoint(4096)" // pages that the log may grow to before they go to the file
)

// openBoth opens the file for writing and reading.
func (s *Store) openBoth(ctx context.Context) error {
	err := os.MkdirAll(filepath.Dir(s.path), 0o700)
	if err != nil {
		return err
	}
	options := []string{"_txlock=immediate", "_pragma=synchronous(FULL)", writeCache, journal, checkpoint}
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
		options = append(options, spacious)
	}
	if s.write, err = sql.Open("sqlite", dsn(s.path, options...)); err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.writeAhead(ctx); err != nil {
		return err
	}
	if s.stmts, err = prepare(ctx, s.d, s.write); err != nil {
		return err
	}
	if s.read, err = sql.Open("sqlite", dsn(s.path, "_pragma=query_only(1)", readCache)); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	return nil
}

// writeAhead gives the file a log that is written ahead, which it keeps. Who does
// that for a new file while somebody else opens it isn't made to wait by SQLite,
// which says at once that the file is busy.
func (s *Store) writeAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	for {
		_, err := s.write.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		if e, ok := errors.AsType[*sqlite.Error](err); !ok || e.Code() != busy {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// openRead opens the file for reading.
func (s *Store) openRead(ctx context.Context) error {
	if _, err := os.Stat(s.path); err != nil {
		return err
	}
	var err error
	if s.read, err = sql.Open("sqlite", dsn(s.path, "mode=ro", "_pragma=query_only(1)", readCache)); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	return s.current(ctx)
}

// current fails unless the store has the current schema.
func (s *Store) current(ctx context.Context) error {
	t, err := s.view(ctx)
	if err != nil {
		return foreign(err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	version, err := s.version(ctx, t)
	if err == nil && version < len(s.d.steps) {
		err = ErrOlder
	}
	return err
}

// dsn names the file whatever characters its path has.
func dsn(path string, options ...string) string {
	options = append(options, fmt.Sprintf("_pragma=busy_timeout(%d)", busyWait.Milliseconds()))
	return (&url.URL{Scheme: "file", Path: path}).String() + "?" + strings.Join(options, "&")
}

// busyWait is how long others who use the file are waited for.
const busyWait = 10 * time.Second

// Codes of SQLite: of a file that others use, and of one that isn't its own.
const (
	busy        = 5
	notDatabase = 26
)

func foreign(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == notDatabase {
		return ErrForeign
	}
	return err
}

// Close closes the file. Nobody may use the store any more.
func (s *Store) Close() error {
	if err := s.close(); err != nil {
		return fmt.Errorf("recorder: close %s: %w", s.name, err)
	}
	return nil
}

func (s *Store) close() error {
	var err error
	if s.stmts != nil {
		err = s.stmts.close()
	}
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	s.zip.dec.Close()
	return errors.Join(err, s.zip.enc.Close())
}

// Derived returns the position up to which what follows from the recorded events is
// derived. Of an empty store it is zero.
func (s *Store) Derived(ctx context.Context) (uint64, error) {
	var pos uint64
	err := s.read.QueryRowContext(ctx, `SELECT derived FROM streams`).Scan(&pos)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("recorder: derived: %w", err)
	}
	return pos, nil
}

// Position returns the position up to which everything is recorded. Of an empty
// file it is zero.
func (s *Store) Position(ctx context.Context) (wire.Position, error) {
	p, _, err := s.reached(ctx)
	return p, err
}

// reached returns the position of the store, and the one up to which what follows
// from the events is derived.
func (s *Store) reached(ctx context.Context) (recorded wire.Position, derived uint64, err error) {
	t, err := s.view(ctx)
	if err == nil {
		defer t.Rollback() //nolint:errcheck // nothing was written
		recorded, derived, err = t.reached(ctx)
	}
	if err != nil {
		return wire.Position{}, 0, fmt.Errorf("recorder: position: %w", err)
	}
	return recorded, derived, nil
}
