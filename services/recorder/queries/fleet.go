package queries

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Bounds of a fleet.
const (
	maxEnded = 10_000 // ended runs that are looked at, and of which the figures are kept
	maxLeft  = 1000   // runs that are told to have left
)

// Fleet answers a [wire.FleetRequest] as of now, in at most limit bytes.
func (a *Answers) Fleet(ctx context.Context, q wire.FleetRequest, now time.Time, limit int) (wire.FleetResponse, error) {
	return askAll(ctx, a, "fleet", wire.RunsRequest{Label: q.Label, Flow: q.Flow}, now, func(t *archive.Tx, runs []*rollRun) (wire.FleetResponse, error) {
		return a.listFleet(ctx, t, runs, q, now, limit)
	})
}

func (a *Answers) listFleet(ctx context.Context, t *archive.Tx, runs []*rollRun, q wire.FleetRequest, now time.Time, limit int) (wire.FleetResponse, error) {
	r := wire.FleetResponse{At: now.UnixMilli(), States: map[string]int{}, Waits: map[string]int{}, Runs: []wire.TopRun{}}
	n := cmp.Or(q.Limit, defaultTop)
	compare, known := fleetOrders()[cmp.Or(q.Sort, "urgency")]
	switch {
	case n < 0 || n > maxTop:
		return r, request.Bad("limit must be between 1 and %d", maxTop)
	case !known:
		return r, request.Bad("sort must be urgency, started, activity, cost or tokens, not %q", request.Shown(q.Sort))
	}
	cursors, err := request.CursorsOf(ctx, t)
	if err != nil {
		return r, err
	}
	before, err := cursors.Position(q.Cursor) // in the order
	if err != nil {
		return r, err
	}
	if err := t.Row(ctx, `SELECT coalesce((SELECT derived FROM streams), 0)`).Scan(&r.Position); err != nil {
		return r, err
	}
	figures, err := a.fleetFigures(ctx, t, runs, r.At)
	if err != nil {
		return r, err
	}
	var pass []*fleetFigure
	var left []string
	for _, f := range figures {
		matches := f.matchesText(strings.ToLower(q.Text))
		if matches {
			r.States[f.run.State]++
			for _, w := range f.waits {
				r.Waits[string(w.Kind)]++
			}
		}
		switch {
		case f.pos <= q.Since:
		case matches && f.hasState(q.State):
			pass = append(pass, f)
		default:
			left = append(left, f.run.RunID)
		}
	}
	if q.Since > 0 && before == 0 {
		for _, run := range runs { // what another run has waited for has left, too, when it ended
			if run.last > q.Since && !run.goesOn() && run.awaited() {
				left = append(left, run.Run)
			}
		}
		r.Left, r.LeftMore = left[:min(len(left), maxLeft)], len(left) > maxLeft
	}
	slices.SortFunc(pass, func(a, b *fleetFigure) int { return cmp.Or(compare(a, b), cmp.Compare(b.first, a.first)) })
	r.Total = len(pass)
	r.Before = int(min(before, uint64(r.Total)))
	if r.Before > n {
		r.Previous = cursors.Cursor(uint64(r.Before - n))
	}
	room := limit - 1<<10
	for _, run := range r.Left {
		room -= 2*len(run) + 10
	}
	for i, f := range pass[r.Before:] {
		if room -= (agentSize + 6*700) * (1 + len(f.run.Live)); i == n || room < 0 && i > 0 {
			r.Cursor = cursors.Cursor(before + uint64(i))
			break
		}
		r.Runs = append(r.Runs, f.asOf(r.At))
	}
	return r, fillAlerts(ctx, t, r.Runs)
}

