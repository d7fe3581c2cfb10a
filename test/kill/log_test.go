//go:build kill

package kill_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// entry is a stored event.
type entry struct {
	pos  uint64
	at   time.Time // when the stream stored it
	kind string
	e    *wire.Event
}

func (x entry) String() string {
	return fmt.Sprintf("%6d %s %s#%d e%d %s %s", x.pos, x.at.Format("15:04:05.000"), x.e.NodeID, x.e.Seq, x.e.Epoch, x.e.Type(), detail(x.e))
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

// claimant returns who claims by e; "" if it is no claim.
func claimant(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.RunClaimed:
		return p.Runner
	case *wire.NodeClaimed:
		return p.Runner
	}
	return ""
}

// last returns the position of the last event in the stream.
func (l *lab) last() uint64 {
	l.Helper()
	s, err := l.js.Stream(l.ctx, subjects.Default.EventsStream())
	l.must(err)
	return s.CachedInfo().State.LastSeq
}

// stored reads the events of a run from the leader, message by message.
func (l *lab) stored(run string) []entry {
	l.Helper()
	s, err := l.js.Stream(l.ctx, subjects.Default.EventsStream())
	l.must(err)
	var all []entry
	for pos := uint64(1); pos <= s.CachedInfo().State.LastSeq; pos++ {
		m, err := s.GetMsg(l.ctx, pos)
		if err != nil {
			l.Fatalf("position %d of the stream: %v", pos, err)
		}
		x := l.entry(m.Subject, m.Data)
		if x.e.RunID == run {
			x.pos, x.at = pos, m.Time
			all = append(all, x)
		}
	}
	return all
}

// entry decodes a message and checks that its subject says the same.
func (l *lab) entry(subject string, data []byte) entry {
	l.Helper()
	run, node, kind, err := subjects.Default.ParseEvent(subject)
	l.must(err)
	e, err := wire.Decode(data)
	if err != nil {
		l.Fatalf("%s: %v", subject, err)
	}
	if e.RunID != run || e.NodeID != node || string(e.Type().Kind()) != kind {
		l.Errorf("%s holds %s of %s/%s", subject, e.Type(), e.RunID, e.NodeID)
	}
	return entry{kind: kind, e: e}
}

// state is the state of a run as its stored snapshot has it; nil if there is
// none.
func (l *lab) state(run string) *wire.State {
	l.Helper()
	kv, err := l.js.KeyValue(l.ctx, subjects.Default.SnapshotsBucket())
	l.must(err)
	v, err := kv.Get(l.ctx, subjects.Default.SnapshotKey(run))
	if err != nil {
		return nil
	}
	s := new(wire.State)
	l.must(wire.Unmarshal(v.Value(), s))
	return s
}

// reach waits until a run has a status.
func (l *lab) reach(run string, within time.Duration, status wire.RunStatus) *wire.State {
	l.Helper()
	var s *wire.State
	l.until(fmt.Sprintf("%s is %s", run, status), within, func() bool {
		s = l.state(run)
		return s != nil && s.Status == status
	})
	l.tell("%s is %s %s", run, status, s.Reason)
	return s
}

// await waits for a stored event of a run.
func (l *lab) await(run string, from uint64, within time.Duration, what string, is func(entry) bool) entry {
	l.Helper()
	var found entry
	s, err := l.js.Stream(l.ctx, subjects.Default.EventsStream())
	l.must(err)
	pos := from + 1
	l.until(what, within, func() bool {
		info, err := s.Info(l.ctx)
		l.must(err)
		for ; pos <= info.State.LastSeq; pos++ {
			m, err := s.GetMsg(l.ctx, pos)
			l.must(err)
			x := l.entry(m.Subject, m.Data)
			x.pos, x.at = pos, m.Time
			if x.e.RunID == run && is(x) {
				found = x
				return true
			}
		}
		return false
	})
	return found
}

