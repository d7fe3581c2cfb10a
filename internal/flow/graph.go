package flow

import (
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/document"
)

// graph is a definition made ready for decisions.
type graph struct {
	order []*vertex // as in the definition
	byID  map[string]*vertex
	loops []*edge
}

// vertex is a node with its edges and expressions.
type vertex struct {
	*Node
	rank    int     // document.Place in the definition
	in, out []*edge // without loops
	back    []*edge // loops that this node closes
	entries []*edge // loops that lead here
	gate    Gate
	when    condition
	input   template
	goal    expression
	score   expression
	loop    *edge // the innermost loop that the node is in
}

// edge is an edge with its expressions.
type edge struct {
	Edge
	key     string
	from    *vertex
	to      *vertex
	when    condition
	items   template // forEach.in
	again   []string // of a loop: the nodes that a passage makes pending again
	edges   []string // of a loop: the edges
	within  []*edge  // of a loop: the loops within it, which begin anew
	circuit int      // of a loop: how many nodes are on a way round
}

// vertexOf returns the vertex of a node or of a forEach item.
func (g *graph) vertexOf(id string) *vertex {
	node, _, _ := strings.Cut(id, "/")
	return g.byID[node]
}

// buildGraph connects the nodes and compiles what they say. Problems of the parts
// have been told; what they make impossible here is left out.
func (r *flowReader) buildGraph(d *Definition, nodes, edges []*document.Value) graph {
	g := graph{byID: map[string]*vertex{}}
	for i := range d.Nodes {
		v := &vertex{Node: &d.Nodes[i], rank: i}
		g.order = append(g.order, v)
		if g.byID[v.ID] == nil && v.ID != "" {
			g.byID[v.ID] = v
		}
	}
	for _, e := range d.Edges {
		g.connectEdge(&edge{Edge: e, key: e.Key(), from: g.byID[e.From], to: g.byID[e.To]})
	}
	r.assignGates(&g, edges)
	acyclic := r.checkCycles(&g, edges)
	r.compileGraph(&g, d, nodes, edges)
	if acyclic {
		g.measureLoops()
	}
	return g
}

func (g *graph) connectEdge(e *edge) {
	if e.from == nil || e.to == nil {
		return
	}
	if e.MaxIterations > 0 {
		e.from.back = append(e.from.back, e)
		e.to.entries = append(e.to.entries, e)
		g.loops = append(g.loops, e)
		return
	}
	e.from.out = append(e.from.out, e)
	e.to.in = append(e.to.in, e)
}

// assignGates gives each node the gate that its edges name.
func (r *flowReader) assignGates(g *graph, edges []*document.Value) {
	for i, t := range edges {
		gate, _ := t.Get("gate").AsText()
		to, _ := t.Get("to").AsText()
		v := g.byID[to]
		if gate == "" || v == nil {
			continue
		}
		if v.gate != "" && string(v.gate) != gate {
			r.Add(t.Get("gate").At, fmt.Sprintf("edges[%d].gate", i), "another edge into %q has gate %s", to, v.gate)
			continue
		}
		v.gate = Gate(gate)
	}
}

// checkCycles refuses a cycle that nothing bounds and a loop that is none.
func (r *flowReader) checkCycles(g *graph, edges []*document.Value) bool {
	ok := true
	const unseen, open, done = 0, 1, 2
	state := map[*vertex]int{}
	var visit func(v *vertex)
	visit = func(v *vertex) {
		state[v] = open
		for _, e := range v.out {
			switch state[e.to] {
			case unseen:
				visit(e.to)
			case open:
				at, field := placeOfEdge(edges, e)
				r.Add(at, field, "%s closes a cycle; give the edge that goes back maxIterations", e.key)
				ok = false
			}
		}
		state[v] = done
	}
	for _, v := range g.order {
		if state[v] == unseen {
			visit(v)
		}
	}
	if !ok {
		return false
	}
	for _, e := range g.loops {
		if !reachableFrom(e.to)[e.from] {
			at, field := placeOfEdge(edges, e)
			r.Add(at, field+".maxIterations", "%s closes no loop: no way leads from %q to %q", e.key, e.To, e.From)
			ok = false
		}
	}
	return ok
}

