package run

import (
	"maps"
	"strings"

	"wake/pkg/wire"
)

// errorInput is the error type of an execution whose input could not be
// resolved, errorCancelled that of a withdrawn one.
const (
	errorInput     = "input"
	errorCancelled = "cancelled"
)

// nodeScheduled begins an execution. A forEach node runs from here on, since its
// items do.
func (f *fold) nodeScheduled(p *wire.NodeScheduled) error {
	if err := f.decided(); err != nil {
		return err
	}
	id, err := f.target(p.Target)
	if err != nil {
		return err
	}
	old := f.s.Nodes[id]
	switch want := ExecID(id, old.Execs+1); {
	case old.Open():
		return f.illegal("%s is not finished", old.Exec)
	case f.s.NodeStatus[id] == wire.NodeDone:
		return f.illegal("node %q is done", id)
	case f.e.ExecID != want:
		return f.illegal("the next execution is %s, not %q", want, f.e.ExecID)
	}
	n := wire.NodeState{
		Epoch: old.Epoch, Seq: old.Seq, Runner: old.Runner,
		Session: old.Session, CostUsd: old.CostUsd, Type: old.Type,
		Exec: f.e.ExecID, Execs: old.Execs + 1, Scheduled: f.pos.Seq,
		Attempt: p.Attempt, Iteration: p.Iteration, Pool: p.Pool,
		Index: p.Index, Count: p.Count,
		Item: f.value("item", p.Item), Input: f.value("input", p.Input),
	}
	f.s.Nodes[id] = n
	switch problem := f.errorText(p.Error); {
	case problem != "":
		f.end(id, n, wire.NodeFailed, errorInput, problem)
		f.s.Outputs[id] = failure(problem)
	case p.Index == nil && p.Count > 0:
		f.begin(id, n)
	default:
		f.s.NodeStatus[id] = wire.NodePending
	}
	return nil
}

// begin marks the latest execution as running.
func (f *fold) begin(id string, n wire.NodeState) {
	if n.Started < n.Scheduled || n.Started == 0 {
		n.Started, n.StartedAt = f.pos.Seq, f.e.Timestamp
	}
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = wire.NodeRunning
}

// end closes the latest execution and what it left open.
func (f *fold) end(id string, n wire.NodeState, status wire.NodeStatus, errorType, problem string) {
	n.Ended, n.EndedAt = f.pos.Seq, f.e.Timestamp
	n.Error, n.ErrorType = problem, errorType
	n.Reason, n.PromptID, n.Prompt, n.PromptAt, n.Answer, n.Input = "", "", "", 0, nil, nil
	n.Breakpoint, n.AgentStatus, n.Point = "", "", ""
	n.Resume, n.Fork, n.Counted, n.Asked = nil, nil, nil, nil
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = status
	delete(f.s.ExecSessions, n.Exec)
	maps.DeleteFunc(f.s.Tools, func(_ string, c wire.ToolCall) bool { return c.Exec == n.Exec && c.Node == id })
}

// failure is the output of a node that failed and left none.
func failure(problem string) wire.Raw {
	return mustMarshal(map[string]any{"error": problem})
}

// nodeSkipped settles a node without an execution.
func (f *fold) nodeSkipped(p *wire.NodeSkipped) error {
	if err := f.decided(); err != nil {
		return err
	}
	id, err := f.target(p.Target)
	if err != nil {
		return err
	}
	n := f.s.Nodes[id]
	switch {
	case n.Open():
		return f.illegal("%s is not finished", n.Exec)
	case f.s.NodeStatus[id] == wire.NodeDone:
		return f.illegal("node %q is done", id)
	}
	n.Skipped, n.Reason = true, p.Reason
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = wire.NodeDone
	f.s.Outputs[id] = mustMarshal(map[string]any{"skipped": true, "reason": p.Reason})
	return nil
}

// nodeCancelled withdraws an execution, unless it has ended meanwhile.
func (f *fold) nodeCancelled(p *wire.NodeCancelled) error {
	if err := f.decided(); err != nil {
		return err
	}
	id, err := f.target(p.Target)
	if err != nil {
		return err
	}
	n := f.s.Nodes[id]
	current, err := f.current(id, n)
	if err != nil {
		return err
	}
	if current && n.Open() {
		f.end(id, n, wire.NodeFailed, errorCancelled, p.Reason)
	}
	return nil
}

func (f *fold) nodeStart(p *wire.NodeStart) error {
	id, n, current, err := f.execution(p.Target)
	if err != nil {
		return err
	}
	if f.s.Imported != "" && (!current || !n.Open()) {
		n = f.adopt(id, n)
	} else if !current || !n.Open() {
		return f.late(n, current)
	}
	if n.Type = p.NodeType; n.Attempt == 0 {
		n.Attempt, n.Iteration = p.Attempt, p.Iteration
	}
	f.begin(id, n)
	return nil
}

func (f *fold) nodeComplete(p *wire.NodeComplete) error {
	id, n, current, err := f.execution(p.Target)
	if err != nil {
		return err
	}
	if !current || !n.Open() {
		return f.late(n, current)
	}
	if n.Started < n.Scheduled {
		return f.illegal("%s was never started", n.Exec)
	}
	f.end(id, n, wire.NodeDone, "", "")
	f.s.Outputs[id] = f.value("output", p.Output)
	return nil
}

