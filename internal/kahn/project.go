package kahn

import (
	"slices"
	"strings"

	"wake/internal/flow"
	"wake/internal/run"
	"wake/pkg/wire"
)

// Projection says how a run is told.
type Projection struct {
	// Strict leaves out the transitions that KAHN doesn't know and counts them;
	// otherwise they are there with a reason that begins with [ExtensionPrefix].
	Strict bool
	// AuditScore gives an agent whose node has no score the share of its audits
	// that passed.
	AuditScore bool
}

// Projector makes the lines of KAHN of the events of a run. It is given all of
// them, in the order of the log and with their large fields (see [run.NeedsInline]);
// the same events make the same lines, however many have come.
type Projector struct {
	Projection

	// Dropped counts the transitions that Strict left out, and the lines of an
	// imported run that were none.
	Dropped int

	state    *wire.State
	def      *flow.Definition
	epochs   map[string]uint64 // node → epoch of its last claim
	agents   map[agentKey]*agent
	order    []*agent
	ids      map[string]bool
	names    map[agentKey]string // a sub-agent's type, by the call that began it
	verbatim bool                // the run was imported from lines: they are its events
	at       map[string]Status   // of its agents, if Strict
	lines    [][]byte
	err      error
}

// agentKey names an agent: a node's own, or a sub-agent that a tool call of it
// began.
type agentKey struct{ node, call string }

// NewProjector begins the projection of a run.
func NewProjector(p Projection) *Projector {
	return &Projector{
		Projection: p, epochs: map[string]uint64{}, agents: map[agentKey]*agent{}, ids: map[string]bool{}, names: map[agentKey]string{}, at: map[string]Status{},
	}
}

// Add takes the event at a position and returns the lines that it completes,
// without their ends. An error says that something could not be judged, such as a
// goal: the lines are there all the same.
func (p *Projector) Add(pos uint64, e *wire.Event) ([][]byte, error) {
	p.lines, p.err = nil, nil
	if p.void(e) {
		return nil, nil
	}
	if p.state == nil {
		p.state = run.New(e.RunID)
	}
	if err := run.Apply(p.state, wire.Position{Seq: pos}, e); err != nil {
		p.err = err
	}
	switch {
	case p.imported(e):
	case e.NodeID == wire.RunNode:
		p.owner(e)
	default:
		p.worker(e)
	}
	return p.lines, p.err
}

// void reports whether e comes from a writer that had been replaced.
func (p *Projector) void(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		p.epochs[e.NodeID] = max(p.epochs[e.NodeID], e.Epoch)
	}
	return e.Epoch < p.epochs[e.NodeID]
}

// imported passes on the lines of a run that was made of lines.
func (p *Projector) imported(e *wire.Event) bool {
	if start, ok := e.Payload.(*wire.FlowStart); ok {
		format, _ := start.Input.Get("format").Text()
		p.verbatim = start.Imported != "" && format == Format
	}
	if !p.verbatim {
		return false
	}
	line, ok := LineOf(e)
	if !ok {
		return true
	}
	parsed, err := Parse([]byte(line))
	if err != nil || p.Strict && !p.follows(parsed) {
		p.Dropped++
		return true
	}
	p.lines = append(p.lines, []byte(line))
	return true
}

// follows reports whether a line is no transition, or one that KAHN knows from where
// the lines before have left the agent.
func (p *Projector) follows(e *Event) bool {
	switch b := e.Body.(type) {
	case *RunStart:
		p.at[e.AgentID] = Thinking
	case *Transition:
		at, known := p.at[e.AgentID]
		if known && at != b.From || !Legal(b.From, b.To) {
			return false
		}
		p.at[e.AgentID] = b.To
	}
	return true
}

// Format is what the input of a run says that was imported from lines.
const Format = "kahn"

// lineField is the field of an event that holds the line that it was made of.
const lineField = "kahn"

// Keep notes in e the line that it was made of.
func Keep(e *wire.Event, line string) error {
	value, err := wire.Marshal(line)
	if err == nil {
		e.Unknown = append(e.Unknown, wire.Field{Name: lineField, Value: value})
	}
	return err
}

