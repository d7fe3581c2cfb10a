package bookmark_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// story writes the history of a run with one agent.
type story struct {
	t          testing.TB
	owner, own *eventlog.Writer // of the run and of its node a
}

func tell(t testing.TB, log *eventlog.Log, run string) *story {
	t.Helper()
	return &story{t: t, owner: logtest.Claim(t, log, run, wire.RunNode)}
}

func (s *story) decide(exec string, p wire.Payload) uint64 {
	s.t.Helper()
	return appendTo(s.t, s.owner, &wire.Event{ExecID: exec, Timestamp: 1, Payload: p})
}

func (s *story) act(call string, p wire.Payload) uint64 {
	s.t.Helper()
	return appendTo(s.t, s.own, &wire.Event{ExecID: "a#1", CallID: call, SessionID: "s1", Timestamp: 2, Payload: p})
}

func appendTo(t testing.TB, w *eventlog.Writer, e *wire.Event) uint64 {
	t.Helper()
	pos, err := w.Append(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

// begin brings the agent to work and returns the position of its prompt.
func (s *story) begin(log *eventlog.Log, run string) uint64 {
	s.t.Helper()
	s.schedule(log, run)
	return s.start()
}

func (s *story) schedule(log *eventlog.Log, run string) {
	s.t.Helper()
	s.decide("", &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.RawOf(map[string]any{"nodes": []any{map[string]any{"id": "a"}}})})
	s.decide("a#1", &wire.NodeScheduled{Target: "a", Attempt: 1})
	s.own = logtest.Claim(s.t, log, run, "a")
}

func (s *story) start() uint64 {
	s.t.Helper()
	s.act("", &wire.NodeStart{NodeType: "agent", Attempt: 1})
	return s.act("", &wire.AgentStart{Prompt: wire.RawString("do it")})
}

func (s *story) tool(call string) uint64 {
	s.t.Helper()
	s.act(call, &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, InputHash: "00"})
	return s.act(call, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Point: "m-" + call})
}

func code(err error) wire.ErrorCode {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok {
		return ""
	}
	return e.Code
}

// labels lists points but for those of nodes, which [TestPointsOfNodes] is about.
func labels(points []bookmark.Point) (out []string) {
	for _, p := range points {
		if p.Kind == bookmark.Node {
			continue
		}
		out = append(out, fmt.Sprintf("%s/%s@%d %s", p.Run, p.Label, p.Position, p.Note))
	}
	return out
}

