package recorder

import (
	"context"
	"database/sql"
	"iter"
)

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// query yields the rows that a query selects. An error ends it.
func query(ctx context.Context, q querier, text string, args ...any) iter.Seq2[*sql.Rows, error] {
	return func(yield func(*sql.Rows, error) bool) {
		rows, err := q.QueryContext(ctx, text, args...)
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
