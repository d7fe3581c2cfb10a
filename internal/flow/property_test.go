package flow_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// anyFlow draws a flow: nodes of every kind in a row, edges that lead on, some
// with conditions, gates and lists, and loops that lead back over them.
func anyFlow(t *rapid.T) map[string]any {
	n := rapid.IntRange(1, 7).Draw(t, "nodes")
	var nodes, edges []any
	gates := make([]string, n)
	for i := range n {
		nodes = append(nodes, anyNode(t, i))
		gates[i] = rapid.SampledFrom([]string{"all", "any"}).Draw(t, "gate")
	}
	when := rapid.SampledFrom([]any{nil, nil, "state.flag", "state.n > 1", map[string]any{"not": "state.flag"}, "$iteration < 1"})
	eachOf := map[int]bool{}
	for from := range n {
		for to := from + 1; to < n; to++ {
			if rapid.IntRange(0, 2).Draw(t, "edge") > 0 {
				continue
			}
			e := map[string]any{"from": id(from), "to": id(to), "gate": gates[to]}
			if w := when.Draw(t, "when"); w != nil {
				e["when"] = w
			}
			if !eachOf[to] && rapid.IntRange(0, 4).Draw(t, "forEach") == 0 {
				eachOf[to] = true
				e["forEach"] = map[string]any{"in": rapid.SampledFrom([]string{"state.list", "[]", "state.flag"}).Draw(t, "in"), "as": "item"}
			}
			edges = append(edges, e)
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "loops") {
		from := rapid.IntRange(0, n-1).Draw(t, "loop from")
		to := rapid.IntRange(0, from).Draw(t, "loop to")
		edges = append(edges, map[string]any{
			"id": fmt.Sprintf("loop%d", len(edges)), "from": id(from), "to": id(to),
			"maxIterations": rapid.IntRange(1, 2).Draw(t, "max"),
			"when":          rapid.SampledFrom([]string{"$iteration < $maxIterations", "state.flag", "state.n < 3", "true"}).Draw(t, "loop when"),
		})
	}
	return map[string]any{
		"name": "any", "nodes": nodes, "edges": edges,
		"state": map[string]any{"n": 0, "flag": rapid.Bool().Draw(t, "flag"), "list": []any{1, 2, 3}},
	}
}

func id(i int) string { return fmt.Sprintf("n%d", i) }

func anyNode(t *rapid.T, i int) map[string]any {
	n := map[string]any{"id": id(i)}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0, 1:
		n["type"] = "set"
		n["input"] = map[string]any{"set": map[string]any{
			"n": "{{ state.n + 1 }}", "flag": rapid.SampledFrom([]any{true, false, "{{ $not(state.flag) }}"}).Draw(t, "set"),
		}}
	case 2:
		n["type"], n["input"] = "ask", map[string]any{"prompt": "?", "choices": []any{"yes", "no"}}
	case 3:
		n["type"], n["input"] = "exec", map[string]any{"command": "true"}
	default:
		n["type"], n["input"] = "agent", map[string]any{"prompt": "{{ state.n }}"}
	}
	if rapid.IntRange(0, 3).Draw(t, "conditional") == 0 {
		n["when"] = rapid.SampledFrom([]string{"state.flag", "$not(state.flag)", "state.flag > 1"}).Draw(t, "node when")
	}
	policy := map[string]any{"continueOnError": rapid.Bool().Draw(t, "continue")}
	if rapid.Bool().Draw(t, "retry") {
		policy["retry"] = map[string]any{"maxAttempts": 2, "backoffMs": rapid.SampledFrom([]int{0, 100}).Draw(t, "backoff")}
	}
	if rapid.Bool().Draw(t, "timeout") {
		policy["timeoutMs"] = 5000
	}
	n["policy"] = policy
	return n
}

// Whatever the flow and whatever its workers do: decisions are legal (the fold
// refuses a node that is scheduled twice), a decision that is stored in part is
// continued as it was, nothing is left to decide after it, and every run ends.
func TestEveryRunEnds(t *testing.T) {
	ends := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		src, err := json.Marshal(anyFlow(t))
		if err != nil {
			t.Fatal(err)
		}
		d, err := flow.Parse("any.json", src)
		if err != nil {
			t.Skip(err) // such as a loop that closes none
		}
		dr := start(t, d, wire.RunRequest{})
		dr.settle()
		for steps := 0; dr.s.Status == wire.RunRunning; steps++ {
			if steps > 2000 {
				t.Fatalf("the run does not end: %s", src)
			}
			work(t, dr)
			dr.settle()
		}
		if dr.s.Error == "Execution stalled: no ready nodes" {
			t.Fatalf("stalled: %s", src)
		}
		for id, n := range dr.s.Nodes {
			if n.Open() {
				t.Fatalf("%s is open in a run that has ended", id)
			}
		}
		ends[string(dr.s.Result)]++
	})
	t.Logf("runs that ended: %v", ends)
	if ends["complete"] == 0 || ends["failed"] == 0 {
		t.Error("only one kind of end")
	}
}

// work lets something happen: a worker ends an execution, a person answers, or
// time passes.
func work(t *rapid.T, dr *driver) {
	var open, asked []string
	for id, n := range dr.s.Nodes {
		switch v := dr.d.Node(id); {
		case !n.Open() || v == nil || n.Count > 0 && n.Index == nil:
		case v.Type == flow.TypeAsk:
			asked = append(asked, n.PromptID)
		case v.Type == flow.TypeAgent || v.Type == flow.TypeExec:
			open = append(open, id)
		}
	}
	slices.Sort(open)
	slices.Sort(asked)
	if dr.wake != 0 && (len(open)+len(asked) == 0 || rapid.IntRange(0, 4).Draw(t, "time passes") == 0) {
		dr.do("wait")
		return
	}
	if len(asked) > 0 && (len(open) == 0 || rapid.Bool().Draw(t, "answer")) {
		answer := rapid.SampledFrom([]string{`"yes"`, `"no"`, `"maybe"`, `{"x":1}`}).Draw(t, "answer is")
		dr.do(fmt.Sprintf("reply %s %s", rapid.SampledFrom(asked).Draw(t, "prompt"), answer))
		return
	}
	if len(open) == 0 {
		t.Fatalf("nothing is open, and the run is %s", dr.s.Status)
	}
	node := rapid.SampledFrom(open).Draw(t, "worker")
	switch rapid.IntRange(0, 5).Draw(t, "does") {
	case 0:
		dr.do(node + " fails exit broken")
	case 1:
		dr.do(node + " starts")
	default:
		dr.do(node + ` completes {"ok":true}`)
	}
}
