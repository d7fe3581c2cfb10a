package archive

import (
	"errors"
	"strings"
	"time"

	"code.wake.dev/wake/internal/chain"
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
	return IsOf(wire.Raw(s.Data).TextAt("nodeId"), node)
}

// IsOf reports whether an id is that of a node or of one of its items. "" is every node.
func IsOf(id, node string) bool {
	return node == "" || id == node || strings.HasPrefix(id, node+"/")
}

// Event is a message of the stream as it is kept.
type Event struct {
	Run  string // of an event that was read with those of other runs
	Pos  uint64
	Time int64      // Unix ms, when the stream stored it
	Mark string     // "", void, bad (no event) or recorder (written by it)
	Note string     // why it is marked
	Data []byte     // as stored
	Link chain.Link // of the chain, after it; zero of what was read, but for the last one of each part of a tail
}

// Kind is what the event's type says, or "" of what is no event.
func (s *Event) Kind() wire.Kind {
	if s.Mark == Bad {
		return ""
	}
	return wire.Type(wire.Raw(s.Data).TextAt("type")).Kind()
}

// The marks of events that readers don't see.
const (
	Void     = "void"
	Bad      = "bad"
	Recorder = "recorder"
)
