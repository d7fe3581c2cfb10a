package run

import (
	"maps"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// idleTarget is the node that a decision is about, which has no execution under way and isn't done.
func (f *fold) idleTarget(target string) (id string, n wire.NodeState, err error) {
	if err = f.checkDecision(); err == nil {
		id, err = f.targetNode(target)
	}
	if err != nil {
		return id, n, err
	}
	switch n = f.s.Nodes[id]; {
	case n.Open():
		err = f.illegalEvent("%s is not finished", n.Exec)
	case f.s.NodeStatus[id] == wire.NodeDone:
		err = f.illegalEvent("node %q is done", id)
	}
	return id, n, err
}

// nodeScheduled begins an execution. A forEach node runs from here on, since its
// items do.
func (f *fold) nodeScheduled(p *wire.NodeScheduled) error {
	id, old, err := f.idleTarget(p.Target)
	if err != nil {
		return err
	}
	if want := ExecID(id, old.Execs+1); f.e.ExecID != want {
		return f.illegalEvent("the next execution is %s, not %q", want, f.e.ExecID)
	}
	n := wire.NodeState{
		Epoch: old.Epoch, Seq: old.Seq, Runner: old.Runner, Holder: old.Holder,
		Session: old.Session, CostUsd: old.CostUsd, ComputedUsd: old.ComputedUsd, Unpriced: old.Unpriced, Type: old.Type,
		Exec: f.e.ExecID, Execs: old.Execs + 1, Scheduled: f.pos.Seq,
		Attempt: p.Attempt, Iteration: p.Iteration, Pool: p.Pool,
		Index: p.Index, Count: p.Count,
		Item: f.payloadValue("item", p.Item), Input: f.payloadValue("input", p.Input),
	}
	if r := old.Resume; r != nil && r.Message != "" { // no execution has been told yet
		n.Resume = &wire.Resume{Message: r.Message, Strategy: r.Strategy, MessageAt: r.MessageAt}
	}
	switch {
	case old.Due != 0:
		n.Waits = old.Waits + 1
	case p.Attempt > 1:
		n.Waits = old.Waits
	}
	f.s.Nodes[id] = n
	switch problem := f.errorText(p.Error); {
	case problem != "":
		f.endExecution(id, n, wire.NodeFailed, wire.ErrorInput, problem)
		f.s.Outputs[id] = failureOutput(problem)
	case p.Index == nil && p.Count > 0:
		f.beginExecution(id, n)
	default:
		f.s.NodeStatus[id] = wire.NodePending
	}
	return nil
}

// beginExecution marks the latest execution as running.
func (f *fold) beginExecution(id string, n wire.NodeState) {
	if n.Started < n.Scheduled {
		n.Started, n.StartedAt, n.PausedBefore = f.pos.Seq, f.e.Timestamp, f.s.PausedMs
	}
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = wire.NodeRunning
}

// endExecution closes the latest execution and what it left open.
func (f *fold) endExecution(id string, n wire.NodeState, status wire.NodeStatus, errorType, problem string) {
	n.Ended, n.EndedAt = f.pos.Seq, f.e.Timestamp
	n.Error, n.ErrorType = problem, errorType
	n.Reason, n.PromptID, n.Prompt, n.PromptAt, n.Answer, n.Input = "", "", "", 0, nil, nil
	n.Breakpoint, n.AgentStatus, n.Point, n.Due, n.Ending = "", "", "", 0, false
	n.Resume, n.Fork, n.Counted, n.Asked = nil, nil, nil, nil
	n.Unsettled, n.Settled = nil, false
	n.Process, n.Trials = "", 0
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = status
	delete(f.s.ExecSessions, n.Exec)
	maps.DeleteFunc(f.s.Tools, func(_ string, c wire.ToolCall) bool { return c.Exec == n.Exec && c.Node == id })
}

// failureOutput is the output of a node that failed and left none.
func failureOutput(problem string) wire.Raw {
	return mustMarshal(map[string]any{"error": problem})
}

// nodeSkipped settles a node without an execution.
func (f *fold) nodeSkipped(p *wire.NodeSkipped) error {
	id, n, err := f.idleTarget(p.Target)
	if err != nil {
		return err
	}
	n.Skipped, n.Reason = true, p.Reason
	f.s.Nodes[id] = n
	f.s.NodeStatus[id] = wire.NodeDone
	f.s.Outputs[id] = mustMarshal(map[string]any{"skipped": true, "reason": p.Reason})
	return nil
}

// nodeCancelled withdraws an execution, unless it has ended meanwhile.
func (f *fold) nodeCancelled(p *wire.NodeCancelled) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	id, err := f.targetNode(p.Target)
	if err != nil {
		return err
	}
	n := f.s.Nodes[id]
	current, err := f.isCurrent(id, n)
	if err != nil {
		return err
	}
	if current && n.Open() {
		f.endExecution(id, n, wire.NodeFailed, wire.ErrorCancelled, p.Reason)
	}
	return nil
}

