//go:build linux

package sim_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// limited begins the ids of nodes that have a time limit.
const limited = "t"

// object is one of a flow file.
type object map[string]any

// randomFlow returns the definition of a flow, and an input for it. What it
// returns is valid: a flow that isn't is drawn again. Commands say that it may have some, bound that runs have folders of their own.
func randomFlow(rng *rand.Rand, commands, bound bool) (definition, input wire.Raw) {
	for {
		raw, err := wire.Marshal(drawFlow(rng, 0, commands, bound))
		if err != nil {
			continue
		}
		def, err := flow.FromRaw(raw)
		if err != nil {
			continue
		}
		items := make([]string, rng.IntN(5))
		for i := range items {
			items[i] = fmt.Sprintf("item %d", i)
		}
		input, err := wire.Marshal(object{"list": items, "who": hostile(rng)})
		if err == nil {
			return def.Raw(), input
		}
	}
}

// drawFlow draws nodes, edges that lead forwards, and some that lead back.
func drawFlow(rng *rand.Rand, depth int, commands, bound bool) object {
	salt := string(rune('a' + rng.IntN(5)))
	n := 1 + rng.IntN(5)
	if depth > 0 {
		n = 1 + rng.IntN(2)
	}
	nodes, ids, kinds := make([]object, n), make([]string, n), make([]string, n)
	for i := range n {
		nodes[i] = drawNode(rng, fmt.Sprintf("n%s%d", salt, i), depth, commands, bound)
		ids[i], kinds[i] = nodes[i]["id"].(string), nodes[i]["type"].(string)
	}
	var edges []object
	for i := 1; i < n; i++ {
		for _, from := range rng.Perm(i)[:min(i, rng.IntN(3))] {
			edges = append(edges, drawEdge(rng, ids[from], kinds[from], ids[i], kinds[i]))
		}
	}
	if n > 1 && rng.IntN(3) == 0 {
		to, from := rng.IntN(n-1), n-1
		edges = append(edges, object{
			"id": "back", "from": ids[from], "to": ids[to], "maxIterations": 1 + rng.IntN(3),
			"when": pick(rng, "$iteration < 2", "true", "state.flag"),
		})
	}
	folder := pick(rng, "shared", "shared", "node", "run")
	if bound {
		folder = "run"
	}
	f := object{"name": "flow" + salt, "nodes": nodes, "workspace": folder, "state": object{"flag": rng.IntN(2) == 0}}
	if len(edges) > 0 {
		f["edges"] = edges
	}
	return f
}

func drawNode(rng *rand.Rand, id string, depth int, commands, bound bool) object {
	k := rng.IntN(12)
	switch {
	case k == 0:
		n, flag := rng.IntN(5), rng.IntN(2) == 0
		if n > 2 {
			return object{"id": id, "type": "sleep", "input": object{"for": fmt.Sprintf("%ds", 20*(n-3))}}
		}
		return object{"id": id, "type": "set", "input": object{"set": object{"n": n, "flag": flag}}}
	case k == 1:
		return object{"id": id, "type": "ask", "input": object{"prompt": "Go on with " + id + "?"}}
	case k == 2 && depth < 2:
		return object{"id": id, "type": "flow", "input": object{"flow": drawFlow(rng, depth+1, commands, bound), "input": object{"list": []string{"x", "y"}}}}
	}
	policy := object{}
	if rng.IntN(3) == 0 {
		policy["retry"] = object{"maxAttempts": 2 + rng.IntN(2), "backoffMs": rng.IntN(5000)}
	}
	if rng.IntN(3) == 0 {
		id = limited + id
		policy["timeoutMs"] = 1000 + rng.IntN(30_000)
	}
	if rng.IntN(3) == 0 {
		policy["continueOnError"] = true
	}
	if rng.IntN(3) == 0 {
		policy["interrupted"] = pick(rng, "seal", "rollback", "rerun")
	}
	input := object{"prompt": "do " + id}
	if rng.IntN(3) == 0 {
		input["permissionMode"] = "default"
	}
	node := object{"id": id, "type": "agent", "input": input}
	if commands && (k == 3 || k == 4) {
		again := rng.IntN(4) == 0
		node = object{"id": id, "type": "exec", "input": object{"command": []string{commandName, strconv.FormatBool(again)}}, "idempotent": again}
	}
	if len(policy) > 0 {
		node["policy"] = policy
	}
	return node
}

func drawEdge(rng *rand.Rand, from, fromKind, to, toKind string) object {
	e := object{"from": from, "to": to}
	switch k := rng.IntN(6); {
	case k == 0 && fromKind == "agent":
		e["when"] = fmt.Sprintf("outputs.%s.text = %q", from, pick(rng, "left", "right"))
	case k == 1 && toKind == "agent":
		e["forEach"] = object{"in": "{{ input.list }}", "as": "it"}
	}
	return e
}
