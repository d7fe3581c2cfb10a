package index

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// What is known counts what it holds, be it of runs that grow or of many, and holds no more than it may.
func TestKnownIsBounded(t *testing.T) {
	x := &Index{known: known{hasVersion: true}}
	nodes := map[string]*nodeRow{}
	commit := func(run string, nodes map[string]*nodeRow, changed ...*nodeRow) {
		w := &writer{x: x, order: []*runRow{{Run: table.Run{RunID: run}, nodes: nodes, order: changed}}}
		w.keepKnown()
		held, sum := 0, 0
		for _, r := range x.known.runs {
			sum += r.size
			for _, n := range r.nodes {
				held += nodeSize + len(n.Timeline) + len(n.Talk)
			}
		}
		if held != x.known.size || sum != x.known.size || held > maxKnownSize {
			t.Fatalf("%d bytes are held, %d are counted, in all %d", held, sum, x.known.size)
		}
	}
	for i := range 700 { // its nodes come one after the other
		n := &nodeRow{Node: table.Node{Talk: make([]byte, 100*i)}}
		nodes[fmt.Sprint(i)] = n
		commit("grows", nodes, n)
		if x.known.runs["grows"] == nil { // it had too many: its nodes are read anew
			clear(nodes)
		}
	}
	for i := range 700 {
		a, b := &nodeRow{}, &nodeRow{Node: table.Node{Timeline: make([]byte, 50_000)}}
		commit(fmt.Sprint("run", i), map[string]*nodeRow{"a": a, "b": b}, a, b)
		if x.known.runs[fmt.Sprint("run", i)] == nil {
			continue
		}
		a.Talk = make([]byte, 100)
		commit(fmt.Sprint("run", i), map[string]*nodeRow{"a": a, "b": b}, a)
	}
}
