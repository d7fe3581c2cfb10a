package verify

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// replay records the events of a run again, into the scratch store.
type replay struct {
	v       *verifier
	r       *runCheck
	t       *archive.Tx
	kept    []keptState // states that are in the store, in the order of their positions
	pending []replayed
	size    int
}

// replayed is an event that is recorded again, and what it says.
type replayed struct {
	kept  archive.Event
	entry eventlog.Entry
}

// Bounds of what is recorded again at once, and of what the scratch store has before it is emptied.
const (
	replayEvents  = 1000
	replayBytes   = 4 << 20
	scratchEvents = 20_000
)

func (v *verifier) newReplay(ctx context.Context, r *runCheck) (*replay, error) {
	v.scratch.ForgetStates()
	if v.again != nil && v.Events-v.emptied > scratchEvents {
		if err := v.emptyScratch(); err != nil {
			return nil, err
		}
	}
	if v.again == nil { // one for many runs: what it is asked of each is prepared once
		var err error
		if v.again, err = v.scratch.Begin(ctx); err != nil {
			return nil, err
		}
	}
	p := &replay{v: v, r: r, t: v.again}
	text := `SELECT pos, 'folds' FROM folds WHERE run = ?1 UNION ALL SELECT pos, 'keyframes' FROM keyframes WHERE run = ?1 ORDER BY 1, 2`
	var k keptState
	for err := range v.t.Each(ctx, text, []any{r.ID}, &k.pos, &k.table) {
		if err == nil {
			p.kept = append(p.kept, k)
		} else if err := v.noteFailure(ctx, Damage{Table: "folds", Run: r.RunID}, err); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// emptyScratch drops what was recorded again.
func (v *verifier) emptyScratch() (err error) {
	if v.again != nil {
		err = v.again.Rollback()
	}
	v.again, v.emptied = nil, v.Events
	return err
}

// keptState is a state of the run that is in a table.
type keptState struct {
	pos   uint64
	table string
}

// addEvent takes the next event, which has its link.
func (p *replay) addEvent(ctx context.Context, s *archive.Event, at Damage) error {
	p.pending = append(p.pending, replayed{*s, s.Entry()})
	if at.Problem = p.pending[len(p.pending)-1].foreignTo(p.r.RunID); at.Problem != "" {
		p.r.broken = true
		p.v.addDamage(at)
		return nil
	}
	if p.size += len(s.Data); len(p.pending) < replayEvents && p.size < replayBytes && (len(p.kept) == 0 || s.Pos != p.kept[0].pos) {
		return nil
	}
	return p.flush(ctx)
}

// foreignTo says why what is kept isn't an event of a run, or "".
func (s *replayed) foreignTo(run string) string {
	switch {
	case s.kept.Mark == archive.Bad || s.kept.Mark == archive.Recorder:
	case s.entry.Err != nil:
		return "it is no event: " + s.entry.Err.Error()
	case s.entry.RunID != run:
		return fmt.Sprintf("it is an event of run %q", request.Shown(s.entry.RunID))
	}
	return ""
}

// flush records what is pending.
func (p *replay) flush(ctx context.Context) error {
	if p.r.broken || len(p.pending) == 0 {
		return nil
	}
	b := index.Batch{Incarnation: p.v.Position.Incarnation, Blobs: map[string][]byte{}}
	again, err := p.v.scratch.Replay(ctx, p.t, b, p.v.Derived)
	if err != nil {
		return err
	}
	for i := range p.pending {
		s := &p.pending[i]
		if err := p.replayEvent(ctx, again, b.Blobs, s); err != nil {
			return p.v.noteFailure(ctx, Damage{Run: p.r.RunID, From: s.kept.Pos}, err)
		}
	}
	if err := again.Finish(); err != nil {
		return err
	}
	last := p.pending[len(p.pending)-1].kept.Pos
	clear(p.pending)
	p.pending, p.size = p.pending[:0], 0
	for len(p.kept) > 0 && last == p.kept[0].pos {
		if err := p.checkState(ctx, again); err != nil {
			return err
		}
		p.kept = p.kept[1:]
	}
	return nil
}

func (p *replay) replayEvent(ctx context.Context, again *index.Replay, blobs map[string][]byte, s *replayed) error {
	if s.entry.Err == nil {
		for _, b := range s.entry.Event.Blobs {
			if data, err := p.v.fields.Blob(ctx, b.SHA256); err == nil {
				blobs[b.SHA256] = data
			}
		}
	}
	now, err := again.Add(&s.kept, &s.entry)
	if err == nil && (now.Mark != s.kept.Mark || now.Note != s.kept.Note) {
		p.v.addDamage(Damage{
			Run: p.r.RunID, From: s.kept.Pos, Column: "mark",
			Problem: fmt.Sprintf("it is marked %q (%s), it should be %q (%s)", s.kept.Mark, s.kept.Note, now.Mark, now.Note),
		})
	}
	return err
}

// checkState compares the next state that is kept with the one that follows from
// the events.
func (p *replay) checkState(ctx context.Context, again *index.Replay) error {
	kept := p.kept[0]
	at := Damage{Table: kept.table, Run: p.r.RunID, From: kept.pos, Column: "data", Problem: "the state isn't the fold of the events"}
	want, err := wire.Marshal(cmp.Or(again.State(p.r.RunID), run.New(p.r.RunID)))
	if err != nil {
		return err
	}
	var is []byte
	err = p.v.fields.Row(ctx, `SELECT data FROM `+kept.table+` WHERE run = ?1 AND pos = ?2`, p.r.ID, kept.pos).Scan(&is)
	if err == nil && kept.table == "keyframes" {
		is, err = p.v.s.Codec.Dec.DecodeAll(is, nil)
	}
	if err != nil {
		return p.v.noteFailure(ctx, at, err)
	}
	if !bytes.Equal(want, is) && !p.r.isOther() {
		p.v.addDamage(at)
	}
	return nil
}

// derivation is a table of rows that follow from the events.
type derivation struct {
	table  string
	query  string   // for the rows of the run named ?1; the columns that tell rows apart come first and order them
	keys   int      // how many these are
	rough  []string // columns of sums: the order in which they were added, batch by batch, may have rounded them differently
	fields []string // columns that may be large fields
}

// derivationsOf are those of all derived tables.
func derivationsOf(tables table.Tables) (list []derivation) {
	for _, t := range tables {
		if t.Origin != table.Derived {
			continue
		}
		d := derivation{table: t.Name}
		d.query, d.keys = t.Compared()
		for _, c := range t.Columns {
			if c.Sum {
				d.rough = append(d.rough, c.Name)
			}
			if c.Field {
				d.fields = append(d.fields, c.Name)
			}
		}
		list = append(list, d)
	}
	return list
}

// checkDerived compares what is derived from the events of a run, if this version has derived it.
func (v *verifier) checkDerived(ctx context.Context, r *runCheck) error {
	if r.isOther() {
		v.Other++
		return nil
	}
	for _, kept := range r.replay.kept {
		v.addDamage(Damage{Table: kept.table, Run: r.RunID, From: kept.pos, Column: "pos", Problem: "there is no event at the position of the state"})
	}
	kept, err := v.filledTables(ctx, v.t, r.RunID)
	if err != nil {
		for i := range kept {
			kept[i] = true // comparing them says what can't be read
		}
	}
	want, err := v.filledTables(ctx, r.replay.t, r.RunID)
	if err != nil {
		return err
	}
	for i, d := range v.derived {
		if kept[i] || want[i] {
			if err := v.compareTable(ctx, r, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// filledTables tells of which derived tables a run has rows: most have none of most runs, and a question for each takes longer than one for all.
func (v *verifier) filledTables(ctx context.Context, t *archive.Tx, run string) ([]bool, error) {
	filled, terms, into := make([]bool, len(v.derived)), make([]string, len(v.derived)), make([]any, len(v.derived))
	for i, d := range v.derived {
		terms[i], into[i] = "EXISTS ("+d.query+")", &filled[i]
	}
	return filled, t.Row(ctx, "SELECT "+strings.Join(terms, ", "), run).Scan(into...)
}

// compareTable compares the rows of a table with those of the scratch store.
func (v *verifier) compareTable(ctx context.Context, r *runCheck, d derivation) error {
	kept, want := rowsOf(ctx, v.t, d.query, r.RunID), v.expectedRows(ctx, r, d)
	unreadable := func(err error) error { return v.noteFailure(ctx, Damage{Table: d.table, Run: r.RunID}, err) }
	byKeys := func(a, b *tableRow) int { return a.compareKeys(b, d.keys) }
	return compareOrdered(kept, want, unreadable, byKeys, func(a, b *tableRow, order int) {
		switch {
		case order < 0:
			v.addDamage(a.damageOf(d, r.RunID, "", "the row doesn't follow from the events"))
		case order > 0:
			v.addDamage(b.damageOf(d, r.RunID, "", "the row is missing"))
		default:
			a.reportDifferences(b, d, func(column, problem string) { v.addDamage(b.damageOf(d, r.RunID, column, problem)) })
		}
	})
}

// compareOrdered walks what is kept and what should be, both ordered by compare, and reports each value: order is
// negative for one that shouldn't be there, positive for one that is missing, else a and b are the same one. What
// becomes of an error of kept says unreadable.
func compareOrdered[T any](kept, want iter.Seq2[T, error], unreadable func(error) error, compare func(a, b T) int, report func(a, b T, order int)) error {
	nextKept, stopKept := iter.Pull2(kept)
	defer stopKept()
	nextWant, stopWant := iter.Pull2(want)
	defer stopWant()
	a, errA, moreA := nextKept()
	b, errB, moreB := nextWant()
	for moreA || moreB {
		if errB != nil {
			return errB
		}
		if errA != nil {
			return unreadable(errA)
		}
		order := 1
		switch {
		case !moreB:
			order = -1
		case moreA:
			order = compare(a, b)
		}
		report(a, b, order)
		if order <= 0 {
			a, errA, moreA = nextKept()
		}
		if order >= 0 {
			b, errB, moreB = nextWant()
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
func rowsOf(ctx context.Context, t *archive.Tx, text string, args ...any) iter.Seq2[*tableRow, error] {
	return func(yield func(*tableRow, error) bool) {
		var columns []string
		for rows, err := range t.Rows(ctx, text, args...) {
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

// expectedRows yields the rows that follow from the events, as the database would keep
// them and in its order.
func (v *verifier) expectedRows(ctx context.Context, r *runCheck, d derivation) iter.Seq2[*tableRow, error] {
	rows := rowsOf(ctx, r.replay.t, d.query, r.RunID)
	if v.t.D.Storable == nil {
		return rows
	}
	return func(yield func(*tableRow, error) bool) {
		var list []*tableRow
		for row, err := range rows {
			if err != nil {
				yield(nil, err)
				return
			}
			row.makeStorable(v.t.D)
			if _, text := row.values[0].(string); text { // which may go elsewhere
				list = append(list, row)
			} else if !yield(row, nil) {
				return
			}
		}
		slices.SortStableFunc(list, func(a, b *tableRow) int { return a.compareKeys(b, d.keys) })
		for _, row := range list {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// makeStorable makes texts what the database would keep of them.
func (r *tableRow) makeStorable(d *database.Dialect) {
	for i, v := range r.values {
		if text, ok := v.(string); ok {
			r.values[i] = d.Storable(text)
		}
	}
}

// compareKeys compares two rows by their first columns.
func (r *tableRow) compareKeys(o *tableRow, keys int) int {
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

// reportDifferences reports the columns in which r isn't as want.
func (r *tableRow) reportDifferences(want *tableRow, d derivation, report func(column, problem string)) {
	for i, column := range r.columns {
		if compareValues(r.values[i], want.values[i]) == 0 {
			continue
		}
		if slices.Contains(d.rough, column) && isNear(r.values[i], want.values[i]) {
			continue
		}
		if text, ok := r.values[i].(string); ok && slices.Contains(d.fields, column) && wasMissing(text) {
			continue
		}
		report(column, fmt.Sprintf("it is %s, the events say %s", shownValue(r.values[i]), shownValue(want.values[i])))
	}
}

// isNear reports whether two sums of costs are the same but for rounding, which
// differs between databases.
func isNear(a, b any) bool {
	x, isFloat := a.(float64)
	y, alsoFloat := b.(float64)
	return isFloat && alsoFloat && math.Abs(x-y) < 1e-9
}

func shownValue(v any) string {
	switch x := v.(type) {
	case []byte:
		return fmt.Sprintf("x'%.64x'", x)
	case string:
		return fmt.Sprintf("%q", request.Shown(x))
	default:
		return fmt.Sprint(v)
	}
}

// damageOf says what is wrong with a row.
func (r *tableRow) damageOf(d derivation, run, column, problem string) Damage {
	at := Damage{Table: d.table, Run: run, Column: column, Problem: problem}
	var keys []string
	for _, k := range r.values[:d.keys] {
		keys = append(keys, request.Shown(fmt.Sprint(k)))
	}
	at.Row = strings.Join(keys, " ")
	if pos, ok := r.values[0].(int64); ok && d.keys == 1 {
		at.From, at.Row = uint64(pos), ""
	}
	return at
}