func placeOfEdge(edges []*document.Value, e *edge) (document.Place, string) {
	for i, t := range edges {
		id, _ := t.Get("id").AsText()
		from, _ := t.Get("from").AsText()
		to, _ := t.Get("to").AsText()
		if id == e.ID && from == e.From && to == e.To {
			return t.At, fmt.Sprintf("edges[%d]", i)
		}
	}
	return document.Place{}, ""
}

// reachableFrom are the nodes that ways without loops lead to, v itself included.
func reachableFrom(v *vertex) map[*vertex]bool {
	seen := map[*vertex]bool{v: true}
	todo := []*vertex{v}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, e := range at.out {
			if !seen[e.to] {
				seen[e.to] = true
				todo = append(todo, e.to)
			}
		}
	}
	return seen
}

// measureLoops finds what a passage through each loop makes pending again: all
// that follows from its target. A loop is within another if it lies behind that
// one's target and not the other way round.
func (g *graph) measureLoops() {
	after := map[*edge]map[*vertex]bool{}
	for _, l := range g.loops {
		after[l] = reachableFrom(l.to)
		for _, v := range g.order {
			if !after[l][v] {
				continue
			}
			l.again = append(l.again, v.ID)
			for _, e := range slices.Concat(v.out, v.back) {
				l.edges = append(l.edges, e.key)
			}
			if reachableFrom(v)[l.from] {
				l.circuit++
			}
		}
	}
	for _, l := range g.loops {
		for _, inner := range g.loops {
			if inner != l && after[l][inner.to] && !after[inner][l.to] {
				l.within = append(l.within, inner)
			}
		}
		for _, v := range g.order {
			onTheWay := after[l][v] && reachableFrom(v)[l.from]
			if onTheWay && (v.loop == nil || l.circuit < v.loop.circuit) {
				v.loop = l
			}
		}
	}
}

// compileGraph compiles the expressions of nodes and edges.
func (r *flowReader) compileGraph(g *graph, d *Definition, nodes, edges []*document.Value) {
	ids := nodeIDs(nodes)
	common := names{nodes: ids, roots: append([]string{"outputs", "state", "input"}, ids...)}
	if r.File != rawFile { // a run that has begun goes on with what it was given
		common.shapes = nodeShapes(d)
	}
	for i, t := range nodes {
		v, path := g.order[i], fmt.Sprintf("nodes[%d]", i)
		r.checkInput(v.Node, t, path)
		known := common
		for _, e := range v.in {
			if e.ForEach != nil && e.ForEach.As != "" {
				known.roots = append(slices.Clone(known.roots), e.ForEach.As)
			}
		}
		v.when = conditionOf(r.Problems, t.Get("when"), path+".when", known)
		v.input = templateOf(r.Problems, r.bindableInput(v.Node, t), path+".input", known)
		if x := t.Get("goal"); !x.IsAbsent() {
			v.goal = expressionOf(r.Problems, x, path+".goal", known)
		}
		if x := t.Get("score"); !x.IsAbsent() {
			v.score = expressionOf(r.Problems, x, path+".score", known)
		}
	}
	for i, t := range edges {
		path := fmt.Sprintf("edges[%d]", i)
		when := conditionOf(r.Problems, t.Get("when"), path+".when", common)
		items := r.compileItems(t.Get("forEach").Get("in"), path+".forEach.in", common)
		for _, e := range g.edgesOf(d.Edges[i]) {
			e.when, e.items = when, items
		}
	}
}

func (g *graph) edgesOf(d Edge) []*edge {
	var out []*edge
	if v := g.byID[d.From]; v != nil {
		for _, e := range slices.Concat(v.out, v.back) {
			if e.key == d.Key() {
				out = append(out, e)
			}
		}
	}
	return out
}

// bindableInput is the input without what is no template: a child flow has bindings of
// its own.
func (r *flowReader) bindableInput(n *Node, t *document.Value) *document.Value {
	input := t.Get("input")
	if n.Type != TypeFlow || input == nil || input.Kind != document.Object {
		return input
	}
	out := *input
	out.Fields = slices.DeleteFunc(slices.Clone(input.Fields), func(f document.Field) bool { return f.Name == "flow" })
	return &out
}

// compileItems compiles the list of a forEach: an expression, with or without braces.
func (r *flowReader) compileItems(t *document.Value, path string, known names) template {
	if t.IsAbsent() {
		return template{}
	}
	x := expressionOf(r.Problems, t, path, known)
	return template{text: []templatePart{{expr: x}}, bound: true}
}
