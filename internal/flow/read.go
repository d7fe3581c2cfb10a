package flow

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// idPattern is what an id looks like: it is part of subjects, and a name in
// expressions.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// reserved are names that expressions know otherwise.
var reserved = append([]string{"outputs", "state", "input"}, keywords...)

// read reads a whole definition, problems and all.
func read(ps *problems, t *tree) *Definition {
	r := &reader{ps}
	if t.kind != object {
		r.add(t.at, "", "a flow is an object with name, nodes and edges, not %s", t.what())
		return nil
	}
	o := r.object(t, "")
	d := &Definition{
		Name:        o.text("name"),
		Description: o.text("description"),
		State:       o.rawObject("state"),
		Workspace:   r.workspace(o),
		Pool:        r.pool(o),
		Labels:      o.textMap("labels"),
		Hooks:       r.hooks(o),
	}
	if o.need("name") != nil && d.Name == "" {
		r.add(t.get("name").at, "name", "must not be empty")
	}
	nodes, edges := o.list("nodes"), o.list("edges")
	if len(nodes) == 0 {
		r.add(t.at, "nodes", "a flow has at least one node")
	}
	o.done()
	known := nodeIDs(nodes)
	for i, n := range nodes {
		d.Nodes = append(d.Nodes, r.node(n, fmt.Sprintf("nodes[%d]", i)))
	}
	for i, e := range edges {
		d.Edges = append(d.Edges, r.edge(e, fmt.Sprintf("edges[%d]", i), known))
	}
	r.unique(d, nodes, edges)
	d.graph = r.graph(d, nodes, edges)
	if len(ps.list) == 0 {
		d.alone(ps, nodes)
	}
	return d
}

// nodeIDs are the ids that there are, whatever else is wrong.
func nodeIDs(nodes []*tree) []string {
	var ids []string
	for _, n := range nodes {
		if id, ok := n.get("id").text(); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *reader) workspace(o *fields) string {
	s := o.text("workspace")
	if s == "" || s == "run" || s == "shared" || s == "node" {
		return s
	}
	if strings.HasPrefix(s, gitPrefix) {
		if _, err := parseGit(s); err != nil {
			r.add(o.t.get("workspace").at, o.field("workspace"), "%v", err)
		}
	} else {
		r.add(o.t.get("workspace").at, o.field("workspace"), "%q is unknown; it is run, shared, node or git: URL@ref%s",
			s, suggest(s, []string{"run", "shared", "node"}))
	}
	return s
}

// pool reads the name of a pool, which is part of a subject.
func (r *reader) pool(o *fields) string {
	s := o.text("pool")
	if s != "" && !idPattern.MatchString(s) {
		r.add(o.t.get("pool").at, o.field("pool"), "%q: %s", s, idRule)
	}
	return s
}

const idRule = "letters, digits, - and _, at most 64, the first a letter or a digit"

func (r *reader) node(t *tree, path string) Node {
	o := r.object(t, path)
	n := Node{
		ID:         r.id(o),
		Type:       NodeType(o.oneOf("type", "agent", "exec", "set", "ask", "flow")),
		Input:      o.rawObject("input"),
		When:       o.raw("when"),
		Policy:     r.policy(o),
		Idempotent: o.yes("idempotent"),
		Goal:       o.text("goal"),
		Score:      o.text("score"),
		Scope:      r.scope(o),
		Audits:     r.audits(o),
		Pool:       r.pool(o),
		Hooks:      r.hooks(o),
		Flows:      r.children(o),
		UI:         o.raw("ui"),
	}
	r.mayStart(&n, t, path)
	if len(n.Hooks) > 0 && n.Type != TypeAgent {
		r.add(t.get("hooks").at, o.field("hooks"), "only agent nodes have hooks")
	}
	if len(n.Audits) > 0 && (n.Type == TypeSet || n.Type == TypeAsk || n.Type == TypeFlow) {
		r.add(t.get("audits").at, o.field("audits"), "only agent and exec nodes have audits")
	}
	if n.Type == "" && t.get("type").absent() {
		r.add(o.t.at, o.field("type"), "is required: agent, exec, set, ask or flow")
	}
	o.done()
	return n
}

func (r *reader) id(o *fields) string {
	t := o.need("id")
	if t == nil {
		return ""
	}
	id, ok := t.text()
	switch {
	case !ok:
		r.add(t.at, o.field("id"), "must be a text, not %s", t.what())
	case strings.HasPrefix(id, "_"):
		r.add(t.at, o.field("id"), "%q: ids that begin with _ are reserved", id)
	case slices.Contains(reserved, id):
		r.add(t.at, o.field("id"), "%q has another meaning in expressions", id)
	case !idPattern.MatchString(id):
		r.add(t.at, o.field("id"), "%q: %s", id, idRule)
	}
	return id
}

func (r *reader) policy(o *fields) *Policy {
	t := o.take("policy")
	if t == nil {
		return nil
	}
	po := r.object(t, o.field("policy"))
	p := &Policy{TimeoutMs: po.millis("timeoutMs"), ContinueOnError: po.yes("continueOnError"), Interrupted: po.oneOf("interrupted", "seal", "rollback", "rerun")}
	if rt := po.take("retry"); rt != nil {
		ro := r.object(rt, po.field("retry"))
		ro.need("maxAttempts")
		p.Retry = &Retry{MaxAttempts: int(ro.count("maxAttempts", 1)), BackoffMs: ro.millis("backoffMs")}
		ro.done()
	}
	po.done()
	return p
}

func (r *reader) scope(o *fields) *Scope {
	t := o.take("scope")
	if t == nil {
		return nil
	}
	so := r.object(t, o.field("scope"))
	s := &Scope{Tools: so.texts("tools"), Paths: so.texts("paths")}
	so.done()
	return s
}

// auditPattern is KAHN's form of a checkpoint id.
var auditPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9:.-]{0,127}$`)

func (r *reader) audits(o *fields) []Audit {
	var out []Audit
	for i, t := range o.list("audits") {
		ao := r.object(t, fmt.Sprintf("%s[%d]", o.field("audits"), i))
		ao.need("id")
		ao.need("command")
		a := Audit{ID: ao.text("id"), Command: ao.text("command"), Run: ao.yes("run"), TimeoutMs: ao.millis("timeoutMs")}
		if a.ID != "" && !auditPattern.MatchString(a.ID) {
			r.add(ao.t.get("id").at, ao.field("id"), "%q: lower-case letters, digits, :, . and -, at most 128", a.ID)
		}
		if slices.ContainsFunc(out, func(b Audit) bool { return a.ID != "" && b.ID == a.ID }) {
			r.add(ao.t.get("id").at, ao.field("id"), "%q is there twice", a.ID)
		}
		ao.done()
		out = append(out, a)
	}
	return out
}

func (r *reader) edge(t *tree, path string, known []string) Edge {
	o := r.object(t, path)
	e := Edge{
		ID:            o.text("id"),
		From:          r.end(o, "from", known),
		To:            r.end(o, "to", known),
		When:          o.raw("when"),
		Gate:          Gate(o.oneOf("gate", "all", "any")),
		MaxIterations: int(o.count("maxIterations", 1)),
	}
	if e.ID != "" && !edgePattern.MatchString(e.ID) {
		r.add(t.get("id").at, o.field("id"), "%q: letters, digits and . : > _ - , at most 128", e.ID)
	}
	if ft := o.take("forEach"); ft != nil {
		e.ForEach = r.forEach(ft, o.field("forEach"), known)
		if e.MaxIterations > 0 {
			r.add(ft.at, o.field("forEach"), "an edge that closes a loop can't have it")
		}
	}
	if e.MaxIterations > 0 && e.Gate != "" {
		r.add(t.get("gate").at, o.field("gate"), "an edge that closes a loop is in no gate")
	}
	o.done()
	return e
}

var edgePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:>_-]{0,127}$`)

