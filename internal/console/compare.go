package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"

	"code.wake.dev/wake/internal/compare"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// comparePage is the page of two runs.
type comparePage struct {
	Run      string
	With     string
	Others   []wire.TopRun // that it may be compared with: of its flow, else any
	SameFlow bool          // the others are of its flow
	Compared *compared     // nil: nothing is named yet
	First    uint64        // where the slider begins
	Last     uint64
}

// compared is how two runs differ, and what they did, side by side.
type compared struct {
	wire.DiffResponse

	At      uint64 // position at which they are; 0: as they are
	All     bool   // rows that are alike are shown, too
	Before  int    // rows alike before they part
	Rows    []sideRow
	Offset  int
	Total   int // rows behind where they part
	Prev    string
	Next    string
	Toggle  string     // the address with all rows, or without those alike
	Figures []sidePair // that count what lies behind the common point
}

// sideRow is a row of both runs, or how many alike are left out.
type sideRow struct {
	compare.Row

	Alike int
}

// sidePair is a figure of both runs.
type sidePair struct {
	Name, A, B string
	Differs    bool
}

// compareQuery is what a URL says of a comparison.
type compareQuery struct {
	Run, With, At, Offset string
	All                   bool
}

// comparePageSize is how many rows are shown at once.
const comparePageSize = 80

func (q compareQuery) url() string {
	all := ""
	if q.All {
		all = "1"
	}
	return runAddress(q.Run) + "/parts/compared?" + encodeQuery("with", q.With, "at", q.At, "offset", q.Offset, "all", all)
}

// showCompare shows two runs from where they part.
func (s *Console) showCompare(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	p := comparePage{Run: run, With: r.FormValue("with")}
	if p.With == "" {
		p.Others, p.SameFlow, err = s.findOthers(r.Context(), l, run)
	} else if p.With, err = l.client.Find(r.Context(), p.With); err == nil {
		p.Compared, err = readCompared(r, l, run, p.With)
	}
	if err == nil && p.Compared != nil {
		p.First, p.Last, err = reachOf(r.Context(), l, run, p.With, p.Compared.Common)
	}
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, "compare", page{Title: "Compare " + run, At: "compare", Run: run, Data: p})
}

// reachOf returns the positions between which the slider of two runs moves: from where they part to where
// both end.
func reachOf(ctx context.Context, l *link, a, b string, common *wire.DiffCommon) (first, last uint64, err error) {
	for _, run := range []string{a, b} {
		state, err := l.client.State(ctx, run)
		if err != nil {
			return 0, 0, err
		}
		last = max(last, state.Position.Seq)
	}
	if common != nil {
		return common.Position, last, nil
	}
	for _, run := range []string{a, b} {
		pos, err := firstPosition(ctx, l, run)
		if err != nil {
			return 0, 0, err
		}
		if first == 0 || pos < first {
			first = pos
		}
	}
	return first, last, nil
}

// maxOthers bounds the runs that are offered to compare with.
const maxOthers = 30

// findOthers lists the newest runs to compare a run with: those of its flow, its forks among them,
// or, if there are none, any.
func (s *Console) findOthers(ctx context.Context, l *link, run string) (others []wire.TopRun, sameFlow bool, err error) {
	state, err := l.client.State(ctx, run)
	if err != nil {
		return nil, false, err
	}
	for _, flow := range []string{state.FlowName, ""} {
		f, err := callVerb[wire.FleetResponse](ctx, s, wire.VerbFleet, wire.FleetRequest{Flow: flow, Sort: "started", Limit: maxOthers + 1})
		if err != nil {
			return nil, false, err
		}
		if others = slices.DeleteFunc(f.Runs, func(r wire.TopRun) bool { return r.RunID == run }); len(others) > 0 {
			return others, flow != "", nil
		}
	}
	return nil, false, nil
}

