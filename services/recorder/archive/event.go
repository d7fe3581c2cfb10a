package archive

import (
	"errors"
	"strings"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Entry is what the stream gave, as far as recording it again needs that.
func (s *Event) Entry() eventlog.Entry {
	e := eventlog.Entry{Pos: s.Pos, Time: time.UnixMilli(s.Time), Data: s.Data}
	if s.Mark == Bad {
		e.Err = errors.New(s.Note)
		return e
	}
	if e.Event, e.Err = wire.Decode(s.Data); e.Err == nil {
		e.RunID, e.NodeID, e.Kind = e.Event.RunID, e.Event.NodeID, e.Event.Type().Kind()
	}
	return e
}

// Of reports whether an event is of a node or of one of its items. "" is every
// node.
func (s *Event) Of(node string) bool {
	if node == "" {
		return true
	}
	id := wire.Raw(s.Data).TextAt("nodeId")
	return id == node || strings.HasPrefix(id, node+"/")
}
