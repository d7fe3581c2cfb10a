package flow

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// maxSource bounds the size of a flow file in bytes.
const maxSource = 512 << 10

// Parse reads a flow in YAML, or in JSON if the name ends in .json or the text
// begins with a brace. The file is only named in problems. The error is an
// [*document.Error] with all of them.
func Parse(file string, src []byte) (*Definition, error) {
	ps := &document.Problems{File: file}
	t := document.Read(ps, src, maxSource)
	if t == nil {
		if ps.Count() == 0 {
			ps.Add(document.Place{Line: 1, Col: 1}, "", "the file is empty")
		}
		return nil, ps.Err()
	}
	return buildDefinition(ps, t)
}

// FromRaw reads a definition as flow:start carries it. It is checked like a
// file: a log may come from anywhere.
func FromRaw(raw wire.Raw) (*Definition, error) {
	return buildDefinition(&document.Problems{File: rawFile}, document.ValueOf(raw.Any()))
}

// buildDefinition makes a definition of a tree.
func buildDefinition(ps *document.Problems, t *document.Value) (*Definition, error) {
	d := readDefinition(ps, t)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	d.embedded = embeddedIn(t)
	raw, err := wire.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("flow: %w", err)
	}
	sum := sha256.Sum256(raw)
	d.raw, d.hash = raw, hex.EncodeToString(sum[:])
	return d, nil
}

// reservedNames are names that expressions know otherwise.
var reservedNames = append([]string{"outputs", "state", "input"}, keywords...)

// readDefinition reads a whole definition, problems and all.
func readDefinition(ps *document.Problems, t *document.Value) *Definition {
	r := &flowReader{ps}
	if t.Kind != document.Object {
		r.Add(t.At, "", "a flow is an object with name, nodes and edges, not %s", t.KindName())
		return nil
	}
	o := r.openObject(t, "")
	d := &Definition{
		Name:        o.takeText("name"),
		Description: o.takeText("description"),
		State:       o.takeRawObject("state"),
		Workspace:   r.readWorkspace(o),
		Pool:        r.readPool(o),
		Labels:      o.takeTextMap("labels"),
		Hooks:       r.readHooks(o),
		Budget:      r.readBudget(o),
		TimeoutMs:   o.takeMillis("timeoutMs"),
	}
	if o.needField("name") != nil && d.Name == "" {
		r.Add(t.Get("name").At, "name", "must not be empty")
	}
	nodes, edges := o.takeList("nodes"), o.takeList("edges")
	if len(nodes) == 0 {
		r.Add(t.At, "nodes", "a flow has at least one node")
	}
	o.checkUnknown()
	known := nodeIDs(nodes)
	for i, n := range nodes {
		d.Nodes = append(d.Nodes, r.readNode(n, fmt.Sprintf("nodes[%d]", i)))
	}
	for i, e := range edges {
		d.Edges = append(d.Edges, r.readEdge(e, fmt.Sprintf("edges[%d]", i), known))
	}
	r.checkUnique(d, nodes, edges)
	d.graph = r.buildGraph(d, nodes, edges)
	if ps.Count() == 0 {
		d.checkStandalone(ps, nodes)
	}
	return d
}

func (r *flowReader) readWorkspace(o *fields) string {
	s := o.takeText("workspace")
	if s == "" || s == "run" || s == "shared" || s == "node" {
		return s
	}
	if strings.HasPrefix(s, gitPrefix) {
		if _, err := parseGit(s); err != nil {
			r.Add(o.t.Get("workspace").At, o.fieldName("workspace"), "%v", err)
		}
	} else {
		r.Add(o.t.Get("workspace").At, o.fieldName("workspace"), "%q is unknown; it is run, shared, node or git: URL@ref%s",
			s, document.SuggestName(s, []string{"run", "shared", "node"}))
	}
	return s
}

// readPool reads the name of a pool, which is part of a subject.
func (r *flowReader) readPool(o *fields) string {
	s := o.takeText("pool")
	if s != "" && !idPattern().MatchString(s) {
		r.Add(o.t.Get("pool").At, o.fieldName("pool"), "%q: %s", s, idRule)
	}
	return s
}

