// Package database opens what a recorder's store is in, a SQLite file or a schema of a
// PostgreSQL database, brings its tables to the current schema, and hides what differs
// between the two.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// DB is an open database.
type DB struct {
	Name   string // for people: the path, or the URL without user and password
	Path   string // of the file; "": it isn't one
	D      *Dialect
	Writer *sql.DB // one connection; of a database that is only read nil
	Reader *sql.DB

	changes atomic.Uint64 // transactions of [DB.ChangeLater]
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
	if Damaged(err) {
		err = fmt.Errorf("%w: the store is damaged: end the recorder, and restore a backup of the store, or %s", err, s.Anew())
	}
	if err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", s.Name, errors.Join(err, s.Close()))
	}
	return s, nil
}

// CheckKind fails for the URL of a store of which there are none, and for one that can't be read.
func CheckKind(target string) error {
	kind, _, isURL := strings.Cut(target, "://")
	if IsPostgres(target) {
		if _, err := postgresConfig(target); err != nil {
			return fmt.Errorf("recorder: open postgres://…: %w", err)
		}
		return nil
	}
	if !isURL || kind == "sqlite" || strings.ContainsAny(kind, `/\`) {
		return nil
	}
	return fmt.Errorf("recorder: open %s://…: %w: %q", kind, errKind, kind)
}

// Scratch opens an empty database in a file for which nothing is ever synced.
func Scratch(ctx context.Context, path string) (*DB, error) {
	s := &DB{Name: "scratch", Path: path, D: sqliteDialect()}
	var err error
	if s.Writer, err = openLists(DSN(s.Path, "_pragma=synchronous(OFF)", writeCache, journal)); err != nil {
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
			return &Tx{Tx: t, D: s.D}, nil
		}
		if broken == Readers || !Away(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// TwoViews begins two views as of the same moment.
func (s *DB) TwoViews(ctx context.Context) (a, b *Tx, err error) {
	same := s.sameVersion
	if s.Path == "" {
		same = s.sameSnapshot
	}
	for {
		if a, err = s.View(ctx); err != nil {
			return nil, nil, err
		}
		if b, err = s.View(ctx); err != nil {
			return nil, nil, errors.Join(err, a.Rollback())
		}
		agree, err := same(ctx, a, b)
		if err == nil && agree {
			return a, b, nil
		}
		if err = errors.Join(err, a.Rollback(), b.Rollback()); err != nil {
			return nil, nil, err
		}
	}
}

// sameVersion reports whether two views of a file are of the same moment: each is as of what is first read in it, and a third
// connection tells whether any other has committed something meanwhile.
func (s *DB) sameVersion(ctx context.Context, a, b *Tx) (bool, error) {
	watch, err := s.Reader.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer watch.Close() //nolint:errcheck // it goes back to the others
	var before, after, n int64
	err = watch.QueryRowContext(ctx, "PRAGMA data_version").Scan(&before)
	for _, view := range []*Tx{a, b} {
		if err == nil {
			err = view.Row(ctx, "PRAGMA schema_version").Scan(&n)
		}
	}
	if err == nil {
		err = watch.QueryRowContext(ctx, "PRAGMA data_version").Scan(&after)
	}
	return before == after, err
}

// sameSnapshot has a view of PostgreSQL be of the moment of another one.
func (*DB) sameSnapshot(ctx context.Context, a, b *Tx) (bool, error) {
	var id string
	err := a.Row(ctx, "SELECT pg_export_snapshot()").Scan(&id)
	if err == nil {
		_, err = b.ExecContext(ctx, "SET TRANSACTION SNAPSHOT '"+strings.ReplaceAll(id, "'", "''")+"'")
	}
	return true, err
}

// Begin begins a transaction that writes. Other writers may begin one, too, until it is locked. A file has it on disk when
// [DB.Sync] has returned, or one of SQLite's checkpoints; until then a loss of power takes it back whole, with all that came
// behind it.
func (s *DB) Begin(ctx context.Context) (*Tx, error) {
	begun, err := s.Writer.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &Tx{Tx: begun, D: s.D}, nil
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
	s.changes.Add(1)
	return t.Commit()
}

// Version is what may have changed a file besides what [DB.Begin] begins.
type Version struct {
	changes uint64 // that [DB.Change] has made
	others  int64  // counts those of other connections
}

// VersionIn returns the version of the file in a transaction that writes. It fails for other databases.
func (s *DB) VersionIn(ctx context.Context, t *Tx) (v Version, err error) {
	v.changes = s.changes.Load()
	return v, t.Row(ctx, "PRAGMA data_version").Scan(&v.others)
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

// Dialect is what differs between the databases that a store can be. Statements
// are written once: parameters are ?1, ?2, …, and what is inserted where
// something may be already says ON CONFLICT.
type Dialect struct {
	Name   string
	Tables table.Tables
	extras string                   // what it has besides tables and their indexes
	Bind   func(text string) string // a statement as the driver takes it

	version func(ctx context.Context, t *Tx) (int, error) // of the database's tables, 0 of an empty one; ErrForeign
	mark    func(version int) string                      // says that the tables have a version

	Lists     bool                     // statements that write take a [List]
	Inserts   string                   // how a statement begins that inserts many rows, in a transaction that ends if it fails
	Unindexed string                   // after a table: it is read in its own order
	Lags      bool                     // lines get into the full text after they were recorded, and those that grow are kept apart
	Integrity string                   // asks whether the database is sound: rows of problems, or "ok"; "": it can't be asked
	Size      string                   // asks for the bytes that are in use; space that is free within doesn't count
	Labels    string                   // makes a JSON object of the columns key and value
	Storable  func(text string) string // a text as the database keeps it; nil: as it is
	snapshot  sql.IsolationLevel       // of a view: all its answers are of one moment
	lock      string                   // keeps other recorders out until the transaction ends; "": there can be no other
	migrating string                   // the same while a recorder looks whether there are tables
	Prepares  bool                     // a question that is asked again should be prepared: the driver does it anew each time
	Interrupt bool                     // a statement may have to be given up when the context ends, since it waits for a network
}

// DeletesByNode are statements that remove rows of the run ?1 from tables that know it
// only by its nodes.
func (d *Dialect) DeletesByNode() []string {
	if !d.Lags {
		return nil
	}
	return []string{`DELETE FROM lines_open WHERE writer IN (SELECT id FROM nodes WHERE run = ?1)`}
}

// Tx is a transaction, or a view for reading, of a database.
type Tx struct {
	*sql.Tx

	D     *Dialect
	asked map[string]*sql.Stmt // questions so far; nil: it was asked once
}

// Row asks for a single row.
func (t *Tx) Row(ctx context.Context, text string, args ...any) *sql.Row {
	if s := t.statementOf(ctx, text); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return t.QueryRowContext(ctx, t.D.Bind(text), args...)
}

// queryRows asks for rows.
func (t *Tx) queryRows(ctx context.Context, text string, args []any) (*sql.Rows, error) {
	if s := t.statementOf(ctx, text); s != nil {
		return s.QueryContext(ctx, args...)
	}
	return t.QueryContext(ctx, t.D.Bind(text), args...)
}

// statementOf returns the statement of a question that the transaction asks again, prepared for good: SQLite takes longer
// to prepare most of them than to answer. nil: it is the first time, the driver keeps statements itself, or it can't be
// prepared, which is told by asking it.
func (t *Tx) statementOf(ctx context.Context, text string) *sql.Stmt {
	if !t.D.Prepares {
		return nil
	}
	s, again := t.asked[text]
	if s == nil && again {
		s, _ = t.PrepareContext(ctx, text) // the transaction closes it
	}
	if t.asked == nil {
		t.asked = map[string]*sql.Stmt{}
	}
	t.asked[text] = s
	return s
}

// Do runs a statement.
func (t *Tx) Do(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return t.ExecContext(ctx, t.D.Bind(text), args...)
}

// Whole selects whole rows of a table, for [table.Fields].
func (t *Tx) Whole(name string) string {
	return "SELECT " + t.D.Tables.Named(name).List() + " FROM " + name
}

// Put inserts a row. then follows the statement.
func (t *Tx) Put(ctx context.Context, name string, row any, then string) error {
	_, err := t.Do(ctx, t.D.Tables.Named(name).Insert()+then, table.Values(row)...)
	return err
}

// Each yields once for each row that a query selects, which it has read into fields. An error ends it.
func (t *Tx) Each(ctx context.Context, text string, args []any, fields ...any) iter.Seq[error] {
	return func(yield func(error) bool) {
		for rows, err := range t.Rows(ctx, text, args...) {
			if err == nil {
				err = rows.Scan(fields...)
			}
			if !yield(err) || err != nil {
				return
			}
		}
	}
}

// Rows yields the rows that a query selects. An error ends it.
func (t *Tx) Rows(ctx context.Context, text string, args ...any) iter.Seq2[*sql.Rows, error] {
	return func(yield func(*sql.Rows, error) bool) {
		rows, err := t.queryRows(ctx, text, args)
		if err != nil {
			yield(nil, err)
			return
		}
		defer rows.Close() //nolint:errcheck // what is wrong with the rows, Err tells
		for rows.Next() {
			if !yield(rows, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// Params gathers the parameters of a statement that is put together.
type Params []any

// Add adds a value and returns its name in the statement.
func (p *Params) Add(v any) string {
	*p = append(*p, v)
	return "?" + strconv.Itoa(len(*p))
}

// List adds values and returns their names, separated by commas.
func (p *Params) List(values ...any) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = p.Add(v)
	}
	return strings.Join(names, ", ")
}

// Beyond is above everything that begins with prefix, and below everything else
// that is above prefix.
func Beyond(prefix string) string { return prefix + "\U0010ffff" }

// Under selects a node by its column, together with its items.
func (p *Params) Under(column, node string) string {
	return fmt.Sprintf("(%[1]s = %[2]s OR %[1]s >= %[3]s AND %[1]s < %[4]s)", column, p.Add(node), p.Add(node+"/"), p.Add(node+"0"))
}

// Clamp makes a position one that SQLite can compare.
func Clamp(pos uint64) int64 { return int64(min(pos, 1<<63-1)) }
