package queries

import (
	"slices"
	"strings"
	"unicode"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// finder is how a database searches the text of lines.
type finder struct {
	tables  string // from which lines come: lines, joined with what the other fields need
	match   string // which lines match; %s is the parameter
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

func sqliteFinder() finder {
	return finder{
		tables: "lines_fts JOIN lines ON lines.pos = lines_fts.rowid", match: "lines_fts MATCH %s",
		snippet: "snippet(lines_fts, -1, char(57344), char(57345), '…', 24)", order: "lines_fts.rowid", query: ftsQuery,
	}
}

// maxTerms bounds what is searched for at once.
const maxTerms = 32

// word is a part of what is searched for.
type word struct {
	text string // words; several are a phrase
	not  bool   // lines that have it don't match
	open bool   // it is the beginning of a word
}

// ftsQuery is a search in the language of SQLite's FTS5.
func ftsQuery(words []word) string {
	var q strings.Builder
	for i, w := range words {
		switch {
		case w.not:
			q.WriteString(" NOT ")
		case i > 0:
			q.WriteString(" AND ")
		}
		q.WriteString(`"` + strings.ReplaceAll(w.text, "\x00", " ") + `"`)
		if w.open {
			q.WriteString("*")
		}
	}
	return q.String()
}

// words takes a search apart: words, "phrases", begin* and -without.
func searchWords(q string) ([]word, error) {
	var all []word
	some := false
	for rest := strings.TrimSpace(q); rest != ""; rest = strings.TrimSpace(rest) {
		var w word
		if after, ok := strings.CutPrefix(rest, "-"); ok {
			w.not, rest = true, after
		}
		if after, ok := strings.CutPrefix(rest, `"`); ok {
			w.text, rest, _ = strings.Cut(after, `"`)
		} else {
			end := strings.IndexFunc(rest, unicode.IsSpace)
			if end < 0 {
				end = len(rest)
			}
			w.text, rest = rest[:end], rest[end:]
			w.text, w.open = strings.CutSuffix(w.text, "*")
			w.text = strings.ReplaceAll(w.text, `"`, " ")
		}
		if strings.IndexFunc(w.text, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }) < 0 {
			continue // nothing that is indexed
		}
		all, some = append(all, w), some || !w.not
	}
	switch {
	case !some:
		return nil, &wire.APIError{Code: wire.CodeBadRequest, Message: "there is no word to search for", Hint: `words, "phrases", begin* and -without`}
	case len(all) > maxTerms:
		return nil, request.Bad("a search has at most %d words", maxTerms)
	}
	slices.SortStableFunc(all, func(a, b word) int { // NOT stands behind something
		switch {
		case a.not == b.not:
			return 0
		case a.not:
			return 1
		}
		return -1
	})
	return all, nil
}