// LineOf returns the line that an event of an imported run was made of.
func LineOf(e *wire.Event) (string, bool) {
	for _, f := range e.Unknown {
		if f.Name == lineField {
			return f.Value.Text()
		}
	}
	return "", false
}

// owner takes what the owner of the run says.
func (p *Projector) owner(e *wire.Event) {
	switch b := e.Payload.(type) {
	case *wire.FlowStart:
		p.def, _ = flow.FromRaw(b.Definition) // of an imported run it may be anything
	case *wire.RunForked:
		if parent, err := run.Decode(b.State); err == nil {
			p.def, _ = flow.FromRaw(parent.Definition)
		}
	case *wire.AuditCheckpoint:
		p.audit(nil, e, b)
	case *wire.NodeCancelled:
		if a := p.agents[agentKey{b.Target, ""}]; a != nil && a.exec == e.ExecID {
			p.conclude(a, e, ending{kind: external, cause: "cancelled"})
		}
	case *wire.FlowComplete, *wire.FlowAborted:
		for _, a := range p.order {
			if a.key.call == "" {
				p.conclude(a, e, ending{kind: external, cause: "aborted"})
			}
		}
	}
}

// worker takes what is said on a node.
func (p *Projector) worker(e *wire.Event) {
	switch b := e.Payload.(type) {
	case *wire.AuditCheckpoint:
		a := p.agents[agentKey{e.NodeID, ""}]
		if e.AgentID == "" {
			a = nil
		}
		p.audit(a, e, b)
		return
	case *wire.NodeComplete, *wire.NodeError:
		p.nodeEnd(e)
		return
	case *wire.AgentStart:
		if e.Parent == "" {
			p.start(agentKey{e.NodeID, ""}, e, b)
			return
		}
	}
	if e.Parent != "" {
		p.sub(e)
		return
	}
	a := p.agents[agentKey{e.NodeID, ""}]
	if a == nil || !a.active || a.exec != e.ExecID {
		return
	}
	p.act(a, e)
	switch b := e.Payload.(type) {
	case *wire.ToolIntent:
		p.begins(e, b)
	case *wire.AgentTool:
		if sub := p.agents[agentKey{e.NodeID, e.CallID}]; sub != nil {
			p.conclude(sub, e, subEnding(b))
		}
	}
}

// subEnding is how a sub-agent ends whose call has a result.
func subEnding(b *wire.AgentTool) ending {
	switch {
	case b.Error == "" && !b.Denied:
		return ending{kind: graceful}
	case b.Error == wire.CallInterrupted:
		return ending{kind: external, cause: wire.CallInterrupted}
	}
	return ending{kind: failing, cause: wire.ErrorToolUse}
}

// begins remembers what a call may begin.
func (p *Projector) begins(e *wire.Event, b *wire.ToolIntent) {
	if kind, ok := b.ToolInput.Get("subagent_type").Text(); ok && kind != "" {
		p.names[agentKey{e.NodeID, e.CallID}] = kind
	}
}

// sub takes an event of a sub-agent, which begins with its first one.
func (p *Projector) sub(e *wire.Event) {
	key := agentKey{e.NodeID, e.Parent}
	a := p.agents[key]
	if a == nil || !a.active {
		task := ""
		if m, ok := e.Payload.(*wire.UserMessage); ok {
			task = firstLine(m.Content)
		}
		a = p.open(key, e, task, "")
	}
	p.act(a, e)
	if b, ok := e.Payload.(*wire.ToolIntent); ok {
		p.begins(e, b)
	}
}

// start begins the execution of a node's own agent, or goes on with it.
func (p *Projector) start(key agentKey, e *wire.Event, b *wire.AgentStart) {
	if a := p.agents[key]; a != nil && a.active && a.exec == e.ExecID {
		p.resumed(a, e)
		return
	}
	task := b.Task
	if task == "" {
		task, _ = b.Prompt.Text()
		task = firstLine(task)
	}
	p.open(key, e, task, b.Model).cwd = b.Cwd
}

