package eventlog

import (
	"errors"
	"fmt"
	"time"

	"wake/internal/pull"
	"wake/internal/seal"
	"wake/internal/tracing"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// Entry is a place of the log and what is stored there.
type Entry struct {
	Pos     uint64 // stream sequence
	Time    time.Time
	Subject string
	RunID   string // as in the subject; of a hashed id the event's, if it can be read
	NodeID  string
	Kind    wire.Kind
	Data    []byte      // as stored; of a sealed event that was opened the original
	Trace   string      // to which trace it belongs, or "", see [tracing.Parent]; of a batch its first event says so
	Event   *wire.Event // nil if Err is set
	Behind  uint64      // messages that a [Consumer] has still to read, as of this one; of other readers 0
	// Err says why Data isn't an event of its subject. Such an entry is poison: it
	// is set aside with [Log.DeadLetter] and skipped.
	Err error
}

// errForeign is the Err of an entry whose subject and envelope disagree.
var errForeign = errors.New("the event names another run, node or kind than its subject")

// delivered is [Log.entry] of what a consumer delivered.
func (l *Log) delivered(m pull.Message) Entry {
	e := l.entry(m.Pos, m.Time, m.Subject, m.Data)
	e.Trace = tracing.Parent(m.Header)
	return e
}

// entry makes an Entry of a stored message. It never fails: what can't be read
// is an entry with Err.
func (l *Log) entry(pos uint64, at time.Time, subject string, data []byte) Entry {
	e := Entry{Pos: pos, Time: at, Subject: subject, Data: data}
	event, undecoded := wire.Decode(data)
	if undecoded == nil && seal.Sealed(event) {
		var original []byte
		if event, original, undecoded = l.o.Keys.Original(event); undecoded == nil {
			e.Data = original
		}
	}
	if undecoded == nil { // most are in order, which is quickly seen
		if kind := event.Type().Kind(); l.names.Event(event.RunID, event.NodeID, string(kind)) == subject {
			e.RunID, e.NodeID, e.Kind, e.Event = event.RunID, event.NodeID, kind, event
			return e
		}
	}
	run, node, kind, err := l.names.ParseEvent(subject)
	if err != nil && !errors.Is(err, subjects.ErrHashed) {
		e.Err = err
		return e
	}
	e.RunID, e.NodeID, e.Kind = run, node, wire.Kind(kind)
	if undecoded != nil {
		e.Err = undecoded
		return e
	}
	if _, unknown := event.Payload.(*wire.Opaque); !unknown {
		kind = string(event.Type().Kind())
	}
	if l.names.Event(event.RunID, event.NodeID, kind) != subject {
		e.Err = fmt.Errorf("%w: %s/%s %s on %s", errForeign, event.RunID, event.NodeID, event.Type(), subject)
		return e
	}
	e.RunID, e.NodeID, e.Event = event.RunID, event.NodeID, event
	return e
}

func (l *Log) storedEntry(m stored) Entry { return l.entry(m.Pos, m.Time, m.Subject, m.Data) }
