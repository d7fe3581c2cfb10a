package queries

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/summary"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Log answers a [wire.LogRequest] as of now, in at most limit bytes of text.
func (a *Answers) Log(ctx context.Context, q wire.LogRequest, now time.Time, limit int) (wire.LogResponse, error) {
	l, err := newLogQuery(q, now)
	if err != nil {
		return wire.LogResponse{}, err
	}
	l.places = &a.places
	var r wire.LogResponse
	id, node := request.Named(q.Run, q.AgentID, q.Node)
	answered, err := a.fromLive(ctx, id, func(v *liveRun) (known bool, err error) {
		if v.hasNode(node) {
			r, known = l.answerFromLive(v, node)
		}
		return known, nil
	})
	if !answered && err == nil {
		r, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (wire.LogResponse, error) { return l.answerFromStore(ctx, t, now) })
	}
	if err != nil {
		return wire.LogResponse{}, request.Wrap("log", err)
	}
	fitToLimit(&r, limit, l.tail)
	return r, nil
}

// logQuery is a request that was found to be in order.
type logQuery struct {
	q      wire.LogRequest
	places *cache[[]uint64]
	since  int64  // Unix ms; 0: none
	where  string // the filters; "" in the beginning
	args   database.Params
	all    bool   // every line of the run passes
	first  uint64 // position of the run's first event
	dense  bool   // most of the events from there on are the run's
	tail   bool   // the last lines
	offset int64
	limit  int64
	grep   *pattern // nil: none; it passes lines of calls by what those were given and answered, too
}

