package queries

import (
	"cmp"
	"context"
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
	maxEnded = 10_000 // ended runs that are looked at, and the figures of ended runs that are kept
	maxLeft  = 1000   // runs that are told to have left
)

// Fleet answers a [wire.FleetRequest] as of now, in at most limit bytes.
func (a *Answers) Fleet(ctx context.Context, q wire.FleetRequest, now time.Time, limit int) (wire.FleetResponse, error) {
	return askArchive(ctx, a, "fleet", func(t *archive.Tx) (wire.FleetResponse, error) { return a.listFleet(ctx, t, q, now, limit) })
}

func (a *Answers) listFleet(ctx context.Context, t *archive.Tx, q wire.FleetRequest, now time.Time, limit int) (wire.FleetResponse, error) {
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
	figures, err := a.fleetFigures(ctx, t, q, r.At)
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
		if err := addAwaited(ctx, t, q, r.At, &left); err != nil {
			return r, err
		}
		r.Left, r.LeftMore = left[:min(len(left), maxLeft)], len(left) > maxLeft
	}
	slices.SortStableFunc(pass, func(a, b *fleetFigure) int { return compare(&a.run, &b.run) })
	r.Total = len(pass)
	room := limit - 1<<10
	for _, run := range r.Left {
		room -= 2*len(run) + 10
	}
	for i, f := range pass[min(before, uint64(len(pass))):] {
		if room -= (agentSize + 6*700) * (1 + len(f.run.Live)); i == n || room < 0 && i > 0 {
			r.Cursor = cursors.Cursor(before + uint64(i))
			break
		}
		r.Runs = append(r.Runs, f.run)
	}
	return r, fillAlerts(ctx, t, r.Runs)
}

// addAwaited adds the runs that have ended since a position and that another run has waited for.
func addAwaited(ctx context.Context, t *archive.Tx, q wire.FleetRequest, now int64, left *[]string) error {
	where, args, err := runsFilter(wire.RunsRequest{Label: q.Label, Flow: q.Flow}, time.UnixMilli(now))
	if err != nil {
		return err
	}
	where += " AND last_pos > " + args.Add(q.Since) + " AND status NOT IN (" + openStatuses + ") AND " + awaited
	_, ended, err := listPlaces(ctx, t, where, args, maxLeft+1)
	for _, p := range ended {
		*left = append(*left, p.Run)
	}
	return err
}

