package flow_test

import (
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

func TestJudge(t *testing.T) {
	d, err := flow.Parse("f.yaml", []byte(`
name: f
nodes:
  - {id: list, type: set, input: {set: {n: 1}}}
  - {id: goal, type: agent, input: {provider: claude, prompt: x}, goal: "goal.ok", score: "goal.share"}
  - {id: each, type: agent, input: {provider: claude, prompt: x}, goal: "each.n = item", score: "1 / item"}
  - {id: none, type: agent, input: {provider: claude, prompt: x}}
edges:
  - {from: list, to: each, forEach: {in: "[1, 2]", as: item}}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := run.New("r")
	s.EdgeStatus["list->each"] = wire.EdgeFired
	s.Nodes["each/1"] = wire.NodeState{Index: new(1), Count: 2, Item: raw(t, "2")}
	for _, test := range []struct {
		node, output string
		met          bool
		score        float64 // -1: none
		problem      string
	}{
		{"goal", `{"ok":true,"share":0.5}`, true, 0.5, ""},
		{"goal", `{"ok":false,"share":1}`, false, 1, ""},
		{"goal", `{"ok":true,"share":0}`, true, 0, ""},
		{"goal", `{}`, false, -1, "score: must be a number from 0 to 1"},
		{"goal", `{"ok":true,"share":1.1}`, true, -1, "score: must be a number from 0 to 1, not 1.1"},
		{"goal", `{"ok":true,"share":-0.1}`, true, -1, "not -0.1"},
		{"goal", `{"ok":true,"share":"1"}`, true, -1, "score: must be a number"},
		{"each/1", `{"n":2}`, true, 0.5, ""},
		{"each/1", `{"n":1}`, false, 0.5, ""},
		{"none", `{}`, true, -1, ""},
		{"nobody", `{}`, true, -1, ""},
	} {
		s.Outputs[test.node] = raw(t, test.output)
		v, err := d.Judge(s, test.node, 0)
		score := -1.0
		if v.Score != nil {
			score = *v.Score
		}
		if v.Met != test.met || score != test.score || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s %s: met %v, score %v, %v", test.node, test.output, v.Met, score, err)
		}
	}
}

// Audits are part of the definition that the log carries.
func TestAudits(t *testing.T) {
	d, err := flow.Parse("f.yaml", []byte(`
name: f
nodes:
  - id: a
    type: agent
    input: {provider: claude, prompt: x}
    audits: [{id: "audit:unit", command: make test}, {id: "audit:tree", command: git diff --quiet, run: true, timeoutMs: 5000}]
`))
	if err != nil {
		t.Fatal(err)
	}
	again, err := flow.FromRaw(d.Raw())
	if err != nil {
		t.Fatal(err)
	}
	want := []flow.Audit{{ID: "audit:unit", Command: "make test"}, {ID: "audit:tree", Command: "git diff --quiet", Run: true, TimeoutMs: 5000}}
	if got := again.Node("a").Audits; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	_, err = flow.Parse("f.yaml", []byte("name: f\nnodes: [{id: a, type: ask, input: {prompt: x}, audits: [{id: x, command: y}]}]\n"))
	if err == nil || !strings.Contains(err.Error(), "only agent and exec nodes have audits") {
		t.Errorf("audits of an ask node: %v", err)
	}
}
