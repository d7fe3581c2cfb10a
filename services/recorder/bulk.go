package recorder

import (
	"fmt"
	"regexp"
	"strings"
)

// bulkRows is how many rows one statement inserts where there are as many:
// calling the database costs as much as inserting a few rows.
const bulkRows = 32

// bulky are the statements whose rows are inserted together.
func bulky() []statement { return []statement{addLine, addCall, addMessage, addCheckpoint} }

// add notes a row that a statement of [bulky] is to insert.
func (w *writer) add(s statement, columns ...any) {
	if w.rows == nil {
		w.rows = map[statement]*bulk{}
	}
	b := w.rows[s]
	if b == nil {
		b = &bulk{columns: len(columns)}
		w.rows[s] = b
	}
	b.args = append(b.args, columns...)
}

// bulk are rows that wait to be inserted.
type bulk struct {
	columns int // of one
	args    []any
}

// insert inserts the rows that were noted for a statement, in their order.
func (w *writer) insert(s statement) error {
	b := w.rows[s]
	if b == nil {
		return nil
	}
	args := b.args
	if w.s.stmts != nil {
		many := w.tx.StmtContext(w.ctx, w.s.stmts.many[s])
		for n := b.columns * bulkRows; len(args) >= n; args = args[n:] {
			if _, err := many.ExecContext(w.ctx, args[:n]...); err != nil {
				return err
			}
		}
	}
	for ; len(args) > 0; args = args[b.columns:] {
		if err := w.exec(s, args[:b.columns]...); err != nil {
			return err
		}
	}
	clear(b.args)
	b.args = b.args[:0]
	return nil
}

// manyRows returns the statement that inserts bulkRows rows instead of one, whose
// values are ?1, ?2, … in this order. insert is how it begins.
func manyRows(one, insert string) string {
	head, row, _ := strings.Cut(one, "VALUES ")
	end := strings.LastIndexByte(row, ')') + 1
	row, rest := row[:end], row[end:]
	columns := strings.Count(row, "?")
	number := regexp.MustCompile(`\?\d+`)
	rows := make([]string, bulkRows)
	for i := range rows {
		n := i * columns
		rows[i] = number.ReplaceAllStringFunc(row, func(string) string {
			n++
			return fmt.Sprintf("?%d", n)
		})
	}
	return strings.Replace(head, "INSERT", insert, 1) + "VALUES " + strings.Join(rows, ", ") + rest
}
