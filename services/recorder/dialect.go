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

	integrity string // asks whether the database is sound: rows of problems, or "ok"; "": it can't be asked
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
	t, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return &tx{t, s.d, s.zip}, nil
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