func readCompared(r *http.Request, l *link, run, with string) (*compared, error) {
	q := compareQuery{Run: run, With: with, At: r.FormValue("at"), Offset: r.FormValue("offset"), All: r.FormValue("all") != ""}
	at, err := positionOf(q.At)
	if err != nil {
		return nil, err
	}
	offset := 0
	if q.Offset != "" {
		if offset, err = strconv.Atoi(q.Offset); err != nil || offset < 0 {
			return nil, &wire.APIError{Code: wire.CodeBadRequest, Message: "offset is no number"}
		}
	}
	d, a, b, err := history.Compare(r.Context(), l.reader, run, with, history.Compared{At: at, Words: true})
	if err != nil {
		return nil, err
	}
	c := &compared{DiffResponse: d, At: at, All: q.All, Offset: offset, Figures: figuresOf(d)}
	rows := compare.Align(a.Steps, b.Steps)
	for c.Before < len(rows) && rows[c.Before].Same {
		c.Before++
	}
	shown := foldAlike(rows[c.Before:], q.All)
	c.Total = len(shown)
	page := func(offset int) string {
		q := q
		q.Offset = strconv.Itoa(offset)
		return q.url()
	}
	c.Offset = min(c.Offset, len(shown))
	if c.Offset > 0 {
		c.Prev = page(max(0, c.Offset-comparePageSize))
	}
	end := min(len(shown), c.Offset+comparePageSize)
	if end < len(shown) {
		c.Next = page(end)
	}
	c.Rows = shown[c.Offset:end]
	q.All, q.Offset = !q.All, ""
	c.Toggle = q.url()
	return c, nil
}

// foldAlike puts rows that are alike into one that counts them, unless all are wanted.
func foldAlike(rows []compare.Row, all bool) []sideRow {
	var shown []sideRow
	for _, row := range rows {
		switch {
		case all || !row.Same:
			shown = append(shown, sideRow{Row: row})
		case len(shown) > 0 && shown[len(shown)-1].Alike > 0:
			shown[len(shown)-1].Alike++
		default:
			shown = append(shown, sideRow{Row: row, Alike: 1})
		}
	}
	return shown
}

// figuresOf are the figures of both runs behind their common point.
func figuresOf(d wire.DiffResponse) []sidePair {
	var all []sidePair
	add := func(name string, of func(wire.DiffRun) string) {
		a, b := of(d.A), of(d.B)
		all = append(all, sidePair{name, cmp.Or(a, "–"), cmp.Or(b, "–"), a != b})
	}
	add("cost", func(f wire.DiffRun) string {
		return timeline.Cost(f.Usage.CostUsd, ledger.Basis(f.Usage.CostUsd, f.Usage.ComputedUsd, f.Usage.Unpriced))
	})
	add("tokens in / out", func(f wire.DiffRun) string {
		return shortCount(ledger.TotalIn(f.Usage)) + " / " + shortCount(f.Usage.OutputTokens)
	})
	add("turns", func(f wire.DiffRun) string { return shortCount(f.Usage.Turns) })
	add("calls", func(f wire.DiffRun) string { return shortCount(f.Usage.ToolCalls) })
	add("failed calls", func(f wire.DiffRun) string { return shortCount(f.Usage.ToolErrors) })
	add("took", func(f wire.DiffRun) string {
		if f.EndedAt == 0 || f.StartedAt == 0 {
			return ""
		}
		return timeline.Took(f.EndedAt - f.StartedAt)
	})
	return all
}

// readDiff returns how two runs differ, as `wake diff --json` does.
func readDiff(r *http.Request, l *link, run string) (any, error) {
	with, err := l.client.Find(r.Context(), r.FormValue("with"))
	if err != nil {
		return nil, err
	}
	at, err := positionOf(r.FormValue("at"))
	if err != nil {
		return nil, err
	}
	d, _, _, err := history.Compare(r.Context(), l.reader, run, with, history.Compared{At: at})
	return d, err
}