// nodeError ends an execution badly. What there was of an output stays visible
// to the expressions of a flow that goes on.
func (f *fold) nodeError(p *wire.NodeError) error {
	id, n, current, err := f.execution(p.Target)
	if err != nil {
		return err
	}
	if !current || !n.Open() {
		return f.late(n, current)
	}
	problem := f.errorText(p.Error)
	f.end(id, n, wire.NodeFailed, p.ErrorType, problem)
	if f.s.Outputs[id] = f.value("output", p.Output); f.s.Outputs[id] == nil {
		f.s.Outputs[id] = failure(problem)
	}
	return nil
}

// execution finds the node and the execution that an event speaks of.
func (f *fold) execution(target string) (id string, n wire.NodeState, current bool, err error) {
	if id, err = f.target(target); err != nil {
		return "", n, false, err
	}
	n = f.s.Nodes[id]
	current, err = f.current(id, n)
	return id, n, current, err
}

// late judges an event about an execution that is over: it is in order if the
// owner withdrew or replaced the execution while the worker was writing.
func (f *fold) late(n wire.NodeState, current bool) error {
	if current && n.ErrorType != errorCancelled && f.s.Imported == "" {
		return f.illegal("%s has ended", n.Exec)
	}
	return nil
}

// adopt opens an execution that nobody scheduled, for a run that was imported.
func (f *fold) adopt(id string, old wire.NodeState) wire.NodeState {
	n := wire.NodeState{
		Epoch: old.Epoch, Seq: old.Seq, Runner: old.Runner, CostUsd: old.CostUsd,
		Exec: f.e.ExecID, Execs: old.Execs + 1, Scheduled: f.pos.Seq,
	}
	if n.Exec == "" {
		n.Exec = ExecID(id, n.Execs)
	}
	return n
}

func (f *fold) inputRequested(p *wire.InputRequested) error {
	id, n, current, err := f.execution(p.Target)
	if err != nil {
		return err
	}
	if !current || !n.Open() {
		return f.late(n, current)
	}
	old := n.PromptID
	n.PromptID, n.Prompt, n.PromptAt = p.PromptID, beginning(p.Prompt, maxQuestion), f.e.Timestamp
	n.Reason, n.Answer = "waiting", nil
	f.s.Nodes[id] = n
	f.s.PromptCount++
	if old != "" {
		f.deliver(reply(old))
	}
	return nil
}

func (f *fold) inputReceived(p *wire.InputReceived) error {
	id, n, current, err := f.execution(p.Target)
	if err != nil {
		return err
	}
	if !current || !n.Open() {
		return f.late(n, current)
	}
	if n.PromptID != p.PromptID {
		return f.illegal("prompt %q is not open", p.PromptID)
	}
	n.PromptID, n.Prompt, n.PromptAt = "", "", 0
	n.Reason, n.Answer = "", f.value("content", p.Content)
	f.s.Nodes[id] = n
	f.deliver(reply(p.PromptID))
	return nil
}

func reply(prompt string) func(wire.Raw) bool {
	return func(c wire.Raw) bool { return field(c, "type") == "reply" && field(c, "promptId") == prompt }
}

// loopIterate counts a passage and makes its nodes and edges pending again.
func (f *fold) loopIterate(p *wire.LoopIterate) error {
	if err := f.decided(); err != nil {
		return err
	}
	if p.EdgeID == "" {
		return f.illegal("names no edge")
	}
	if count := f.s.LoopCounters[p.EdgeID]; p.Iteration != 0 && p.Iteration != count+1 {
		return f.illegal("iteration %d of %s follows %d", p.Iteration, p.EdgeID, count)
	}
	again := f.withItems(p.Nodes)
	for _, id := range again {
		if n := f.s.Nodes[id]; n.Open() {
			return f.illegal("%s is not finished", n.Exec)
		}
	}
	f.s.LoopCounters[p.EdgeID] = p.Iteration
	for _, id := range again {
		f.pendingAgain(id)
	}
	for _, key := range p.Edges {
		f.s.EdgeStatus[key] = wire.EdgePending
	}
	return nil
}

// withItems adds to the nodes the items that a forEach made of them.
func (f *fold) withItems(nodes []string) []string {
	if len(nodes) == 0 {
		return nil
	}
	named := make(map[string]bool, len(nodes))
	for _, id := range nodes {
		named[id] = true
	}
	all := append([]string(nil), nodes...)
	for id := range f.s.NodeStatus {
		if parent, _, isItem := strings.Cut(id, "/"); isItem && named[parent] {
			all = append(all, id)
		}
	}
	return all
}

// pendingAgain takes back how a node was settled. Its last output stays for the
// next pass to look at; items go, as the next pass may have fewer.
func (f *fold) pendingAgain(id string) {
	if n, ok := f.s.Nodes[id]; ok {
		n.Skipped, n.Reason, n.Error, n.ErrorType = false, "", "", ""
		n.Index, n.Count, n.Item = nil, 0, nil
		f.s.Nodes[id] = n
	}
	if strings.Contains(id, "/") {
		delete(f.s.NodeStatus, id)
		delete(f.s.Outputs, id)
		return
	}
	f.s.NodeStatus[id] = wire.NodePending
}
