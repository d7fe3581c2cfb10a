package kahn

import (
	"slices"
	"strings"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Projection says how a run is told.
type Projection struct {
	// Strict leaves out the transitions that KAHN doesn't know and counts them;
	// otherwise they are there with a reason that begins with [ExtensionPrefix].
	Strict bool
	// AuditScore gives an agent of a node without a score the share of its audits
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
	names    map[agentKey]string                   // a sub-agent's type, by the call that began it
	talks    map[string]*conversation.Conversation // by node
	accounts ledger.Accounts
	verbatim bool              // the run was imported from lines: they are its events
	at       map[string]Status // of its agents, if Strict
	lines    [][]byte
	err      error
}

// agentKey names an agent: a node's own, or a sub-agent that a tool call of it
// began.
type agentKey struct{ node, call string }

// NewProjector begins the projection of a run.
func NewProjector(p Projection) *Projector {
	return &Projector{
		Projection: p, epochs: map[string]uint64{}, agents: map[agentKey]*agent{}, ids: map[string]bool{}, names: map[agentKey]string{}, talks: map[string]*conversation.Conversation{}, at: map[string]Status{},
	}
}

// Add takes the event at a position and returns the lines that it completes,
// without their ends. An error says that something could not be judged, such as a
// goal: the lines are there all the same.
func (p *Projector) Add(pos uint64, e *wire.Event) ([][]byte, error) {
	p.lines, p.err = nil, nil
	if p.isVoid(e) {
		return nil, nil
	}
	if p.state == nil {
		p.state = run.New(e.RunID)
	}
	if err := run.Apply(p.state, wire.Position{Seq: pos}, e); err != nil {
		p.err = err
	}
	switch {
	case p.handleImported(e):
	case e.NodeID == wire.RunNode:
		p.handleOwnerEvent(e)
	default:
		p.handleWorkerEvent(pos, e)
	}
	return p.lines, p.err
}

// isVoid reports whether e comes from a writer that had been replaced.
func (p *Projector) isVoid(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		p.epochs[e.NodeID] = max(p.epochs[e.NodeID], e.Epoch)
	}
	return e.Epoch < p.epochs[e.NodeID]
}

