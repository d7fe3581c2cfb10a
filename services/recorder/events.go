package recorder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"wake/pkg/wire"
)

// maxEvents bounds a page of events.
const maxEvents = 1000

// Events answers a [wire.EventsRequest] in at most limit bytes. As JSON the
// events are taken apart; otherwise they are the stored bytes.
func (s *Store) Events(ctx context.Context, q wire.EventsRequest, asJSON bool, limit int) (wire.EventsResponse, error) {
	t, err := s.view(ctx)
	if err != nil {
		return wire.EventsResponse{}, fmt.Errorf("recorder: events: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	l, err := newEventList(q, asJSON, limit)
	if err == nil {
		err = l.read(ctx, t)
	}
	if err != nil {
		return wire.EventsResponse{}, wrap("events", err)
	}
	return l.page, nil
}

// eventList is an answer that is being put together.
type eventList struct {
	q        wire.EventsRequest
	asJSON   bool
	limit    int
	from, to uint64
	size     int
	page     wire.EventsResponse
}

func newEventList(q wire.EventsRequest, asJSON bool, limit int) (*eventList, error) {
	l := &eventList{q: q, asJSON: asJSON, limit: limit, from: q.From, to: q.To, page: wire.EventsResponse{Events: []wire.StoredEvent{}}}
	if q.Limit < 0 || q.Limit > maxEvents {
		return nil, badRequest("limit must be between 1 and %d", maxEvents)
	}
	l.q.Limit = cmp.Or(q.Limit, maxEvents)
	if l.to == 0 {
		l.to = 1<<63 - 1
	}
	if q.Cursor != "" {
		after, err := strconv.ParseUint(q.Cursor, 10, 63)
		if err != nil {
			return nil, badRequest("cursor is none that an earlier answer gave")
		}
		l.from = max(l.from, after+1)
	}
	if q.Run == "" && q.Node != "" {
		return nil, badRequest("node needs a run")
	}
	return l, nil
}

// read fills the page.
func (l *eventList) read(ctx context.Context, t *tx) error {
	if l.q.Run == "" {
		return l.readAll(ctx, t)
	}
	found, err := resolve(ctx, t, l.q.Run, "", l.q.Node)
	if err != nil {
		return err
	}
	for e, err := range t.events(ctx, found.id, l.from, l.to) {
		if err != nil {
			return err
		}
		if more, err := l.add(e, found.node); err != nil || !more {
			return err
		}
	}
	return nil
}

// readAll reads the events of all runs.
func (l *eventList) readAll(ctx context.Context, t *tx) error {
	for from, more := max(l.from, 1), true; more && from <= l.to; from += window {
		var list []Event
		var err error
		if list, more, err = t.window(ctx, from, min(l.to, from+window-1)); err != nil {
			return err
		}
		for _, e := range list {
			room, err := l.add(&stored{pos: e.Pos, time: e.Time, mark: e.Mark, data: e.Data}, "")
			if err != nil || !room {
				return err
			}
		}
	}
	return nil
}

// add adds an event if it is wanted. It reports whether there is room for more.
func (l *eventList) add(s *stored, node string) (more bool, err error) {
	if s.mark != "" && !l.q.Void || len(l.q.Kinds) > 0 && !slices.Contains(l.q.Kinds, s.kind()) || !s.of(node) {
		return true, nil
	}
	e := wire.StoredEvent{Pos: s.pos, Time: s.time, Mark: s.mark, Data: s.data}
	if l.asJSON && s.mark != markBad {
		if e.Event, err = wire.Canonical(s.data); err != nil {
			return false, fmt.Errorf("event at %d: %w", s.pos, err)
		}
		e.Data = nil
	}
	n := len(l.page.Events)
	if l.size += eventSize(e, l.asJSON); n == l.q.Limit || l.size > l.limit && n > 0 {
		l.page.Cursor = strconv.FormatUint(l.page.Events[n-1].Pos, 10)
		return false, nil
	}
	l.page.Events = append(l.page.Events, e)
	return true, nil
}

// of reports whether an event is of a node or of one of its items. "" is every
// node.
func (s *stored) of(node string) bool {
	if node == "" {
		return true
	}
	id, _ := wire.Raw(s.data).Get("nodeId").Text()
	return id == node || strings.HasPrefix(id, node+"/")
}

// clamp makes a position one that SQLite can compare.
func clamp(pos uint64) int64 { return int64(min(pos, 1<<63-1)) }

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