// end reads the node at one end of an edge.
func (r *reader) end(o *fields, name string, known []string) string {
	t := o.need(name)
	if t == nil {
		return ""
	}
	id, ok := t.text()
	switch {
	case !ok:
		r.add(t.at, o.field(name), "must be the id of a node, not %s", t.what())
	case !slices.Contains(known, id):
		r.add(t.at, o.field(name), "there is no node %q%s", id, suggest(id, known))
	}
	return id
}

var asPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)

func (r *reader) forEach(t *tree, path string, known []string) *ForEach {
	o := r.object(t, path)
	o.need("in")
	o.need("as")
	f := &ForEach{In: o.text("in"), As: o.text("as")}
	switch at := o.t.get("as"); {
	case f.As == "":
	case !asPattern.MatchString(f.As):
		r.add(at.at, o.field("as"), "%q: a letter, then letters, digits and _", f.As)
	case slices.Contains(known, f.As), slices.Contains(reserved, f.As):
		r.add(at.at, o.field("as"), "%q has another meaning in expressions", f.As)
	}
	o.done()
	return f
}

// unique tells of ids and edges that are there twice.
func (r *reader) unique(d *Definition, nodes, edges []*tree) {
	seen := map[string]bool{}
	for i, n := range d.Nodes {
		if n.ID != "" && seen[n.ID] {
			r.add(nodes[i].get("id").at, fmt.Sprintf("nodes[%d].id", i), "%q is there twice", n.ID)
		}
		seen[n.ID] = true
	}
	keys := map[string]bool{}
	for i, e := range d.Edges {
		if e.From != "" && e.To != "" && keys[e.Key()] {
			r.add(edges[i].at, fmt.Sprintf("edges[%d]", i), "a second edge %s; give each an id", e.Key())
		}
		keys[e.Key()] = true
	}
}
