package run

import (
	"code.wake.dev/wake/pkg/wire"
)

// Apply folds e, which stands at pos, into s. If it returns an error, s is
// unchanged. Events of kind text and delta, of types that this version doesn't
// know, and at or below the position of s are ignored; an event with an epoch
// lower than that of the last claim of its node is void: it is counted, moves the
// position, and does nothing else.
//
// Errors are of type [HistoryError]. So is a panic, a defect of the fold, which must not end every
// process that reads the log: then s may hold a part of what the event says.
func Apply(s *wire.State, pos wire.Position, e *wire.Event) (err error) {
	f := fold{s: s, pos: pos, e: e}
	defer func() {
		if p := recover(); p != nil {
			err = f.illegalEvent("defect in the fold: %v", p)
		}
	}()
	if e.Payload == nil {
		return f.illegalEvent("has no payload")
	}
	if k := e.Type().Kind(); k == wire.KindText || k == wire.KindDelta {
		return nil
	}
	if _, unknown := e.Payload.(*wire.Opaque); unknown {
		return nil // its kind, by which some readers leave it out, can't be told from its type
	}
	if err := f.checkPlace(); err != nil {
		return err
	}
	if pos.Seq <= s.Position.Seq {
		return nil
	}
	completeState(s)
	n := s.Nodes[e.NodeID]
	if e.Epoch < n.Epoch {
		s.VoidEvents++
		s.Position = pos
		return nil
	}
	if err := f.checkOrder(n); err != nil {
		return err
	}
	if NeedsInline(e) {
		return f.historyError(ErrBlob, "its large fields have to be put back first")
	}
	if err := f.foldPayload(); err != nil {
		return err
	}
	f.measureWaiting()
	f.countTrials()
	f.stampEvent()
	return nil
}

// checkPlace checks that the event belongs to the run and to the state's stream.
func (f *fold) checkPlace() error {
	switch {
	case f.e.RunID != f.s.RunID:
		return f.illegalEvent("belongs to another run than %q", f.s.RunID)
	case f.pos.Seq == 0:
		return f.illegalEvent("has no position")
	case f.s.Position.Seq > 0 && f.pos.Incarnation != f.s.Position.Incarnation:
		return f.historyError(ErrIncarnation, "the state is of incarnation %q, the event of %q", f.s.Position.Incarnation, f.pos.Incarnation)
	}
	return nil
}

// checkOrder checks what every event of a node has to keep: first a claim, then
// events of its epoch with a rising seq.
func (f *fold) checkOrder(n wire.NodeState) error {
	e := f.e
	if e.Seq <= n.Seq {
		return f.illegalEvent("seq %d is stored already", n.Seq)
	}
	runner, _, isClaim := claimantOf(e.Payload)
	switch {
	case isClaim && e.Epoch == n.Epoch && runner != n.Runner:
		return f.illegalEvent("epoch %d was claimed by %q", n.Epoch, n.Runner)
	case isClaim && (e.NodeID == wire.RunNode) != (e.Type() == wire.TypeRunClaimed):
		return f.illegalEvent("claims the wrong kind of node")
	case !isClaim && (n.Epoch == 0 || e.Epoch > n.Epoch):
		return f.illegalEvent("epoch %d was never claimed", e.Epoch)
	}
	return nil
}

// claimantOf returns whom a claim names.
func claimantOf(p wire.Payload) (runner, process string, ok bool) {
	switch p := p.(type) {
	case *wire.RunClaimed:
		return p.Runner, p.Process, true
	case *wire.NodeClaimed:
		return p.Runner, p.Process, true
	}
	return "", "", false
}

// isOutcome reports whether an event ends an execution.
func isOutcome(p wire.Payload) bool {
	switch p.(type) {
	case *wire.NodeComplete, *wire.NodeError:
		return true
	}
	return false
}

// stampEvent records that the event has been folded.
func (f *fold) stampEvent() {
	n := f.s.Nodes[f.e.NodeID]
	n.Seq = f.e.Seq
	if runner, process, ok := claimantOf(f.e.Payload); ok {
		n.Epoch, n.Runner, n.Holder = f.e.Epoch, runner, process
	} else if f.e.NodeID != wire.RunNode && isOutcome(f.e.Payload) {
		n.Holder = "" // the last that a worker does
	}
	f.s.Nodes[f.e.NodeID] = n
	f.s.Position = f.pos
	f.s.UpdatedAt = f.e.Timestamp
	f.s.EventCount++
}