func TestPoints(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	prompt := s.begin(log, "r1")
	one := s.act("", &wire.UserMessage{Content: "go on", Source: "command", Point: "m1"})
	two := s.tool("c1")
	label := s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
	three := s.tool("c2")
	s.act("c3", &wire.ToolIntent{ToolName: "Write", ToolInput: wire.Null, InputHash: "00"})

	want := []string{
		fmt.Sprintf("r1/sfp-1@%d do it", prompt), fmt.Sprintf("r1/sfp-2@%d go on", one), fmt.Sprintf("r1/sfp-3@%d Bash", two),
		fmt.Sprintf("r1/good@%d ", label), fmt.Sprintf("r1/sfp-4@%d Bash", three),
	}
	points, err := bookmark.List(t.Context(), log, "r1")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, labels(points)); d != "" {
		t.Error(d)
	}
	for at, pos := range map[string]uint64{"sfp-3": two, "good": label, fmt.Sprint(one): one, "": three + 1} {
		p, _, err := bookmark.Find(t.Context(), log, "r1", at)
		if err != nil || p.Position != pos {
			t.Errorf("%q is %+v, %v; want position %d", at, p, err, pos)
			continue
		}
		state, err := bookmark.State(t.Context(), log, p)
		if err != nil {
			t.Errorf("state at %q: %v", at, err)
		} else if state.Position.Seq != pos {
			t.Errorf("state at %q is of %d, not %d", at, state.Position.Seq, pos)
		}
	}
	for at, want := range map[string]wire.ErrorCode{"sfp-9": wire.CodeNotFound, "nothing": wire.CodeNotFound, "999999": wire.CodeNotFound} {
		if _, _, err := bookmark.Find(t.Context(), log, "r1", at); code(err) != want {
			t.Errorf("%q: %v", at, err)
		}
	}
	if _, _, err := bookmark.Find(t.Context(), log, "nobody", ""); code(err) != wire.CodeRunNotFound {
		t.Errorf("unknown run: %v", err)
	}

	// A fork inherits what lies before it, and so does its own fork.
	state, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "r1", Position: two})
	if err != nil {
		t.Fatal(err)
	}
	child := tell(t, log, "r2")
	fork := child.decide("", &wire.RunForked{ParentRun: "r1", ParentPos: two, Label: "sfp-3", State: wire.RawOf(state)})
	child.own = logtest.Claim(t, log, "r2", "a")
	child.decide("", &wire.FlowResumed{Strategy: "crash"})
	next := child.tool("c9")
	points, err = bookmark.List(t.Context(), log, "r2")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(append(want[:3:3], fmt.Sprintf("r2/sfp-4@%d Bash", next)), labels(points)); d != "" {
		t.Errorf("behind the fork at %d:\n%s", fork, d)
	}
	if p, _, err := bookmark.Find(t.Context(), log, "r2", "sfp-2"); err != nil || p.Run != "r1" || p.Position != one {
		t.Errorf("inherited point: %+v, %v", p, err)
	}

	// Where the parent of an imported fork was, isn't known: positions are those of another log.
	state.Imported = wire.ImportedCopy
	copied := tell(t, log, "r3")
	copied.decide("", &wire.RunForked{ParentRun: "r1", ParentPos: two, Label: "sfp-3", State: wire.RawOf(state)})
	copied.own = logtest.Claim(t, log, "r3", "a")
	next = copied.tool("c9")
	points, err = bookmark.List(t.Context(), log, "r3")
	if d := cmp.Diff([]string{fmt.Sprintf("r3/sfp-4@%d Bash", next)}, labels(points)); d != "" || err != nil {
		t.Errorf("of the copy, %v:\n%s", err, d)
	}
	if p, _, err := bookmark.Find(t.Context(), log, "r3", "sfp-2"); code(err) != wire.CodeNotFound {
		t.Errorf("of the copy: %+v, %v", p, err)
	}

	// A label that was moved is in one place.
	moved := s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
	if points, err = bookmark.List(t.Context(), log, "r1"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{want[0], want[1], want[2], want[4], fmt.Sprintf("r1/good@%d ", moved)}, labels(points)); d != "" {
		t.Errorf("moved:\n%s", d)
	}

	// Of a run that has ended, the last point at which something goes on.
	s.decide("", &wire.FlowAborted{Reason: "enough"})
	if p, _, err := bookmark.Find(t.Context(), log, "r1", ""); err != nil || p.Label != "sfp-4" {
		t.Errorf("of an ended run: %+v, %v", p, err)
	}
	_, last, err := log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "r1", Position: last}); code(err) != wire.CodeNotResumable {
		t.Errorf("behind the end: %v", err)
	}

	// It can be given labels, also the name that the point has anyway.
	s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "later", AtPos: one})
	s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "sfp-3", AtPos: two})
	if points, err = bookmark.List(t.Context(), log, "r1"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{want[0], want[1], fmt.Sprintf("r1/later@%d ", one), want[2], want[4], fmt.Sprintf("r1/good@%d ", moved)}, labels(points)); d != "" {
		t.Errorf("labelled later:\n%s", d)
	}
	if _, state, err := bookmark.Find(t.Context(), log, "r1", "later"); err != nil || state.Position.Seq != one {
		t.Errorf("labelled later: %+v, %v", state, err)
	}
}

