package recorder

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"wake/internal/run"
	"wake/pkg/wire"
)

// openScratch opens an empty store in which events are recorded again. Nothing
// in it is ever committed.
func openScratch(ctx context.Context, dir string) (*Store, error) {
	s := &Store{name: "scratch", path: filepath.Join(dir, "scratch.db"), d: sqliteDialect(), folds: newFolds(), scratch: true, said: slog.New(slog.DiscardHandler)}
	var err error
	if s.zip, err = newZipper(); err != nil {
		return nil, err
	}
	if s.write, err = sql.Open("sqlite", dsn(s.path, "_pragma=synchronous(OFF)", writeCache, journal)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.write.SetMaxOpenConns(1)
	err = s.migrate(ctx)
	if err == nil {
		_, err = s.write.ExecContext(ctx, "PRAGMA journal_mode = MEMORY")
	}
	if err == nil {
		s.stmts, err = prepare(ctx, s.d, s.write)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// replay records the events of a run again, into the scratch store.
type replay struct {
	v       *verifier
	r       *runCheck
	t       *tx
	kept    []keptState // states that are in the store, in the order of their positions
	pending []stored
	size    int
}

// Bounds of what is recorded again at once.
const (
	replayEvents = 1000
	replayBytes  = 4 << 20
)

func (v *verifier) newReplay(ctx context.Context, r *runCheck) (*replay, error) {
	v.scratch.folds.forget()
	begun, err := v.scratch.write.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	p := &replay{v: v, r: r, t: &tx{begun, v.scratch.d, v.scratch.zip}}
	for rows, err := range v.t.query(ctx, `SELECT pos, 'folds' FROM folds WHERE run = ?1 UNION ALL SELECT pos, 'keyframes' FROM keyframes WHERE run = ?1 ORDER BY 1, 2`, r.id) {
		var k keptState
		if err == nil {
			err = rows.Scan(&k.pos, &k.table)
		}
		if err := v.failed(ctx, Damage{Table: "folds", Run: r.run}, err); err != nil {
			return nil, errors.Join(err, begun.Rollback())
		}
		if k.pos > 0 {
			p.kept = append(p.kept, k)
		}
	}
	return p, nil
}

// keptState is a state of the run that is in a table.
type keptState struct {
	pos   uint64
	table string
}

// add takes the next event.
func (p *replay) add(ctx context.Context, s *stored, at Damage) error {
	kept := *s
	kept.data = bytes.Clone(s.data)
	p.pending = append(p.pending, kept)
	if at.Problem = kept.foreign(p.r.run); at.Problem != "" {
		p.r.broken = true
		p.v.damage(at)
		return nil
	}
	if p.size += len(s.data); len(p.pending) < replayEvents && p.size < replayBytes && (len(p.kept) == 0 || s.pos != p.kept[0].pos) {
		return nil
	}
	return p.flush(ctx)
}

// foreign says why what is kept isn't an event of a run, or "".
func (s *stored) foreign(run string) string {
	if s.mark == markBad || s.mark == markRecorder {
		return ""
	}
	e := s.entry()
	switch {
	case e.Err != nil:
		return "it is no event: " + e.Err.Error()
	case e.RunID != run:
		return fmt.Sprintf("it is an event of run %q", shown(e.RunID))
	}
	return ""
}

// flush records what is pending.
func (p *replay) flush(ctx context.Context) error {
	if p.r.broken || len(p.pending) == 0 {
		return nil
	}
	b := Batch{Incarnation: p.v.Position.Incarnation, Blobs: map[string][]byte{}}
	w, err := p.v.scratch.begin(ctx, p.t, b)
	if err != nil {
		return err
	}
	w.derived = p.v.Derived
	for i := range p.pending {
		s := &p.pending[i]
		if err := p.event(ctx, w, s); err != nil {
			return p.v.failed(ctx, Damage{Run: p.r.run, From: s.pos}, err)
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	last := p.pending[len(p.pending)-1].pos
	p.pending, p.size = p.pending[:0], 0
	for len(p.kept) > 0 && last == p.kept[0].pos {
		if err := p.checkState(ctx, w); err != nil {
			return err
		}
		p.kept = p.kept[1:]
	}
	return nil
}

func (p *replay) event(ctx context.Context, w *writer, s *stored) error {
	w.pos = s.pos
	if s.mark == markBad || s.mark == markRecorder {
		return w.aside(*s)
	}
	e := s.entry()
	for _, b := range e.Event.Blobs {
		if data, err := findBlob(ctx, p.v.fields, b.SHA256); err == nil {
			w.batch.Blobs[b.SHA256] = data
		}
	}
	if err := w.event(&e); err != nil {
		return err
	}
	fresh := w.runs[p.r.run].fresh
	if again := &fresh[len(fresh)-1]; again.mark != s.mark || again.note != s.note {
		p.v.damage(Damage{
			Run: p.r.run, From: s.pos, Column: "mark",
			Problem: fmt.Sprintf("it is marked %q (%s), it should be %q (%s)", s.mark, s.note, again.mark, again.note),
		})
	}
	return nil
}

// checkState compares the next state that is kept with the one that follows from
// the events.
func (p *replay) checkState(ctx context.Context, w *writer) error {
	kept := p.kept[0]
	at := Damage{Table: kept.table, Run: p.r.run, From: kept.pos, Column: "data", Problem: "the state isn't the fold of the events"}
	state := run.New(p.r.run)
	if f := w.s.folds.byRun[w.runs[p.r.run].id]; f != nil {
		state = f.state
	}
	want, err := wire.Marshal(state)
	if err != nil {
		return err
	}
	var is []byte
	err = p.v.fields.row(ctx, `SELECT data FROM `+kept.table+` WHERE run = ?1 AND pos = ?2`, p.r.id, kept.pos).Scan(&is)
	if err == nil && kept.table == "keyframes" {
		is, err = p.v.s.zip.dec.DecodeAll(is, nil)
	}
	if err != nil {
		return p.v.failed(ctx, at, err)
	}
	if !bytes.Equal(want, is) {
		p.v.damage(at)
	}
	return nil
}

// derivation is a table whose rows follow from the events: a query for those of
// the run ?1, by the name of the run, with what names a row first and ordered by
// that.
type derivation struct {
	table string
	keys  int
	query string
	rough string // a column of sums that databases may round differently; "": none
}

func derivations() []derivation {
	const run = ` WHERE run = (SELECT id FROM runs WHERE run = ?1) `
	return []derivation{
		{"runs", 0, `SELECT flow, status, result, reason, error, parent, imported, started_at, ended_at, last_at, activity, activity_at, cost_usd, tokens_in, tokens_out,
			tools, tool_errors, events, void, refused, gaps, lines, first_pos, last_pos, head FROM runs WHERE run = ?1`, ""},
		{"nodes", 1, `SELECT node, epoch, seq, model, cwd, activity, activity_at, tokens_in, tokens_out, tools, tool_errors, context_tokens, context_window, timeline, talk
			FROM nodes` + run + `ORDER BY node`, ""},
		{"labels", 1, `SELECT key, value FROM labels` + run + `ORDER BY key`, ""},
		{"bindings", 2, `SELECT session, (SELECT node FROM nodes WHERE id = bindings.node) AS node, exec, pos, agent, model, provider, ts FROM bindings` + run + `ORDER BY session, 2`, ""},
		{"lineage", 1, `SELECT ancestor FROM lineage` + run + `ORDER BY ancestor`, ""},
		{"blob_uses", 1, `SELECT sha256 FROM blob_uses` + run + `ORDER BY sha256`, ""},
		{"lines", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = lines.node) AS node, (SELECT node FROM nodes WHERE id = lines.writer) AS writer,
			seq, exec, parent, ts, type, hidden, text, message FROM lines` + run + `ORDER BY pos`, ""},
		{"tool_calls", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = tool_calls.node) AS node, exec, call, tool, ts, duration_ms, outcome, error
			FROM tool_calls` + run + `ORDER BY pos`, ""},
		{"spend", 3, `SELECT (SELECT node FROM nodes WHERE id = spend.node) AS node, day, model, calls, tokens_in, tokens_out, cost_usd
			FROM spend` + run + `ORDER BY 1, day, model`, "cost_usd"},
		{"usage_seen", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = usage_seen.node) AS node, message, session, agent, turn, model, tokens_in, tokens_out, ts
			FROM usage_seen` + run + `ORDER BY pos`, ""},
		{"chat_messages", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = chat_messages.node) AS node, seq, session, agent, turn, role, content, call, tool, args, ts, hidden
			FROM chat_messages` + run + `ORDER BY pos`, ""},
		{"chat_errors", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = chat_errors.node) AS node, session, agent, turn, context, type, message, attempt, ts
			FROM chat_errors` + run + `ORDER BY pos`, ""},
		{"chat_checkpoints", 1, `SELECT pos, (SELECT node FROM nodes WHERE id = chat_checkpoints.node) AS node, seq, session, agent, turn, last, kind, label, sub_idx, sub_call, ts, hidden
			FROM chat_checkpoints` + run + `ORDER BY pos`, ""},
	}
}

// derived compares what is derived from the events of a run.
func (v *verifier) derived(ctx context.Context, r *runCheck) error {
	for _, kept := range r.replay.kept {
		v.damage(Damage{Table: kept.table, Run: r.run, From: kept.pos, Column: "pos", Problem: "there is no event at the position of the state"})
	}
	for _, d := range derivations() {
		if err := v.compare(ctx, r, d); err != nil {
			return err
		}
	}
	return nil
}

// compare compares the rows of a table with those of the scratch store.
func (v *verifier) compare(ctx context.Context, r *runCheck, d derivation) error {
	is, stopIs := iter.Pull2(v.t.rowsOf(ctx, d.query, r.run))
	defer stopIs()
	want, stopWant := iter.Pull2(v.wanted(ctx, r, d))
	defer stopWant()
	a, errA, moreA := is()
	b, errB, moreB := want()
	for moreA || moreB {
		if errB != nil {
			return errB
		}
		if errA != nil {
			return v.failed(ctx, Damage{Table: d.table, Run: r.run}, errA)
		}
		order := 0
		switch {
		case !moreA:
			order = 1
		case !moreB:
			order = -1
		default:
			order = a.order(b, d.keys)
		}
		switch {
		case order < 0:
			v.damage(a.damage(d, r.run, "", "the row doesn't follow from the events"))
		case order > 0:
			v.damage(b.damage(d, r.run, "", "the row is missing"))
		default:
			a.differences(b, d.rough, func(column, problem string) { v.damage(b.damage(d, r.run, column, problem)) })
		}
		if order <= 0 {
			a, errA, moreA = is()
		}
		if order >= 0 {
			b, errB, moreB = want()
		}
	}
	return nil
}

// tableRow is a row of any table.
type tableRow struct {
	columns []string
	values  []any // int64, float64, string, []byte or nil
}

// rowsOf yields the rows of a query.
func (t *tx) rowsOf(ctx context.Context, text string, args ...any) iter.Seq2[*tableRow, error] {
	return func(yield func(*tableRow, error) bool) {
		var columns []string
		for rows, err := range t.query(ctx, text, args...) {
			if err == nil && columns == nil {
				columns, err = rows.Columns()
			}
			row := &tableRow{columns: columns, values: make([]any, len(columns))}
			into := make([]any, len(columns))
			for i := range into {
				into[i] = &row.values[i]
			}
			if err == nil {
				err = rows.Scan(into...)
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// wanted yields the rows that follow from the events, as the database would keep
// them and in its order.
func (v *verifier) wanted(ctx context.Context, r *runCheck, d derivation) iter.Seq2[*tableRow, error] {
	rows := r.replay.t.rowsOf(ctx, d.query, r.run)
	if v.t.d.storable == nil {
		return rows
	}
	return func(yield func(*tableRow, error) bool) {
		var list []*tableRow
		for row, err := range rows {
			if err != nil {
				yield(nil, err)
				return
			}
			row.store(v.t.d)
			if _, text := row.values[0].(string); text { // which may go elsewhere
				list = append(list, row)
			} else if !yield(row, nil) {
				return
			}
		}
		slices.SortStableFunc(list, func(a, b *tableRow) int { return a.order(b, d.keys) })
		for _, row := range list {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// store makes texts what the database would keep of them.
func (r *tableRow) store(d *dialect) {
	for i, v := range r.values {
		if text, ok := v.(string); ok {
			r.values[i] = d.storable(text)
		}
	}
}

// order compares two rows by their first columns.
func (r *tableRow) order(o *tableRow, keys int) int {
	for i := range keys {
		if c := compareValues(r.values[i], o.values[i]); c != 0 {
			return c
		}
	}
	return 0
}

func compareValues(a, b any) int {
	switch x := a.(type) {
	case int64:
		if y, ok := b.(int64); ok {
			return cmp.Compare(x, y)
		}
	case float64:
		if y, ok := b.(float64); ok {
			return cmp.Compare(x, y)
		}
	case []byte:
		if y, ok := b.([]byte); ok {
			return bytes.Compare(x, y)
		}
	}
	return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// wasMissing reports whether a line says that its text was missing when it was
// recorded. It may have come since.
func wasMissing(text string) bool {
	return strings.HasPrefix(text, "[") && strings.Contains(text, " is missing: ") && strings.Contains(text, " bytes, sha256 ")
}

// differences reports the columns in which r isn't as want.
func (r *tableRow) differences(want *tableRow, rough string, report func(column, problem string)) {
	for i, column := range r.columns {
		if compareValues(r.values[i], want.values[i]) == 0 {
			continue
		}
		if column == rough && near(r.values[i], want.values[i]) {
			continue
		}
		if text, ok := r.values[i].(string); ok && (column == "text" || column == "content" || column == "args") && wasMissing(text) {
			continue
		}
		report(column, fmt.Sprintf("it is %s, the events say %s", shownValue(r.values[i]), shownValue(want.values[i])))
	}
}

// near reports whether two sums of costs are the same but for rounding, which
// differs between databases.
func near(a, b any) bool {
	x, isFloat := a.(float64)
	y, alsoFloat := b.(float64)
	return isFloat && alsoFloat && math.Abs(x-y) < 1e-9
}

func shownValue(v any) string {
	switch x := v.(type) {
	case []byte:
		return fmt.Sprintf("x'%.64x'", x)
	case string:
		return fmt.Sprintf("%q", shown(x))
	default:
		return fmt.Sprint(v)
	}
}

// damage says what is wrong with a row.
func (r *tableRow) damage(d derivation, run, column, problem string) Damage {
	at := Damage{Table: d.table, Run: run, Column: column, Problem: problem}
	var keys []string
	for _, k := range r.values[:d.keys] {
		keys = append(keys, shown(fmt.Sprint(k)))
	}
	at.Row = strings.Join(keys, " ")
	if pos, ok := r.values[0].(int64); ok && d.keys == 1 {
		at.From, at.Row = uint64(pos), ""
	}
	return at
}
