package queries

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Limits of a search.
const (
	defaultHits = 20
	maxHits     = 500
)

// Search answers a [wire.SearchRequest] as of now, in at most limit bytes.
func (a *Answers) Search(ctx context.Context, q wire.SearchRequest, now time.Time, limit int) (wire.SearchResponse, error) {
	return askArchive(ctx, a, "search", func(t *archive.Tx) (wire.SearchResponse, error) { return findLines(ctx, t, q, now, limit) })
}

func findLines(ctx context.Context, t *archive.Tx, q wire.SearchRequest, now time.Time, limit int) (wire.SearchResponse, error) {
	r := wire.SearchResponse{Hits: []wire.SearchHit{}}
	words, err := searchWords(q.Text)
	if err != nil {
		return r, err
	}
	if q.Run != "" {
		found, err := request.Resolve(ctx, t, q.Run, "", "")
		if err != nil {
			return r, err
		}
		q.Run = found.Run
	}
	among, args, err := searchFilter(q, now)
	if err != nil {
		return r, err
	}
	if r.Through, err = searchedUpTo(ctx, t); err != nil {
		return r, err
	}
	if err := t.Row(ctx, `SELECT count(*) FROM lines JOIN nodes ON nodes.id = lines.node WHERE lines.cut > 0 AND `+among, args...).Scan(&r.Cut); err != nil {
		return r, err
	}
	cursors, err := request.CursorsOf(ctx, t)
	if err != nil {
		return r, err
	}
	before, err := cursors.Position(q.Cursor)
	if err != nil {
		return r, err
	}
	f := finderOf(t.D)
	text, args := f.searchQuery(q, words, before, among, args)
	most, size, cursor := cmp.Or(q.Limit, defaultHits), 0, ""
	var h wire.SearchHit
	var snippet string
	for err := range t.Each(ctx, text, args, &h.Pos, &h.RunID, &h.FlowName, &h.Node, &h.TS, &h.Type, &snippet) {
		if err != nil {
			return r, err
		}
		if f.excerpt != nil {
			snippet = f.excerpt(snippet, words)
		}
		h.Snippet, h.Matches = takeMarks(snippet)
		size += 300 + 2*len(h.Snippet) + 20*len(h.Matches) + 6*(len(h.RunID)+len(h.FlowName)+len(h.Node))
		if len(r.Hits) == most || size > limit && len(r.Hits) > 0 {
			r.Cursor = cursor
			break
		}
		r.Hits, cursor = append(r.Hits, h), cursors.Cursor(h.Pos)
	}
	return r, nil
}

// searchFilter says among which lines a search looks.
func searchFilter(q wire.SearchRequest, now time.Time) (string, database.Params, error) {
	if q.Limit < 0 || q.Limit > maxHits {
		return "", nil, request.Bad("limit must be between 1 and %d", maxHits)
	}
	if q.Type != "" && !q.Type.Valid() {
		return "", nil, request.Bad("type must be text, tool, error, thinking, system or user, not %q", request.Shown(string(q.Type)))
	}
	where, args, err := runsFilter(wire.RunsRequest{Status: q.Status, Label: q.Label, Flow: q.Flow}, now)
	if err != nil {
		return "", nil, err
	}
	runs := `SELECT id FROM runs WHERE ` + where
	if q.Run != "" {
		runs += ` AND run = ` + args.Add(q.Run)
	}
	terms := []string{"lines.hidden = 0", "lines.run IN (" + runs + ")"}
	if q.Node != "" {
		terms = append(terms, args.Under("nodes.node", q.Node))
	}
	if q.Type != "" {
		terms = append(terms, "lines.type = "+args.Add(string(q.Type)))
	}
	if q.Since > 0 {
		terms = append(terms, "lines.ts >= "+args.Add(now.UnixMilli()-int64(q.Since)))
	}
	return strings.Join(terms, " AND "), args, nil
}

// searchQuery puts the query of a search among lines together.
func (f finder) searchQuery(q wire.SearchRequest, words []word, before uint64, among string, args database.Params) (string, database.Params) {
	sought := args.Add(f.query(words))
	terms := []string{fmt.Sprintf(f.match, sought), among}
	if before > 0 {
		terms = append(terms, f.order+" < "+args.Add(before))
	}
	snippet := f.snippet
	if strings.Contains(snippet, "%s") {
		snippet = fmt.Sprintf(snippet, sought)
	}
	most := args.Add(cmp.Or(q.Limit, defaultHits) + 1)
	return `SELECT lines.pos, runs.run, runs.flow, nodes.node, lines.ts, lines.type, ` + snippet + ` FROM ` + f.tables +
		` JOIN runs ON runs.id = lines.run JOIN nodes ON nodes.id = lines.node WHERE ` + strings.Join(terms, " AND ") +
		` ORDER BY ` + f.order + ` DESC LIMIT ` + most, args
}

// takeMarks takes the marks out of a snippet and returns where they were, in
// characters.
func takeMarks(text string) (plain string, matches []wire.Span) {
	var b strings.Builder
	begin := -1
	n := 0
	put := func(s string) {
		s = timeline.Sanitize(s)
		b.WriteString(s)
		n += utf8.RuneCountInString(s)
	}
	for rest := text; rest != ""; {
		i := strings.IndexAny(rest, string(markBegin)+string(markEnd))
		if i < 0 {
			put(rest)
			break
		}
		put(rest[:i])
		mark, size := utf8.DecodeRuneInString(rest[i:])
		switch {
		case mark == markBegin:
			begin = n
		case begin >= 0:
			matches, begin = append(matches, wire.Span{From: begin, To: n}), -1
		}
		rest = rest[i+size:]
	}
	return b.String(), matches
}

