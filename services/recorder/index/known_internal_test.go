package index

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// What is known counts what it holds, be it of runs that grow or of many, and holds no more than it may.
func TestKnownIsBounded(t *testing.T) {
	x := &Index{known: known{told: true}}
	nodes := map[string]*nodeRow{}
	commit := func(run string, nodes map[string]*nodeRow) {
		w := &writer{x: x, order: []*runRow{{Run: table.Run{RunID: run}, nodes: nodes}}}
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
	for i := range 3000 { // its nodes come one after the other
		nodes[fmt.Sprint(i)] = &nodeRow{Node: table.Node{Talk: make([]byte, i)}}
		commit("grows", nodes)
	}
	for i := range 3000 {
		commit(fmt.Sprint("run", i), map[string]*nodeRow{"a": {}, "b": {Node: table.Node{Timeline: make([]byte, 5000)}}})
	}
}