// open begins an agent, with a step of its own if it had any before.
func (p *Projector) open(key agentKey, e *wire.Event, task, model string) *agent {
	a := p.agents[key]
	if a == nil {
		a = &agent{key: key, id: p.id(key), open: map[string]call{}, asked: map[string]bool{}}
		p.agents[key] = a
		p.order = append(p.order, a)
	} else {
		p.conclude(a, e, ending{kind: external, cause: "replaced"})
	}
	a.reset(e)
	start := &RunStart{Task: Summary(task)}
	if model != "" {
		start.Model = &model
	}
	line := p.line(e.Timestamp, a, start)
	if name := p.name(key); name != a.id {
		line.Unknown = []Field{{Name: "ext", Value: extOf(name)}}
	}
	p.emit(line)
	return a
}

// name is what wake calls an agent.
func (p *Projector) name(key agentKey) string {
	if key.call == "" {
		return key.node
	}
	if kind := p.names[key]; kind != "" {
		return key.node + ":" + kind
	}
	return key.node + ":subagent"
}

// id chooses the id of an agent; the second of two that look alike gets a suffix.
func (p *Projector) id(key agentKey) string {
	id := AgentID(p.name(key))
	if p.ids[id] {
		id = suffixed(id, key.node+"\x00"+key.call)
	}
	p.ids[id] = true
	return id
}

// nodeEnd ends the agent of a node.
func (p *Projector) nodeEnd(e *wire.Event) {
	a := p.agents[agentKey{e.NodeID, ""}]
	failed, isError := e.Payload.(*wire.NodeError)
	if a == nil || a.exec != e.ExecID {
		n := p.state.Nodes[e.NodeID]
		if !isError || n.Type != string(flow.TypeAgent) || n.Exec != e.ExecID {
			return
		}
		a = p.open(agentKey{e.NodeID, ""}, e, p.task(e.NodeID), "") // it never came to its start
	}
	end := ending{kind: graceful}
	if isError {
		end = endingOf(failed.ErrorType)
	}
	p.conclude(a, e, end)
}

// task is the task of a node whose agent never started.
func (p *Projector) task(node string) string {
	if p.def == nil || p.def.Node(node) == nil {
		return ""
	}
	prompt, _ := p.def.Node(node).Input.Get("prompt").Text()
	return firstLine(prompt)
}

// audit tells an audit of an agent; of none, it is the run's.
func (p *Projector) audit(a *agent, e *wire.Event, b *wire.AuditCheckpoint) {
	if a != nil && !a.active {
		a = nil // it has ended: whose work it was can't be said any more
	}
	body := &Audit{CheckpointID: checkpointID(b.CheckpointID), Result: Result(b.Result), DurationS: secondsOf(b.DurationMs)}
	body.Evidence = evidenceOf(b.Evidence)
	if a != nil {
		a.audits++
		switch body.Result {
		case Pass:
			a.passed++
		case Fail:
			a.failed++
			a.failedNow++
		case Warn:
		}
	}
	p.emit(p.line(e.Timestamp, a, body))
}

// checkpointID makes a checkpoint id of any name.
func checkpointID(name string) string {
	if checkpointPattern.MatchString(name) {
		return name
	}
	return AgentID(name)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(s)
}

// line is a line about an agent, or about the run.
func (p *Projector) line(at int64, a *agent, b Body) *Event {
	line := &Event{TS: timeOf(at), RunID: RunID(p.state.RunID), Body: b}
	if a != nil {
		line.AgentID = a.id
	}
	return line
}

func (p *Projector) emit(e *Event) {
	b, err := e.Append(nil)
	if err != nil {
		p.err = err
		return
	}
	p.lines = append(p.lines, b)
}

// subs returns the sub-agents of a node's agent that have not ended.
func (p *Projector) subs(a *agent) []*agent {
	if a.key.call != "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.order), func(s *agent) bool {
		return s.key.call == "" || s.key.node != a.key.node || !s.active
	})
}
