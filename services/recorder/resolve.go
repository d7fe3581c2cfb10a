package recorder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// last means the run that was started last.
const last = "@last"

// maxMatches bounds the list of an ambiguous id.
const maxMatches = 20

// target is what a question is about.
type target struct {
	id   int64
	run  string
	node string // "": the whole run
}

// resolve finds the run, and perhaps the node, that a request names.
func resolve(ctx context.Context, q *tx, run, agent, node string) (target, error) {
	switch {
	case run == "" && agent == "":
		return target{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "run is required", Hint: "an id, a unique prefix, a label, a session id or @last"}
	case run != "" && agent != "" && run != agent:
		return target{}, badRequest("give run or agentId, not both")
	case run == "":
		t, err := resolveAgent(ctx, q, agent)
		if err != nil || node == "" {
			return t, err
		}
		t.node = node
		return t, nodeExists(ctx, q, t)
	}
	t, err := resolveRun(ctx, q, run)
	if err != nil || node == "" {
		return t, err
	}
	t.node = node
	return t, nodeExists(ctx, q, t)
}

// resolveAgent reads the agentId of seeds/004: a RUN, "RUN/NODE", or a node that
// only one run has.
func resolveAgent(ctx context.Context, q *tx, agent string) (target, error) {
	t, err := resolveRun(ctx, q, agent)
	if !isCode(err, wire.CodeRunNotFound) {
		return t, err
	}
	if run, node, ok := strings.Cut(agent, "/"); ok {
		if t, err := resolveRun(ctx, q, run); err == nil {
			t.node = node
			return t, nodeExists(ctx, q, t)
		}
	}
	t, nodeErr := unique(ctx, q, agent, `SELECT run FROM nodes WHERE node = ?1`, agent)
	if isCode(nodeErr, wire.CodeRunNotFound) {
		return t, err
	}
	t.node = agent
	return t, nodeErr
}

// resolveRun finds a run by its id, a unique prefix of it, a label, the id of a
// session, @last, or, if it is nothing of that, a unique prefix of a session.
func resolveRun(ctx context.Context, q *tx, ref string) (target, error) {
	if ref == last {
		return newest(ctx, q)
	}
	t := target{run: ref}
	at, err := retiredAt(ctx, q, ref)
	if err != nil || at > 0 {
		return t, cmp.Or[error](err, removed(ref, at))
	}
	err = q.row(ctx, `SELECT id FROM runs WHERE run = ?1`, ref).Scan(&t.id)
	if !errors.Is(err, sql.ErrNoRows) {
		return t, err
	}
	key, value, _ := strings.Cut(ref, "=")
	t, err = unique(ctx, q, ref, `
		SELECT id FROM runs WHERE run >= ?1 AND run < ?4
		UNION SELECT run FROM labels WHERE value = ?1 OR key = ?2 AND value = ?3
		UNION SELECT run FROM bindings WHERE session = ?1`, ref, key, value, beyond(ref))
	if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != wire.CodeRunNotFound {
		return t, err
	}
	return unique(ctx, q, ref, `SELECT run FROM bindings WHERE session >= ?1 AND session < ?2`, ref, beyond(ref))
}

func newest(ctx context.Context, q *tx) (target, error) {
	var t target
	err := q.row(ctx, `SELECT id, run FROM runs WHERE run <> ?1 AND run NOT IN (SELECT run FROM deleted) ORDER BY first_pos DESC LIMIT 1`, wire.NoRun).Scan(&t.id, &t.run)
	if errors.Is(err, sql.ErrNoRows) {
		return t, &wire.APIError{Code: wire.CodeRunNotFound, Message: "there is no run yet", Hint: "start one with `wake run FLOW`"}
	}
	return t, err
}

// unique returns the only run among the ids that a query selects.
func unique(ctx context.Context, q *tx, ref, ids string, args ...any) (target, error) {
	matches := q.query(ctx, fmt.Sprintf(`SELECT id, run FROM runs WHERE id IN (%s) AND run NOT IN (SELECT run FROM retired) ORDER BY first_pos DESC LIMIT %d`, ids, maxMatches+1), args...)
	var found []target
	for rows, err := range matches {
		if err != nil {
			return target{}, err
		}
		var t target
		if err := rows.Scan(&t.id, &t.run); err != nil {
			return target{}, err
		}
		found = append(found, t)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return target{}, &wire.APIError{
			Code:    wire.CodeRunNotFound,
			Message: fmt.Sprintf("no run has the id, prefix, label or session %q", shown(ref)),
			Hint:    "`wake runs` lists them",
		}
	}
	return target{}, ambiguous(ref, found)
}

func ambiguous(ref string, found []target) *wire.APIError {
	e := &wire.APIError{
		Code:    wire.CodeAmbiguousID,
		Message: fmt.Sprintf("%q may mean %d runs", shown(ref), len(found)),
		Hint:    "give more of the id",
	}
	if len(found) > maxMatches {
		e.Message = fmt.Sprintf("%q may mean more than %d runs", shown(ref), maxMatches)
		found = found[:maxMatches]
	}
	for _, t := range found {
		e.Matches = append(e.Matches, t.run)
	}
	return e
}

// shown is a foreign name in a message for people.
func shown(name string) string { return timeline.Line(name, 80) }

func nodeExists(ctx context.Context, q *tx, t target) error {
	var one int
	var args params
	text := `SELECT 1 FROM nodes WHERE run = ` + args.add(t.id) + ` AND ` + args.under("node", t.node) + ` LIMIT 1`
	err := q.row(ctx, text, args...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return &wire.APIError{
			Code:    wire.CodeNodeNotFound,
			Message: fmt.Sprintf("run %s has no node %q", shown(t.run), shown(t.node)),
			Hint:    "`wake status` lists them",
		}
	}
	return err
}

func isCode(err error, code wire.ErrorCode) bool {
	e, ok := errors.AsType[*wire.APIError](err)
	return ok && e.Code == code
}

func badRequest(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}
