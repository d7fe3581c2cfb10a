//go:build kill

package kill_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the recorder's file

	"wake/internal/run"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// execution is what the log tells of one.
type execution struct {
	id, node  string
	iteration int
	kind      string // node type
	claims    int    // of its node while it was open
	runners   []string
	starts    int
	ends      []string // types
	cancelled bool
	end       entry
}

// audit is what was found about a run. Its counts go into the report.
type audit struct {
	l       *lab
	run     string
	entries []entry
	execs   map[string]*execution
	order   []string
	sealed  int
	resumed int // agent_resumed
	owners  int // claims of the run
	flows   int // flow:resumed by new owners
	decided int // flow:resumed of paused runs
	fenced  int // events that fenced writers still held
}

// check verifies everything that must be so for a run that is complete.
func (l *lab) check(id string) *audit {
	l.Helper()
	a := &audit{l: l, run: id, entries: l.stored(id), execs: make(map[string]*execution)}
	a.sequences()
	a.executions()
	a.ownership()
	a.commands()
	a.tools()
	a.snapshot()
	a.recorder()
	bad, fenced := l.deadLetters()
	if a.fenced = fenced; len(bad) > 0 {
		l.Errorf("%d dead letters: %s", len(bad), strings.Join(bad, "\n"))
	}
	return a
}

// maxHistory is how many events of a run are printed if a test fails: the last
// ones.
const maxHistory = 500

// history prints what happened in a run.
func (l *lab) history(run string) {
	l.Helper()
	var lines []string
	for _, x := range l.stored(run) {
		if x.kind != string(wire.KindDelta) && x.kind != string(wire.KindText) {
			lines = append(lines, x.String())
		}
	}
	l.Logf("history of %s:\n%s", run, strings.Join(lines[max(0, len(lines)-maxHistory):], "\n"))
}

// sequences checks that each node's events are numbered without gap or
// duplicate in the order of the stream, and that nobody writes after the next
// one's claim.
func (a *audit) sequences() {
	type node struct{ seq, epoch uint64 }
	nodes := make(map[string]node)
	for _, x := range a.entries {
		n := nodes[x.e.NodeID]
		if x.e.Seq != n.seq+1 {
			a.l.Errorf("after seq %d of %s comes %s", n.seq, x.e.NodeID, x)
		}
		switch claim := claimant(x.e) != ""; {
		case claim && x.e.Epoch <= n.epoch:
			a.l.Errorf("a claim that isn't above epoch %d: %s", n.epoch, x)
		case !claim && x.e.Epoch != n.epoch:
			a.l.Errorf("epoch %d was claimed: %s", n.epoch, x)
		}
		nodes[x.e.NodeID] = node{x.e.Seq, x.e.Epoch}
	}
}

// executions checks that everything that was scheduled began once, ended once,
// and said nothing afterwards.
func (a *audit) executions() {
	open := make(map[string]*execution) // by node
	for _, x := range a.entries {
		node, id := x.e.Node(), x.e.ExecID
		if s, ok := x.e.Payload.(*wire.NodeScheduled); ok {
			if a.execs[id] != nil {
				a.l.Errorf("scheduled again: %s", x)
			}
			a.execs[id] = &execution{id: id, node: s.Target, iteration: s.Iteration}
			a.order = append(a.order, id)
			open[s.Target] = a.execs[id]
			continue
		}
		if c, ok := x.e.Payload.(*wire.NodeClaimed); ok {
			if e := open[x.e.NodeID]; e != nil && len(e.ends) == 0 {
				e.claims++
				e.runners = append(e.runners, c.Runner)
			}
			continue
		}
		a.resumptions(x)
		if id == "" {
			continue
		}
		e := a.execs[id]
		if e == nil {
			a.l.Errorf("of an execution that nobody scheduled: %s", x)
			continue
		}
		if len(e.ends) > 0 && x.e.Type() != wire.TypeCommandReceived {
			a.l.Errorf("after the end of %s at %d: %s", id, e.end.pos, x)
		}
		switch p := x.e.Payload.(type) {
		case *wire.NodeStart:
			e.kind = p.NodeType
			if e.starts++; e.starts > 1 {
				a.l.Errorf("begins again: %s", x)
			}
		case *wire.NodeComplete, *wire.NodeError:
			e.ends, e.end = append(e.ends, string(x.e.Type())), x
			if node != e.node {
				a.l.Errorf("end of %s on %s: %s", e.node, node, x)
			}
		case *wire.NodeCancelled:
			e.cancelled = true
		}
	}
	for _, id := range a.order {
		e := a.execs[id]
		if len(e.ends) != 1 && !e.cancelled {
			a.l.Errorf("%s has %d ends: %v", id, len(e.ends), e.ends)
		}
	}
}

func (a *audit) resumptions(x entry) {
	switch x.e.Payload.(type) {
	case *wire.ToolSealed:
		a.sealed++
	case *wire.AgentResumed:
		a.resumed++
	}
}

// failures lists the executions that ended badly.
func (a *audit) failures() (all []string) {
	for _, id := range a.order {
		if e := a.execs[id]; len(e.ends) > 0 && e.ends[0] != string(wire.TypeNodeComplete) {
			all = append(all, e.end.String())
		}
	}
	return all
}

