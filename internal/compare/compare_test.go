package compare_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/compare"
	"code.wake.dev/wake/pkg/wire"
)

func state(id string, lineage ...wire.Ancestor) *wire.State {
	return &wire.State{RunID: id, Status: wire.RunComplete, Result: wire.FlowStatusComplete, Lineage: lineage}
}

func TestAncestry(t *testing.T) {
	const end = compare.Present
	from := func(run string, pos uint64, label string) wire.Ancestor {
		return wire.Ancestor{RunID: run, Position: pos, Label: label}
	}
	parent, other := state("p"), state("x")
	parent.Position.Seq = 70
	child := state("c", from("p", 40, "sfp-2"))
	sibling := state("s", from("p", 60, "good"))
	grand := state("g", from("c", 90, ""), from("p", 40, "sfp-2"))
	for name, tt := range map[string]struct {
		a, b   *wire.State
		common *wire.DiffCommon
		ofA    []compare.Span
		ofB    []compare.Span
	}{
		"strangers":     {parent, other, nil, []compare.Span{{"p", 0, end}}, []compare.Span{{"x", 0, end}}},
		"fork":          {parent, child, &wire.DiffCommon{RunID: "p", Position: 40, Label: "sfp-2"}, []compare.Span{{"p", 40, end}}, []compare.Span{{"c", 0, end}}},
		"fork first":    {child, parent, &wire.DiffCommon{RunID: "p", Position: 40, Label: "sfp-2"}, []compare.Span{{"c", 0, end}}, []compare.Span{{"p", 40, end}}},
		"two forks":     {child, sibling, &wire.DiffCommon{RunID: "p", Position: 40, Label: "sfp-2"}, []compare.Span{{"c", 0, end}}, []compare.Span{{"p", 40, 60}, {"s", 0, end}}},
		"grandchild":    {parent, grand, &wire.DiffCommon{RunID: "p", Position: 40, Label: "sfp-2"}, []compare.Span{{"p", 40, end}}, []compare.Span{{"c", 0, 90}, {"g", 0, end}}},
		"nearest":       {child, grand, &wire.DiffCommon{RunID: "c", Position: 90}, []compare.Span{{"c", 90, end}}, []compare.Span{{"g", 0, end}}},
		"with itself":   {parent, parent, &wire.DiffCommon{RunID: "p", Position: 70}, nil, nil},
		"second cousin": {sibling, grand, &wire.DiffCommon{RunID: "p", Position: 40, Label: "sfp-2"}, []compare.Span{{"p", 40, 60}, {"s", 0, end}}, []compare.Span{{"c", 0, 90}, {"g", 0, end}}},
	} {
		common, ofA, ofB := compare.Ancestry(tt.a, tt.b)
		if diff := cmp.Diff([]any{tt.common, tt.ofA, tt.ofB}, []any{common, ofA, ofB}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSpend adds up what a side used in two spans: in each the difference of all figures that are the run's own.
func TestSpend(t *testing.T) {
	totals := func(from int64) (u wire.UsageTotals) {
		v := reflect.ValueOf(&u).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.CanInt() {
				f.SetInt(from * int64(i+1))
			} else {
				f.SetFloat(float64(from * int64(i+1)))
			}
		}
		return u
	}
	var s compare.Side
	s.Spend(&wire.State{Usage: totals(2)}, &wire.State{Usage: totals(5)})
	s.Spend(nil, &wire.State{Usage: totals(4)})
	want := totals(3 + 4)
	want.ChildCostUsd, want.ChildTokens = 0, 0 // these runs' own
	if diff := cmp.Diff(want, s.Usage); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// script is the events of one run.
type script struct {
	t     *testing.T
	steps []compare.Step
	pos   uint64
}

func (s *script) add(node string, p wire.Payload) {
	s.t.Helper()
	s.pos++
	e := &wire.Event{RunID: "r", NodeID: node, ExecID: node + "#1", Timestamp: int64(s.pos) * 1000, Payload: p}
	if step, ok := compare.StepOf(s.pos, e); ok {
		s.steps = append(s.steps, step)
	}
}

func (s *script) tool(node, tool, command, output, problem string) {
	s.add(node, &wire.AgentTool{ToolName: tool, ToolInput: wire.RawOf(map[string]any{"command": command}), ToolOutput: wire.RawOf(output), Error: problem})
}

func (s *script) begin() {
	s.add("coder", &wire.NodeStart{NodeType: "agent", Attempt: 1})
	s.add("coder", &wire.AgentStart{Prompt: wire.RawOf("Do it.")})
	s.add("coder", &wire.AgentText{Content: "I begin."})
	s.tool("coder", "Bash", "ls", "a.go", "")
}

func TestRuns(t *testing.T) {
	a, b := script{t: t}, script{t: t, pos: 1000}
	a.begin()
	a.tool("coder", "Bash", "make test", "FAIL", "exit code 1")
	a.tool("coder", "Bash", "make test", "FAIL", "exit code 1")
	a.add("coder", &wire.NodeError{Error: "gave up", ErrorType: "error_user"})
	b.add("review", &wire.NodeStart{NodeType: "agent", Attempt: 1})
	b.begin()
	b.add("coder", &wire.AgentText{Content: "Other words."})
	b.tool("coder", "Edit", "a.go", "ok", "")
	b.tool("coder", "Bash", "make test", "ok", "")
	b.add("coder", &wire.NodeComplete{Output: wire.RawOf("done")})

	stateA, stateB := state("ra"), state("rb")
	stateA.Result, stateA.Error = wire.FlowStatusFailed, "gave up"
	stateA.NodeStatus = map[string]wire.NodeStatus{"coder": wire.NodeFailed, "same": wire.NodeDone}
	stateB.NodeStatus = map[string]wire.NodeStatus{"coder": wire.NodeDone, "same": wire.NodeDone, "review": wire.NodeRunning}
	stateA.Nodes = map[string]wire.NodeState{"coder": {Execs: 1, CostUsd: 0.5, Reason: "x"}, "same": {Execs: 1, CostUsd: 1}}
	stateB.Nodes = map[string]wire.NodeState{"coder": {Execs: 1, CostUsd: 0.2}, "same": {Execs: 1}, "review": {Execs: 1}}
	stateB.Outputs = map[string]wire.Raw{"coder": wire.RawOf("done")}
	stateA.State = wire.RawOf(map[string]any{"n": 1, "deep": map[string]any{"x": 1, "y": 2}, "gone": true})
	stateB.State = wire.RawOf(map[string]any{"n": 1, "deep": map[string]any{"x": 1, "y": 3}})
	stateA.Usage, stateB.Usage = wire.UsageTotals{CostUsd: 1.5, ToolCalls: 5, OutputTokens: 70}, wire.UsageTotals{CostUsd: 0.2, ToolCalls: 3, OutputTokens: 30}
	before := &wire.State{Usage: wire.UsageTotals{CostUsd: 1, ToolCalls: 2, OutputTokens: 20}, Nodes: map[string]wire.NodeState{"same": {CostUsd: 1}}}

	sideA := compare.Side{State: stateA, Steps: a.steps}
	sideA.Spend(before, stateA)
	sideB := compare.Side{State: stateB, Steps: b.steps}
	sideB.Spend(nil, stateB)
	got := compare.Runs(sideA, sideB, nil)

	usageA := wire.UsageTotals{CostUsd: 0.5, ToolCalls: 3, OutputTokens: 50}
	partedA, partedB := a.steps[3], b.steps[4]
	if partedA.Text != "make test" || partedA.Name != "Bash" || !partedA.Failed || partedA.Pos != 5 || partedB.Name != "Edit" || partedB.Pos != 1007 {
		t.Fatalf("steps %+v, %+v", partedA, partedB)
	}
	parted := &wire.DiffParting{Node: "coder", A: &partedA.DiffStep, B: &partedB.DiffStep}
	want := wire.DiffResponse{
		A:      wire.DiffRun{RunID: "ra", Status: wire.RunComplete, Result: wire.FlowStatusFailed, Error: "gave up", Steps: 6, Usage: usageA},
		B:      wire.DiffRun{RunID: "rb", Status: wire.RunComplete, Result: wire.FlowStatusComplete, Steps: 7, Usage: stateB.Usage},
		Parted: &wire.DiffParting{Node: "review", B: &b.steps[0].DiffStep},
		State: []wire.DiffValue{
			{Name: "deep.y", DiffPair: wire.DiffPair{A: wire.RawOf(2), B: wire.RawOf(3)}},
			{Name: "gone", DiffPair: wire.DiffPair{A: wire.RawOf(true)}},
		},
		Nodes: []wire.DiffNode{
			{
				Node: "coder", Parted: parted, Output: true,
				A: wire.DiffNodeRun{Status: wire.NodeFailed, Reason: "x", Execs: 1, Steps: 6, Tools: 3, ToolErrors: 2, CostUsd: 0.5},
				B: wire.DiffNodeRun{Status: wire.NodeDone, Execs: 1, Steps: 6, Tools: 3, CostUsd: 0.2},
			},
			{Node: "review", Parted: &wire.DiffParting{Node: "review", B: &b.steps[0].DiffStep}, B: wire.DiffNodeRun{Status: wire.NodeRunning, Execs: 1, Steps: 1}},
		},
		Outputs: []wire.DiffValue{{Name: "coder", DiffPair: wire.DiffPair{B: wire.RawOf("done")}}},
		Tools: []wire.DiffTool{
			{Node: "coder", Tool: "Bash", Input: "make test", A: 2, B: 1},
			{Node: "coder", Tool: "Edit", Input: "a.go", B: 1},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := wire.Marshal(got); err != nil {
		t.Error(err)
	}
}

// What is said in other words at another time, in another order of the nodes, is
// the same.
func TestSame(t *testing.T) {
	a, b := script{t: t}, script{t: t, pos: 77}
	a.begin()
	a.add("other", &wire.NodeStart{NodeType: "exec", Attempt: 1})
	b.add("other", &wire.NodeStart{NodeType: "exec", Attempt: 1})
	b.add("coder", &wire.AgentThinking{Content: "Hm."})
	b.begin()
	stateB := state("b")
	stateB.State, stateB.Input = wire.Null, wire.Null
	if d := compare.Runs(compare.Side{State: state("a"), Steps: a.steps}, compare.Side{State: stateB, Steps: b.steps}, nil); !d.Same || d.Parted != nil || len(d.Nodes) > 0 {
		t.Errorf("got %+v", d)
	}
	b.tool("coder", "Bash", "ls", "another result", "")
	a.tool("coder", "Bash", "ls", "a result", "")
	d := compare.Runs(compare.Side{State: state("a"), Steps: a.steps}, compare.Side{State: stateB, Steps: b.steps}, nil)
	if d.Same || d.Parted == nil || d.Parted.A.Text != "ls" || len(d.Tools) > 0 {
		t.Errorf("another result of the same call: %+v", d)
	}
}

// Every kind of step differs from itself with another content.
func TestSteps(t *testing.T) {
	pairs := map[string][2]wire.Payload{
		"prompt":   {&wire.AgentStart{Prompt: wire.RawOf("a")}, &wire.AgentStart{Prompt: wire.RawOf("b")}},
		"message":  {&wire.UserMessage{Content: "a"}, &wire.UserMessage{Content: "b"}},
		"answer":   {&wire.InputReceived{Content: wire.RawOf(1)}, &wire.InputReceived{Content: wire.RawOf(2)}},
		"command":  {&wire.ExecStart{Command: "a"}, &wire.ExecStart{Command: "b"}},
		"exit":     {&wire.ExecExit{ExitCode: 0}, &wire.ExecExit{ExitCode: 1}},
		"output":   {&wire.NodeComplete{Output: wire.RawOf(1)}, &wire.NodeComplete{Output: wire.RawOf(2)}},
		"error":    {&wire.NodeError{Error: "a"}, &wire.NodeError{Error: "b"}},
		"skipped":  {&wire.NodeSkipped{Reason: "edge"}, &wire.NodeSkipped{Reason: "when"}},
		"edge":     {&wire.EdgeFire{EdgeID: "e", From: "a", To: "b"}, &wire.EdgeSkip{EdgeID: "e", From: "a", To: "b"}},
		"loop":     {&wire.LoopIterate{EdgeID: "e", Iteration: 1}, &wire.LoopIterate{EdgeID: "e", Iteration: 2}},
		"patch":    {&wire.StatePatch{Patch: wire.Patch{Path: "a", Value: wire.RawOf(1)}}, &wire.StatePatch{Patch: wire.Patch{Path: "a", Value: wire.RawOf(2)}}},
		"end":      {&wire.FlowComplete{Status: wire.FlowStatusComplete}, &wire.FlowComplete{Status: wire.FlowStatusFailed}},
		"aborted":  {&wire.FlowAborted{Reason: "a"}, &wire.FlowAborted{Reason: "b"}},
		"denied":   {&wire.AgentTool{ToolName: "x"}, &wire.AgentTool{ToolName: "x", Denied: true}},
		"attempts": {&wire.NodeStart{Attempt: 1}, &wire.NodeStart{Attempt: 2}},
	}
	for name, pair := range pairs {
		a, b, again := script{t: t}, script{t: t}, script{t: t}
		a.add("n", pair[0])
		b.add("n", pair[1])
		again.add("n", pair[0])
		differ := func(x, y script) bool {
			return compare.Runs(compare.Side{State: state("a"), Steps: x.steps}, compare.Side{State: state("b"), Steps: y.steps}, nil).Parted != nil
		}
		if len(a.steps) != 1 || !differ(a, b) || differ(a, again) {
			t.Errorf("%s: %d steps, differ %t, differs from itself %t", name, len(a.steps), differ(a, b), differ(a, again))
		}
	}
	agent := func(session, text string, ms int) map[string]any {
		return map[string]any{
			"text": text, "sessionId": session, "durationMs": ms, "numTurns": ms, "totalCostUsd": 0.1 * float64(ms),
			"usage": map[string]any{"inputTokens": ms}, "modelUsage": map[string]any{"opus": map[string]any{"inputTokens": ms}},
		}
	}
	command := func(out string, ms int) map[string]any {
		return map[string]any{"exitCode": 0, "stdout": out, "durationMs": ms}
	}
	child := func(run string, v any) map[string]any {
		return map[string]any{"runId": run, "status": "complete", "outputs": map[string]any{"x": v}}
	}
	list := func(v any) map[string]any {
		return map[string]any{"text": "", "durationMs": 1, "numTurns": 1, "iterations": []any{v}}
	}
	for name, tt := range map[string]struct {
		a, b any
		same bool
	}{
		"how long a command took":              {command("x", 70), command("x", 7), true},
		"what a command wrote":                 {command("x", 7), command("y", 7), false},
		"session, time and cost of an agent":   {agent("s1", "done", 70), agent("s2", "done", 7), true},
		"what an agent came to":                {agent("s1", "done", 7), agent("s1", "not done", 7), false},
		"the id of a child, and its agent's":   {child("r1", agent("s1", "done", 7)), child("r2", agent("s2", "done", 70)), true},
		"what a child came to":                 {child("r1", agent("s1", "done", 7)), child("r1", agent("s1", "no", 7)), false},
		"sessions of iterations":               {list(agent("s1", "done", 7)), list(agent("s2", "done", 70)), true},
		"what an iteration came to":            {list(agent("s1", "done", 7)), list(agent("s1", "no", 7)), false},
		"a session id that a command has told": {map[string]any{"sessionId": "a"}, map[string]any{"sessionId": "b"}, false},
	} {
		one, two := script{t: t}, script{t: t}
		one.add("n", &wire.NodeComplete{Output: wire.RawOf(tt.a)})
		two.add("n", &wire.NodeComplete{Output: wire.RawOf(tt.b)})
		ofOne, ofTwo := state("a"), state("b")
		ofOne.Outputs, ofTwo.Outputs = map[string]wire.Raw{"n": wire.RawOf(tt.a)}, map[string]wire.Raw{"n": wire.RawOf(tt.b)}
		ofOne.NodeStatus, ofTwo.NodeStatus = map[string]wire.NodeStatus{"n": wire.NodeDone}, map[string]wire.NodeStatus{"n": wire.NodeDone}
		d := compare.Runs(compare.Side{State: ofOne, Steps: one.steps}, compare.Side{State: ofTwo, Steps: two.steps}, nil)
		if d.Same != tt.same || (len(d.Outputs) == 0) != tt.same {
			t.Errorf("%s: same %t, %d outputs, %+v", name, d.Same, len(d.Outputs), d.Parted)
		}
	}
	nothing := script{t: t}
	nothing.add("n", &wire.AgentText{Content: "words"})
	nothing.add("n", &wire.FlowPaused{Reason: "operator"})
	if len(nothing.steps) > 0 {
		t.Errorf("steps %+v", nothing.steps)
	}
}

// Steps stand side by side: what both asked for in one row, each run's in its order, each once.
func TestAlign(t *testing.T) {
	a, b := script{t: t}, script{t: t, pos: 1000}
	say := func(s *script, text string) {
		s.pos++
		step := compare.SayingOf(s.pos, &wire.Event{NodeID: "coder"})
		step.SetText(text)
		s.steps = append(s.steps, step)
	}
	a.begin()
	say(&a, "I test.")
	a.tool("coder", "Bash", "make test", "FAIL", "exit code 1")
	a.tool("coder", "Read", "x.go", "package x", "")
	b.begin()
	say(&b, "I build first.")
	b.tool("coder", "Bash", "make", "ok", "")
	b.tool("coder", "Bash", "make test", "ok", "")
	b.tool("plan", "Read", "x.go", "package x", "")
	var got []string
	for _, r := range compare.Align(a.steps, b.steps) {
		text := func(s *compare.Step) string {
			if s == nil {
				return "-"
			}
			return s.Node + " " + s.What + " " + s.Text
		}
		line := text(r.A) + " | " + text(r.B)
		if r.Same {
			line += " same"
		}
		got = append(got, line)
	}
	want := []string{
		"coder node coder started (agent) | coder node coder started (agent) same",
		"coder told [prompt] Do it. | coder told [prompt] Do it. same",
		"coder tool ls | coder tool ls same",
		"coder said I test. | coder said I build first.",
		"- | coder tool make",
		"coder tool make test | coder tool make test",
		"coder tool x.go | -",
		"- | plan tool x.go",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// No step is lost or doubled, and each run's stay in their order, whatever both did.
func TestAlignKeepsAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string) (steps []compare.Step) {
			s := script{t: t}
			for _, c := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 12).Draw(rt, name) {
				s.tool("n"+c, "Bash", c, "", "")
			}
			return s.steps
		}
		a, b := draw("a"), draw("b")
		var gotA, gotB []uint64
		for _, r := range compare.Align(a, b) {
			if r.A != nil {
				gotA = append(gotA, r.A.Pos)
			}
			if r.B != nil {
				gotB = append(gotB, r.B.Pos)
			}
		}
		of := func(steps []compare.Step) (all []uint64) {
			for _, s := range steps {
				all = append(all, s.Pos)
			}
			return all
		}
		if diff := cmp.Diff([][]uint64{of(a), of(b)}, [][]uint64{gotA, gotB}); diff != "" {
			rt.Error(diff)
		}
		for i, r := range compare.Align(a, a) {
			if r.A != &a[i] || r.B != &a[i] || !r.Same {
				rt.Error("a run isn't like itself")
			}
		}
	})
}