// nodeWaiting notes until when an execution waits, unless it has ended meanwhile.
func (f *fold) nodeWaiting(p *wire.NodeWaiting) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	id, n, open, err := f.openExecution(p.Target)
	if !open {
		return err
	}
	n.Due, n.Reason = p.Until, p.Reason
	f.s.Nodes[id] = n
	return nil
}

func (f *fold) nodeStart(p *wire.NodeStart) error {
	id, n, current, err := f.findExecution(p.Target)
	if err != nil {
		return err
	}
	if f.s.Imported != "" && (!current || !n.Open()) {
		n = f.adoptExecution(id, n)
	} else if !current || !n.Open() {
		return f.checkLate(n, current)
	}
	if n.Type = p.NodeType; n.Attempt == 0 {
		n.Attempt, n.Iteration = p.Attempt, p.Iteration
	}
	f.beginExecution(id, n)
	switch {
	case p.EmptyFolder && f.s.Folder == nil:
		f.s.Folder = &wire.FolderSnapshot{Position: f.pos.Seq, Node: id}
	case p.FolderFollows:
		var last wire.FolderSnapshot
		if f.s.Folder != nil {
			last = *f.s.Folder
		}
		last.Pending = true
		f.s.Folder = &last
	}
	return nil
}

func (f *fold) nodeComplete(p *wire.NodeComplete) error {
	id, n, open, err := f.openExecution(p.Target)
	if !open {
		return err
	}
	if n.Started < n.Scheduled {
		return f.illegalEvent("%s was never started", n.Exec)
	}
	f.endExecution(id, n, wire.NodeDone, "", "")
	f.s.Outputs[id] = f.payloadValue("output", p.Output)
	return nil
}

// nodeError ends an execution badly. What there was of an output stays visible
// to the expressions of a flow that goes on.
func (f *fold) nodeError(p *wire.NodeError) error {
	id, n, open, err := f.openExecution(p.Target)
	if !open {
		return err
	}
	problem := f.errorText(p.Error)
	f.endExecution(id, n, wire.NodeFailed, p.ErrorType, problem)
	if p.RetryAt != 0 {
		n = f.s.Nodes[id]
		n.Due = p.RetryAt
		f.s.Nodes[id] = n
	}
	if f.s.Outputs[id] = f.payloadValue("output", p.Output); f.s.Outputs[id] == nil {
		f.s.Outputs[id] = failureOutput(problem)
	}
	return nil
}

// findExecution finds the node and the execution that an event speaks of.
func (f *fold) findExecution(target string) (id string, n wire.NodeState, current bool, err error) {
	if id, err = f.targetNode(target); err != nil {
		return "", n, false, err
	}
	n = f.s.Nodes[id]
	current, err = f.isCurrent(id, n)
	return id, n, current, err
}

// openExecution finds the node and the execution that an event speaks of. If that isn't open, err is what
// [fold.checkLate] says.
func (f *fold) openExecution(target string) (id string, n wire.NodeState, open bool, err error) {
	id, n, current, err := f.findExecution(target)
	if err != nil {
		return id, n, false, err
	}
	if open = current && n.Open(); !open {
		err = f.checkLate(n, current)
	}
	return id, n, open, err
}