func (r *flowReader) readNode(t *document.Value, path string) Node {
	o := r.openObject(t, path)
	n := Node{
		ID:         r.readID(o),
		Type:       NodeType(o.takeOneOf("type", "agent", "exec", "set", "ask", "sleep", "at", "flow")),
		Input:      o.takeRawObject("input"),
		When:       o.takeRaw("when"),
		Policy:     r.readPolicy(o),
		Idempotent: o.takeBool("idempotent"),
		Goal:       o.takeText("goal"),
		Score:      o.takeText("score"),
		Scope:      r.readScope(o),
		Audits:     r.readAudits(o),
		Pool:       r.readPool(o),
		Hooks:      r.readHooks(o),
		Flows:      r.readChildren(o),
		UI:         o.takeRaw("ui"),
	}
	r.mayStart(&n, t, path)
	if len(n.Hooks) > 0 && n.Type != TypeAgent {
		r.Add(t.Get("hooks").At, o.fieldName("hooks"), "only agent nodes have hooks")
	}
	if p := n.Policy; p != nil && n.Type != TypeAgent {
		if p.Retry != nil && p.Retry.Session != "" {
			r.Add(t.Get("policy").Get("retry").Get("session").At, o.fieldName("policy.retry.session"), "only agent nodes have sessions")
		}
		if p.MaxRetryWaitMs != 0 {
			r.Add(t.Get("policy").Get("maxRetryWaitMs").At, o.fieldName("policy.maxRetryWaitMs"), "only agent nodes have it")
		}
		if p.StartTimeoutMs != 0 {
			r.Add(t.Get("policy").Get("startTimeoutMs").At, o.fieldName("policy.startTimeoutMs"), "only agent nodes have it")
		}
	}
	if p := n.Policy; p != nil && p.OutputBytes != 0 && n.Type != TypeExec {
		r.Add(t.Get("policy").Get("outputBytes").At, o.fieldName("policy.outputBytes"), "only exec nodes have it")
	}
	if p := n.Policy; p != nil && p.Memory != 0 && n.Type != TypeAgent && n.Type != TypeExec {
		r.Add(t.Get("policy").Get("memory").At, o.fieldName("policy.memory"), "only agent and exec nodes have it")
	}
	if len(n.Audits) > 0 && n.Type != TypeAgent && n.Type != TypeExec {
		r.Add(t.Get("audits").At, o.fieldName("audits"), "only agent and exec nodes have audits")
	}
	if n.Type == "" && t.Get("type").IsAbsent() {
		r.Add(o.t.At, o.fieldName("type"), "is required: agent, exec, set, ask, sleep, at or flow")
	}
	o.checkUnknown()
	return n
}

func (r *flowReader) readID(o *fields) string {
	t := o.needField("id")
	if t == nil {
		return ""
	}
	id, ok := t.AsText()
	switch {
	case !ok:
		r.Add(t.At, o.fieldName("id"), "must be a text, not %s", t.KindName())
	case strings.HasPrefix(id, "_"):
		r.Add(t.At, o.fieldName("id"), "%q: ids that begin with _ are reserved", id)
	case slices.Contains(reservedNames, id):
		r.Add(t.At, o.fieldName("id"), "%q has another meaning in expressions", id)
	case !idPattern().MatchString(id):
		r.Add(t.At, o.fieldName("id"), "%q: %s", id, idRule)
	}
	return id
}

