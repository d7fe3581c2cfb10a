package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Entry is a stored event.
type Entry struct {
	Pos  uint64
	At   time.Time // when the stream stored it
	Kind string
	E    *wire.Event
}

func (x Entry) String() string {
	return fmt.Sprintf("%6d %s %s#%d e%d %s %s", x.Pos, x.At.Format("15:04:05.000"), x.E.NodeID, x.E.Seq, x.E.Epoch, x.E.Type(), detail(x.E))
}

// detail is what matters of an event in a history.
func detail(e *wire.Event) string {
	var s string
	switch p := e.Payload.(type) {
	case *wire.RunClaimed:
		s = p.Runner
	case *wire.NodeClaimed:
		s = p.Runner
	case *wire.NodeScheduled:
		s = p.Target
	case *wire.NodeStart:
		s = p.Target
	case *wire.NodeComplete:
		s = p.Target
	case *wire.NodeError:
		s = p.ErrorType + ": " + p.Error
	case *wire.FlowResumed:
		s = p.Strategy
	case *wire.FlowPaused:
		s = p.Reason + ": " + p.Message
	case *wire.AgentError:
		s = p.ErrorType + ": " + p.Message
	case *wire.ToolSealed:
		s = string(p.From)
	case *wire.AgentStart:
		s = fmt.Sprintf("resumed=%t", p.Resumed)
	}
	return strings.TrimSpace(e.ExecID + " " + e.CallID + " " + s)
}

// Claimant returns the writer that claims by e; "" if it is no claim.
func Claimant(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.RunClaimed:
		return p.Runner
	case *wire.NodeClaimed:
		return p.Runner
	}
	return ""
}

// Last returns the position of the last event in the stream.
func (l *Lab) Last() uint64 {
	l.Helper()
	s, err := l.JS.Stream(l.Ctx, subjects.Default.EventsStream())
	l.Must(err)
	return s.CachedInfo().State.LastSeq
}

// Stored reads the events of a run from the leader, message by message.
func (l *Lab) Stored(run string) []Entry {
	l.Helper()
	s, err := l.JS.Stream(l.Ctx, subjects.Default.EventsStream())
	l.Must(err)
	var all []Entry
	for pos := uint64(1); pos <= s.CachedInfo().State.LastSeq; pos++ {
		m, err := s.GetMsg(l.Ctx, pos)
		if err != nil {
			l.Fatalf("position %d of the stream: %v", pos, err)
		}
		x := l.Decode(m.Subject, m.Data)
		if x.E.RunID == run {
			x.Pos, x.At = pos, m.Time
			all = append(all, x)
		}
	}
	return all
}

// Decode decodes a message and checks that its subject says the same.
func (l *Lab) Decode(subject string, data []byte) Entry {
	l.Helper()
	run, node, kind, err := subjects.Default.ParseEvent(subject)
	l.Must(err)
	e, err := wire.Decode(data)
	if err != nil {
		l.Fatalf("%s: %v", subject, err)
	}
	if e.RunID != run || e.NodeID != node || string(e.Type().Kind()) != kind {
		l.Errorf("%s holds %s of %s/%s", subject, e.Type(), e.RunID, e.NodeID)
	}
	return Entry{Kind: kind, E: e}
}

// State is the state of a run as its stored snapshot has it; nil if there is
// none.
func (l *Lab) State(run string) *wire.State {
	l.Helper()
	kv, err := l.JS.KeyValue(l.Ctx, subjects.Default.SnapshotsBucket())
	l.Must(err)
	v, err := kv.Get(l.Ctx, subjects.Default.SnapshotKey(run))
	if err != nil {
		return nil
	}
	s := new(wire.State)
	l.Must(wire.Unmarshal(v.Value(), s))
	return s
}

// Reach waits until a run has one of some statuses.
func (l *Lab) Reach(run string, within time.Duration, oneOf ...wire.RunStatus) *wire.State {
	l.Helper()
	var s *wire.State
	l.Until(fmt.Sprintf("%s is %s", run, oneOf), within, func() bool {
		s = l.State(run)
		return s != nil && slices.Contains(oneOf, s.Status)
	})
	l.Tell("%s is %s %s", run, s.Status, s.Reason)
	return s
}

