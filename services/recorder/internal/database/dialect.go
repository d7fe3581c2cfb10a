package database

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"code.wake.dev/wake/services/recorder/internal/table"
)

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

	D *Dialect
}

// Row asks for a single row.
func (t *Tx) Row(ctx context.Context, text string, args ...any) *sql.Row {
	return t.QueryRowContext(ctx, t.D.Bind(text), args...)
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
		rows, err := t.QueryContext(ctx, t.D.Bind(text), args...)
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
