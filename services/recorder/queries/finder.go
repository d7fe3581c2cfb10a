package queries

import (
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// finder is how a database searches the text of lines.
type finder struct {
	tables  string // from which lines come: lines, joined with what the others need
	match   string // which match; %s is the parameter
	snippet string // the part of the text that matches; %s is the parameter
	order   string // of the newest first
	query   func(words []word) string
	excerpt func(text string, words []word) string // marks what matches in what snippet says; nil: it is marked
}

// What marks the words that match in a snippet.
const (
	markBegin = '\ue000'
	markEnd   = '\ue001'
)

// finderOf is how a database searches.
func finderOf(d *database.Dialect) finder {
	if d.Name == table.Postgres {
		return postgresFinder()
	}
	return sqliteFinder()
}

func sqliteFinder() finder {
	return finder{
		tables: "lines_fts JOIN lines ON lines.pos = lines_fts.rowid", match: "lines_fts MATCH %s",
		snippet: "snippet(lines_fts, 0, char(57344), char(57345), '…', 24)", order: "lines_fts.rowid", query: ftsQuery,
	}
}