// ofType is a condition for await.
func ofType(t wire.Type, node string) func(entry) bool {
	return func(x entry) bool { return x.e.Type() == t && (node == "" || x.e.NodeID == node) }
}

// holder is a lease as its value says.
type holder struct {
	Runner string `json:"runner"`
}

// leases returns who holds what of a run: node → runner.
func (l *lab) leases(run string) map[string]string {
	l.Helper()
	kv, err := l.js.KeyValue(l.ctx, subjects.Default.LeasesBucket())
	l.must(err)
	held := make(map[string]string)
	keys, err := kv.ListKeysFiltered(l.ctx, subjects.Default.RunLeases(run))
	l.must(err)
	for key := range keys.Keys() {
		_, node, err := subjects.Default.ParseLeaseKey(key)
		l.must(err)
		var h holder
		if v, err := kv.Get(l.ctx, key); err == nil && wire.Unmarshal(v.Value(), &h) == nil {
			held[node] = h.Runner
		}
	}
	return held
}

// incarnation is that of the stream of events.
func (l *lab) incarnation() string {
	l.Helper()
	s, err := l.js.Stream(l.ctx, subjects.Default.EventsStream())
	l.must(err)
	return s.CachedInfo().Config.Metadata["wake.incarnation"]
}

// deadLetters returns what no service could use, and counts what writers still
// held when they were fenced, which belongs there.
func (l *lab) deadLetters() (bad []string, fenced int) {
	l.Helper()
	s, err := l.js.Stream(l.ctx, subjects.Default.DeadLetterStream())
	l.must(err)
	for pos := uint64(1); pos <= s.CachedInfo().State.LastSeq; pos++ {
		m, err := s.GetMsg(l.ctx, pos)
		l.must(err)
		var p wire.Poison
		l.must(wire.Unmarshal(m.Data, &p))
		if m.Subject == subjects.Default.DeadLetter("eventlog") {
			fenced++
			continue
		}
		bad = append(bad, fmt.Sprintf("%s: %s, %s at %d", m.Subject, p.Reason, p.Subject, p.Position))
	}
	return bad, fenced
}

// line is an entry of a ledger: what a command or an agent did.
type line struct {
	what, who string
	n         int // iteration, or number of the work
	id        string
	at        time.Time
}

// ledger reads "exec" or "tools". Lines that aren't of begins and ends are
// returned as they are.
func (l *lab) ledger(name string) (lines []line, notes []string) {
	l.Helper()
	b, err := os.ReadFile(filepath.Join(l.dir, "ledger", name))
	if os.IsNotExist(err) {
		return nil, nil
	}
	l.must(err)
	for text := range strings.Lines(string(b)) {
		f := strings.Fields(text)
		if len(f) != 5 || f[0] != "begin" && f[0] != "end" {
			notes = append(notes, strings.TrimSpace(text))
			continue
		}
		n, err := strconv.Atoi(f[2])
		l.must(err)
		ns, err := strconv.ParseInt(f[4], 10, 64)
		l.must(err)
		lines = append(lines, line{f[0], f[1], n, f[3], time.Unix(0, ns)})
	}
	return lines, notes
}

// seen is a published event, stored or not.
type seen struct {
	e      *wire.Event
	writer string // by the claims so far
}

// follow passes on what is published for a run, at once: before it is stored. What
// nobody takes is dropped.
func (l *lab) follow(run string) <-chan seen {
	l.Helper()
	out := make(chan seen, 4096)
	writers := make(map[string]string)
	sub, err := l.nc.Subscribe(subjects.Default.RunEvents(run), func(m *nats.Msg) {
		e, err := wire.Decode(m.Data)
		if err != nil {
			return
		}
		if who := claimant(e); who != "" {
			writers[e.NodeID] = who
		}
		select {
		case out <- seen{e, writers[e.NodeID]}:
		default:
		}
	})
	l.must(err)
	l.must(l.nc.Flush())
	l.Cleanup(func() { _ = sub.Unsubscribe() })
	return out
}