// fleetOrders are the orders in which a fleet can be listed; what is equal, the newest first.
func fleetOrders() map[string]func(a, b *fleetFigure) int {
	return map[string]func(a, b *fleetFigure) int{
		"urgency":  byUrgency,
		"started":  func(a, b *fleetFigure) int { return cmp.Compare(b.run.StartedAt, a.run.StartedAt) },
		"activity": func(a, b *fleetFigure) int { return cmp.Compare(b.run.LastActivityAt, a.run.LastActivityAt) },
		"cost":     func(a, b *fleetFigure) int { return cmp.Compare(b.run.CostUsd, a.run.CostUsd) },
		"tokens": func(a, b *fleetFigure) int {
			return cmp.Compare(b.run.TokensIn+b.run.TokensOut, a.run.TokensIn+a.run.TokensOut)
		},
	}
}

func (f *fleetFigure) matchesText(text string) bool {
	r := &f.run
	return text == "" || slices.ContainsFunc([]string{r.RunID, r.AgentID, r.FlowName, r.LastActivity, r.Error, r.WaitingFor}, func(s string) bool {
		return strings.Contains(strings.ToLower(s), text)
	})
}

func (f *fleetFigure) hasState(names []string) bool {
	open := slices.Contains([]wire.RunStatus{wire.RunIdle, wire.RunRunning, wire.RunPaused}, f.run.Status)
	return len(names) == 0 || slices.Contains(names, f.run.State) || open && slices.Contains(names, "open")
}

// asOf returns the run at a later time.
func (f *fleetFigure) asOf(now int64) wire.TopRun {
	r := f.run
	r.Live = slices.Clone(r.Live)
	fillTimes(&r.AgentStatus, r.LastActivityAt, f.until, now)
	for i := range r.Live {
		fillTimes(&r.Live[i], r.Live[i].LastActivityAt, f.until, now)
	}
	if r.State == stateWaiting && f.until == 0 {
		r.WaitedMs += max(0, now-f.at)
	}
	return r
}

// fleetFigures returns the figures of runs, without ended ones that another run has waited for: the other run tells of them.
func (a *Answers) fleetFigures(ctx context.Context, t *archive.Tx, runs []*rollRun, now int64) ([]*fleetFigure, error) {
	var open, ended []*rollRun
	for _, r := range slices.Backward(runs) {
		switch {
		case r.goesOn():
			open = append(open, r)
		case !r.awaited() && len(ended) < maxEnded:
			ended = append(ended, r)
		default:
			r.row.Store(nil)
		}
	}
	all, err := a.openFigures(ctx, t, open, now)
	if err != nil {
		return nil, err
	}
	done, err := endedFigures(ctx, t, ended, now)
	return append(all, done...), err
}