// A labelled point that was kept outlives its events (RULES 20).
func TestKept(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	s.begin(log, "r1")
	pos := s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
	p, _, err := bookmark.Find(t.Context(), log, "r1", "good")
	if err != nil {
		t.Fatal(err)
	}
	state, err := bookmark.State(t.Context(), log, p)
	if err != nil {
		t.Fatal(err)
	}
	store, err := snapshot.Open(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	state.RunID = "gone" // a run of which the log has nothing
	for range 2 {
		if err := store.Keep(t.Context(), "good", state.Position.Seq, state); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "gone", Label: "good", Position: pos})
	if err != nil || kept.Position.Seq != pos || kept.FlowName != "f" {
		t.Errorf("kept state %+v, %v", kept, err)
	}
	if _, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "gone", Label: "other", Position: pos}); code(err) != wire.CodeNotFound {
		t.Errorf("a point that was not kept: %v", err)
	}
	// A large state is an object, which no snapshot's end takes away.
	state.State = wire.RawOf(map[string]any{"text": string(make([]byte, 2<<20))})
	if err := store.Keep(t.Context(), "large", state.Position.Seq, state); err != nil {
		t.Fatal(err)
	}
	if kept, err := snapshot.Kept(t.Context(), log, "gone", "large"); err != nil || len(kept.State) != len(state.State) {
		t.Errorf("a large state: %v", err)
	}
}

// A state that was kept of another incarnation of the log counts for nothing where
// this one has the point, and gives way to this one's (RULES 15, 20).
func TestKeptOfAnotherLog(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	s.begin(log, "r1")
	pos := s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
	p := bookmark.Point{Run: "r1", Label: "good", Position: pos}
	own, err := bookmark.State(t.Context(), log, p)
	if err != nil {
		t.Fatal(err)
	}
	store, err := snapshot.Open(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	other := run.Clone(own)
	other.Position.Incarnation, other.FlowName = "another", "other"
	if err := store.Keep(t.Context(), "good", other.Position.Seq, other); err != nil {
		t.Fatal(err)
	}
	if got, err := bookmark.State(t.Context(), log, p); err != nil || got.FlowName != "f" {
		t.Errorf("the state is that of flow %+v, %v", got, err)
	}
	if err := store.Keep(t.Context(), "good", own.Position.Seq, own); err != nil {
		t.Fatal(err)
	}
	if got, err := snapshot.Kept(t.Context(), log, "r1", "good"); err != nil || got.FlowName != "f" {
		t.Errorf("kept is that of flow %+v, %v", got, err)
	}
}

// What a fenced writer says is no point, and a run isn't its own ancestor.
func TestForeign(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	one := s.begin(log, "r1")
	state, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "r1", Position: one})
	if err != nil {
		t.Fatal(err)
	}
	logtest.Claim(t, log, "r1", wire.RunNode)
	void := &wire.Event{
		RunID: "r1", NodeID: wire.RunNode, Seq: 1000, Epoch: state.Nodes[wire.RunNode].Epoch,
		Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "void"},
	}
	data, err := wire.Encode(void)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", wire.RunNode, string(void.Type().Kind())), data); err != nil {
		t.Fatal(err)
	}
	points, err := bookmark.List(t.Context(), log, "r1")
	if d := cmp.Diff([]string{fmt.Sprintf("r1/sfp-1@%d do it", one)}, labels(points)); d != "" || err != nil {
		t.Error(d, err)
	}

	own := tell(t, log, "r2")
	own.decide("", &wire.RunForked{ParentRun: "r2", ParentPos: 1 << 40, State: wire.RawOf(state)})
	if points, err := bookmark.List(t.Context(), log, "r2"); err != nil || len(points) > 0 {
		t.Errorf("its own ancestor: %v, %v", labels(points), err)
	}
}

