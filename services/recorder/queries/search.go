package queries

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

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
	r := wire.SearchResponse{Hits: []wire.SearchHit{}}
	words, err := searchWords(q.Text)
	if err != nil {
		return r, err
	}
	among, args, err := searchFilter(q, now)
	if err != nil {
		return r, err
	}
	t, err := a.View(ctx)
	if err != nil {
		return r, fmt.Errorf("recorder: search: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if r.Through, err = searchedUpTo(ctx, t); err != nil {
		return r, request.Wrap("search", err)
	}
	if err := t.Row(ctx, `SELECT count(*) FROM lines JOIN nodes ON nodes.id = lines.node WHERE lines.cut > 0 AND `+among, args...).Scan(&r.Cut); err != nil {
		return r, request.Wrap("search", err)
	}
	cursors, err := request.CursorsOf(ctx, t)
	if err != nil {
		return r, request.Wrap("search", err)
	}
	before, err := cursors.Position(q.Cursor)
	if err != nil {
		return r, err
	}
	text, args := a.searchQuery(q, words, before, among, args)
	most, size, cursor := cmp.Or(q.Limit, defaultHits), 0, ""
	for rows, err := range t.Rows(ctx, text, args...) {
		if err != nil {
			return r, request.Wrap("search", err)
		}
		var h wire.SearchHit
		var snippet string
		if err := rows.Scan(&h.Pos, &h.RunID, &h.FlowName, &h.Node, &h.TS, &h.Type, &snippet); err != nil {
			return r, request.Wrap("search", err)
		}
		if f := finderOf(a.D); f.excerpt != nil {
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
func (a *Answers) searchQuery(q wire.SearchRequest, words []word, before uint64, among string, args database.Params) (string, database.Params) {
	f := finderOf(a.D)
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
