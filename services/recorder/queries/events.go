package queries

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// maxEvents bounds a page of events.
const maxEvents = 1000

// Events answers a [wire.EventsRequest] in at most limit bytes. As JSON the
// events are taken apart; otherwise they are the stored bytes.
func (a *Answers) Events(ctx context.Context, q wire.EventsRequest, asJSON bool, limit int) (wire.EventsResponse, error) {
	return askArchive(ctx, a, "events", func(t *archive.Tx) (r wire.EventsResponse, err error) {
		cursors, err := request.CursorsOf(ctx, t)
		if err != nil {
			return r, err
		}
		l, err := newEventList(q, cursors, asJSON, limit)
		if err != nil {
			return r, err
		}
		err = l.readPage(ctx, t)
		return l.page, err
	})
}

// eventList is an answer that is being put together.
type eventList struct {
	q        wire.EventsRequest
	cursors  request.Cursors
	asJSON   bool
	limit    int
	from, to uint64
	size     int
	page     wire.EventsResponse
}

func newEventList(q wire.EventsRequest, cursors request.Cursors, asJSON bool, limit int) (*eventList, error) {
	l := &eventList{q: q, cursors: cursors, asJSON: asJSON, limit: limit, from: q.From, to: q.To, page: wire.EventsResponse{Events: []wire.StoredEvent{}}}
	if q.Limit < 0 || q.Limit > maxEvents {
		return nil, request.Bad("limit must be between 1 and %d", maxEvents)
	}
	l.q.Limit = cmp.Or(q.Limit, maxEvents)
	if l.to == 0 {
		l.to = 1<<63 - 1
	}
	after, err := cursors.Position(q.Cursor)
	if err != nil {
		return nil, err
	}
	if after > 0 {
		l.from = max(l.from, after+1)
	}
	if q.Run == "" && q.Node != "" {
		return nil, request.Bad("node needs a run")
	}
	return l, nil
}

// readPage fills the page.
func (l *eventList) readPage(ctx context.Context, t *archive.Tx) error {
	if l.q.Run == "" {
		return l.readAll(ctx, t)
	}
	found, err := request.Resolve(ctx, t, l.q.Run, "", l.q.Node)
	if err != nil {
		return err
	}
	if q := l.q; q.Node == "" && q.From == 0 && q.To == 0 && len(q.Kinds) == 0 && q.Cursor == "" && !q.Void {
		if l.page.Total, err = countEvents(ctx, t, found.ID); err != nil {
			return err
		}
	}
	for e, err := range t.Events(ctx, found.ID, l.from, l.to) {
		if err != nil {
			return err
		}
		if more, err := l.addEvent(e, found.Node); err != nil || !more {
			return err
		}
	}
	return nil
}

// countEvents counts the events of a run that readers see.
func countEvents(ctx context.Context, t *archive.Tx, run int64) (n int64, err error) {
	err = t.Row(ctx, `SELECT events - void FROM runs WHERE id = ?1`, run).Scan(&n)
	return n, err
}

// readAll reads the events of all runs.
func (l *eventList) readAll(ctx context.Context, t *archive.Tx) error {
	for from, more := max(l.from, 1), true; more && from <= l.to; from += archive.Window {
		var list []archive.Event
		var err error
		if list, more, err = t.Window(ctx, from, min(l.to, from+archive.Window-1)); err != nil {
			return err
		}
		for i := range list {
			room, err := l.addEvent(&list[i], "")
			if err != nil || !room {
				return err
			}
		}
	}
	return nil
}

// addEvent adds an event if it is wanted. It reports whether there is room for more.
func (l *eventList) addEvent(s *archive.Event, node string) (more bool, err error) {
	if s.Mark != "" && !l.q.Void || len(l.q.Kinds) > 0 && !slices.Contains(l.q.Kinds, s.Kind()) || !s.Of(node) {
		return true, nil
	}
	e := wire.StoredEvent{Pos: s.Pos, Time: s.Time, Mark: s.Mark, Data: s.Data}
	if l.asJSON && s.Mark != archive.Bad {
		if e.Event, err = wire.Canonical(s.Data); err != nil {
			return false, fmt.Errorf("event at %d: %w", s.Pos, err)
		}
		e.Data = nil
	}
	n := len(l.page.Events)
	if l.size += eventSize(e, l.asJSON); n == l.q.Limit || l.size > l.limit && n > 0 {
		l.page.Cursor = l.cursors.Cursor(l.page.Events[n-1].Pos)
		return false, nil
	}
	l.page.Events = append(l.page.Events, e)
	return true, nil
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
