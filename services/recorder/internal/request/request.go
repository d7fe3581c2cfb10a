// Package request reads what requests to a recorder name, and makes the errors that
// answer them.
package request

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
)

// Last means the run that was started last.
const Last = "@last"

// maxMatches bounds the list of an ambiguous id.
const maxMatches = 20

// Target is what a question is about.
type Target struct {
	ID   int64
	Run  string
	Node string // "": the whole run
}

// Resolve finds the run, and perhaps the node, that a request names. For a caller that may
// know of one run only there is no other run, not even with an id that begins like its own.
func Resolve(ctx context.Context, q *archive.Tx, run, agent, node string) (Target, error) {
	t, err := findTarget(ctx, q, run, agent, node)
	if only := api.CallerOf(ctx).Run; only != "" && t.Run != only {
		return Target{}, &wire.APIError{Code: wire.CodeRunNotFound, Message: fmt.Sprintf("there is no run %q", Shown(only))}
	}
	return t, err
}

func findTarget(ctx context.Context, q *archive.Tx, run, agent, node string) (Target, error) {
	switch {
	case run == "" && agent == "":
		return Target{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "run is required", Hint: "an id, a unique prefix, a label, a session id or @last"}
	case run != "" && agent != "" && run != agent:
		return Target{}, Bad("give run or agentId, not both")
	}
	resolve, ref := resolveRun, run
	if run == "" {
		resolve, ref = resolveAgent, agent
	}
	t, err := resolve(ctx, q, ref)
	if err != nil || node == "" {
		return t, err
	}
	t.Node = node
	return t, nodeExists(ctx, q, t)
}

// resolveAgent reads the agentId of seeds/004: a RUN, "RUN/NODE", or a node that
// only one run has.
func resolveAgent(ctx context.Context, q *archive.Tx, agent string) (Target, error) {
	t, err := resolveRun(ctx, q, agent)
	if !wire.HasCode(err, wire.CodeRunNotFound) {
		return t, err
	}
	if run, node, ok := strings.Cut(agent, "/"); ok {
		if t, err := resolveRun(ctx, q, run); err == nil {
			t.Node = node
			return t, nodeExists(ctx, q, t)
		}
	}
	t, nodeErr := uniqueRun(ctx, q, agent, `SELECT run FROM nodes WHERE node = ?1`, agent)
	if wire.HasCode(nodeErr, wire.CodeRunNotFound) {
		return t, err
	}
	t.Node = agent
	return t, nodeErr
}

// resolveRun finds a run by its id, a unique prefix of it, a label, the id of a
// session, @last, or, if it is nothing of that, a unique prefix of a session.
func resolveRun(ctx context.Context, q *archive.Tx, ref string) (Target, error) {
	if ref == Last {
		return newestRun(ctx, q)
	}
	t := Target{Run: ref}
	at, err := RetiredAt(ctx, q, ref)
	if err != nil || at > 0 {
		return t, cmp.Or[error](err, removedError(ref, at))
	}
	err = q.Row(ctx, `SELECT id FROM runs WHERE run = ?1`, ref).Scan(&t.ID)
	if !errors.Is(err, sql.ErrNoRows) {
		return t, err
	}
	key, value, _ := strings.Cut(ref, "=")
	t, err = uniqueRun(ctx, q, ref, `
		SELECT id FROM runs WHERE run >= ?1 AND run < ?4
		UNION SELECT run FROM labels WHERE value = ?1 OR key = ?2 AND value = ?3
		UNION SELECT run FROM bindings WHERE session = ?1`, ref, key, value, database.Beyond(ref))
	if !wire.HasCode(err, wire.CodeRunNotFound) {
		return t, err
	}
	return uniqueRun(ctx, q, ref, `SELECT run FROM bindings WHERE session >= ?1 AND session < ?2`, ref, database.Beyond(ref))
}

func newestRun(ctx context.Context, q *archive.Tx) (Target, error) {
	var t Target
	err := q.Row(ctx, `SELECT id, run FROM runs WHERE run <> ?1 AND run NOT IN (SELECT run FROM deleted) ORDER BY first_pos DESC LIMIT 1`, wire.NoRun).Scan(&t.ID, &t.Run)
	if errors.Is(err, sql.ErrNoRows) {
		return t, &wire.APIError{Code: wire.CodeRunNotFound, Message: "there is no run yet", Hint: "start one with `wake run FLOW`"}
	}
	return t, err
}