func newLogQuery(q wire.LogRequest, now time.Time) (*logQuery, error) {
	l := &logQuery{q: q, tail: q.Offset == nil, limit: wire.DefaultLogLimit}
	if q.Limit != nil {
		l.limit = int64(*q.Limit)
	}
	if q.Offset != nil {
		l.offset = *q.Offset
	}
	if q.Since > 0 {
		l.since = now.UnixMilli() - int64(q.Since)
	}
	switch {
	case l.limit < 0 || l.limit > wire.MaxLogLimit:
		return nil, request.Bad("limit must be between 0 and %d", wire.MaxLogLimit)
	case l.offset < 0:
		return nil, request.Bad("offset must not be negative")
	case q.Type != "" && !q.Type.Valid():
		return nil, request.Bad("type must be text, tool, error, thinking, system or user, not %q", request.Shown(string(q.Type)))
	}
	if q.Summary {
		l.q.Grep, l.q.Type = "", ""
	}
	if q.Grep != "" {
		var err error
		if l.grep, err = newPattern(q.Grep); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// buildFilter puts the filters together.
func (l *logQuery) buildFilter(t request.Target) {
	l.where = "run = " + l.args.Add(t.ID) + " AND hidden = 0"
	l.all = t.Node == "" && l.q.Type == "" && l.q.Since <= 0
	if l.q.Type != "" {
		l.where += " AND type = " + l.args.Add(string(l.q.Type))
	}
	if l.q.Since > 0 {
		l.where += " AND ts >= " + l.args.Add(l.since)
	}
	if t.Node != "" {
		l.where += " AND node IN (SELECT id FROM nodes WHERE run = ?1 AND " + l.args.Under("node", t.Node) + ")"
	}
}

func (l *logQuery) answerFromStore(ctx context.Context, tx *archive.Tx, now time.Time) (wire.LogResponse, error) {
	r := wire.LogResponse{Lines: []wire.LogLine{}}
	t, err := request.Resolve(ctx, tx, l.q.Run, l.q.AgentID, l.q.Node)
	if err != nil {
		return r, err
	}
	l.buildFilter(t)
	var events uint64
	if err := tx.Row(ctx, `SELECT lines, events, first_pos, CASE WHEN last_pos < derived THEN last_pos ELSE derived END FROM runs, streams WHERE runs.id = ?1`, t.ID).Scan(&r.BufferLines, &events, &l.first, &r.Position); err != nil {
		return r, err
	}
	l.dense = events > (r.Position-l.first)/2
	switch {
	case l.q.Summary:
		err = l.summarizeRun(ctx, tx, t, &r, now.UnixMilli())
	case l.grep != nil:
		err = l.searchLines(ctx, tx, &r)
	default:
		err = l.readPage(ctx, tx, t, &r)
	}
	r.ReturnedLines = len(r.Lines)
	if !l.q.Details {
		r.Position = 0
	}
	return r, err
}

// readPage reads the lines where no text has to be looked at.
func (l *logQuery) readPage(ctx context.Context, tx *archive.Tx, of request.Target, r *wire.LogResponse) error {
	r.TotalLines = r.BufferLines
	if !l.all {
		if err := tx.Row(ctx, `SELECT count(*) FROM lines WHERE `+l.where, l.args...).Scan(&r.TotalLines); err != nil {
			return err
		}
	}
	r.Offset = l.offset
	order := "ASC"
	from, skip, err := l.findPlace(ctx, tx, of, r.TotalLines)
	if err != nil {
		return err
	}
	if l.tail {
		order, skip = "DESC", 0
		r.Offset = max(0, r.TotalLines-l.limit)
	}
	where, args := l.where, slices.Clone(l.args)
	if from > 0 {
		where += " AND pos >= " + args.Add(from)
	}
	text := selectLines + ` WHERE pos IN (SELECT pos FROM lines WHERE ` + where +
		` ORDER BY pos ` + order + ` LIMIT ` + args.Add(l.limit) + ` OFFSET ` + args.Add(skip) + `) ORDER BY pos`
	var line wire.LogLine
	for err := range tx.Each(ctx, text, args, lineFields(&line)...) {
		if err != nil {
			return err
		}
		r.Lines = append(r.Lines, l.shownLine(line))
	}
	return nil
}

// searchLines reads all lines that pass the other filters and keeps those that match.
func (l *logQuery) searchLines(ctx context.Context, tx *archive.Tx, r *wire.LogResponse) error {
	var hits []uint64
	text := "text, CASE WHEN type = 'tool' AND (input <> '' OR output <> '') THEN input || '" + partMark + "' || output END"
	if l.grep.tools { // no text: it is one
		text = "CASE WHEN type = 'tool' THEN NULL ELSE text END, NULL"
	}
	from, args := "lines WHERE "+l.where, slices.Clone(l.args)
	many, err := l.hasMany(ctx, tx, r.BufferLines/4)
	if err != nil {
		return err
	}
	if many { // then finding each line by an index takes longer than passing over others
		from = "lines" + tx.D.Unindexed + " WHERE pos >= " + args.Add(l.first) + " AND pos <= " + args.Add(r.Position) + " AND " + l.where
	}
	var pos, line, call any // scanning into others takes as long as matching
	for err := range tx.Each(ctx, `SELECT pos, `+text+` FROM `+from+` ORDER BY pos`, args, &pos, &line, &call) {
		if err != nil {
			return err
		}
		if s, ok := line.(string); !ok || l.grep.matchesLine(s) || l.grep.matchesCall(call) {
			hits = append(hits, uint64(pos.(int64)))
		}
	}
	if err := tx.Row(ctx, `SELECT count(*) FROM lines WHERE cut > 0 AND `+l.where, l.args...).Scan(&r.Cut); err != nil {
		return err
	}
	r.TotalLines = int64(len(hits))
	r.Offset = l.offset
	if l.tail {
		r.Offset = max(0, r.TotalLines-l.limit)
	}
	hits = hits[min(r.Offset, r.TotalLines):]
	return l.fetchLines(ctx, tx, hits[:min(l.limit, int64(len(hits)))], r)
}

// hasMany reports whether at least n lines pass the other filters, and are close
// together in the store.
func (l *logQuery) hasMany(ctx context.Context, tx *archive.Tx, n int64) (bool, error) {
	if !l.dense || l.all {
		return l.dense, nil
	}
	var passed int64
	args := slices.Clone(l.args)
	err := tx.Row(ctx, `SELECT count(*) FROM (SELECT 1 FROM lines WHERE `+l.where+` LIMIT `+args.Add(n)+`) AS passed`, args...).Scan(&passed)
	return passed >= n, err
}

// fetchLines reads the lines at the given positions.
func (l *logQuery) fetchLines(ctx context.Context, tx *archive.Tx, hits []uint64, r *wire.LogResponse) error {
	for _, pos := range hits {
		var line wire.LogLine
		if err := tx.Row(ctx, selectLines+` WHERE pos = ?1`, pos).Scan(lineFields(&line)...); err != nil {
			return err
		}
		line = l.shownLine(line)
		if line.Type == wire.LineTool && l.q.Details && !l.grep.tools && !l.grep.matchesLine(line.Text) {
			var call [2]string
			if err := tx.Row(ctx, `SELECT input, output FROM lines WHERE pos = ?1`, pos).Scan(&call[0], &call[1]); err != nil {
				return err
			}
			line.Found = cmp.Or(l.grep.excerptOf(call[0]), l.grep.excerptOf(call[1]))
		}
		r.Lines = append(r.Lines, line)
	}
	return nil
}

// shownLine is a line as its reader sees it.
func (l *logQuery) shownLine(line wire.LogLine) wire.LogLine {
	line.Text = timeline.Sanitize(line.Text)
	if !l.q.Details {
		line.Pos, line.Node, line.Exec, line.Parent = 0, "", "", ""
	}
	return line
}

// fitToLimit drops lines until the answer is not too large: of the tail the first ones,
// else the last ones. A single line that is too large is cut, visibly.
func fitToLimit(r *wire.LogResponse, limit int, tail bool) {
	limit -= 1 << 10
	size, n := 0, 0
	order := slices.Clone(r.Lines)
	if tail {
		slices.Reverse(order)
	}
	for _, line := range order {
		if size += lineSize(line); size > limit {
			break
		}
		n++
	}
	if n == 0 && len(r.Lines) > 0 {
		shortenLine(&order[0], limit)
		n = 1
	}
	order = order[:n]
	if tail {
		slices.Reverse(order)
		r.Offset += int64(len(r.Lines) - n)
	}
	r.Lines, r.ReturnedLines = order, n
}

// lineSize is at least what a line takes in either form.
func lineSize(l wire.LogLine) int {
	escaped := strings.Count(l.Text, "\n") + strings.Count(l.Text, "\t") + strings.Count(l.Text, `"`) + strings.Count(l.Text, `\`)
	return 160 + len(l.Text) + 2*len(l.Found) + escaped + 6*(len(l.Node)+len(l.Exec)+len(l.Parent))
}

func shortenLine(l *wire.LogLine, limit int) {
	room := max(0, limit/2-1<<10) // every character may be escaped
	if len(l.Text) > room {
		cut := strings.ToValidUTF8(l.Text[:room], "")
		l.Text = fmt.Sprintf("%s… (%d more bytes)", cut, len(l.Text)-len(cut))
	}
}

// maxLastWords bounds the last words in characters.
const maxLastWords = 1000

// summarizeRun answers a request for a summary.
func (l *logQuery) summarizeRun(ctx context.Context, t *archive.Tx, of request.Target, r *wire.LogResponse, now int64) error {
	var b summary.Builder
	last := r.Position
	for e, err := range t.Events(ctx, of.ID, 1, last) {
		if err != nil {
			return err
		}
		if k := e.Kind(); e.Mark != "" || k == wire.KindText || k == wire.KindDelta {
			continue
		}
		event, err := wire.Decode(e.Data)
		if err != nil {
			return err
		}
		if !of.Has(event.Node()) || event.Timestamp < l.since {
			continue
		}
		if event, err = archive.Inline(event, e.Data, func(sha string) ([]byte, error) { return t.Blob(ctx, sha) }); err != nil {
			return err
		}
		b.Add(event)
	}
	s := b.Summary()
	if err := l.lastWords(ctx, t, &s); err != nil {
		return err
	}
	st, err := readStatus(ctx, t, wire.StatusRequest{Run: of.Run, Node: of.Node}, now, stateOf)
	if err != nil {
		return err
	}
	a := st.AgentStatus
	if of.Node != "" && len(st.Agents) == 1 {
		a = st.Agents[0]
	}
	s.CostBasis = a.CostBasis
	s.State, s.CostUsd, s.TokensIn, s.TokensOut, s.ToolsUsed, s.ToolErrors = a.State, a.CostUsd, a.TokensIn, a.TokensOut, a.ToolsUsed, a.ToolErrors
	s.Text = summary.Text(s)
	r.Summary = &s
	return nil
}

// lastWords finds what was last said, as the filters allow.
func (l *logQuery) lastWords(ctx context.Context, t *archive.Tx, s *wire.LogSummary) error {
	var text string
	err := t.Row(ctx, `SELECT text FROM lines WHERE `+l.where+` AND type = 'text' ORDER BY pos DESC LIMIT 1`, l.args...).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	words := []rune(timeline.Sanitize(text))
	if len(words) > maxLastWords {
		words = append([]rune("…"), words[len(words)-maxLastWords+1:]...)
	}
	s.LastWords = string(words)
	return err
}

// answerFromLive answers a request for lines, if the run's lines that are held are enough
// for it.
func (l *logQuery) answerFromLive(r *liveRun, node string) (wire.LogResponse, bool) {
	a := wire.LogResponse{BufferLines: r.total, Position: r.position.Seq, Lines: []wire.LogLine{}}
	whole := int64(len(r.lines)) == r.total
	var passed []*line
	first := r.total - int64(len(r.lines)) // number of passed[0]
	plain := node == "" && l.q.Type == "" && l.q.Since <= 0 && l.grep == nil
	switch {
	case l.q.Summary, !plain && !whole, r.calls && l.grep != nil && !l.grep.tools:
		return a, false
	case !plain:
		first = 0
	}
	for i := range r.lines {
		if x := &r.lines[i]; plain || l.passesFilters(x, node) {
			passed = append(passed, x)
		}
	}
	a.TotalLines, a.Offset = first+int64(len(passed)), l.offset
	if l.tail {
		a.Offset = max(0, a.TotalLines-l.limit)
	}
	if a.Offset < first {
		return a, false
	}
	from := min(a.Offset-first, int64(len(passed)))
	passed = passed[from:]
	for _, x := range passed[:min(l.limit, int64(len(passed)))] {
		a.Lines = append(a.Lines, l.shownLine(x.toLogLine()))
	}
	a.ReturnedLines = len(a.Lines)
	if !l.q.Details {
		a.Position = 0
	}
	return a, true
}

// passesFilters reports whether a line passes the filters.
func (l *logQuery) passesFilters(x *line, node string) bool {
	switch {
	case !archive.IsOf(x.node, node), l.q.Type != "" && x.kind != l.q.Type, l.q.Since > 0 && x.ts < l.since:
		return false
	}
	return l.grep == nil || l.grep.tools && x.kind == wire.LineTool || l.grep.matchesLine(string(x.text))
}