// fleetOrders are the orders in which a fleet can be listed; what is equal, the newest first.
func fleetOrders() map[string]func(a, b *wire.TopRun) int {
	return map[string]func(a, b *wire.TopRun) int{
		"urgency":  byUrgency,
		"started":  func(a, b *wire.TopRun) int { return cmp.Compare(b.StartedAt, a.StartedAt) },
		"activity": func(a, b *wire.TopRun) int { return cmp.Compare(b.LastActivityAt, a.LastActivityAt) },
		"cost":     func(a, b *wire.TopRun) int { return cmp.Compare(b.CostUsd, a.CostUsd) },
		"tokens":   func(a, b *wire.TopRun) int { return cmp.Compare(b.TokensIn+b.TokensOut, a.TokensIn+a.TokensOut) },
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

// asOf returns the figure at a later time.
func (f fleetFigure) asOf(now int64) *fleetFigure {
	grow := func(a *wire.AgentStatus) {
		fillTimes(a, a.LastActivityAt, now)
	}
	f.run.Live = slices.Clone(f.run.Live)
	grow(&f.run.AgentStatus)
	for i := range f.run.Live {
		grow(&f.run.Live[i])
	}
	if f.run.State == stateWaiting {
		f.run.WaitedMs += max(0, now-f.at)
	}
	return &f
}

// fleetFigures lists all runs of a flow and a label, the newest first, without ended runs that another
// run has waited for: the other run tells of them.
func (a *Answers) fleetFigures(ctx context.Context, t *archive.Tx, q wire.FleetRequest, now int64) ([]*fleetFigure, error) {
	where, args, err := runsFilter(wire.RunsRequest{Label: q.Label, Flow: q.Flow}, time.UnixMilli(now))
	if err != nil {
		return nil, err
	}
	open, ended, err := listPlaces(ctx, t, where+" AND (status IN ("+openStatuses+") OR NOT "+awaited+")", args, 2*maxEnded)
	if err != nil {
		return nil, err
	}
	ended = ended[:min(len(ended), maxEnded)]
	all, err := a.openFigures(ctx, t, open, now)
	if err != nil {
		return nil, err
	}
	done, err := a.endedFigures(ctx, t, ended, now)
	if err != nil {
		return nil, err
	}
	all = append(all, done...)
	slices.SortFunc(all, func(a, b *fleetFigure) int { return cmp.Compare(b.first, a.first) })
	return all, nil
}

// openStatuses are those of runs that go on.
const openStatuses = "'idle', 'running', 'paused'"

// place is where a run's events are.
type place struct {
	request.Target

	first, last uint64 // positions
}

// listPlaces lists the runs of a filter, those that go on apart from those that have ended, the newest first. Callers then
// read only the rows of runs that they don't know yet.
func listPlaces(ctx context.Context, t *archive.Tx, where string, args database.Params, most int) (open, ended []place, err error) {
	text := `SELECT id, run, first_pos, last_pos, status IN (` + openStatuses + `) FROM runs WHERE ` + where + ` ORDER BY first_pos DESC LIMIT ` + args.Add(most)
	var p place
	var goesOn bool
	for err := range t.Each(ctx, text, args, &p.ID, &p.Run, &p.first, &p.last, &goesOn) {
		switch {
		case err != nil:
			return nil, nil, err
		case goesOn:
			open = append(open, p)
		default:
			ended = append(ended, p)
		}
	}
	return open, ended, nil
}

// openFigures returns the figures of runs, most of which go on.
func (a *Answers) openFigures(ctx context.Context, t *archive.Tx, runs []place, now int64) ([]*fleetFigure, error) {
	load := stateLoader(stateOf)
	if len(runs) < maxViews {
		load = a.views.stateUpTo
	}
	all := make([]*fleetFigure, 0, len(runs))
	for _, p := range runs {
		f, err := a.figureAsOf(ctx, t, p, now, load)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// endedFigures returns the figures of runs that have ended, by their rows alone. It reads the rows that it doesn't know yet.
func (a *Answers) endedFigures(ctx context.Context, t *archive.Tx, runs []place, now int64) ([]*fleetFigure, error) {
	all := make([]*fleetFigure, 0, len(runs))
	var unread []place
	for _, p := range runs {
		if f, pos := a.ended.find(p.Run); pos >= p.last {
			all = append(all, f.asOf(now))
		} else {
			unread = append(unread, p)
		}
	}
	for chunk := range slices.Chunk(unread, rowsAtOnce) {
		var args database.Params
		var ids []any
		for _, p := range chunk {
			ids = append(ids, p.ID)
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
			a.ended.keep(row.RunID, f.pos, *f, 2*maxEnded)
			all = append(all, f)
		}
	}
	return all, nil
}

// rowsAtOnce is how many rows are asked for by their ids in one statement.
const rowsAtOnce = 200

// figureAsOf returns the figure of a run that goes on.
func (a *Answers) figureAsOf(ctx context.Context, t *archive.Tx, of place, now int64, load stateLoader) (*fleetFigure, error) {
	if f, pos := a.figures.find(of.Run); pos >= of.last {
		return f.asOf(now), nil
	}
	f := fleetFigure{at: now, first: of.first}
	answered, _, err := a.live.withRun(of.Run, func(l *liveRun) (bool, error) {
		f.pos, f.run, f.waits = l.position.Seq, topRun(l.statusOf("", now)), ask.Pending(l.state)
		return true, nil
	})
	if !answered && err == nil {
		var stored figure
		if stored, err = figureOf(ctx, t, of.Target, load); err != nil {
			return nil, err
		}
		f.pos, f.run, f.waits = stored.position.Seq, topRun(stored.statusOf("", now)), ask.Pending(stored.state)
	}
	if err == nil {
		a.figures.keep(of.Run, f.pos, f, 2*maxEnded)
	}
	return &f, err
}

// endedFigure is a run that has ended, by its row alone.
func endedFigure(row *table.Run, label string, now int64) *fleetFigure {
	r := wire.TopRun{RunID: row.RunID, FlowName: row.FlowName, Status: wire.RunStatus(row.Status), Result: wire.FlowStatus(row.Result), Live: []wire.AgentStatus{}}
	r.AgentStatus = wire.AgentStatus{
		AgentID: cmp.Or(label, row.RunID), State: row.Status, Reason: briefText(row.Reason), Error: briefText(row.Error), StartedAt: row.StartedAt, EndedAt: row.EndedAt,
		CostUsd: row.CostUsd, CostBasis: ledger.Basis(row.CostUsd, row.ComputedUsd, row.Unpriced), TokensIn: row.TokensIn, TokensOut: row.TokensOut,
		ToolsUsed: row.ToolsUsed, ToolErrors: row.ToolErrors, LastActivity: timeline.Line(row.LastActivity, 300),
	}
	if r.Result == wire.FlowStatusFailed && r.Status == wire.RunComplete {
		r.State = stateFailed
	}
	fillTimes(&r.AgentStatus, row.ActivityAt, now)
	return &fleetFigure{first: row.FirstPos, pos: row.LastPos, at: now, run: r}
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
	r, err := askArchive(ctx, a, "top", func(t *archive.Tx) (wire.TopResponse, error) { return a.listTop(ctx, t, q, now) })
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

func (a *Answers) listTop(ctx context.Context, t *archive.Tx, q wire.TopRequest, now time.Time) (wire.TopResponse, error) {
	r := wire.TopResponse{At: now.UnixMilli(), States: map[string]int{}, Runs: []wire.TopRun{}}
	if q.Limit < 0 || q.Limit > maxTop {
		return r, request.Bad("limit must be between 1 and %d", maxTop)
	}
	runs, err := topPlaces(ctx, t, q, r.At)
	if err != nil {
		return r, err
	}
	figures, err := a.openFigures(ctx, t, runs, r.At)
	if err != nil {
		return r, err
	}
	for _, f := range figures {
		r.States[f.run.State]++
		r.Runs = append(r.Runs, f.run)
	}
	slices.SortStableFunc(r.Runs, func(a, b wire.TopRun) int { return byUrgency(&a, &b) })
	if n := cmp.Or(q.Limit, defaultTop); len(r.Runs) > n {
		r.Omitted, r.Runs = len(r.Runs)-n, r.Runs[:n]
	}
	return r, nil
}

// topPlaces lists the runs that go on, and those that ended lately, newest first, without ended runs
// that another run has waited for: the other run tells what has come of them.
func topPlaces(ctx context.Context, t *archive.Tx, q wire.TopRequest, now int64) ([]place, error) {
	where, args, err := runsFilter(wire.RunsRequest{Label: q.Label, Flow: q.Flow}, time.UnixMilli(now))
	if err != nil {
		return nil, err
	}
	where += " AND (status IN (" + openStatuses + ")"
	if q.Since > 0 {
		where += " OR ended_at >= " + args.Add(now-int64(q.Since)) + " AND NOT " + awaited
	}
	open, ended, err := listPlaces(ctx, t, where+")", args, maxFleet)
	all := append(open, ended...)
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(b.first, a.first) })
	return all, err
}

// awaited is what an agent or a node of another run has started and waits for: the
// runner names such runs so.
const awaited = `(parent <> '' AND (run LIKE 'child-%' OR substr(run, 1, length(parent) + 1) = parent || '.'))`

func topRun(st wire.StatusResponse) wire.TopRun {
	x := wire.TopRun{AgentStatus: st.AgentStatus, RunID: st.RunID, FlowName: st.FlowName, Status: st.Status, Result: st.Result, Live: []wire.AgentStatus{}}
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
func byUrgency(a, b *wire.TopRun) int {
	if c := cmp.Compare(urgencyOf(a.State), urgencyOf(b.State)); c != 0 {
		return c
	}
	if a.State == stateWaiting {
		return cmp.Compare(a.WaitsSince, b.WaitsSince)
	}
	return cmp.Compare(a.LastActivityAgeMs, b.LastActivityAgeMs)
}

func urgencyOf(state string) int {
	return slices.Index([]string{stateWaiting, stateFailed, statePaused, stateActive, stateIdle, stateAborted, stateComplete, stateSkipped}, state)
}

// fillAlerts fills in how many alerts runs and their agents have raised, as far as they are recorded.
func fillAlerts(ctx context.Context, t *archive.Tx, runs []wire.TopRun) error {
	if len(runs) == 0 {
		return nil
	}
	var args database.Params
	ids := make([]any, len(runs))
	for i := range runs {
		ids[i] = runs[i].RunID
	}
	type place struct{ run, node string }
	counts := map[place]int{}
	text := `SELECT run, node, count(*) FROM alerts WHERE run IN (` + args.List(ids...) + `) GROUP BY run, node`
	var at place
	var n int
	for err := range t.Each(ctx, text, args, &at.run, &at.node, &n) {
		if err != nil {
			return err
		}
		counts[at] = n
		counts[place{run: at.run}] += n
	}
	for i := range runs {
		r := &runs[i]
		if r.Alerts = counts[place{run: r.RunID}]; r.Alerts == 0 {
			continue
		}
		for k := range r.Live {
			r.Live[k].Alerts = counts[place{r.RunID, r.Live[k].AgentID}]
		}
		if err := t.Row(ctx, `SELECT text FROM alerts WHERE run = ?1 ORDER BY pos DESC LIMIT 1`, r.RunID).Scan(&r.LastAlert); err != nil {
			return err
		}
		r.LastAlert = timeline.Line(r.LastAlert, 300)
	}
	return nil
}
