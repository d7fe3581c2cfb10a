package flow

import (
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// readChildren reads the flows that an agent may start.
func (r *flowReader) readChildren(o *fields) []Child {
	var out []Child
	for i, t := range o.takeList("flows") {
		c := r.readChild(t, fmt.Sprintf("%s[%d]", o.fieldName("flows"), i))
		if c.Name != "" && slices.ContainsFunc(out, func(b Child) bool { return b.Name == c.Name }) {
			r.Add(t.Get("name").At, fmt.Sprintf("%s[%d].name", o.fieldName("flows"), i), "%q is there twice", c.Name)
		}
		out = append(out, c)
	}
	return out
}

func (r *flowReader) readChild(t *document.Value, path string) Child {
	o := r.openObject(t, path)
	o.needField("name")
	c := Child{
		Name: o.takeText("name"), Flow: o.takeRaw("flow"), Node: o.takeText("node"), Description: o.takeText("description"),
		Input: o.takeRawObject("input"), MaxRuns: int(o.takeCount("maxRuns", 1)),
	}
	o.checkUnknown()
	if c.Name != "" && !idPattern().MatchString(c.Name) {
		r.Add(t.Get("name").At, o.fieldName("name"), "%q: %s", c.Name, idRule)
	}
	file, node := t.Get("flow"), t.Get("node")
	if !o.wrong && file.IsAbsent() == node.IsAbsent() {
		r.Add(o.t.At, o.path, "a flow that an agent may start has one of flow and node")
	}
	if !file.IsAbsent() {
		r.checkEmbeddable(file, o.fieldName("flow"))
	}
	return c
}

// checkEmbeddable checks a flow within a flow: itself, or the name of its file.
func (r *flowReader) checkEmbeddable(t *document.Value, field string) {
	if s, ok := t.AsText(); ok {
		if hasBinding(s) || s == "" {
			r.Add(t.At, field, "must name a file or be a flow; a binding is not possible here")
		}
		return
	}
	if t.Kind != document.Object {
		r.Add(t.At, field, "must name a file or be a flow, not %s", t.KindName())
		return
	}
	ps := &document.Problems{File: r.File}
	readDefinition(ps, t)
	r.AddWithin(field, ps)
}

// mayStart checks that a node may start flows: recorded agents and those of other programs can't.
func (r *flowReader) mayStart(n *Node, t *document.Value, path string) {
	if len(n.Flows) == 0 {
		return
	}
	at := t.Get("flows").At
	if n.Type != TypeAgent {
		r.Add(at, path+".flows", "only agent nodes start flows")
		return
	}
	provider, _ := t.Get("input").Get("provider").AsText()
	if provider != starter && !hasBinding(provider) {
		r.Add(at, path+".flows", "only agents of provider %s start flows", starter)
	}
}

// starter is the provider of the agents that may start flows.
const starter = wire.ProviderNative

// checkStandalone checks the nodes that agents may start: what such a node says has to stand
// without the rest of its flow.
func (d *Definition) checkStandalone(ps *document.Problems, nodes []*document.Value) {
	for i, n := range d.Nodes {
		for j, c := range n.Flows {
			if c.Node == "" {
				continue
			}
			at := nodes[i].Get("flows").List[j].Get("node").At
			field := fmt.Sprintf("nodes[%d].flows[%d].node", i, j)
			target := d.Node(c.Node)
			switch {
			case target == nil || target.ID != c.Node:
				ps.Add(at, field, "there is no node %q%s", c.Node, document.SuggestName(c.Node, nodeIDs(nodes)))
			case target.Type != TypeAgent && target.Type != TypeExec:
				ps.Add(at, field, "an agent may start agent and exec nodes, and %q is none", c.Node)
			case slices.ContainsFunc(target.Flows, func(c Child) bool { return c.Node != "" }):
				ps.Add(at, field, "node %q starts nodes of the flow itself, so an agent can't start it", c.Node)
			default:
				if _, err := d.ChildFlow(c); err != nil {
					ps.Add(at, field, "node %q can't be run alone: %s", c.Node, firstProblem(err))
				}
			}
		}
	}
}

func firstProblem(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(line, rawFile+": ")
}

// ChildFlow returns the definition of the run that an agent starts: the flow itself,
// or one of the node alone, with the hooks and the state of this flow, in the agent's
// folder.
func (d *Definition) ChildFlow(c Child) (wire.Raw, error) {
	if c.Node == "" {
		return c.Flow, nil
	}
	n := d.Node(c.Node)
	if n == nil {
		return nil, fmt.Errorf("flow: there is no node %q", c.Node)
	}
	only := *n
	only.When = nil
	child := Definition{Name: c.Name, Description: c.Description, Nodes: []Node{only}, State: d.State, Pool: d.Pool, Hooks: d.Hooks}
	if d.Workspace == WorkspaceShared {
		child.Workspace = d.Workspace
	}
	one, err := wire.Marshal(child)
	if err != nil {
		return nil, fmt.Errorf("flow: %w", err)
	}
	if _, err := FromRaw(one); err != nil {
		return nil, err
	}
	return one, nil
}
