package recorder

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// dialect is what differs between the databases that a store can be. Statements
// are written once: parameters are ?1, ?2, …, and what is inserted where
// something may be already says ON CONFLICT.
type dialect struct {
	steps []step                   // lead from an empty database to the current schema; a released one is never changed
	bind  func(text string) string // a statement as the driver takes it

	version func(ctx context.Context, s *Store, t *tx) (int, error) // of the database's tables, 0 of an empty one; ErrForeign
	mark    func(version int) string                                // says that the tables have a version

	inserts   string                   // how a statement begins that inserts many rows, in a transaction that ends if it fails
	unindexed string                   // after a table: it is read in its own order
	find      finder                   // how lines are searched
	integrity string                   // asks whether the database is sound: rows of problems, or "ok"; "": it can't be asked
	size      string                   // asks for the bytes that are in use; space that is free within doesn't count
	labels    string                   // makes a JSON object of the columns key and value
	storable  func(text string) string // a text as the database keeps it; nil: as it is
	snapshot  sql.IsolationLevel       // of a view whose answers are all of one moment
	lock      string                   // keeps other recorders out until the transaction ends; "": nobody else can be in
	migrating string                   // the same for whoever looks whether there are tables
	interrupt bool                     // a statement may have to be given up when the context ends, since it waits for a network
}

// step leads from one version of the schema to the next.
type step struct {
	text string                                           // statements
	then func(ctx context.Context, s *Store, t *tx) error // what they can't do; nil: nothing
}

// tx is a transaction, or a view for reading, of a store.
type tx struct {
	*sql.Tx
	d   *dialect
	zip *zipper
}

// view begins a transaction that only reads: all of its answers are of one
// moment. Whoever calls it rolls it back.
func (s *Store) view(ctx context.Context) (*tx, error) {
	for broken := 0; ; broken++ {
		t, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: s.d.snapshot})
		if err == nil {
			return &tx{t, s.d, s.zip}, nil
		}
		if broken == readers || !away(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// row asks for a single row.
func (t *tx) row(ctx context.Context, text string, args ...any) *sql.Row {
	return t.QueryRowContext(ctx, t.d.bind(text), args...)
}

// exec runs a statement.
func (t *tx) exec(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return t.ExecContext(ctx, t.d.bind(text), args...)
}

// query yields the rows that a query selects. An error ends it.
func (t *tx) query(ctx context.Context, text string, args ...any) iter.Seq2[*sql.Rows, error] {
	return func(yield func(*sql.Rows, error) bool) {
		rows, err := t.QueryContext(ctx, t.d.bind(text), args...)
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

// params gathers the parameters of a statement that is put together.
type params []any

// add adds a value and returns its name in the statement.
func (p *params) add(v any) string {
	*p = append(*p, v)
	return "?" + strconv.Itoa(len(*p))
}

// list adds values and returns their names, separated by commas.
func (p *params) list(values ...any) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = p.add(v)
	}
	return strings.Join(names, ", ")
}

// beyond is above everything that begins with prefix, and below everything else
// that is above prefix.
func beyond(prefix string) string { return prefix + "\U0010ffff" }

// under selects a node by its column, together with its items.
func (p *params) under(column, node string) string {
	return fmt.Sprintf("(%[1]s = %[2]s OR %[1]s >= %[3]s AND %[1]s < %[4]s)", column, p.add(node), p.add(node+"/"), p.add(node+"0"))
}