// Labels come first: those of digits, those that are named like an automatic point,
// and those whose events the log has lost. A position before the fork is an
// ancestor's (RULES 20).
func TestNames(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	one := s.begin(log, "r1")
	s.tool("c1")
	at := map[string]uint64{}
	for _, l := range []string{"5", "sfp-2"} {
		at[l] = s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: l})
	}
	for l, pos := range at {
		p, state, err := bookmark.Find(t.Context(), log, "r1", l)
		if err != nil || p.Position != pos || state.Position.Seq != pos || p.Time != 1 {
			t.Errorf("%s is %+v, %v; want position %d", l, p, err, pos)
		}
	}
	for _, bad := range []string{"0", "sfp-0", "sfp-3", "sfp-", "sfp-x", "-1", "99999999999999999999"} {
		if p, _, err := bookmark.Find(t.Context(), log, "r1", bad); code(err) != wire.CodeNotFound {
			t.Errorf("%q is %+v, %v", bad, p, err)
		}
	}

	state, err := bookmark.State(t.Context(), log, bookmark.Point{Run: "r1", Position: at["sfp-2"]})
	if err != nil {
		t.Fatal(err)
	}
	state.Bookmarks = append(state.Bookmarks, wire.Bookmark{Label: "lost", Kind: wire.CheckpointLabelled, Position: 1})
	child := tell(t, log, "r2")
	child.decide("", &wire.RunForked{ParentRun: "r1", ParentPos: at["sfp-2"], State: wire.RawOf(state)})
	p, found, err := bookmark.Find(t.Context(), log, "r2", fmt.Sprint(one))
	if err != nil || p.Run != "r1" || p.Position != one || found.RunID != "r1" {
		t.Errorf("a position before the fork is %+v, %v", p, err)
	}
	points, err := bookmark.List(t.Context(), log, "r2")
	want := []string{"r1/lost@1 ", fmt.Sprintf("r1/sfp-1@%d do it", one), fmt.Sprintf("r1/5@%d ", at["5"]), fmt.Sprintf("r1/sfp-2@%d ", at["sfp-2"])}
	if d := cmp.Diff(want, labels(points)); d != "" || err != nil {
		t.Error(d, err)
	}
	if _, err := bookmark.List(t.Context(), log, "nobody"); code(err) != wire.CodeRunNotFound {
		t.Errorf("points of no run: %v", err)
	}
}

// An agent that goes on a little after the run was aborted makes no point to fork
// at.
func TestAfterTheEnd(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	s.schedule(log, "r1")
	s.decide("", &wire.FlowAborted{Reason: "enough"})
	late := s.start()
	if p, state, err := bookmark.Find(t.Context(), log, "r1", ""); err != nil || p.Label != "a#1:start" || state.Status != wire.RunRunning {
		t.Errorf("the last point before the end is %+v, %v", p, err)
	}
	for _, at := range []string{"sfp-1", fmt.Sprint(late)} {
		if _, _, err := bookmark.Find(t.Context(), log, "r1", at); code(err) != wire.CodeNotResumable {
			t.Errorf("%s: %v", at, err)
		}
	}

	s = tell(t, log, "r2")
	s.begin(log, "r2")
	one := s.tool("c1")
	s.decide("", &wire.FlowAborted{Reason: "enough"})
	s.tool("c2")
	p, state, err := bookmark.Find(t.Context(), log, "r2", "")
	if err != nil || p.Position != one || state.Status != wire.RunRunning {
		t.Errorf("the last point before the end is %+v, %v", p, err)
	}
}