// Await waits for a stored event of a run.
func (l *Lab) Await(run string, from uint64, within time.Duration, what string, is func(Entry) bool) Entry {
	l.Helper()
	var found Entry
	s, err := l.JS.Stream(l.Ctx, subjects.Default.EventsStream())
	l.Must(err)
	pos := from + 1
	l.Until(what, within, func() bool {
		info, err := s.Info(l.Ctx)
		l.Must(err)
		for ; pos <= info.State.LastSeq; pos++ {
			m, err := s.GetMsg(l.Ctx, pos)
			l.Must(err)
			x := l.Decode(m.Subject, m.Data)
			x.Pos, x.At = pos, m.Time
			if x.E.RunID == run && is(x) {
				found = x
				return true
			}
		}
		return false
	})
	return found
}

// OfType is a condition for await.
func OfType(t wire.Type, node string) func(Entry) bool {
	return func(x Entry) bool { return x.E.Type() == t && (node == "" || x.E.NodeID == node) }
}

// Holders returns the runners that act for a run and its nodes, by the log: node → runner.
func (l *Lab) Holders(run string) map[string]string {
	l.Helper()
	held := make(map[string]string)
	for _, x := range l.Stored(run) {
		switch p := x.E.Payload.(type) {
		case *wire.RunClaimed:
			held[x.E.NodeID] = p.Runner
		case *wire.NodeClaimed:
			if held[x.E.NodeID] = p.Runner; p.Process == "" {
				delete(held, x.E.NodeID)
			}
		case *wire.NodeComplete, *wire.NodeError:
			if x.E.NodeID != wire.RunNode {
				delete(held, x.E.NodeID)
			}
		}
	}
	return held
}

// Incarnation is that of the stream of events.
func (l *Lab) Incarnation() string {
	l.Helper()
	s, err := l.JS.Stream(l.Ctx, subjects.Default.EventsStream())
	l.Must(err)
	return s.CachedInfo().Config.Metadata["wake.incarnation"]
}

// DeadLetters returns what no service could use, and counts what writers still
// held when they were fenced, which belongs there.
func (l *Lab) DeadLetters() (bad []string, fenced int) {
	l.Helper()
	s, err := l.JS.Stream(l.Ctx, subjects.Default.DeadLetterStream())
	l.Must(err)
	for pos := uint64(1); pos <= s.CachedInfo().State.LastSeq; pos++ {
		m, err := s.GetMsg(l.Ctx, pos)
		l.Must(err)
		var p wire.Poison
		l.Must(wire.Unmarshal(m.Data, &p))
		if m.Subject == subjects.Default.DeadLetter("eventlog") {
			fenced++
			continue
		}
		bad = append(bad, fmt.Sprintf("%s: %s, %s at %d", m.Subject, p.Reason, p.Subject, p.Position))
	}
	return bad, fenced
}

// Line is an entry of a ledger: what a command or an agent did.
type Line struct {
	What, Who string
	N         int // iteration, or number of the work
	ID        string
	At        time.Time
}

// Ledger reads "exec" or "tools". Lines that aren't of begins and ends are
// returned as they are.
func (l *Lab) Ledger(name string) (lines []Line, notes []string) {
	l.Helper()
	b, err := os.ReadFile(filepath.Join(l.Dir, "ledger", name))
	if os.IsNotExist(err) {
		return nil, nil
	}
	l.Must(err)
	for text := range strings.Lines(string(b)) {
		f := strings.Fields(text)
		if len(f) != 5 || f[0] != "begin" && f[0] != "end" {
			notes = append(notes, strings.TrimSpace(text))
			continue
		}
		n, err := strconv.Atoi(f[2])
		l.Must(err)
		ns, err := strconv.ParseInt(f[4], 10, 64)
		l.Must(err)
		lines = append(lines, Line{f[0], f[1], n, f[3], time.Unix(0, ns)})
	}
	return lines, notes
}

// Seen is a published event, stored or not.
type Seen struct {
	E      *wire.Event
	Writer string // by the claims so far
}

// Follow passes on what is published for a run, before it is stored. What isn't taken is dropped.
func (l *Lab) Follow(run string) <-chan Seen {
	l.Helper()
	out := make(chan Seen, 4096)
	writers := make(map[string]string)
	sub, err := l.NC.Subscribe(subjects.Default.RunEvents(run), func(m *nats.Msg) {
		e, err := wire.Decode(m.Data)
		if err != nil {
			return
		}
		if who := Claimant(e); who != "" {
			writers[e.NodeID] = who
		}
		select {
		case out <- Seen{e, writers[e.NodeID]}:
		default:
		}
	})
	l.Must(err)
	l.Must(l.NC.Flush())
	l.Cleanup(func() { _ = sub.Unsubscribe() })
	return out
}
