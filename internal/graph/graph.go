// Package graph draws the flow of a run, with how far it is.
package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// Picture is a flow as boxes and curves.
type Picture struct {
	W, H  int
	Nodes []Node
	Edges []Edge
}

// Node is a box; its texts are safe.
type Node struct {
	Label, Type, State string
	X, Y, W, H         int
	TextX, TextY, SubY int
}

// Edge is a curve, of the class Class.
type Edge struct{ Path, Class string }

// Template is the template "graph", which draws a [Picture] as SVG.
const Template = `{{define "graph"}}<div class="scroll graph" tabindex="0"><svg viewBox="0 0 {{.W}} {{.H}}" width="{{.W}}" height="{{.H}}" role="img" aria-label="The flow, with how far it is">
{{range .Edges}}<path class="edge {{.Class}}" d="{{.Path}}"/>{{end}}
{{range .Nodes}}<g class="node {{.State}}"><title>{{.Label}}: {{.State}}</title><rect x="{{.X}}" y="{{.Y}}" width="{{.W}}" height="{{.H}}" rx="8"/><text x="{{.TextX}}" y="{{.TextY}}">{{.Label}}</text><text class="sub" x="{{.TextX}}" y="{{.SubY}}">{{.Type}} · {{.State}}</text></g>{{end}}
</svg></div>{{end}}`

// The picture's measures.
const (
	boxW, boxH = 150, 40
	gapX, gapY = 44, 16
	maxNodes   = 200
	maxLabel   = 17 // characters that fit into a box
)

// Draw draws the flow of a run: each node right of those that it follows. There is no picture of a single
// node, nor of a definition that can't be read.
func Draw(s *wire.State) *Picture {
	def, err := flow.FromRaw(s.Definition)
	if err != nil || len(def.Nodes) < 2 || len(def.Nodes) > maxNodes {
		return nil
	}
	column := columnsOf(def)
	rows := map[int]int{}
	providers := providersOf(s, def)
	g := &Picture{Nodes: make([]Node, len(def.Nodes))}
	at := map[string]*Node{}
	for i, n := range def.Nodes {
		c := column[n.ID]
		x, y := 8+c*(boxW+gapX), 8+rows[c]*(boxH+gapY)
		g.Nodes[i] = Node{
			Label: timeline.Line(n.ID, maxLabel), Type: strings.TrimSpace(string(n.Type) + " " + providers[n.ID]), State: NodeWord(s, n.ID),
			X: x, Y: y, W: boxW, H: boxH, TextX: x + 10, TextY: y + 17, SubY: y + 32,
		}
		rows[c]++
		at[n.ID] = &g.Nodes[i]
		g.W, g.H = max(g.W, x+boxW+8), max(g.H, y+boxH+8)
	}
	for _, e := range def.Edges {
		if a, b := at[e.From], at[e.To]; a != nil && b != nil {
			g.addEdge(a, b, string(s.EdgeStatus[e.Key()]))
		}
	}
	return g
}

// Providers says which agents the nodes of a run are, as far as its flow tells: recorded calls may stand in for them.
func Providers(s *wire.State) map[string]string {
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		return nil
	}
	return providersOf(s, def)
}

func providersOf(s *wire.State, def *flow.Definition) map[string]string {
	of := map[string]string{}
	for _, n := range def.Nodes {
		if n.Type != flow.TypeAgent || s.Fixtures != "" {
			continue
		}
		name, named := n.Input.Get("provider").Text()
		if !named {
			name = flow.Providers[0]
		}
		if slices.Contains(flow.Providers, name) { // else it is a binding
			if agent := n.Input.TextAt("agent"); name == "acp" && agent != "" && !strings.Contains(agent, "{{") {
				name = agent // of those that speak the Agent Client Protocol
			}
			of[n.ID] = name
		}
	}
	return of
}

// addEdge adds a curve; one that leads back goes below the boxes.
func (g *Picture) addEdge(a, b *Node, class string) {
	if b.X > a.X {
		x1, y1, x2, y2 := a.X+boxW, a.Y+boxH/2, b.X, b.Y+boxH/2
		from, to := x1, x2 // between which it curves; beyond, it goes along the lower row, where fewer boxes are
		if y1 > y2 {
			from = x2 - gapX
		} else {
			to = x1 + gapX
		}
		g.Edges = append(g.Edges, Edge{fmt.Sprintf("M%d %d H%d C%d %d %d %d %d %d H%d", x1, y1, from, from+24, y1, to-24, y2, to, y2, x2), class})
		return
	}
	x1, y1, x2, y2 := a.X+boxW/2, a.Y+boxH, b.X+boxW/2, b.Y+boxH
	g.H = max(g.H, max(y1, y2)+28)
	g.Edges = append(g.Edges, Edge{fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1, y1+30, x2, y2+30, x2, y2), "back " + class})
}

// columnsOf puts each node behind those that lead to it; an edge that leads back doesn't count.
func columnsOf(def *flow.Definition) map[string]int {
	column, order := map[string]int{}, map[string]int{}
	for i, n := range def.Nodes {
		order[n.ID] = i
	}
	for range def.Nodes {
		moved := false
		for _, e := range def.Edges {
			if order[e.To] > order[e.From] && column[e.To] <= column[e.From] {
				column[e.To], moved = column[e.From]+1, true
			}
		}
		if !moved {
			break
		}
	}
	return column
}

// NodeWord is how a node is doing, in a word: skipped, waiting (for a person), or its status.
func NodeWord(s *wire.State, id string) string {
	n := s.Nodes[id]
	switch {
	case n.Skipped:
		return "skipped"
	case needsApproval(s, id), n.PromptID != "" && n.Open():
		return "waiting"
	}
	return cmp.Or(string(s.NodeStatus[id]), "pending")
}

func needsApproval(s *wire.State, node string) bool {
	for _, c := range s.Tools {
		if c.Node == node && c.State == wire.ToolApprovalRequired {
			return true
		}
	}
	return false
}
