package index

import (
	"fmt"
	"regexp"
	"strings"
)

// bulkRows is how many rows one statement inserts where there are as many:
// calling the database costs as much as inserting a few rows.
const bulkRows = 32

// bulkStatements are the statements that insert many rows together.
func bulkStatements() []statement { return []statement{addLine, addCall, addMessage, addCheckpoint} }

// manyRows returns the statement that inserts bulkRows rows, made of one that inserts
// a row with the values ?1, ?2, … in this order. insert is how it begins.
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