// The start and the end of each node are points: of an agent the end is behind its last word, where
// its execution is open. Late ones of an execution that was withdrawn are none, and a run of
// commands that has ended is forked where the last one began.
func TestPointsOfNodes(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	s := tell(t, log, "r1")
	s.begin(log, "r1")
	word := s.act("", &wire.AgentComplete{Result: "done"})
	over := s.act("", &wire.NodeComplete{Output: wire.Null})
	on := func(exec, node string, p wire.Payload) uint64 {
		w := logtest.Claim(t, log, "r1", node)
		return appendTo(t, w, &wire.Event{ExecID: exec, Timestamp: 3, Payload: p})
	}
	begun := s.decide("b#1", &wire.NodeScheduled{Target: "b", Attempt: 1})
	on("b#1", "b", &wire.NodeStart{NodeType: "exec", Attempt: 1})
	failed := on("b#1", "b", &wire.NodeError{Error: "exit code 1", ErrorType: wire.ErrorException})
	again := s.decide("b#2", &wire.NodeScheduled{Target: "b", Attempt: 2})
	on("b#2", "b", &wire.NodeStart{NodeType: "exec", Attempt: 2})
	late := on("b#1", "b", &wire.NodeComplete{Output: wire.Null})
	s.decide("set#1", &wire.NodeScheduled{Target: "set", Attempt: 1, Error: "no such value"})
	s.decide("", &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusFailed})

	points, err := bookmark.List(t.Context(), log, "r1")
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]uint64{}
	for _, p := range points {
		if p.Kind == bookmark.Node {
			at[p.Label] = p.Position
		}
	}
	first := points[0].Position
	if d := cmp.Diff(map[string]uint64{"a#1:start": first, "a#1:end": word, "b#1:start": begun, "b#1:end": failed, "b#2:start": again}, at); d != "" {
		t.Errorf("late is %d:\n%s", late, d)
	}
	for label, pos := range at {
		if p, state, err := bookmark.Find(t.Context(), log, "r1", label); err != nil || p.Position != pos || state.Position.Seq != pos || state.Status != wire.RunRunning {
			t.Errorf("%s is %+v, %v", label, p, err)
		}
	}
	for message, want := range map[string]uint64{"": over, "once more": word} {
		p, state, err := bookmark.FindFork(t.Context(), log, "r1", "a#1:end", message)
		if err != nil || p.Position != want || state.Position.Seq != want || p.Label != "a#1:end" || state.Nodes["a"].Open() != (message != "") {
			t.Errorf("a fork with the message %q begins at %+v, %v, want %d", message, p, err, want)
		}
	}
	for label, told := range map[string]string{"b#1:start": "", "b#1:end": "", "b#2:start": "somebody"} {
		if p, _, err := bookmark.FindFork(t.Context(), log, "r1", label, told); told == "" && err != nil || told != "" && code(err) != wire.CodeBadRequest {
			t.Errorf("a fork at %s whose message %q nobody would read begins at %+v, %v", label, told, p, err)
		}
	}
	for _, label := range []string{"b#3:start", "set#1:start", ":end", "b#2:end"} {
		if p, _, err := bookmark.Find(t.Context(), log, "r1", label); code(err) != wire.CodeNotFound {
			t.Errorf("%s is %+v, %v", label, p, err)
		}
	}

	s = tell(t, log, "r2")
	s.schedule(log, "r2")
	s.act("", &wire.NodeStart{NodeType: "exec", Attempt: 1})
	s.act("", &wire.NodeError{Error: "exit code 1", ErrorType: wire.ErrorException})
	s.decide("", &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusFailed})
	if p, _, err := bookmark.Find(t.Context(), log, "r2", ""); err != nil || p.Label != "a#1:start" {
		t.Errorf("of a failed command: %+v, %v", p, err)
	}
}

// A fork of metadata: finding a point of a run of 2 000 events, and the state
// there.
func BenchmarkFork(b *testing.B) {
	log := logtest.Start(b)
	s := tell(b, log, "r1")
	s.begin(log, "r1")
	for i := range 1000 {
		s.tool(fmt.Sprint("c", i))
		if i == 980 {
			s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
		}
	}
	state := run.New("r1")
	if err := snapshot.Fold(b.Context(), log, state, 0); err != nil {
		b.Fatal(err)
	}
	store, err := snapshot.Open(b.Context(), log)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := store.Save(b.Context(), state, snapshot.Stored{}); err != nil {
		b.Fatal(err)
	}
	for _, at := range []string{"", "good", "sfp-500", "sfp-990"} {
		b.Run("at="+at, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := bookmark.Find(b.Context(), log, "r1", at); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
