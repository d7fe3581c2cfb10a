package queries

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// roll has all runs, as far as lists and numbers of all begin with that. It is read once, and told of what is derived later, see
// [Answers.Changed]. The zero value has none.
type roll struct {
	mu    sync.Mutex
	full  bool
	list  []*rollRun      // in the order of their first events
	doubt map[string]bool // runs that were derived again, or removed: they are read again
}

// rollRun is a run in the roll. It isn't changed, but for what questions keep at it: what they have made of it. When something is
// derived of the run, another one takes its place.
type rollRun struct {
	request.Target

	figure atomic.Pointer[fleetFigure]
	row    atomic.Pointer[fleetFigure] // by its row alone, of a run that has ended
	spent  atomic.Pointer[[]spending]

	first, last                  uint64 // positions; last is the one up to which what follows from its events is derived
	flow, status, result, parent string
	startedAt, endedAt, activeAt int64 // Unix ms
	goneAt                       int64 // Unix ms; 0: it isn't deleted
}

// maxRoll bounds the runs that a roll has: of more it is read for each question.
const maxRoll = 200_000

// rollOf is a run by its row, and the position up to which what follows from its events is derived.
func rollOf(r *table.Run, last uint64) *rollRun {
	return &rollRun{
		Target: request.Target{ID: r.ID, Run: r.RunID}, first: r.FirstPos, last: last, flow: r.FlowName, status: r.Status, result: r.Result,
		parent: r.ParentRun, startedAt: r.StartedAt, endedAt: r.EndedAt, activeAt: r.LastActiveAt,
	}
}

// goesOn reports whether the run hasn't ended.
func (r *rollRun) goesOn() bool {
	return slices.Contains([]wire.RunStatus{wire.RunIdle, wire.RunRunning, wire.RunPaused}, wire.RunStatus(r.status))
}

// awaited reports whether an agent or a node of another run has started the run and waits for it: the runner names such runs so.
func (r *rollRun) awaited() bool {
	return r.parent != "" && (strings.HasPrefix(r.Run, "child-") || strings.HasPrefix(r.Run, r.parent+"."))
}

// byFirst compares runs by their first events.
func byFirst(r *rollRun, first uint64) int { return cmp.Compare(r.first, first) }

// putRun adds a run to a list in the order of their first events, or what has become of it.
func putRun(list []*rollRun, r *rollRun) []*rollRun {
	at, found := slices.BinarySearchFunc(list, r.first, byFirst)
	if !found {
		return slices.Insert(list, at, r)
	}
	r.goneAt = list[at].goneAt // which no event changes
	list[at] = r
	return list
}

// note takes what has become of runs.
func (o *roll) note(list []Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range list {
		if c := &list[i]; o.full {
			o.list = putRun(o.list, rollOf(c.Run, c.Pos))
		}
	}
}

// drop drops a run, or all: they are read again.
func (o *roll) drop(run string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if run == "" {
		o.full, o.list, o.doubt = false, nil, nil
		return
	}
	if o.doubt == nil {
		o.doubt = map[string]bool{}
	}
	o.doubt[run] = true
}

// allRuns returns all runs, in the order of their first events. A view that is begun afterwards has all of them, but for those that are removed
// meanwhile.
func (a *Answers) allRuns(ctx context.Context) (list []*rollRun, err error) {
	o := &a.roll
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.full && len(o.doubt) == 0 {
		return slices.Clone(o.list), nil
	}
	list, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) ([]*rollRun, error) { return o.readMissing(ctx, t) })
	if err != nil {
		return nil, err
	}
	o.full, o.list, o.doubt = false, nil, nil
	if a.Holding() && len(list) <= maxRoll { // else the roll isn't told what is derived later, or would be too long
		o.full, o.list = true, slices.Clone(list)
	}
	return list, nil
}

// readMissing returns the runs of the roll, and reads what it lacks.
func (o *roll) readMissing(ctx context.Context, t *archive.Tx) (list []*rollRun, err error) {
	if !o.full {
		return readRoll(ctx, t, nil, "")
	}
	list = slices.DeleteFunc(slices.Clone(o.list), func(r *rollRun) bool { return o.doubt[r.Run] })
	doubt := make([]any, 0, len(o.doubt))
	for run := range o.doubt {
		doubt = append(doubt, run)
	}
	for names := range slices.Chunk(doubt, rowsAtOnce) {
		var args database.Params
		where := " AND run IN (" + args.List(names...) + ")"
		if list, err = readRoll(ctx, t, list, where, args...); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readRoll reads runs into a list in the order of their first events: all, or those that a condition selects, too.
func readRoll(ctx context.Context, t *archive.Tx, list []*rollRun, where string, args ...any) ([]*rollRun, error) {
	text := `SELECT runs.id, run, flow, status, result, parent, started_at, ended_at, last_at, first_pos, CASE WHEN last_pos < derived THEN last_pos ELSE derived END,
		coalesce((SELECT gone_at FROM deleted WHERE deleted.run = runs.run), 0) FROM runs, streams WHERE first_pos <= derived` + where + ` ORDER BY first_pos`
	var r table.Run
	var goneAt int64
	for err := range t.Each(ctx, text, args, &r.ID, &r.RunID, &r.FlowName, &r.Status, &r.Result, &r.ParentRun, &r.StartedAt, &r.EndedAt, &r.LastActiveAt, &r.FirstPos, &r.LastPos, &goneAt) {
		if err != nil {
			return nil, err
		}
		one := rollOf(&r, r.LastPos)
		one.goneAt = goneAt
		list = putRun(list, one)
	}
	return list, nil
}

// isOutdated reports whether runs were deleted, restored or removed that a roll has otherwise: that is no event.
func isOutdated(ctx context.Context, t *archive.Tx, all []*rollRun) (bool, error) {
	if len(all) == 0 {
		return false, nil
	}
	var runs int
	var goneAt, sum int64
	for _, r := range all {
		sum += r.goneAt
	}
	text := `SELECT (SELECT count(*) FROM runs WHERE first_pos <= ?1), (SELECT CAST(coalesce(sum(gone_at), 0) AS BIGINT) FROM deleted)`
	err := t.Row(ctx, text, all[len(all)-1].first).Scan(&runs, &goneAt)
	return runs != len(all) || goneAt != sum, err
}

// wantedRuns leaves of all runs those that a filter selects, which has none that are deleted.
func wantedRuns(ctx context.Context, t *archive.Tx, all []*rollRun, q wire.RunsRequest, now time.Time) ([]*rollRun, error) {
	if q.Label == "" && q.Flow == "" && len(q.Status) == 0 {
		return slices.DeleteFunc(all, func(r *rollRun) bool { return r.Run == wire.NoRun || r.goneAt > 0 }), nil
	}
	where, args, err := runsFilter(q, now)
	if err != nil {
		return nil, err
	}
	wanted := map[int64]bool{}
	var id int64
	for err := range t.Each(ctx, `SELECT id FROM runs WHERE `+where, args, &id) {
		if err != nil {
			return nil, err
		}
		wanted[id] = true
	}
	return slices.DeleteFunc(all, func(r *rollRun) bool { return !wanted[r.ID] }), nil
}
