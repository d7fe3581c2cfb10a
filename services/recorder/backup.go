package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
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