// uniqueRun returns the only run among the ids that a query selects.
func uniqueRun(ctx context.Context, q *archive.Tx, ref, ids string, args ...any) (Target, error) {
	// A run that another one has begun has the other's labels, and often the beginning of its id: that one is meant.
	text := fmt.Sprintf(`WITH found (id, run, parent, first_pos) AS
			(SELECT id, run, parent, first_pos FROM runs WHERE id IN (%s) AND run NOT IN (SELECT run FROM retired))
		SELECT id, run FROM found WHERE parent NOT IN (SELECT run FROM found) ORDER BY first_pos DESC LIMIT %d`, ids, maxMatches+1)
	var found []Target
	var t Target
	for err := range q.Each(ctx, text, args, &t.ID, &t.Run) {
		if err != nil {
			return Target{}, err
		}
		found = append(found, t)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return Target{}, &wire.APIError{
			Code:    wire.CodeRunNotFound,
			Message: fmt.Sprintf("no run has the id, prefix, label or session %q", Shown(ref)),
			Hint:    "`wake runs` lists them",
		}
	}
	return Target{}, ambiguousError(ref, found)
}

func ambiguousError(ref string, found []Target) *wire.APIError {
	e := &wire.APIError{
		Code:    wire.CodeAmbiguousID,
		Message: fmt.Sprintf("%q may mean %d runs", Shown(ref), len(found)),
		Hint:    "give more of the id",
	}
	if len(found) > maxMatches {
		e.Message = fmt.Sprintf("%q may mean more than %d runs", Shown(ref), maxMatches)
		found = found[:maxMatches]
	}
	for _, t := range found {
		e.Matches = append(e.Matches, t.Run)
	}
	return e
}

// Shown is a foreign name in a message for people.
func Shown(name string) string { return timeline.Line(name, 80) }

func nodeExists(ctx context.Context, q *archive.Tx, t Target) error {
	var one int
	var args database.Params
	text := `SELECT 1 FROM nodes WHERE run = ` + args.Add(t.ID) + ` AND ` + args.Under("node", t.Node) + ` LIMIT 1`
	err := q.Row(ctx, text, args...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return &wire.APIError{
			Code:    wire.CodeNodeNotFound,
			Message: fmt.Sprintf("run %s has no node %q", Shown(t.Run), Shown(t.Node)),
			Hint:    "`wake status` lists them",
		}
	}
	return err
}

// Bad says what is wrong with a request.
func Bad(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Wrap says what failed, if anything did, unless the error is an answer.
func Wrap(what string, err error) error {
	if _, ok := errors.AsType[*wire.APIError](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("recorder: %s: %w", what, err)
}

// Has reports whether a node is what the question is about.
func (t Target) Has(node string) bool { return archive.IsOf(node, t.Node) }

// Named takes a request's names apart: the id that the run may have, and the node.
func Named(run, agent, node string) (id, of string) {
	if run != "" && agent != "" && run != agent {
		return "", ""
	}
	if run == "" {
		run = agent
		if before, after, ok := strings.Cut(agent, "/"); ok && node == "" {
			return before, after
		}
	}
	return run, node
}

// RetiredAt returns when the removal of a run's events began, or 0.
func RetiredAt(ctx context.Context, t *archive.Tx, run string) (at int64, err error) {
	err = t.Row(ctx, `SELECT at FROM retired WHERE run = ?1`, run).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return at, err
}

// removedError says that a run isn't there any more.
func removedError(run string, at int64) *wire.APIError {
	return &wire.APIError{
		Code:    wire.CodeRunNotFound,
		Message: fmt.Sprintf("run %s was deleted, and its events were removed on %s", Shown(run), time.UnixMilli(at).UTC().Format(time.DateTime)),

		RemovedAt: at,
	}
}

// Cursors are places in the log that one recorder has: a position, and the beginning of the log's incarnation, since the
// same position of another installation is another place.
type Cursors struct{ mark string }

// markLength is how much of an incarnation tells logs apart that a caller may mix up.
const markLength = 8

// CursorsOf returns those of the log that is recorded.
func CursorsOf(ctx context.Context, t *archive.Tx) (Cursors, error) {
	var incarnation string
	err := t.Row(ctx, `SELECT coalesce((SELECT incarnation FROM streams), '')`).Scan(&incarnation)
	return Cursors{incarnation[:min(markLength, len(incarnation))]}, err
}

// Cursor returns the cursor of a position.
func (c Cursors) Cursor(pos uint64) string { return fmt.Sprintf("%d.%s", pos, c.mark) }

// Position returns the position of a cursor that an earlier answer gave; 0 is that of none.
func (c Cursors) Position(cursor string) (uint64, error) {
	if cursor == "" {
		return 0, nil
	}
	digits, mark, _ := strings.Cut(cursor, ".")
	pos, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case err != nil || pos == 0:
		return 0, Bad("cursor is none that an earlier answer gave")
	case mark != c.mark:
		return 0, Bad("cursor is of another installation, or of what it was before: begin with the first page")
	}
	return pos, nil
}
