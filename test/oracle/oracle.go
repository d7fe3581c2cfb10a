// Package oracle judges an installation of wake by what it has stored.
//
// [Load] reads all of it into a [History]; [Judge] compares that with itself and
// with a [Ledger] of what happened outside of the log. It shares the fold and the
// codec with the product, which have tests of their own, and nothing else.
package oracle

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Invariant names what must always be so.
type Invariant string

// The invariants, in the order of I1 to I12 of the plan of tests.
const (
	AcknowledgedIsStored Invariant = "acknowledged is stored"
	InOrder              Invariant = "in order"
	OneWriter            Invariant = "one writer"
	StoredOnce           Invariant = "stored once"
	OwnRun               Invariant = "own run"
	FoldAccepts          Invariant = "the fold accepts the history"
	SnapshotIsFold       Invariant = "a snapshot is the fold"
	FoldInParts          Invariant = "folding in parts is folding at once"
	ReplayIsLog          Invariant = "a replay is the log"
	ForkIsParent         Invariant = "a fork is its parent up to its point"
	ExecutedOnce         Invariant = "executed once"
	WorkedOnce           Invariant = "worked once"
	OneAgent             Invariant = "one agent acts"
	OneRunner            Invariant = "one runner speaks to an agent"
	SaidOnce             Invariant = "what an agent says is on record once, in order"
	AlertedOnce          Invariant = "alerted once"
	DeliveredOnce        Invariant = "delivered, in order"
	RecordedAll          Invariant = "the record is the log"
	CommandOnRecord      Invariant = "a command is on record"
	ToldOnce             Invariant = "a message is told once"
	NothingDropped       Invariant = "nothing is dropped silently"
	ComesToAnEnd         Invariant = "everything comes to an end"
)

// Violation is an invariant that doesn't hold.
type Violation struct {
	Invariant Invariant
	Run, Node string // "" if it is about none
	Position  uint64 // in WAKE_EVENTS, or 0
	Text      string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: run %s, node %s, position %d: %s", v.Invariant, cmp.Or(v.Run, "-"), cmp.Or(v.Node, "-"), v.Position, v.Text)
}

// Report is what a check came to.
type Report struct {
	Violations []Violation

	Events, Acknowledged, Runs, Forks, Executions int
	Snapshots, Bookmarks, Alerts, Commands        int
	DeadLetters, Work, Recorded                   int
	Delivered, Again, GivenUp                     int // notifications: taken by sinks, taken again, dead letters
	Told, Notices                                 int // messages that agents took, and those of what children say
	Resumed                                       int // executions of agents that went on after a process's end
	Ran                                           int // commands of exec nodes
	Folders, Restored, Found                      int // snapshots of folders that were compared, runs that went on in one elsewhere, and those in which agents have begun
	Agents, Attached, Said                        int // agents' programs, runners that came back to one, and what programs said that is on record
}

// Options say what there is to check.
type Options struct {
	// Recorder is the recorder's SQLite file; none is checked if it is empty.
	Recorder string
	// Unfinished says that runs need not have ended: services may be at work.
	Unfinished bool
}

// Check loads what is stored and judges it. Nothing may write meanwhile.
func Check(ctx context.Context, log *eventlog.Log, l *Ledger, o Options) (Report, error) {
	h, err := Load(ctx, log, o)
	if err != nil {
		return Report{}, fmt.Errorf("oracle: %w", err)
	}
	return Judge(h, l, o), nil
}

// check is a judgement under way.
type check struct {
	*History

	ledger *Ledger
	o      Options
	report Report
	byPos  map[uint64]*eventlog.Entry
	runs   map[string][]*eventlog.Entry // in stream order, without what is no event
	order  []string                     // of the runs' first events
	states map[string]*wire.State       // at the end of the log
}

// Judge says what is wrong with a history. l may be nil.
func Judge(h *History, l *Ledger, o Options) Report {
	if l == nil {
		l = NewLedger()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &check{History: h, ledger: l, o: o, byPos: map[uint64]*eventlog.Entry{}, runs: map[string][]*eventlog.Entry{}, states: map[string]*wire.State{}}
	for i := range h.Events {
		e := &h.Events[i]
		c.byPos[e.Pos] = e
		if e.Err != nil {
			continue
		}
		if c.runs[e.RunID] == nil {
			c.order = append(c.order, e.RunID)
		}
		c.runs[e.RunID] = append(c.runs[e.RunID], e)
	}
	for _, judge := range []func(){
		c.acknowledged, c.sequences, c.ownRun, c.storedOnce, c.folds, c.snapshots, c.bookmarks, c.replays, c.forks,
		c.executions, c.work, c.commandsRun, c.agents, c.runners, c.sayings, c.alerts, c.deliveries, c.recorded, c.commands, c.poison, c.letters, c.ends,
	} {
		judge()
	}
	c.count()
	return c.report
}

func (c *check) count() {
	r := &c.report
	r.Events, r.Acknowledged, r.Runs = len(c.Events), len(c.ledger.acknowledged), len(c.order)
	r.Snapshots, r.Bookmarks, r.Alerts, r.Commands = len(c.Snapshots), len(c.Bookmarks), len(c.Alerts), len(c.Commands)
	r.DeadLetters, r.Work, r.Ran, r.Recorded = len(c.DeadLetters), len(c.ledger.worked), len(c.ledger.ran), len(c.Recorded)
}

func (c *check) violation(i Invariant, run, node string, position uint64, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, Violation{i, run, node, position, fmt.Sprintf(format, args...)})
}

func (c *check) wrong(i Invariant, e *eventlog.Entry, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if e.Event != nil {
		text = fmt.Sprintf("%s seq %d epoch %d %s: %s", e.Event.Type(), e.Event.Seq, e.Event.Epoch, e.Event.ExecID, text)
	}
	c.report.Violations = append(c.report.Violations, Violation{i, e.RunID, e.NodeID, e.Pos, text})
}

// fold folds the events of a run up to a position into a state. What is refused is
// left out.
func (c *check) fold(s *wire.State, to uint64) {
	for _, e := range c.runs[s.RunID] {
		if e.Pos > to {
			break
		}
		_ = c.apply(s, *e) // folds says it
	}
}

// States folds every run of the log.
func States(ctx context.Context, log *eventlog.Log) (map[string]*wire.State, error) {
	h := &History{Incarnation: log.Incarnation()}
	states := map[string]*wire.State{}
	for e, err := range log.Read(ctx, eventlog.Query{Kinds: []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}}) {
		if err != nil {
			return nil, fmt.Errorf("oracle: %w", err)
		}
		if e.Err != nil {
			continue
		}
		if states[e.RunID] == nil {
			states[e.RunID] = run.New(e.RunID)
		}
		if err := h.blobs(ctx, log, e); err != nil {
			return nil, err
		}
		_ = h.apply(states[e.RunID], e) // what is refused is left out
	}
	return states, nil
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
