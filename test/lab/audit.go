package lab

import (
	"bytes"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the recorder's file

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Execution is what the log tells of one.
type Execution struct {
	ID, Node  string
	Iteration int
	Kind      string // node type
	Claims    int    // of its node while it was open
	Runners   []string
	Starts    int
	Ends      []string // types
	Cancelled bool
	End       Entry
	epoch     uint64 // of the last claim
}

// Audit is what was found about a run. Its counts go into the report.
type Audit struct {
	Run     string
	Entries []Entry
	Execs   map[string]*Execution
	Order   []string
	Sealed  int
	Resumed int // agent_resumed
	Owners  int // claims of the run
	Flows   int // flow:resumed by new owners
	Decided int // flow:resumed of paused runs
	Fenced  int // events that fenced writers still held

	l *Lab
}

// Check verifies everything that must be so for a run that is complete.
func (l *Lab) Check(id string) *Audit {
	l.Helper()
	a := &Audit{l: l, Run: id, Entries: l.Stored(id), Execs: make(map[string]*Execution)}
	a.sequences()
	a.executions()
	a.ownership()
	a.commands()
	a.tools()
	a.snapshot()
	a.recorder()
	bad, fenced := l.DeadLetters()
	if a.Fenced = fenced; len(bad) > 0 {
		l.Errorf("%d dead letters: %s", len(bad), strings.Join(bad, "\n"))
	}
	return a
}

// maxHistory is how many events of a run are printed if a test fails: the last
// ones.
const maxHistory = 500

// History prints what happened in a run.
func (l *Lab) History(run string) {
	l.Helper()
	var lines []string
	for _, x := range l.Stored(run) {
		if x.Kind != string(wire.KindDelta) && x.Kind != string(wire.KindText) {
			lines = append(lines, x.String())
		}
	}
	l.Logf("history of %s:\n%s", run, strings.Join(lines[max(0, len(lines)-maxHistory):], "\n"))
}

// sequences checks that each node's events are numbered without gap or duplicate in the order of the stream, and that no writer
// writes after the next one's claim.
func (a *Audit) sequences() {
	type node struct {
		seq, epoch uint64
		writer     string
	}
	nodes := make(map[string]node)
	for _, x := range a.Entries {
		n := nodes[x.E.NodeID]
		if x.E.Seq != n.seq+1 {
			a.l.Errorf("after seq %d of %s comes %s", n.seq, x.E.NodeID, x)
		}
		switch claimant := Claimant(x.E); {
		case claimant != "" && claimant == n.writer && x.E.Epoch == n.epoch: // it says once more that it is the writer
		case claimant != "" && x.E.Epoch <= n.epoch:
			a.l.Errorf("a claim that isn't above epoch %d: %s", n.epoch, x)
		case claimant == "" && x.E.Epoch != n.epoch:
			a.l.Errorf("epoch %d was claimed: %s", n.epoch, x)
		case claimant != "":
			n.writer = claimant
		}
		nodes[x.E.NodeID] = node{x.E.Seq, x.E.Epoch, n.writer}
	}
}

// executions checks that everything that was scheduled began once, ended once,
// and said nothing afterwards.
func (a *Audit) executions() {
	open := make(map[string]*Execution) // by node
	for _, x := range a.Entries {
		node, id := x.E.Node(), x.E.ExecID
		if s, ok := x.E.Payload.(*wire.NodeScheduled); ok {
			if a.Execs[id] != nil {
				a.l.Errorf("scheduled again: %s", x)
			}
			a.Execs[id] = &Execution{ID: id, Node: s.Target, Iteration: s.Iteration}
			a.Order = append(a.Order, id)
			open[s.Target] = a.Execs[id]
			continue
		}
		if c, ok := x.E.Payload.(*wire.NodeClaimed); ok {
			if e := open[x.E.NodeID]; e != nil && len(e.Ends) == 0 && x.E.Epoch > e.epoch {
				e.Claims++
				e.Runners, e.epoch = append(e.Runners, c.Runner), x.E.Epoch
			}
			continue
		}
		a.resumptions(x)
		if id == "" {
			continue
		}
		e := a.Execs[id]
		if e == nil {
			a.l.Errorf("of an execution that nobody scheduled: %s", x)
			continue
		}
		if len(e.Ends) > 0 && x.E.Type() != wire.TypeCommandReceived {
			a.l.Errorf("after the end of %s at %d: %s", id, e.End.Pos, x)
		}
		switch p := x.E.Payload.(type) {
		case *wire.NodeStart:
			e.Kind = p.NodeType
			if e.Starts++; e.Starts > 1 {
				a.l.Errorf("begins again: %s", x)
			}
		case *wire.NodeComplete, *wire.NodeError:
			e.Ends, e.End = append(e.Ends, string(x.E.Type())), x
			if node != e.Node {
				a.l.Errorf("end of %s on %s: %s", e.Node, node, x)
			}
		case *wire.NodeCancelled:
			e.Cancelled = true
		}
	}
	for _, id := range a.Order {
		e := a.Execs[id]
		if len(e.Ends) != 1 && !e.Cancelled {
			a.l.Errorf("%s has %d ends: %v", id, len(e.Ends), e.Ends)
		}
	}
}

func (a *Audit) resumptions(x Entry) {
	switch x.E.Payload.(type) {
	case *wire.ToolSealed:
		a.Sealed++
	case *wire.AgentResumed:
		a.Resumed++
	}
}

// Failures lists the executions that ended badly.
func (a *Audit) Failures() (all []string) {
	for _, id := range a.Order {
		if e := a.Execs[id]; len(e.Ends) > 0 && e.Ends[0] != string(wire.TypeNodeComplete) {
			all = append(all, e.End.String())
		}
	}
	return all
}

// ownership checks that each owner that did anything in a run that had begun
// said so first, once.
func (a *Audit) ownership() {
	begun, era, resumed, paused, epoch := false, 0, 0, false, uint64(0)
	for _, x := range a.Entries {
		if x.E.NodeID != wire.RunNode {
			continue
		}
		switch x.E.Payload.(type) {
		case *wire.RunClaimed:
			if x.E.Epoch == epoch { // the owner proves that none has replaced it
				continue
			}
			epoch = x.E.Epoch
			a.Owners++
			era, resumed = era+1, 0
			continue
		case *wire.FlowStart:
			begun = true
			era = 1
			continue
		case *wire.FlowResumed:
			if paused { // by a decision
				a.Decided, paused, resumed = a.Decided+1, false, max(resumed, 1)
				continue
			}
			a.Flows++
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

// commands compares what the commands did with the log, if they keep a ledger.
func (a *Audit) commands() {
	lines, _ := a.l.Ledger("exec")
	if len(lines) == 0 {
		return
	}
	of := make(map[string]*Execution)
	for _, e := range a.Execs {
		of[fmt.Sprintf("%s %d", e.Node, e.Iteration)] = e
	}
	begins, ends := make(map[*Execution]int), make(map[*Execution]int)
	for _, x := range lines {
		e := of[fmt.Sprintf("%s %d", x.Who, x.N)]
		switch {
		case e == nil:
			a.l.Errorf("the command of %s ran in iteration %d, which nobody scheduled", x.Who, x.N)
		case x.What == "end":
			ends[e]++
		default:
			if begins[e]++; len(e.Ends) > 0 && x.At.After(e.End.At) {
				a.l.Errorf("the command of %s ran again after its end was stored: at %s, stored at %s", e.ID, x.At, e.End.At)
			}
		}
	}
	for _, id := range a.Order {
		e := a.Execs[id]
		if e.Kind != "exec" || len(e.Ends) == 0 {
			continue
		}
		if begins[e] == 0 || begins[e] > e.Claims || ends[e] == 0 {
			a.l.Errorf("the command of %s began %d times and ended %d times; claims: %d by %v", id, begins[e], ends[e], e.Claims, e.Runners)
		}
	}
}

// tools checks that no call was made twice, and no piece of work done twice
// under two calls.
func (a *Audit) tools() {
	lines, notes := a.l.Ledger("tools")
	calls, works := make(map[string]int), make(map[string]int)
	for _, x := range lines {
		if x.What == "begin" {
			calls[x.ID]++
			works[fmt.Sprintf("%s-%d", x.Who, x.N)]++
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
func (a *Audit) snapshot() {
	incarnation, state := a.l.Incarnation(), run.New(a.Run)
	for _, x := range a.Entries {
		if err := run.Apply(state, wire.Position{Incarnation: incarnation, Seq: x.Pos}, x.E); err != nil {
			a.l.Errorf("the fold refuses %s: %v", x, err)
		}
	}
	if state.VoidEvents > 0 {
		a.l.Errorf("%d void events", state.VoidEvents)
	}
	want, err := wire.Marshal(state)
	a.l.Must(err)
	kv, err := a.l.JS.KeyValue(a.l.Ctx, subjects.Default.SnapshotsBucket())
	a.l.Must(err)
	var got []byte
	deadline := time.After(10 * time.Second)
	for {
		if v, err := kv.Get(a.l.Ctx, subjects.Default.SnapshotKey(a.Run)); err == nil {
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
func (a *Audit) recorder() {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.l.Dir, "recorder", "recorder.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	a.l.Must(err)
	defer func() { _ = db.Close() }() // nothing was written
	var position, last, events, void, refused, gaps uint64
	end := a.l.Last()
	a.l.Until("the recorder is at the end of the stream", 10*time.Second, func() bool {
		return db.QueryRowContext(a.l.Ctx, "SELECT max(position) FROM streams").Scan(&position) == nil && position >= end
	})
	const query = "SELECT last_pos, events, void, refused, gaps FROM runs WHERE run = ?"
	a.l.Must(db.QueryRowContext(a.l.Ctx, query, a.Run).Scan(&last, &events, &void, &refused, &gaps))
	if want := a.Entries[len(a.Entries)-1].Pos; last != want || events != uint64(len(a.Entries)) || void+refused+gaps > 0 {
		a.l.Errorf("the index is at %d with %d events, %d void, %d refused, %d gaps; the stream at %d with %d events", last, events, void, refused, gaps, want, len(a.Entries))
	}
}

// Completed checks how the run ended.
func (a *Audit) Completed(result string) {
	a.l.Helper()
	var last *wire.FlowComplete
	for _, x := range a.Entries {
		if p, ok := x.E.Payload.(*wire.FlowComplete); ok {
			if last != nil {
				a.l.Errorf("ended twice: %s", x)
			}
			last = p
		}
	}
	if last == nil || string(last.Status) != result {
		a.l.Errorf("the run ended with %+v, want %s", last, result)
	}
}

// OpenAt reports whether a node had an execution at work at a time.
func (a *Audit) OpenAt(node string, at time.Time) (open bool) {
	for _, x := range a.Entries {
		switch {
		case x.At.After(at):
			return open
		case Claimant(x.E) != "" && x.E.NodeID == node:
			open = true
		case Ended(x.E) && x.E.Node() == node:
			open = false
		}
	}
	return open
}

// Ended reports whether an event ends an execution.
func Ended(e *wire.Event) bool {
	t := e.Type()
	return t == wire.TypeNodeComplete || t == wire.TypeNodeError
}
