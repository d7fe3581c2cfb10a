package recorder

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// Limits of a list of runs.
const (
	defaultRuns = 50
	maxRuns     = 1000
)

// Runs answers a [wire.RunsRequest] as of now.
func (s *Store) Runs(ctx context.Context, q wire.RunsRequest, now time.Time, limit int) (wire.RunsResponse, error) {
	where, args, err := runsFilter(q, now)
	if err != nil {
		return wire.RunsResponse{}, err
	}
	tx, err := s.view(ctx)
	if err != nil {
		return wire.RunsResponse{}, fmt.Errorf("recorder: runs: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	r, err := listRuns(ctx, tx, where, args, pageSize(q.Limit), limit)
	if err != nil {
		return r, fmt.Errorf("recorder: runs: %w", err)
	}
	return r, nil
}

func pageSize(limit int) int {
	if limit == 0 {
		return defaultRuns
	}
	return limit
}

func runsFilter(q wire.RunsRequest, now time.Time) (where string, args params, err error) {
	if q.Limit < 0 || q.Limit > maxRuns {
		return "", nil, badRequest("limit must be between 1 and %d", maxRuns)
	}
	terms := []string{"run <> " + args.add(wire.NoRun), "first_pos <= (SELECT derived FROM streams)"} // of others nothing is known yet
	if q.Deleted {
		terms = append(terms, "run IN (SELECT run FROM deleted)")
	} else {
		terms = append(terms, "run NOT IN (SELECT run FROM deleted)")
	}
	if len(q.Status) > 0 {
		list, err := statuses(q.Status)
		if err != nil {
			return "", nil, err
		}
		terms = append(terms, "CASE WHEN status = 'complete' AND result = 'failed' THEN 'failed' ELSE status END IN ("+args.list(list...)+")")
	}
	if q.Label != "" {
		key, value, _ := strings.Cut(q.Label, "=")
		terms = append(terms, "id IN (SELECT run FROM labels WHERE value = "+args.add(q.Label)+" OR key = "+args.add(key)+" AND value = "+args.add(value)+")")
	}
	if q.Flow != "" {
		terms = append(terms, "flow = "+args.add(q.Flow))
	}
	if q.Since > 0 {
		terms = append(terms, "last_at >= "+args.add(now.UnixMilli()-int64(q.Since)))
	}
	if q.Until > 0 {
		terms = append(terms, "started_at <= "+args.add(now.UnixMilli()-int64(q.Until)))
	}
	if q.MinCostUsd > 0 {
		terms = append(terms, "cost_usd >= "+args.add(q.MinCostUsd))
	}
	if q.Tool != "" {
		terms = append(terms, "id IN (SELECT run FROM tool_calls WHERE tool = "+args.add(q.Tool)+")")
	}
	if q.Error != "" {
		terms = append(terms, "id IN (SELECT run FROM lines WHERE type = 'error' AND hidden = 0 AND lower(text) LIKE "+args.add(containing(q.Error))+" ESCAPE '!')")
	}
	if q.Cursor != "" {
		before, err := strconv.ParseInt(q.Cursor, 10, 64)
		if err != nil {
			return "", nil, badRequest("cursor is none that an earlier answer gave")
		}
		terms = append(terms, "first_pos < "+args.add(before))
	}
	return strings.Join(terms, " AND "), args, nil
}

// containing is a pattern of LIKE for what has a text in it, in lower case.
func containing(text string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(strings.ToLower(text)) + "%"
}

// statuses checks the statuses and takes "active" apart.
func statuses(names []string) ([]any, error) {
	var list []any
	for _, name := range names {
		switch name {
		case stateActive:
			list = append(list, string(wire.RunIdle), string(wire.RunRunning), string(wire.RunPaused))
		case string(wire.RunIdle), string(wire.RunRunning), string(wire.RunPaused), string(wire.RunAborted), string(wire.RunComplete), stateFailed:
			list = append(list, name)
		default:
			return nil, badRequest("status must be idle, running, paused, aborted, complete, failed or active, not %q", shown(name))
		}
	}
	return list, nil
}

// runSize is at least what a run takes in an answer beside its texts.
const runSize = 700

func listRuns(ctx context.Context, tx *tx, where string, args params, n, limit int) (wire.RunsResponse, error) {
	r := wire.RunsResponse{Runs: []wire.RunInfo{}}
	args = slices.Clone(args)
	page := tx.query(ctx, `SELECT first_pos, run, flow, status, result, reason, error, parent, imported, started_at, ended_at,
		activity, last_at, cost_usd, tokens_in, tokens_out, tools, tool_errors, events, void, gaps,
		coalesce((SELECT at FROM deleted WHERE deleted.run = runs.run), 0), coalesce((SELECT gone_at FROM deleted WHERE deleted.run = runs.run), 0),
		(SELECT `+tx.d.labels+` FROM labels WHERE labels.run = runs.id)
		FROM runs WHERE `+where+` ORDER BY first_pos DESC LIMIT `+args.add(n+1), args...)
	size, cursor := 0, ""
	for rows, err := range page {
		if err != nil {
			return r, err
		}
		info, first, labels, err := scanRun(rows)
		if err != nil {
			return r, err
		}
		size += runSize + 6*(len(info.RunID)+len(info.FlowName)+len(info.Reason)+len(info.Error)+len(info.LastActivity)+labels)
		if len(r.Runs) == n || size > limit && len(r.Runs) > 0 {
			r.Cursor = cursor
			break
		}
		r.Runs, cursor = append(r.Runs, info), strconv.FormatInt(first, 10)
	}
	return r, nil
}

// scanRun reads a run, its place in the list and the size of its labels.
func scanRun(rows *sql.Rows) (i wire.RunInfo, first int64, size int, err error) {
	var labels string
	if err := rows.Scan(&first, &i.RunID, &i.FlowName, &i.Status, &i.Result, &i.Reason, &i.Error, &i.ParentRun, &i.Imported,
		&i.StartedAt, &i.EndedAt, &i.LastActivity, &i.LastActiveAt, &i.CostUsd, &i.TokensIn, &i.TokensOut,
		&i.ToolsUsed, &i.ToolErrors, &i.Events, &i.VoidEvents, &i.Gaps, &i.DeletedAt, &i.GoneAt, &labels); err != nil {
		return i, 0, 0, err
	}
	i.Reason, i.Error = brief(i.Reason), brief(i.Error)
	if labels != "{}" {
		err = json.Unmarshal([]byte(labels), &i.Labels)
	}
	return i, first, len(labels), err
}

// brief is a foreign text in a list; the log has the whole of it.
func brief(s string) string { return timeline.Line(s, 300) }
