package alerter

import (
	"cmp"
	"slices"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// Backtest returns the alerts that the settings would have raised about entries,
// which are in stream order, and, to be exact, complete and of all kinds. Time
// passes for each run as it did, up to the last entry, so that silence is found
// where it was. Positions have no incarnation. Alerts about wake itself, which
// aren't about events, aren't among them. Settings that aren't valid find less.
func Backtest(s Settings, entries []eventlog.Entry) []wire.Alert {
	t := backtest{limits: s.limits(), runs: map[string]*record{}}
	var last int64
	for _, e := range entries {
		if e.Err != nil || e.Event == nil || e.RunID == wire.NoRun {
			continue
		}
		last = max(last, e.Time.UnixMilli())
		r := t.runs[e.RunID]
		if r == nil {
			r = new(newRecord(e.RunID))
			t.runs[e.RunID] = r
		}
		t.pass(r, e.Time.UnixMilli())
		if matters(e.Event) {
			t.step(r, input{At: e.Time.UnixMilli(), Pos: e.Pos, Event: e.Event})
		}
		r.Position.Seq = e.Pos
	}
	for _, run := range sorted(t.runs) {
		t.pass(t.runs[run], last)
	}
	slices.SortStableFunc(t.alerts, func(a, b dated) int { return cmp.Compare(a.at, b.at) })
	alerts := make([]wire.Alert, len(t.alerts))
	for i, a := range t.alerts {
		alerts[i] = a.Alert
	}
	return alerts
}

// backtest is one under way.
type backtest struct {
	limits *limits
	runs   map[string]*record
	ledger ledger
	alerts []dated
}

// dated is an alert and when it would have been raised.
type dated struct {
	wire.Alert
	at int64
}

// pass lets time pass for a run.
func (t *backtest) pass(r *record, now int64) {
	for r.Deadline > 0 && r.Deadline <= now {
		at := r.Deadline
		t.step(r, input{At: at, Pos: r.Position.Seq})
		if r.Deadline == at { // a tick leads further
			r.Deadline = 0
		}
	}
}

func (t *backtest) step(r *record, in input) {
	in.Limits = t.limits
	next, found := r.step(in)
	*r, in.Run = next, next.Run
	if r.Run.Copy {
		r.Deadline = 0
		return
	}
	for _, f := range found {
		t.raise(f, in)
	}
	t.ledger.put(r.Run.ID, r.Spending)
	if found, budget := t.ledger.crossed(t.limits.Budget); len(found) > 0 {
		in.Run = system()
		t.raise(found[0], in)
		t.ledger.told = budget
	}
}

func (t *backtest) raise(f finding, in input) {
	a, err := f.alert(in, "")
	if err == nil { // all that it is made of can be encoded
		t.alerts = append(t.alerts, dated{a, in.At})
	}
}