func (r *flowReader) readPolicy(o *fields) *Policy {
	t := o.takeField("policy")
	if t == nil {
		return nil
	}
	po := r.openObject(t, o.fieldName("policy"))
	p := &Policy{
		TimeoutMs: po.takeMillis("timeoutMs"), StartTimeoutMs: po.takeMillis("startTimeoutMs"), ContinueOnError: po.takeBool("continueOnError"),
		MaxRetryWaitMs: po.takeMillis("maxRetryWaitMs"),
		OutputBytes:    po.takeCount("outputBytes", 0), Memory: po.size("memory", minMemory), MemoryOptional: po.takeBool("memoryOptional"),
		Interrupted: po.takeOneOf("interrupted", "seal", "rollback", "rerun"),
	}
	if p.MemoryOptional && po.t.Get("memory").IsAbsent() {
		r.Add(po.t.Get("memoryOptional").At, po.fieldName("memoryOptional"), "there is no memory that it could be about")
	}
	if rt := po.takeField("retry"); rt != nil {
		ro := r.openObject(rt, po.fieldName("retry"))
		ro.needField("maxAttempts")
		p.Retry = &Retry{
			MaxAttempts: int(ro.takeCount("maxAttempts", 1)), BackoffMs: ro.takeMillis("backoffMs"),
			BackoffFactor: r.takeFactor(ro, "backoffFactor"), MaxBackoffMs: ro.takeMillis("maxBackoffMs"), Except: ro.takeTexts("except"),
			Session: ro.takeOneOf("session", RetryContinue, RetryNew),
		}
		if p.Retry.MaxBackoffMs > 0 && p.Retry.MaxBackoffMs < p.Retry.BackoffMs {
			r.Add(ro.t.Get("maxBackoffMs").At, ro.fieldName("maxBackoffMs"), "must not be less than backoffMs, %d", p.Retry.BackoffMs)
		}
		ro.checkUnknown()
	}
	po.checkUnknown()
	return p
}

// maxFactor bounds how much longer a wait may be than the one before.
const maxFactor = 100

// takeFactor reads how much longer each wait is than the one before.
func (r *flowReader) takeFactor(o *fields, name string) float64 {
	return r.takeNumber(o, name, fmt.Sprintf("must be a number from 1 to %d", maxFactor), func(x float64) bool { return x >= 1 && x <= maxFactor })
}

// takeNumber reads a number for which fits is true; want says which these are.
func (r *flowReader) takeNumber(o *fields, name, want string, fits func(float64) bool) float64 {
	t := o.takeField(name)
	if t == nil {
		return 0
	}
	x, ok := t.AsNumber()
	if t.Kind != document.Scalar || !ok || !fits(x) {
		r.Add(t.At, o.fieldName(name), "%s, not %s", want, t.KindName())
		return 0
	}
	return x
}

// minMemory is the least bound of memory: with less no program begins.
const minMemory = 4 << 20

func (r *flowReader) readScope(o *fields) *Scope {
	t := o.takeField("scope")
	if t == nil {
		return nil
	}
	so := r.openObject(t, o.fieldName("scope"))
	s := &Scope{Tools: so.takeTexts("tools"), Paths: so.takeTexts("paths")}
	so.checkUnknown()
	return s
}

// auditPattern is KAHN's form of a checkpoint id.
var auditPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9:.-]{0,127}$`) })

func (r *flowReader) readAudits(o *fields) []Audit {
	var out []Audit
	for i, t := range o.takeList("audits") {
		ao := r.openObject(t, fmt.Sprintf("%s[%d]", o.fieldName("audits"), i))
		ao.needField("id")
		ao.needField("command")
		a := Audit{ID: ao.takeText("id"), Command: ao.takeText("command"), Run: ao.takeBool("run"), TimeoutMs: ao.takeMillis("timeoutMs")}
		if a.ID != "" && !auditPattern().MatchString(a.ID) {
			r.Add(ao.t.Get("id").At, ao.fieldName("id"), "%q: lower-case letters, digits, :, . and -, at most 128", a.ID)
		}
		if slices.ContainsFunc(out, func(b Audit) bool { return a.ID != "" && b.ID == a.ID }) {
			r.Add(ao.t.Get("id").At, ao.fieldName("id"), "%q is there twice", a.ID)
		}
		ao.checkUnknown()
		out = append(out, a)
	}
	return out
}

func (r *flowReader) readEdge(t *document.Value, path string, known []string) Edge {
	o := r.openObject(t, path)
	e := Edge{
		ID:            o.takeText("id"),
		From:          r.readEnd(o, "from", known),
		To:            r.readEnd(o, "to", known),
		When:          o.takeRaw("when"),
		Gate:          Gate(o.takeOneOf("gate", "all", "any")),
		MaxIterations: int(o.takeCount("maxIterations", 1)),
	}
	if e.ID != "" && !edgePattern().MatchString(e.ID) {
		r.Add(t.Get("id").At, o.fieldName("id"), "%q: letters, digits and . : > _ - , at most 128", e.ID)
	}
	if ft := o.takeField("forEach"); ft != nil {
		e.ForEach = r.readForEach(ft, o.fieldName("forEach"), known)
		if e.MaxIterations > 0 {
			r.Add(ft.At, o.fieldName("forEach"), "an edge that closes a loop can't have it")
		}
	}
	if e.MaxIterations > 0 && e.Gate != "" {
		r.Add(t.Get("gate").At, o.fieldName("gate"), "an edge that closes a loop is in no gate")
	}
	o.checkUnknown()
	return e
}

var edgePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:>_-]{0,127}$`) })

