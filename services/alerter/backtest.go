package alerter

import (
	"cmp"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Backtest returns the alerts that the settings would have raised about entries,
// which are in stream order, and, to be exact, complete and of all kinds. Time
// passes for each run as it did, up to the last entry, so that silence is found
// where it was. Positions have no incarnation. Alerts about wake itself, which
// aren't about events, aren't among them. Settings that aren't valid find less.
func Backtest(s Settings, entries []eventlog.Entry) []wire.Alert {
	t := backtest{limits: s.compileLimits(), runs: map[string]*runRecord{}}
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
		at := r.timeOf(e)
		t.passTime(r, at)
		if isRelevant(e.Event) {
			t.applyInput(r, input{At: at, Pos: e.Pos, Event: e.Event})
		}
		*r = r.moveClock(e, at)
		r.Position.Seq = e.Pos
	}
	for _, run := range sortedKeys(t.runs) {
		if r := t.runs[run]; r.Clock == 0 { // else it is unknown what was behind its last event
			t.passTime(r, last)
		}
	}
	slices.SortStableFunc(t.alerts, func(a, b datedAlert) int { return cmp.Compare(a.at, b.at) })
	alerts := make([]wire.Alert, len(t.alerts))
	for i, a := range t.alerts {
		alerts[i] = a.Alert
	}
	return alerts
}

// backtest is one under way.
type backtest struct {
	limits *limits
	runs   map[string]*runRecord
	days   daySum
	alerts []datedAlert
}

// datedAlert is an alert and when it would have been raised.
type datedAlert struct {
	wire.Alert
	at int64
}

// passTime lets time pass for a run.
func (t *backtest) passTime(r *runRecord, now int64) {
	for r.Deadline > 0 && r.Deadline <= now {
		at := r.Deadline
		t.applyInput(r, input{At: at, Pos: r.Position.Seq})
		if r.Deadline == at { // a tick leads further
			r.Deadline = 0
		}
	}
}

func (t *backtest) applyInput(r *runRecord, in input) {
	in.Limits = t.limits
	next, found := r.applyInput(in)
	*r, in.Run = next, next.Run
	if r.Run.Copy {
		r.Deadline = 0
		return
	}
	for _, f := range found {
		t.addAlert(f, in)
	}
	t.days.noteSpending(r.Run.ID, r.Spending)
	if found, budget := t.days.crossBudget(t.limits.Budget); len(found) > 0 {
		in.Run = systemRun()
		t.addAlert(found[0], in)
		t.days.told = budget
	}
}

func (t *backtest) addAlert(f finding, in input) {
	a, err := f.toAlert(in, "")
	if err == nil { // all that it is made of can be encoded
		t.alerts = append(t.alerts, datedAlert{a, in.At})
	}
}
