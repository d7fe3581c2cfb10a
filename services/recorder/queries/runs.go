package queries

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Limits of a list of runs.
const (
	defaultRuns = 50
	maxRuns     = 1000
)

// Runs answers a [wire.RunsRequest] as of now.
func (a *Answers) Runs(ctx context.Context, q wire.RunsRequest, now time.Time, limit int) (wire.RunsResponse, error) {
	return askArchive(ctx, a, "runs", func(t *archive.Tx) (r wire.RunsResponse, err error) {
		where, args, err := runsFilter(q, now)
		if err != nil {
			return r, err
		}
		cursors, err := request.CursorsOf(ctx, t)
		if err != nil {
			return r, err
		}
		before, err := cursors.Position(q.Cursor)
		if err != nil {
			return r, err
		}
		if q.Error != "" {
			term, err := runsWithError(ctx, t, q.Error)
			if err != nil {
				return r, err
			}
			where += " AND " + term
		}
		if before > 0 {
			where += " AND first_pos < " + args.Add(before)
		}
		return listRuns(ctx, t, cursors, where, args, cmp.Or(q.Limit, defaultRuns), limit)
	})
}

func runsFilter(q wire.RunsRequest, now time.Time) (where string, args database.Params, err error) {
	if q.Limit < 0 || q.Limit > maxRuns {
		return "", nil, request.Bad("limit must be between 1 and %d", maxRuns)
	}
	terms := []string{"run <> " + args.Add(wire.NoRun), "first_pos <= (SELECT derived FROM streams)"} // of later runs nothing is derived yet
	if q.Deleted {
		terms = append(terms, "run IN (SELECT run FROM deleted)")
	} else {
		terms = append(terms, "run NOT IN (SELECT run FROM deleted)")
	}
	if len(q.Status) > 0 {
		list, err := checkStatuses(q.Status)
		if err != nil {
			return "", nil, err
		}
		terms = append(terms, "CASE WHEN status = 'complete' AND result = 'failed' THEN 'failed' ELSE status END IN ("+args.List(list...)+")")
	}
	if q.Label != "" {
		key, value, _ := strings.Cut(q.Label, "=")
		terms = append(terms, "id IN (SELECT run FROM labels WHERE value = "+args.Add(q.Label)+" OR key = "+args.Add(key)+" AND value = "+args.Add(value)+")")
	}
	if q.Flow != "" {
		terms = append(terms, "flow = "+args.Add(q.Flow))
	}
	if q.Ancestor != "" {
		terms = append(terms, "id IN (SELECT run FROM lineage WHERE ancestor = "+args.Add(q.Ancestor)+")")
	}
	if q.Since > 0 {
		terms = append(terms, "last_at >= "+args.Add(now.UnixMilli()-int64(q.Since)))
	}
	if q.Until > 0 {
		terms = append(terms, "started_at <= "+args.Add(now.UnixMilli()-int64(q.Until)))
	}
	if q.MinCostUsd > 0 {
		terms = append(terms, "cost_usd >= "+args.Add(q.MinCostUsd))
	}
	if q.Tool != "" {
		terms = append(terms, "id IN (SELECT run FROM tool_calls WHERE tool = "+args.Add(q.Tool)+")")
	}
	if q.Incomplete {
		var short []any
		for _, verdict := range completeness.Short {
			short = append(short, verdict)
		}
		terms = append(terms, "feeds IN ("+args.List(short...)+")")
	}
	return strings.Join(terms, " AND "), args, nil
}

// runsWithError is the condition that an error of a run has a text in it, ignoring case, of whatever alphabet: of that databases know
// little, and each something else.
func runsWithError(ctx context.Context, t *archive.Tx, text string) (string, error) {
	text = strings.ToLower(text)
	var ids []string
	var run, last int64
	var line string
	for err := range t.Each(ctx, `SELECT run, text FROM lines WHERE type = 'error' AND hidden = 0 ORDER BY run`, nil, &run, &line) {
		if err != nil {
			return "", err
		}
		if run != last && strings.Contains(strings.ToLower(line), text) {
			ids, last = append(ids, strconv.FormatInt(run, 10)), run
		}
	}
	return "id IN (" + cmp.Or(strings.Join(ids, ", "), "-1") + ")", nil
}

// checkStatuses checks the statuses and takes "active" apart.
func checkStatuses(names []string) ([]any, error) {
	var list []any
	for _, name := range names {
		switch name {
		case stateActive:
			list = append(list, string(wire.RunIdle), string(wire.RunRunning), string(wire.RunPaused))
		case string(wire.RunIdle), string(wire.RunRunning), string(wire.RunPaused), string(wire.RunAborted), string(wire.RunComplete), stateFailed:
			list = append(list, name)
		default:
			return nil, request.Bad("status must be idle, running, paused, aborted, complete, failed or active, not %q", request.Shown(name))
		}
	}
	return list, nil
}

// runSize is at least what a run takes in an answer beside its texts.
const runSize = 700

func listRuns(ctx context.Context, tx *archive.Tx, cursors request.Cursors, where string, args database.Params, n, limit int) (wire.RunsResponse, error) {
	r := wire.RunsResponse{Runs: []wire.RunInfo{}}
	args = slices.Clone(args)
	text := `SELECT ` + tx.D.Tables.Named("runs").List() + `,
		coalesce((SELECT at FROM deleted WHERE deleted.run = runs.run), 0), coalesce((SELECT gone_at FROM deleted WHERE deleted.run = runs.run), 0),
		(SELECT ` + tx.D.Labels + ` FROM labels WHERE labels.run = runs.id)
		FROM runs WHERE ` + where + ` ORDER BY first_pos DESC LIMIT ` + args.Add(n+1)
	size, cursor := 0, ""
	var row table.Run
	var deletedAt, goneAt int64
	var labels string
	for err := range tx.Each(ctx, text, args, append(table.Fields(&row), &deletedAt, &goneAt, &labels)...) {
		if err != nil {
			return r, err
		}
		info, err := runInfo(&row, labels)
		if err != nil {
			return r, err
		}
		info.DeletedAt, info.GoneAt = deletedAt, goneAt
		size += runSize + 6*(len(info.RunID)+len(info.FlowName)+len(info.Reason)+len(info.Error)+len(info.LastActivity)+len(labels))
		if len(r.Runs) == n || size > limit && len(r.Runs) > 0 {
			r.Cursor = cursor
			break
		}
		r.Runs, cursor = append(r.Runs, info), cursors.Cursor(row.FirstPos)
	}
	return r, nil
}

// copyRun gives what is shown of a run what its row has.
var copyRun = sync.OnceValue(table.Copier[wire.RunInfo, table.Run])

// runInfo is what is shown of a run and its labels.
func runInfo(r *table.Run, labels string) (i wire.RunInfo, err error) {
	copyRun()(&i, r)
	i.Reason, i.Error = briefText(r.Reason), briefText(r.Error)
	i.CostBasis = ledger.Basis(r.CostUsd, r.ComputedUsd, r.Unpriced)
	if labels != "{}" {
		err = json.Unmarshal([]byte(labels), &i.Labels)
	}
	return i, err
}