// searchedUpTo returns the position up to which a search looks at lines, or 0 if it
// looks at all that are recorded.
func searchedUpTo(ctx context.Context, t *archive.Tx) (pos uint64, err error) {
	recorded, derived, err := t.Reached(ctx)
	if derived < recorded.Seq {
		pos = derived
	}
	if err != nil || !t.D.Lags {
		return pos, err
	}
	var indexed, last uint64
	err = t.Row(ctx, `SELECT (SELECT pos FROM lines_indexed), coalesce((SELECT max(pos) FROM lines), 0)`).Scan(&indexed, &last)
	if indexed < last {
		pos = indexed
	}
	return pos, err
}

// finderOf is how a database searches.
func finderOf(d *database.Dialect) finder {
	if d.Name == table.Postgres {
		return postgresFinder()
	}
	return sqliteFinder()
}

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

// underscore stands for an underscore in the full text.
const underscore = '\ua7f7'

// wholeLine is the text of a line and of its call, as it is in the full text.
const wholeLine = `lines.text || E'\n' || lines.input || E'\n' || lines.output`

// shownLine is what of it there is.
const shownLine = `concat_ws(E'\n', nullif(lines.text, ''), nullif(lines.input, ''), nullif(lines.output, ''))`

func postgresFinder() finder {
	return finder{
		tables: "lines", match: "wake_words(" + wholeLine + ") @@ to_tsquery('simple', %s)",
		snippet: "left(" + shownLine + ", 100000)", order: "lines.pos", query: tsQuery, excerpt: markedExcerpt,
	}
}

// tsQuery is a search in the language of PostgreSQL's to_tsquery. An empty one
// finds nothing.
func tsQuery(words []word) string {
	var parts []string
	for _, w := range words {
		list := foldedWords(w.text)
		switch {
		case len(list) == 0 && !w.not:
			return "" // nothing has it
		case len(list) == 0:
			continue
		}
		part := "'" + strings.Join(list, " ") + "'"
		if w.open {
			part += ":*"
		}
		if w.not {
			part = "!" + part
		}
		parts = append(parts, part)
	}
	return strings.ReplaceAll(strings.Join(parts, " & "), "_", string(underscore))
}

// foldedWords takes a text apart into its words as they are in the full text.
func foldedWords(text string) []string {
	var list []string
	for t := range tokensOf(text) {
		list = append(list, t.folded)
	}
	return list
}

// token is a word in a text.
type token struct {
	from, to int // bytes
	folded   string
}

// tokensOf yields the words of a text.
func tokensOf(text string) func(yield func(token) bool) {
	return func(yield func(token) bool) {
		begin := -1
		for i, r := range text + " " {
			part := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) && r > 0xbf || r >= '0' && r <= '9' || unicode.In(r, unicode.Mn, unicode.Mc)
			switch {
			case part && begin < 0:
				begin = i
			case !part && begin >= 0:
				if !yield(token{begin, i, foldWord(text[begin:i])}) {
					return
				}
				begin = -1
			}
		}
	}
}

// foldWord is a word without accents, in lower case; a sigma is the same at its end.
func foldWord(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x300 && r <= 0x36f:
			return -1
		case r == 'ς':
			return 'σ'
		}
		return r
	}, strings.ToLower(norm.NFD.String(s)))
}

// Sizes of an excerpt in words.
const (
	excerptWords  = 24
	excerptBefore = 8 // the first match
)

// markedExcerpt returns the part of a line that matches, with what matches between
// marks.
func markedExcerpt(text string, words []word) string {
	all := slices.Collect(tokensOf(text))
	begins, ends := map[int]bool{}, map[int]bool{} // tokens
	first := len(all)
	for _, w := range words {
		sought := foldedWords(w.text)
		if w.not || len(sought) == 0 {
			continue
		}
		for i := 0; i+len(sought) <= len(all); i++ {
			if matchesAt(all[i:i+len(sought)], sought, w.open) {
				begins[i], ends[i+len(sought)-1] = true, true
				first = min(first, i)
				i += len(sought) - 1
			}
		}
	}
	if first == len(all) {
		first = 0
	}
	from := max(0, min(first-excerptBefore, len(all)-excerptWords))
	to := min(len(all), from+excerptWords)
	var b strings.Builder
	at, stop := 0, len(text)
	if from > 0 {
		at = all[from].from
		b.WriteString("…")
	}
	if to < len(all) {
		stop = all[to-1].to
	}
	for i := from; i < to; i++ {
		t := all[i]
		b.WriteString(text[at:t.from])
		if begins[i] {
			b.WriteRune(markBegin)
		}
		b.WriteString(text[t.from:t.to])
		if ends[i] {
			b.WriteRune(markEnd)
		}
		at = t.to
	}
	b.WriteString(text[at:stop])
	if stop < len(text) {
		b.WriteString("…")
	}
	return b.String()
}

func matchesAt(all []token, sought []string, open bool) bool {
	for i, s := range sought {
		if got := all[i].folded; got != s && (!open || i < len(sought)-1 || !strings.HasPrefix(got, s)) {
			return false
		}
	}
	return true
}
