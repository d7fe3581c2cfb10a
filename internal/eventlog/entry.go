package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
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
	User    string      // of a command: the user that gave it, in the word of the server; "": the server doesn't say
	Event   *wire.Event // nil if Err is set
	Behind  uint64      // messages of its subjects that follow in the stream, as of this one; 0 also where the reader doesn't know
	// Err says why Data isn't an event of its subject. Such an entry is poison: it
	// is set aside with [Log.DeadLetter] and skipped.
	Err error
}

// PayloadOf returns the payload of an entry if it is of the type.
func PayloadOf[T wire.Payload](e Entry) (p T, ok bool) {
	if e.Event != nil {
		p, ok = e.Event.Payload.(T)
	}
	return p, ok
}

// errForeign is the Err of an entry if its subject and envelope disagree.
var errForeign = errors.New("the event names another run, node or kind than its subject")

// Entries yields what the messages of the stream of events hold. A message sealed
// with a missing key ends it, since it must not be skipped.
func Entries(messages iter.Seq2[Message, error], names subjects.Names, keys *seal.Keys) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for m, err := range messages {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			e := EntryOf(m, names, keys)
			if errors.Is(e.Err, seal.ErrNoKey) {
				yield(Entry{}, fmt.Errorf("eventlog: event %d: %w", e.Pos, e.Err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// EntryOf makes an Entry of a message. It never fails: what can't be read is an entry
// with Err.
func EntryOf(m Message, names subjects.Names, keys *seal.Keys) Entry {
	e := Entry{Pos: m.Pos, Time: m.Time, Subject: m.Subject, Data: m.Data, Trace: m.Trace, Behind: m.Behind}
	event, undecoded := wire.Decode(m.Data)
	if undecoded == nil && seal.Sealed(event) {
		var original []byte
		if event, original, undecoded = keys.Original(event); undecoded == nil {
			e.Data = original
		}
	}
	if undecoded == nil { // most are in order, which is quickly seen
		if kind := event.Type().Kind(); names.Event(event.RunID, event.NodeID, string(kind)) == m.Subject {
			e.RunID, e.NodeID, e.Kind, e.Event = event.RunID, event.NodeID, kind, event
			return e
		}
	}
	run, node, kind, err := names.ParseEvent(m.Subject)
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
	if names.Event(event.RunID, event.NodeID, kind) != m.Subject {
		e.Err = fmt.Errorf("%w: %s/%s %s on %s", errForeign, event.RunID, event.NodeID, event.Type(), m.Subject)
		return e
	}
	e.RunID, e.NodeID, e.Event = event.RunID, event.NodeID, event
	return e
}

// LastEpochs has the epoch of each node's last claim, by which readers tell events of a writer that
// had been replaced. It is given the events of one run in log order.
type LastEpochs map[string]uint64

// IsVoid reports whether e, the next event of the run, comes from such a writer.
func (l LastEpochs) IsVoid(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		l[e.NodeID] = max(l[e.NodeID], e.Epoch)
	}
	return e.Epoch < l[e.NodeID]
}

// Reader reads what is recorded: a [Log] from the streams, which services may, a
// reader of wake/internal/feed by wake.api, which is all that users may.
type Reader interface {
	Conn() *nats.Conn
	Names() subjects.Names
	Incarnation() string

	Bounds(ctx context.Context) (first, last uint64, err error)
	Last(ctx context.Context, run, node string) (Entry, bool, error)
	Read(ctx context.Context, q Query) iter.Seq2[Entry, error]
	Follow(ctx context.Context, q Query) iter.Seq2[Entry, error]

	Blob(ctx context.Context, sha256 string) ([]byte, error)
	Inline(ctx context.Context, e *wire.Event) (*wire.Event, error)

	// The value of a run's snapshot, or of a bookmark, and its revision; else
	// jetstream.ErrKeyNotFound, [seal.ErrNoKey] or [seal.ErrForged].
	Snapshot(ctx context.Context, run string) (value []byte, revision uint64, err error)
	Bookmark(ctx context.Context, run, label string) (value []byte, revision uint64, err error)
}