// readEnd reads the node at one end of an edge.
func (r *flowReader) readEnd(o *fields, name string, known []string) string {
	t := o.needField(name)
	if t == nil {
		return ""
	}
	id, ok := t.AsText()
	switch {
	case !ok:
		r.Add(t.At, o.fieldName(name), "must be the id of a node, not %s", t.KindName())
	case !slices.Contains(known, id):
		r.Add(t.At, o.fieldName(name), "there is no node %q%s", id, document.SuggestName(id, known))
	}
	return id
}

var asPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`) })

func (r *flowReader) readForEach(t *document.Value, path string, known []string) *ForEach {
	o := r.openObject(t, path)
	o.needField("in")
	o.needField("as")
	f := &ForEach{In: o.takeText("in"), As: o.takeText("as"), Concurrency: int(o.takeCount("concurrency", 1))}
	switch at := o.t.Get("as"); {
	case f.As == "":
	case !asPattern().MatchString(f.As):
		r.Add(at.At, o.fieldName("as"), "%q: a letter, then letters, digits and _", f.As)
	case slices.Contains(known, f.As), slices.Contains(reservedNames, f.As):
		r.Add(at.At, o.fieldName("as"), "%q has another meaning in expressions", f.As)
	}
	o.checkUnknown()
	return f
}

// checkUnique tells of ids and edges that are there twice.
func (r *flowReader) checkUnique(d *Definition, nodes, edges []*document.Value) {
	seen := map[string]bool{}
	for i, n := range d.Nodes {
		if n.ID != "" && seen[n.ID] {
			r.Add(nodes[i].Get("id").At, fmt.Sprintf("nodes[%d].id", i), "%q is there twice", n.ID)
		}
		seen[n.ID] = true
	}
	keys := map[string]bool{}
	for i, e := range d.Edges {
		if e.From != "" && e.To != "" && keys[e.Key()] {
			r.Add(edges[i].At, fmt.Sprintf("edges[%d]", i), "a second edge %s; give each an id", e.Key())
		}
		keys[e.Key()] = true
	}
}

// embeddedIn returns where the flows that the nodes of a flow hold stand.
func embeddedIn(t *document.Value) map[string]document.Place {
	places := map[string]document.Place{}
	for i, n := range t.Get("nodes").List {
		places[fmt.Sprintf("nodes[%d].input.flow", i)] = placeOfTree(n.Get("input").Get("flow"))
		if flows := n.Get("flows"); flows != nil {
			for j, f := range flows.List {
				places[fmt.Sprintf("nodes[%d].flows[%d].flow", i, j)] = placeOfTree(f.Get("flow"))
			}
		}
	}
	return places
}

func placeOfTree(t *document.Value) document.Place {
	if t == nil {
		return document.Place{}
	}
	return t.At
}

// Library reads definitions as [FromRaw] does, and keeps those that it has read, by their content: many runs are of one flow, and each
// is read by an owner, a worker and for its request. Its zero value is empty.
type Library struct {
	mu    sync.Mutex
	kept  map[[sha256.Size]byte]*Definition
	bytes int // of what they were read from
}

// What a library keeps at most. Beyond that it forgets all, and begins again.
const (
	keptDefinitions = 512
	keptBytes       = 8 << 20
)

// Read returns the definition of a content.
func (l *Library) Read(raw wire.Raw) (*Definition, error) {
	sum := sha256.Sum256(raw)
	l.mu.Lock()
	d := l.kept[sum]
	l.mu.Unlock()
	if d != nil {
		return d, nil
	}
	d, err := FromRaw(raw)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes += len(raw); l.kept == nil || len(l.kept) >= keptDefinitions || l.bytes > keptBytes {
		l.kept, l.bytes = map[[sha256.Size]byte]*Definition{}, len(raw)
	}
	l.kept[sum] = d
	return d, nil
}