// foldPayload folds what the event says. A type that isn't listed changes nothing
// but position and seq.
func (f *fold) foldPayload() error {
	switch p := f.e.Payload.(type) {
	case *wire.RunForked:
		return f.foldFork(p)
	case *wire.FlowStart:
		return f.flowStart(p)
	case *wire.FlowComplete:
		return f.flowComplete(p)
	case *wire.FlowPaused:
		return f.flowPaused(p)
	case *wire.FlowResumed:
		return f.flowResumed(p)
	case *wire.FlowAborted:
		return f.flowAborted(p)
	case *wire.NodeScheduled:
		return f.nodeScheduled(p)
	case *wire.NodeSkipped:
		return f.nodeSkipped(p)
	case *wire.NodeCancelled:
		return f.nodeCancelled(p)
	case *wire.NodeWaiting:
		return f.nodeWaiting(p)
	case *wire.EdgeFire:
		return f.setEdge(p.EdgeID, p.From, p.To, wire.EdgeFired)
	case *wire.EdgeSkip:
		return f.setEdge(p.EdgeID, p.From, p.To, wire.EdgeSkipped)
	case *wire.LoopIterate:
		return f.loopIterate(p)
	case *wire.StatePatch:
		return f.statePatch(p)
	case *wire.CommandReceived:
		return f.commandReceived(p)
	case *wire.NodeStart:
		return f.nodeStart(p)
	case *wire.NodeComplete:
		return f.nodeComplete(p)
	case *wire.NodeError:
		return f.nodeError(p)
	case *wire.InputRequested:
		return f.inputRequested(p)
	case *wire.InputReceived:
		return f.inputReceived(p)
	case *wire.Checkpoint:
		f.addBookmark(p)
		return nil
	case *wire.WorkspaceSnapshot:
		f.keepFolder(p)
		return nil
	default:
		return f.agentPayload()
	}
}

// keepFolder takes in a snapshot of the folder, unless one that was taken later is there: another node at work in it, whose result
// lies before this event, had that recorded first.
func (f *fold) keepFolder(p *wire.WorkspaceSnapshot) {
	if last := f.s.Folder; last != nil && p.Process != "" && last.Process == p.Process && p.Order < last.Order {
		later := *last
		later.Pending = false
		f.s.Folder = &later
		return
	}
	f.s.Folder = &wire.FolderSnapshot{
		ID: p.ID, Position: f.pos.Seq, Node: f.e.NodeID, Files: p.Files, Bytes: p.Bytes,
		LeftOut: p.LeftOut, Omitted: p.Omitted, Unstable: p.Unstable, Refused: p.Refused, Process: p.Process, Order: p.Order,
	}
}

// agentPayload folds what an agent says on its own node.
func (f *fold) agentPayload() error {
	a, err := f.eventActor()
	if err != nil {
		return err
	}
	switch p := f.e.Payload.(type) {
	case *wire.AgentStart:
		f.agentStart(a)
	case *wire.SessionBound:
		f.bindSession(a, p.NewSession)
	case *wire.AgentComplete:
		f.agentComplete(a)
	case *wire.AgentPaused:
		f.agentPaused(a)
	case *wire.AgentAborted:
		f.setReason(a, "aborted")
	case *wire.AgentResumed:
		f.agentResumed(a)
	case *wire.UserMessage:
		f.userMessage(a, p)
	case *wire.TurnStart:
		f.turnStart(a)
	case *wire.TurnEnd:
		f.turnEnd(a)
	case *wire.Usage:
		f.countCall(a, p)
	case *wire.CCMessage:
		f.ccMessage(a, p)
	case *wire.TodoChanged:
		f.todoChanged(p)
	case *wire.BreakpointChanged:
		f.setBreakpoint(a, p.Current)
	case *wire.ToolIntent:
		return f.toolIntent(a, p)
	case *wire.ToolState:
		return f.toolState(a, p)
	case *wire.ToolSealed:
		return f.toolSealed(a, p)
	case *wire.AgentTool:
		return f.agentTool(a, p)
	case *wire.PermissionRequired:
		return f.permissionRequired(a, p)
	case *wire.PermissionDecided:
		return f.permissionDecided(a, p)
	}
	return nil
}