// ownership checks that each owner that did anything in a run that had begun
// said so first, once.
func (a *audit) ownership() {
	begun, era, resumed, paused := false, 0, 0, false
	for _, x := range a.entries {
		if x.e.NodeID != wire.RunNode {
			continue
		}
		switch x.e.Payload.(type) {
		case *wire.RunClaimed:
			a.owners++
			era, resumed = era+1, 0
			continue
		case *wire.FlowStart:
			begun = true
			era = 1
			continue
		case *wire.FlowResumed:
			if paused { // somebody decided
				a.decided, paused, resumed = a.decided+1, false, max(resumed, 1)
				continue
			}
			a.flows++
			if resumed++; resumed > 1 || era == 1 {
				a.l.Errorf("resumed without need: %s", x)
			}
			continue
		case *wire.FlowPaused:
			paused = true
		case *wire.CommandReceived:
			continue
		}
		if begun && era > 1 && resumed == 0 {
			a.l.Errorf("a new owner acts without flow:resumed: %s", x)
			resumed = 1
		}
	}
}

// commands compares what the commands did with the log.
func (a *audit) commands() {
	lines, _ := a.l.ledger("exec")
	of := make(map[string]*execution)
	for _, e := range a.execs {
		of[fmt.Sprintf("%s %d", e.node, e.iteration)] = e
	}
	begins, ends := make(map[*execution]int), make(map[*execution]int)
	for _, x := range lines {
		e := of[fmt.Sprintf("%s %d", x.who, x.n)]
		switch {
		case e == nil:
			a.l.Errorf("the command of %s ran in iteration %d, which nobody scheduled", x.who, x.n)
		case x.what == "end":
			ends[e]++
		default:
			if begins[e]++; len(e.ends) > 0 && x.at.After(e.end.at) {
				a.l.Errorf("the command of %s ran again after its end was stored: at %s, stored at %s", e.id, x.at, e.end.at)
			}
		}
	}
	for _, id := range a.order {
		e := a.execs[id]
		if e.kind != "exec" || len(e.ends) == 0 {
			continue
		}
		if begins[e] == 0 || begins[e] > e.claims || ends[e] == 0 {
			a.l.Errorf("the command of %s began %d times and ended %d times; claims: %d by %v", id, begins[e], ends[e], e.claims, e.runners)
		}
	}
}

// tools checks that no call was made twice, and no piece of work done twice
// under two calls.
func (a *audit) tools() {
	lines, notes := a.l.ledger("tools")
	calls, works := make(map[string]int), make(map[string]int)
	for _, x := range lines {
		if x.what == "begin" {
			calls[x.id]++
			works[fmt.Sprintf("%s-%d", x.who, x.n)]++
		}
	}
	for call, n := range calls {
		if n > 1 {
			a.l.Errorf("call %s was made %d times", call, n)
		}
	}
	for work, n := range works {
		if n > 1 {
			a.l.Errorf("work %s was done %d times: nobody told the agent; its notes: %s", work, n, strings.Join(notesOf(notes, work), "; "))
		}
	}
}

func notesOf(notes []string, work string) []string {
	session := work[:strings.LastIndexByte(work, '-')]
	return slices.DeleteFunc(slices.Clone(notes), func(n string) bool { return !strings.Contains(n, session) })
}

// snapshot checks that the stored snapshot is the fold of the log, byte for byte.
func (a *audit) snapshot() {
	incarnation, state := a.l.incarnation(), run.New(a.run)
	for _, x := range a.entries {
		if err := run.Apply(state, wire.Position{Incarnation: incarnation, Seq: x.pos}, x.e); err != nil {
			a.l.Errorf("the fold refuses %s: %v", x, err)
		}
	}
	if state.VoidEvents > 0 {
		a.l.Errorf("%d void events", state.VoidEvents)
	}
	want, err := wire.Marshal(state)
	a.l.must(err)
	kv, err := a.l.js.KeyValue(a.l.ctx, subjects.Default.SnapshotsBucket())
	a.l.must(err)
	var got []byte
	deadline := time.After(10 * time.Second)
	for {
		if v, err := kv.Get(a.l.ctx, subjects.Default.SnapshotKey(a.run)); err == nil {
			got = v.Value()
		}
		if bytes.Equal(got, want) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			a.l.Errorf("the snapshot isn't the fold:\n got %s\nwant %s", text(got), text(want))
			return
		}
	}
}

func text(b []byte) string {
	out, err := wire.AppendJSON(nil, wire.Raw(b))
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// recorder checks that the index has all of the run.
func (a *audit) recorder() {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.l.dir, "recorder", "recorder.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	a.l.must(err)
	defer func() { _ = db.Close() }() // nothing was written
	var position, last, events, void, refused, gaps uint64
	end := a.l.last()
	a.l.until("the recorder is at the end of the stream", 10*time.Second, func() bool {
		return db.QueryRowContext(a.l.ctx, "SELECT max(position) FROM streams").Scan(&position) == nil && position >= end
	})
	const query = "SELECT last_pos, events, void, refused, gaps FROM runs WHERE run = ?"
	a.l.must(db.QueryRowContext(a.l.ctx, query, a.run).Scan(&last, &events, &void, &refused, &gaps))
	if want := a.entries[len(a.entries)-1].pos; last != want || events != uint64(len(a.entries)) || void+refused+gaps > 0 {
		a.l.Errorf("the index is at %d with %d events, %d void, %d refused, %d gaps; the stream at %d with %d events", last, events, void, refused, gaps, want, len(a.entries))
	}
}
