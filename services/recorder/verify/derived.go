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

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// derivation is a table of rows that follow from the events.
type derivation struct {
	table.Comparison

	table  string
	rough  []string // columns of sums: the order in which they were added, batch by batch, may have rounded them differently
	fields []string // columns that may be large fields
}

// derivationsOf are those of all derived tables.
func derivationsOf(tables table.Tables) (list []derivation) {
	for _, t := range tables {
		if t.Origin != table.Derived {
			continue
		}
		d := derivation{table: t.Name, Comparison: t.Compared()}
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

// checkDerived compares what is derived from the events of the runs that were recorded again, if this version has derived it.
func (p *replay) checkDerived(ctx context.Context) error {
	var list []*runCheck
	for _, r := range p.runs {
		if r.refused {
			if r.Events != r.found { // which is compared with what is derived, else
				p.addDamage(countDamage(r, "events", r.Events, r.found))
			}
			continue
		}
		if r.isOther() {
			p.Other++
			continue
		}
		for _, kept := range r.kept {
			r.differs = true
			p.addDamage(Damage{Table: kept.table, Run: r.RunID, From: kept.pos, Column: "pos", Problem: "there is no event at the position of the state"})
		}
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil
	}
	if err := p.beginScratch(ctx); err != nil {
		return err
	}
	numbers, err := p.numberRuns(ctx)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		c := p.newComparison(p.again)
		for _, r := range list {
			if !c.addRun(r, numbers[r.RunID]) {
				break
			}
		}
		if err := c.compareRuns(ctx); err != nil {
			return err
		}
		list = list[len(c.runs):]
	}
	return nil
}

// numberRuns returns which numbers the scratch store has given the runs that aren't compared.
func (p *replay) numberRuns(ctx context.Context) (map[string]int64, error) {
	numbers := map[string]int64{}
	var number int64
	var name string
	for err := range p.again.Each(ctx, `SELECT id, run FROM runs WHERE id > ?1`, []any{p.last}, &number, &name) {
		if err != nil {
			return nil, err
		}
		numbers[name] = number
		p.last = max(p.last, number)
	}
	return numbers, nil
}

// comparison compares what is derived from the events of some runs with what the scratch store has of them.
type comparison struct {
	*verifier

	runs       []*runCheck
	numbers    []int64 // that the scratch store has given them, 0: it has nothing of one
	kept, want *side
}

// side are some runs in a store: their numbers ascend as their places in the comparison do.
type side struct {
	t           *archive.Tx
	whole       bool          // the run is the only one, and has a good part of all rows
	first, last int64         // numbers of runs
	places      map[int64]int // by number
	nodes       map[int64]nodeName
}

// nodeName is the run that has a node, by its number, and the node's id.
type nodeName struct {
	run  int64
	name any
}

func (v *verifier) newComparison(again *archive.Tx) *comparison {
	return &comparison{verifier: v, kept: newSide(v.t), want: newSide(again)}
}

func newSide(t *archive.Tx) *side {
	return &side{t: t, places: map[int64]int{}, nodes: map[int64]nodeName{}}
}

// addRun adds a run, unless that wouldn't leave the runs in the same order in both stores. Number 0 says that the scratch store
// has nothing of it.
func (c *comparison) addRun(r *runCheck, number int64) bool {
	if len(c.runs) > 0 && (r.ID <= c.kept.last || r.ID > c.kept.last+maxApart || number > 0 && number <= c.want.last) {
		return false
	}
	place := len(c.runs)
	c.runs, c.numbers = append(c.runs, r), append(c.numbers, number)
	c.kept.addNumber(r.ID, place)
	if number > 0 {
		c.want.addNumber(number, place)
	}
	return true
}

func (s *side) addNumber(number int64, place int) {
	if len(s.places) == 0 {
		s.first = number
	}
	s.last, s.places[number] = number, place
}

// nameNodes reads what the nodes of the runs are called.
func (s *side) nameNodes(ctx context.Context) error {
	var number, run int64
	var name string
	for err := range s.t.Each(ctx, `SELECT id, run, node FROM nodes WHERE run BETWEEN ?1 AND ?2`, []any{s.first, s.last}, &number, &run, &name) {
		if err != nil {
			return err
		}
		s.nodes[number] = nodeName{run, name}
	}
	return nil
}

// nodeOf is what a node of a run is called; nil: the run has none of this number.
func (s *side) nodeOf(run int64, number any) any {
	if n, is := number.(int64); is && s.nodes[n].run == run {
		return s.nodes[n].name
	}
	return nil
}

// wholeShare is the part of all events, 1/8, from which on a run's rows are read in the order of the table, and those of other runs passed over.
const wholeShare = 8

// compareRuns compares the runs, all at once. Where that finds damage, each is compared by itself, which says what of it is damaged.
func (c *comparison) compareRuns(ctx context.Context) error {
	c.kept.whole = len(c.runs) == 1 && c.runs[0].found > c.stored/wholeShare
	c.want.whole = c.kept.whole
	found := c.countDamages()
	if err := c.compareTables(ctx); err != nil || found == c.countDamages() {
		return err
	}
	if len(c.runs) == 1 {
		c.runs[0].differs = true
		return nil
	}
	c.dropSince(found)
	for i, r := range c.runs {
		alone := c.newComparison(c.want.t)
		alone.addRun(r, c.numbers[i])
		if err := alone.compareRuns(ctx); err != nil {
			return err
		}
	}
	return nil
}

// compareTables compares the rows of all tables.
func (c *comparison) compareTables(ctx context.Context) error {
	if err := c.kept.nameNodes(ctx); err != nil {
		return c.noteFailure(ctx, Damage{Table: "nodes", Run: c.runs[0].RunID}, err)
	}
	if err := c.want.nameNodes(ctx); err != nil {
		return err
	}
	kept, err := c.filledTables(ctx, c.kept)
	if err != nil {
		for i := range kept {
			kept[i] = true // comparing them says what can't be read
		}
	}
	want, err := c.filledTables(ctx, c.want)
	if err != nil {
		return err
	}
	for i, d := range c.derived {
		if kept[i] || want[i] {
			if err := c.compareTable(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// filledTables tells of which derived tables the runs have rows: most have none of most runs, and a question for each takes
// longer than one for all.
func (c *comparison) filledTables(ctx context.Context, s *side) ([]bool, error) {
	filled, terms, into := make([]bool, len(c.derived)), make([]string, len(c.derived)), make([]any, len(c.derived))
	for i, d := range c.derived {
		terms[i], into[i] = "EXISTS ("+d.Query+")", &filled[i]
	}
	return filled, s.t.Row(ctx, "SELECT "+strings.Join(terms, ", "), s.first, s.last).Scan(into...)
}

// compareTable compares the rows of a table with those of the scratch store.
func (c *comparison) compareTable(ctx context.Context, d derivation) error {
	kept, want := c.kept.rowsOf(ctx, d), c.expectedRows(ctx, d)
	unreadable := func(err error) error { return c.noteFailure(ctx, Damage{Table: d.table, Run: c.runs[0].RunID}, err) }
	byKeys := func(a, b *tableRow) int { return a.compareKeys(b, d.Keys) }
	return compareOrdered(kept, want, unreadable, byKeys, func(a, b *tableRow, order int) {
		switch {
		case order < 0:
			c.addDamage(a.damageOf(d, c.runs[a.place].RunID, "", "the row doesn't follow from the events"))
		case order > 0:
			c.addDamage(b.damageOf(d, c.runs[b.place].RunID, "", "the row is missing"))
		default:
			a.reportDifferences(b, d, func(column, problem string) { c.addDamage(b.damageOf(d, c.runs[b.place].RunID, column, problem)) })
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
	place   int // of its run in a comparison
	columns []string
	values  []any // int64, float64, string, []byte or nil
}

// rowsOf yields the rows of a table that are of the runs. The next one takes the place of the one before.
func (s *side) rowsOf(ctx context.Context, d derivation) iter.Seq2[*tableRow, error] {
	return func(yield func(*tableRow, error) bool) {
		var row *tableRow
		var number int64
		var into []any
		query := d.Query
		if s.whole {
			query = d.Whole
		}
		for rows, err := range s.t.Rows(ctx, query, s.first, s.last) {
			if err == nil && row == nil {
				var columns []string
				columns, err = rows.Columns()
				row = &tableRow{columns: columns[min(1, len(columns)):]}
				row.values, into = make([]any, len(row.columns)), []any{&number}
				for i := range row.values {
					into = append(into, &row.values[i])
				}
			}
			if err == nil {
				err = rows.Scan(into...)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			var asked bool
			if row.place, asked = s.places[number]; !asked {
				continue
			}
			for _, i := range d.Nodes {
				row.values[i] = s.nodeOf(number, row.values[i])
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// expectedRows yields the rows that follow from the events, as the database would keep
// them and in its order.
func (c *comparison) expectedRows(ctx context.Context, d derivation) iter.Seq2[*tableRow, error] {
	rows := c.want.rowsOf(ctx, d)
	if c.t.D.Storable == nil {
		return rows
	}
	return func(yield func(*tableRow, error) bool) {
		var list []*tableRow
		for row, err := range rows {
			if err != nil {
				yield(nil, err)
				return
			}
			row.makeStorable(c.t.D)
			if _, text := row.values[0].(string); text { // which may go elsewhere
				list = append(list, &tableRow{row.place, row.columns, slices.Clone(row.values)})
			} else if !yield(row, nil) {
				return
			}
		}
		slices.SortStableFunc(list, func(a, b *tableRow) int { return a.compareKeys(b, d.Keys) })
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

// compareKeys compares two rows by their runs and their first columns.
func (r *tableRow) compareKeys(o *tableRow, keys int) int {
	if r.place != o.place {
		return cmp.Compare(r.place, o.place)
	}
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
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y)
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
	for _, k := range r.values[:d.Keys] {
		keys = append(keys, request.Shown(fmt.Sprint(k)))
	}
	at.Row = strings.Join(keys, " ")
	if pos, ok := r.values[0].(int64); ok && d.Keys == 1 {
		at.From, at.Row = uint64(pos), ""
	}
	return at
}