// handleImported passes on the lines of a run that was made of lines.
func (p *Projector) handleImported(e *wire.Event) bool {
	if start, ok := e.Payload.(*wire.FlowStart); ok {
		format := start.Input.TextAt("format")
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
	if err != nil || p.Strict && !p.checkTransition(parsed) {
		p.Dropped++
		return true
	}
	p.lines = append(p.lines, []byte(line))
	return true
}

// checkTransition reports whether a line is no transition, or one that KAHN knows from where
// the lines before have left the agent.
func (p *Projector) checkTransition(e *Event) bool {
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

// handleOwnerEvent takes what the owner of the run says.
func (p *Projector) handleOwnerEvent(e *wire.Event) {
	switch b := e.Payload.(type) {
	case *wire.FlowStart:
		p.def, _ = flow.FromRaw(b.Definition) // of an imported run it may be anything
	case *wire.RunForked:
		if parent, err := run.Decode(b.State); err == nil {
			p.def, _ = flow.FromRaw(parent.Definition)
		}
	case *wire.AuditCheckpoint:
		p.emitAudit(nil, e, b)
	case *wire.NodeCancelled:
		if a := p.agents[agentKey{b.Target, ""}]; a != nil && a.exec == e.ExecID {
			p.endAgent(a, e, ending{kind: external, cause: wire.ErrorCancelled})
		}
	case *wire.FlowComplete, *wire.FlowAborted:
		for _, a := range p.order {
			if a.key.call == "" {
				p.endAgent(a, e, ending{kind: external, cause: "aborted"})
			}
		}
	}
}

// handleWorkerEvent takes what is said on a node.
func (p *Projector) handleWorkerEvent(pos uint64, e *wire.Event) {
	step := p.conversationOf(e.NodeID).Apply(pos, e)
	p.countSpending(e)
	a := p.agents[agentKey{e.NodeID, ""}]
	switch b := e.Payload.(type) {
	case *wire.AuditCheckpoint:
		if e.AgentID == "" {
			a = nil
		}
		p.emitAudit(a, e, b)
		return
	case *wire.NodeComplete, *wire.NodeError:
		p.endNode(e)
		return
	case *wire.AgentStart:
		if e.Parent == "" {
			p.startAgent(agentKey{e.NodeID, ""}, e, b)
			return
		}
	}
	if e.Parent != "" {
		if a = p.subAgent(e, step); a == nil {
			return
		}
	}
	if a == nil || !a.active || e.Parent == "" && a.exec != e.ExecID {
		return
	}
	p.handleAgentEvent(a, e, step)
	if end := step.Closed; end != nil {
		if sub := p.agents[agentKey{e.NodeID, end.Parent}]; sub != nil {
			p.endAgent(sub, e, subEnding(end.Cause))
		}
	}
}

// countSpending adds to what agents have spent: a call to that of the sub-agent that made it, while
// that is at work, anything else to that of the node's own.
func (p *Projector) countSpending(e *wire.Event) {
	for _, x := range p.accounts.Apply(e) {
		a := p.agents[agentKey{e.NodeID, x.Parent}]
		if a == nil || !a.active {
			a = p.agents[agentKey{e.NodeID, ""}]
		}
		if a != nil {
			a.spent = ledger.Add(a.spent, x.Spending)
		}
	}
}

// conversationOf is the conversation of a node's agent.
func (p *Projector) conversationOf(node string) *conversation.Conversation {
	if p.talks[node] == nil {
		p.talks[node] = &conversation.Conversation{}
	}
	return p.talks[node]
}

// subEnding is how a sub-agent ends, by its cause in the conversation.
func subEnding(cause string) ending {
	switch cause {
	case "":
		return ending{kind: graceful}
	case wire.CallInterrupted:
		return ending{kind: external, cause: cause}
	}
	return ending{kind: failing, cause: cause}
}

// subAgent returns the sub-agent of an event, which begins with it if it is news of one; nil if
// it isn't at work.
func (p *Projector) subAgent(e *wire.Event, step conversation.Step) *agent {
	key := agentKey{e.NodeID, e.Parent}
	if a := p.agents[key]; a != nil && a.active {
		return a
	}
	if step.Thread == nil || step.Thread.Over {
		return nil
	}
	task := ""
	if m, ok := e.Payload.(*wire.UserMessage); ok {
		task = firstLine(m.Content)
	}
	return p.openAgent(key, e, task, "")
}

// startAgent begins the execution of a node's own agent, or goes on with it.
func (p *Projector) startAgent(key agentKey, e *wire.Event, b *wire.AgentStart) {
	if a := p.agents[key]; a != nil && a.active && a.exec == e.ExecID {
		p.resumeAgent(a, e)
		return
	}
	task := b.Task
	if task == "" {
		task, _ = b.Prompt.Text()
		task = firstLine(task)
	}
	p.openAgent(key, e, task, b.Model).cwd = b.Cwd
}

// openAgent begins an agent, with a step of its own if it had any before.
func (p *Projector) openAgent(key agentKey, e *wire.Event, task, model string) *agent {
	a := p.agents[key]
	if a == nil {
		a = &agent{key: key, id: p.newAgentID(key)}
		p.agents[key] = a
		p.order = append(p.order, a)
	} else {
		p.endAgent(a, e, ending{kind: external, cause: "replaced"})
	}
	a.beginExecution(e)
	start := &RunStart{Task: Summary(task)}
	if model != "" {
		start.Model = &model
	}
	line := p.newLine(e.Timestamp, a, start)
	if name := p.agentName(key); name != a.id {
		line.addExtension(&extension{Agent: strings.ToValidUTF8(name, "\uFFFD")})
	}
	p.emitLine(line)
	return a
}

// agentName is what wake calls an agent.
func (p *Projector) agentName(key agentKey) string {
	if key.call == "" {
		return key.node
	}
	if kind := p.names[key]; kind != "" {
		return key.node + ":" + kind
	}
	return key.node + ":subagent"
}

// newAgentID chooses the id of an agent; the second of two that look alike gets a suffix.
func (p *Projector) newAgentID(key agentKey) string {
	id := AgentID(p.agentName(key))
	if p.ids[id] {
		id = withHashSuffix(id, key.node+"\x00"+key.call)
	}
	p.ids[id] = true
	return id
}

func (p *Projector) endNode(e *wire.Event) {
	a := p.agents[agentKey{e.NodeID, ""}]
	failed, isError := e.Payload.(*wire.NodeError)
	if a == nil || a.exec != e.ExecID {
		n := p.state.Nodes[e.NodeID]
		if !isError || n.Type != string(flow.TypeAgent) || n.Exec != e.ExecID {
			return
		}
		a = p.openAgent(agentKey{e.NodeID, ""}, e, p.nodeTask(e.NodeID), "") // it never came to its start
	}
	end := ending{kind: graceful}
	if isError {
		end = endingOf(failed.ErrorType)
	}
	p.endAgent(a, e, end)
}

// nodeTask is the task of a node if its agent never started.
func (p *Projector) nodeTask(node string) string {
	if p.def == nil || p.def.Node(node) == nil {
		return ""
	}
	prompt := p.def.Node(node).Input.TextAt("prompt")
	return firstLine(prompt)
}

// emitAudit tells an audit of an agent; of none, it is the run's.
func (p *Projector) emitAudit(a *agent, e *wire.Event, b *wire.AuditCheckpoint) {
	if a != nil && !a.active {
		a = nil // it has ended: the work may have been another agent's
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
	p.emitLine(p.newLine(e.Timestamp, a, body))
}

// checkpointID makes a checkpoint id of any name.
func checkpointID(name string) string {
	if checkpointPattern().MatchString(name) {
		return name
	}
	return AgentID(name)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(s)
}

// newLine is a line about an agent, or about the run.
func (p *Projector) newLine(at int64, a *agent, b Body) *Event {
	line := &Event{TS: timeOf(at), RunID: RunID(p.state.RunID), Body: b}
	if a != nil {
		line.AgentID = a.id
	}
	return line
}

func (p *Projector) emitLine(e *Event) {
	b, err := e.Append(nil)
	if err != nil {
		p.err = err
		return
	}
	p.lines = append(p.lines, b)
}

// activeSubs returns the sub-agents of a node's agent that have not ended.
func (p *Projector) activeSubs(a *agent) []*agent {
	if a.key.call != "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.order), func(s *agent) bool {
		return s.key.call == "" || s.key.node != a.key.node || !s.active
	})
}