// checkLate judges an event about an execution that is over: it is in order if the
// owner withdrew or replaced the execution while the worker was writing.
func (f *fold) checkLate(n wire.NodeState, current bool) error {
	if current && n.ErrorType != wire.ErrorCancelled && f.s.Imported == "" {
		return f.illegalEvent("%s has ended", n.Exec)
	}
	return nil
}

// adoptExecution opens an execution that no owner scheduled, for a run that was imported.
func (f *fold) adoptExecution(id string, old wire.NodeState) wire.NodeState {
	n := wire.NodeState{
		Epoch: old.Epoch, Seq: old.Seq, Runner: old.Runner, Holder: old.Holder,
		CostUsd: old.CostUsd, ComputedUsd: old.ComputedUsd, Unpriced: old.Unpriced,
		Exec: f.e.ExecID, Execs: old.Execs + 1, Scheduled: f.pos.Seq,
	}
	if n.Exec == "" {
		n.Exec = ExecID(id, n.Execs)
	}
	return n
}

func (f *fold) inputRequested(p *wire.InputRequested) error {
	id, n, open, err := f.openExecution(p.Target)
	if !open {
		return err
	}
	old := n.PromptID
	n.PromptID, n.Prompt, n.PromptAt = p.PromptID, firstChars(p.Prompt, maxQuestion), f.e.Timestamp
	n.Reason, n.Answer = "waiting", nil
	f.s.Nodes[id] = n
	f.s.PromptCount++
	if old != "" {
		f.removeObeyed(RepliesTo(old))
	}
	return nil
}

func (f *fold) inputReceived(p *wire.InputReceived) error {
	id, n, open, err := f.openExecution(p.Target)
	if !open {
		return err
	}
	if n.PromptID != p.PromptID {
		return f.illegalEvent("prompt %q is not open", p.PromptID)
	}
	n.PromptID, n.Prompt, n.PromptAt = "", "", 0
	n.Reason, n.Answer = "", f.payloadValue("content", p.Content)
	f.s.Nodes[id] = n
	f.removeObeyed(RepliesTo(p.PromptID))
	return nil
}

// RepliesTo reports of a command whether it answers the prompt of an ask node. Prompts have ids of their own in a run.
func RepliesTo(prompt string) func(wire.Raw) bool {
	return func(c wire.Raw) bool {
		return c.TextAt("type") == "reply" && c.TextAt("promptId") == prompt
	}
}

// loopIterate counts a passage and makes its nodes and edges pending again.
func (f *fold) loopIterate(p *wire.LoopIterate) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	if p.EdgeID == "" {
		return f.illegalEvent("names no edge")
	}
	if count := f.s.LoopCounters[p.EdgeID]; p.Iteration != 0 && p.Iteration != count+1 {
		return f.illegalEvent("iteration %d of %s follows %d", p.Iteration, p.EdgeID, count)
	}
	again := f.withItems(p.Nodes)
	for _, id := range again {
		if n := f.s.Nodes[id]; n.Open() {
			return f.illegalEvent("%s is not finished", n.Exec)
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
// next pass to look at; items go, as the next pass may have fewer. That its execution
// was withdrawn stays until the next one is scheduled: its worker may still be writing.
func (f *fold) pendingAgain(id string) {
	if n, ok := f.s.Nodes[id]; ok {
		n.Skipped, n.Reason, n.Error, n.Due = false, "", "", 0
		if n.ErrorType != wire.ErrorCancelled {
			n.ErrorType = ""
		}
		n.Index, n.Count, n.Item, n.Resume = nil, 0, nil, nil
		f.s.Nodes[id] = n
	}
	if strings.Contains(id, "/") {
		delete(f.s.NodeStatus, id)
		delete(f.s.Outputs, id)
		return
	}
	f.s.NodeStatus[id] = wire.NodePending
}