// openFigures returns the figures of runs, most of which go on.
func (a *Answers) openFigures(ctx context.Context, t *archive.Tx, runs []*rollRun, now int64) ([]*fleetFigure, error) {
	load := stateLoader(stateOf)
	if len(runs) < maxViews {
		load = a.views.stateUpTo
	}
	all := make([]*fleetFigure, 0, len(runs))
	for _, r := range runs {
		f, err := a.figureAsOf(ctx, t, r, now, load)
		if errors.Is(err, sql.ErrNoRows) { // it was removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// endedFigures returns the figures of runs that have ended, by their rows alone. It reads the rows that it doesn't know yet.
func endedFigures(ctx context.Context, t *archive.Tx, runs []*rollRun, now int64) ([]*fleetFigure, error) {
	all := make([]*fleetFigure, 0, len(runs))
	var unread []*rollRun
	for _, r := range runs {
		if f := r.row.Load(); f != nil {
			all = append(all, f)
		} else {
			unread = append(unread, r)
		}
	}
	for chunk := range slices.Chunk(unread, rowsAtOnce) {
		var args database.Params
		var ids []any
		byID := map[int64]*rollRun{}
		for _, r := range chunk {
			ids, byID[r.ID] = append(ids, r.ID), r
		}
		text := `SELECT ` + t.D.Tables.Named("runs").List() + `, coalesce((SELECT value FROM labels WHERE labels.run = runs.id AND key = 'name'), ''), (SELECT derived FROM streams)
			FROM runs WHERE id IN (` + args.List(ids...) + `)`
		var row table.Run
		var label string
		var derived uint64
		for err := range t.Each(ctx, text, args, append(table.Fields(&row), &label, &derived)...) {
			if err != nil {
				return nil, err
			}
			f := endedFigure(&row, label, now)
			f.pos = min(f.pos, derived) // what is behind it isn't in the row yet
			byID[row.ID].row.Store(f)
			all = append(all, f)
		}
	}
	return all, nil
}

// figureAsOf returns the figure of a run that goes on.
func (a *Answers) figureAsOf(ctx context.Context, t *archive.Tx, of *rollRun, now int64, load stateLoader) (*fleetFigure, error) {
	if f := of.figure.Load(); f != nil {
		return f, nil
	}
	f := &fleetFigure{at: now, first: of.first}
	answered, _, err := a.live.withRun(of.Run, func(l *liveRun) (bool, error) {
		f.pos, f.until, f.run, f.waits = l.position.Seq, goneUntil(l.state), topRun(l.statusOf("", now)), ask.Pending(l.state)
		return true, nil
	})
	if !answered && err == nil {
		var stored figure
		if stored, err = figureOf(ctx, t, of.Target, load); err != nil {
			return nil, err
		}
		f.pos, f.until, f.run, f.waits = stored.position.Seq, goneUntil(stored.state), topRun(stored.statusOf("", now)), ask.Pending(stored.state)
	}
	if err != nil {
		return nil, err
	}
	f.urgency = urgencyOf(f.run.State)
	of.figure.Store(f)
	return f, nil
}

// endedFigure is a run that has ended, by its row alone.
func endedFigure(row *table.Run, label string, now int64) *fleetFigure {
	r := wire.TopRun{RunID: row.RunID, FlowName: row.FlowName, Status: wire.RunStatus(row.Status), Result: wire.FlowStatus(row.Result), Imported: row.Imported, Live: []wire.AgentStatus{}}
	r.AgentStatus = wire.AgentStatus{
		AgentID: cmp.Or(label, row.RunID), State: row.Status, Reason: briefText(row.Reason), Error: briefText(row.Error), StartedAt: row.StartedAt, EndedAt: row.EndedAt,
		CostUsd: row.CostUsd, CostBasis: ledger.Basis(row.CostUsd, row.ComputedUsd, row.Unpriced), TokensIn: row.TokensIn, TokensOut: row.TokensOut,
		ToolsUsed: row.ToolsUsed, ToolErrors: row.ToolErrors, LastActivity: lastActivity(row.Status, timeline.Line(row.LastActivity, 300)),
	}
	if r.Result == wire.FlowStatusFailed && r.Status == wire.RunComplete {
		r.State = stateFailed
	}
	fillTimes(&r.AgentStatus, row.ActivityAt, 0, now)
	return &fleetFigure{first: row.FirstPos, pos: row.LastPos, at: now, urgency: urgencyOf(r.State), run: r}
}

// Limits of the fleet.
const (
	defaultTop = 50
	maxTop     = 200
	maxFleet   = 2000 // runs that are looked at
	maxLive    = 20   // agents of a run that are listed
)

// Top answers a [wire.TopRequest] as of now, in at most limit bytes.
func (a *Answers) Top(ctx context.Context, q wire.TopRequest, now time.Time, limit int) (wire.TopResponse, error) {
	r, err := askAll(ctx, a, "top", wire.RunsRequest{Label: q.Label, Flow: q.Flow}, now, func(t *archive.Tx, runs []*rollRun) (wire.TopResponse, error) {
		return a.listTop(ctx, t, runs, q, now)
	})
	if err != nil {
		return r, err
	}
	room := limit - 1<<10
	for i, x := range r.Runs {
		if room -= (agentSize + 6*700) * (1 + len(x.Live)); room < 0 && i > 0 {
			r.Omitted += len(r.Runs) - i
			r.Runs = r.Runs[:i]
			break
		}
	}
	return r, nil
}

func (a *Answers) listTop(ctx context.Context, t *archive.Tx, runs []*rollRun, q wire.TopRequest, now time.Time) (wire.TopResponse, error) {
	r := wire.TopResponse{At: now.UnixMilli(), States: map[string]int{}, Runs: []wire.TopRun{}}
	if q.Limit < 0 || q.Limit > maxTop {
		return r, request.Bad("limit must be between 1 and %d", maxTop)
	}
	figures, err := a.openFigures(ctx, t, topRuns(runs, q, r.At), r.At)
	if err != nil {
		return r, err
	}
	for _, f := range figures {
		r.States[f.run.State]++
	}
	slices.SortStableFunc(figures, byUrgency)
	if n := cmp.Or(q.Limit, defaultTop); len(figures) > n {
		r.Omitted, figures = len(figures)-n, figures[:n]
	}
	for _, f := range figures {
		r.Runs = append(r.Runs, f.asOf(r.At))
	}
	return r, fillAlerts(ctx, t, r.Runs)
}

// topRuns leaves the runs that go on, and those that ended lately, newest first, without ended runs
// that another run has waited for: the other run tells what has come of them.
func topRuns(runs []*rollRun, q wire.TopRequest, now int64) (top []*rollRun) {
	for _, r := range slices.Backward(runs) {
		switch {
		case len(top) < maxFleet && (r.goesOn() || q.Since > 0 && r.endedAt >= now-int64(q.Since) && !r.awaited()):
			top = append(top, r)
		case r.endedAt > 0 && r.endedAt < now-figureAge:
			r.figure.Store(nil)
		}
	}
	return top
}

// figureAge is how long (ms) the figure of a run is kept at least that has ended.
const figureAge = 3_600_000

func topRun(st wire.StatusResponse) wire.TopRun {
	x := wire.TopRun{AgentStatus: st.AgentStatus, RunID: st.RunID, FlowName: st.FlowName, Status: st.Status, Result: st.Result, Imported: st.Imported, Live: []wire.AgentStatus{}}
	for _, a := range st.Agents {
		if (a.State == stateActive || a.State == stateWaiting) && len(x.Live) < maxLive {
			x.Live = append(x.Live, a)
		}
	}
	slices.SortStableFunc(x.Live, func(a, b wire.AgentStatus) int { return cmp.Compare(urgencyOf(a.State), urgencyOf(b.State)) })
	return x
}

// byUrgency puts waiting runs first, the longest waiting before others; then runs by
// urgency, and of equally urgent ones the latest active first.
func byUrgency(a, b *fleetFigure) int {
	if c := cmp.Compare(a.urgency, b.urgency); c != 0 {
		return c
	}
	if a.run.State == stateWaiting {
		return cmp.Compare(a.run.WaitsSince, b.run.WaitsSince)
	}
	return cmp.Compare(b.lastActive(), a.lastActive())
}

// lastActive is when the run, or an agent of it, last did anything that is told.
func (f *fleetFigure) lastActive() int64 {
	return max(f.run.StartedAt, f.run.LastActivityAt, f.run.EndedAt)
}

func urgencyOf(state string) int {
	return slices.Index([]string{stateWaiting, stateFailed, statePaused, stateActive, stateIdle, stateAborted, stateComplete, stateSkipped}, state)
}

// fillAlerts fills in how many alerts runs and their agents have raised.
func fillAlerts(ctx context.Context, t *archive.Tx, runs []wire.TopRun) error {
	ids := make([]any, len(runs))
	for i := range runs {
		ids[i] = runs[i].RunID
	}
	counts, err := countAlerts(ctx, t, ids...)
	for i := range runs {
		counts.fillStatus(runs[i].RunID, &runs[i].AgentStatus, runs[i].Live)
	}
	return err
}
