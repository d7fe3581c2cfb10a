package recorder

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"wake/pkg/wire"
)

// maxEvents bounds a page of events.
const maxEvents = 1000

// Events answers a [wire.EventsRequest] in at most limit bytes. As JSON the
// events are taken apart; otherwise they are the stored bytes.
func (s *Store) Events(ctx context.Context, q wire.EventsRequest, asJSON bool, limit int) (wire.EventsResponse, error) {
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return wire.EventsResponse{}, fmt.Errorf("recorder: events: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	r, err := listEvents(ctx, tx, q, asJSON, limit)
	if err != nil {
		return r, wrap("events", err)
	}
	return r, nil
}

func listEvents(ctx context.Context, tx *sql.Tx, q wire.EventsRequest, asJSON bool, limit int) (wire.EventsResponse, error) {
	r := wire.EventsResponse{Events: []wire.StoredEvent{}}
	where, args, err := eventsFilter(ctx, tx, q)
	if err != nil {
		return r, err
	}
	n := q.Limit
	if n == 0 {
		n = maxEvents
	}
	page := query(ctx, tx, `SELECT pos, time, mark, data FROM events WHERE `+where+` ORDER BY pos LIMIT ?`, append(args, n+1)...)
	size := 0
	for rows, err := range page {
		if err != nil {
			return r, err
		}
		e, err := scanEvent(rows, asJSON)
		if err != nil {
			return r, err
		}
		if size += eventSize(e, asJSON); len(r.Events) == n || size > limit && len(r.Events) > 0 {
			r.Cursor = strconv.FormatUint(r.Events[len(r.Events)-1].Pos, 10)
			break
		}
		r.Events = append(r.Events, e)
	}
	return r, nil
}

func eventsFilter(ctx context.Context, tx *sql.Tx, q wire.EventsRequest) (where string, args []any, err error) {
	if q.Limit < 0 || q.Limit > maxEvents {
		return "", nil, badRequest("limit must be between 1 and %d", maxEvents)
	}
	from := q.From
	if q.Cursor != "" {
		after, err := strconv.ParseUint(q.Cursor, 10, 63)
		if err != nil {
			return "", nil, badRequest("cursor is none that an earlier answer gave")
		}
		from = max(from, after+1)
	}
	terms := []string{"pos >= ?"}
	args = append(args, clamp(from))
	add := func(term string, values ...any) {
		terms = append(terms, term)
		args = append(args, values...)
	}
	if q.To > 0 {
		add("pos <= ?", clamp(q.To))
	}
	if !q.Void {
		add("+mark = ''") // + keeps SQLite from an index that would need sorting
	}
	if len(q.Kinds) > 0 {
		for _, k := range q.Kinds {
			args = append(args, string(k))
		}
		terms = append(terms, "kind IN ("+strings.TrimSuffix(strings.Repeat("?,", len(q.Kinds)), ",")+")")
	}
	switch {
	case q.Run != "":
		t, err := resolve(ctx, tx, q.Run, "", q.Node)
		if err != nil {
			return "", nil, err
		}
		add("run = ?", t.id)
		if t.node != "" {
			add("node IN (SELECT id FROM nodes WHERE run = ? AND (node = ? OR node >= ? || '/' AND node < ? || '0'))", t.id, t.node, t.node, t.node)
		}
	case q.Node != "":
		return "", nil, badRequest("node needs a run")
	default:
		add("stream = (SELECT id FROM streams)")
	}
	return strings.Join(terms, " AND "), args, nil
}

// clamp makes a position one that SQLite can compare.
func clamp(pos uint64) int64 { return int64(min(pos, 1<<63-1)) }

func scanEvent(rows *sql.Rows, asJSON bool) (wire.StoredEvent, error) {
	var e wire.StoredEvent
	if err := rows.Scan(&e.Pos, &e.Time, &e.Mark, &e.Data); err != nil {
		return e, err
	}
	if !asJSON || e.Mark == markBad {
		return e, nil
	}
	value, err := wire.Canonical(e.Data)
	if err != nil {
		return e, fmt.Errorf("event at %d: %w", e.Pos, err)
	}
	e.Event, e.Data = value, nil
	return e, nil
}

// eventSize is at least what an event takes in the answer. JSON writes some
// characters as six.
func eventSize(e wire.StoredEvent, asJSON bool) int {
	size := 100 + len(e.Data)*3/2
	if asJSON && len(e.Event) > 0 {
		if text, err := wire.AppendJSON(nil, e.Event); err == nil {
			size += len(text)
		}
	}
	return size
}
