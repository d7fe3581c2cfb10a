package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/queries"
	"code.wake.dev/wake/services/recorder/retention"
	"code.wake.dev/wake/services/recorder/verify"
)

// What a store is refused for.
var (
	ErrNewer      = database.ErrNewer
	ErrUnreleased = database.ErrUnreleased
	ErrForeign    = database.ErrForeign
	ErrOlder      = database.ErrOlder
)

// Store is the rooms that share one SQLite file or PostgreSQL database. One goroutine may
// record into it, and one derive, while many ask.
type Store struct {
	Archive   *archive.Archive   // the events as they were stored, and the position
	Index     *index.Index       // records, and derives; nil: the store is only read
	Answers   *queries.Answers   // what is asked
	Retention *retention.Deleter // deletes what is old or unwanted
	Checker   *verify.Checker    // compares the rooms with each other
}

// Open opens or creates a store and brings it to the current schema. A store is
// named by the path of a SQLite file, which may follow sqlite:, or by the URL of a
// PostgreSQL database (postgres://…), of which it uses the first schema in the search
// path. It creates the folder of a file, too. It fails with [ErrNewer],
// [ErrUnreleased] or [ErrForeign]. The password in a URL is never part of an error.
func Open(ctx context.Context, store string) (*Store, error) {
	s, err := openRooms(ctx, store, false)
	if err != nil {
		return nil, err
	}
	if s.Index, err = index.New(ctx, s.Archive, s.Answers); err != nil {
		return nil, errors.Join(err, s.Archive.Close())
	}
	return s, nil
}

// OpenReadOnly opens a store as [Open] does, while a recorder may be writing to it. It
// fails with [ErrOlder] if the store has to be brought to the current schema before.
func OpenReadOnly(ctx context.Context, store string) (*Store, error) {
	return openRooms(ctx, store, true)
}

func openRooms(ctx context.Context, target string, readOnly bool) (*Store, error) {
	db, err := database.Open(ctx, target, readOnly)
	if err != nil {
		return nil, err
	}
	kept, err := archive.New(db)
	if err != nil {
		return nil, err
	}
	answers := queries.New(kept)
	return &Store{Archive: kept, Answers: answers, Retention: retention.New(kept), Checker: verify.New(answers)}, nil
}

// Close closes the store. No caller may use it any more.
func (s *Store) Close() error {
	var err error
	if s.Index != nil {
		err = s.Index.Close()
	}
	if err = errors.Join(err, s.Archive.Close()); err != nil {
		return fmt.Errorf("recorder: close %s: %w", s.Archive.Name, err)
	}
	return nil
}

// What goes into a store and comes out of it, by the names of its rooms.
type (
	// Batch is what is recorded in one transaction, see [index.Batch].
	Batch = index.Batch
	// Report says what a batch came to, see [index.Report].
	Report = index.Report
	// Query says which lines of the log are wanted, see [queries.Query].
	Query = queries.Query
	// Retention says how long what is kept, see [retention.Policy].
	Retention = retention.Policy
	// Verification is what verify has looked at and found, see [verify.Verification].
	Verification = verify.Verification
	// Anchor is a signed head of the hash chains, see [verify.Anchor].
	Anchor = verify.Anchor
	// Heads are the ends of the hash chains of runs that were verified, see [verify.Heads].
	Heads = verify.Heads
)

// ErrPostgres is returned for what can be done with SQLite files only.
var ErrPostgres = errors.New("it is a PostgreSQL database: pg_dump copies it")

// Copy copies a store that is a SQLite file into a new file, as of one moment, also
// while a recorder writes to it, and returns the position up to which the copy is
// recorded. Of a PostgreSQL database it fails with [ErrPostgres].
func Copy(ctx context.Context, store, path string) (pos wire.Position, err error) {
	if database.IsPostgres(store) {
		return pos, ErrPostgres
	}
	from, err := OpenReadOnly(ctx, store)
	if err != nil {
		return pos, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	db, err := sql.Open("sqlite", database.DSN(from.Archive.Path, "mode=ro"))
	if err != nil {
		return pos, fmt.Errorf("recorder: copy %s: %w", from.Archive.Name, err)
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", path)
	if err = errors.Join(err, db.Close()); err != nil {
		return pos, fmt.Errorf("recorder: copy %s: %w", from.Archive.Name, err)
	}
	to, err := OpenReadOnly(ctx, path)
	if err != nil {
		return pos, err
	}
	pos, err = to.Archive.Position(ctx)
	return pos, errors.Join(err, to.Close())
}

// File returns the path of the SQLite file that a store is named by, or fails with
// [ErrPostgres].
func File(store string) (string, error) {
	if database.IsPostgres(store) {
		return "", ErrPostgres
	}
	return strings.TrimPrefix(store, "sqlite:"), nil
}
