package run

import (
	"cmp"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// flowStart begins the run. Nodes and edges of the definition are pending; the
// user's state is the definition's.
func (f *fold) flowStart(p *wire.FlowStart) error {
	if err := f.byOwner(); err != nil {
		return err
	}
	if f.s.Status != wire.RunIdle {
		return f.illegalEvent("the run is %s", f.s.Status)
	}
	s := f.s
	s.Status = wire.RunRunning
	s.StartedAt, s.StartedBy = f.e.Timestamp, p.By
	s.FlowName = p.FlowName
	s.Definition, s.DefinitionHash = p.Definition, p.DefinitionHash
	s.Input = f.payloadValue("input", p.Input)
	s.Limits = f.payloadValue("limits", p.Limits)
	s.Fixtures, s.Workspace, s.Imported = p.Fixtures, p.Workspace, p.Imported
	f.setDeadline(ledger.TimeoutOf(s.Limits))
	s.ParentRun, s.ParentNode, s.ParentCall = p.ParentRun, p.ParentNode, p.ParentCall
	s.Overrides = mergeOverrides(nil, p.Overrides)
	if len(p.Labels) > 0 {
		s.Labels = maps.Clone(p.Labels)
	}
	if state := p.Definition.Get("state"); state.IsMap() {
		s.State = state
	}
	f.addGraph(p.Definition)
	return nil
}

// addGraph marks the nodes and edges of a definition as pending. A definition of
// another shape, as an imported run may carry, has none.
func (f *fold) addGraph(definition wire.Raw) {
	var d struct {
		Nodes []struct {
			ID string `json:"id"`
		} `json:"nodes"`
		Edges []struct {
			ID   string `json:"id"`
			From string `json:"from"`
			To   string `json:"to"`
		} `json:"edges"`
	}
	if wire.Unmarshal(definition, &d) != nil {
		return
	}
	for _, n := range d.Nodes {
		if n.ID != "" {
			f.s.NodeStatus[n.ID] = wire.NodePending
		}
	}
	for _, e := range d.Edges {
		f.s.EdgeStatus[edgeKey(e.ID, e.From, e.To)] = wire.EdgePending
	}
}

func (f *fold) flowComplete(p *wire.FlowComplete) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	if f.s.Status == wire.RunPaused {
		return f.illegalEvent("the run is paused")
	}
	f.s.Status, f.s.Reason = wire.RunComplete, ""
	f.s.Result = p.Status
	f.s.Error = f.errorText(p.Error)
	f.s.EndedAt = f.e.Timestamp
	return nil
}

// flowPaused pauses the run, or gives a paused one another reason.
func (f *fold) flowPaused(p *wire.FlowPaused) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	f.stopTime()
	f.s.Status, f.s.Reason, f.s.PausedAt = wire.RunPaused, p.Reason, f.pos.Seq
	f.removeObeyed(func(c wire.Raw) bool {
		t := c.TextAt("type")
		return t == "pause" || t == "abort" && isResumable(c)
	})
	return nil
}

// flowResumed continues a run that is paused, one that is running and lost
// its owner, or one that has failed, from the nodes on that it names. Executions
// of agents that have begun are told how to go on.
func (f *fold) flowResumed(p *wire.FlowResumed) error {
	if err := f.checkResumption(p); err != nil {
		return err
	}
	ended := hasFailed(f.s)
	f.grantBudget(p)
	if !p.Hold {
		if f.s.Status == wire.RunPaused { // the operator has looked
			f.forgetTrials()
		}
		f.countPause()
		f.s.Status, f.s.Reason, f.s.PausedAt = wire.RunRunning, "", 0
		f.s.Result, f.s.Error, f.s.EndedAt = "", "", 0
	}
	f.grantTime(givenLimits(p), ended)
	f.s.ResumedAt, f.s.Held = f.pos.Seq, p.Hold && p.Strategy == strategyManual
	f.s.Overrides = mergeOverrides(f.s.Overrides, p.Overrides)
	if dir := p.Overrides.TextAt("workspace"); dir != "" {
		f.s.Workspace = dir
	}
	for _, id := range p.Rerun {
		if n := f.s.Nodes[id]; n.Due != 0 { // it waited for a limit, and goes on in its session
			n.Due = max(1, min(n.Due, f.e.Timestamp))
			f.s.Nodes[id] = n
			continue
		}
		f.pendingAgain(id)
	}
	for _, id := range p.Fail {
		n := f.s.Nodes[id]
		n.ErrorType = wire.ErrorProcessDied
		f.s.Nodes[id] = n
	}
	for id, n := range f.s.Nodes {
		triedAgain := !n.Open() && (slices.Contains(p.Rerun, id) || f.s.NodeStatus[id] == wire.NodeFailed && !slices.Contains(p.Fail, id))
		if n.Type == agentType && (n.Open() && n.Started >= n.Scheduled || triedAgain && p.Message != "") {
			next := &wire.Resume{Message: p.Message, Strategy: p.Strategy, Hold: p.Hold}
			switch old := n.Resume; {
			case p.Message != "":
				next.MessageAt = f.pos.Seq
			case old != nil: // it hasn't been told yet, and only the owner has changed
				next.Message, next.MessageAt = old.Message, old.MessageAt
			}
			n.Resume = next
			f.s.Nodes[id] = n
		}
	}
	f.removeObeyed(func(c wire.Raw) bool { return c.TextAt("type") == "resume" })
	return nil
}

// grantBudget has the run spend more: up to limits that are given, else, if its budget has paused
// it, as much as before once more.
func (f *fold) grantBudget(p *wire.FlowResumed) {
	limits := givenLimits(p)
	f.s.Limits = ledger.MergeLimits(f.s.Limits, limits)
	switch {
	case ledger.BoundsSpending(limits):
		f.s.BudgetFrom = nil
	case !p.Hold && f.s.Reason == wire.PauseBudget:
		f.s.BudgetFrom = new(ledger.Spent(f.s.Usage))
	}
}

// givenLimits are those of a resumption.
func givenLimits(p *wire.FlowResumed) wire.Raw {
	if Ref(p.Limits) != "" {
		return nil // no limits are that large
	}
	return p.Limits
}

// checkResumption checks that the run can go on as the event says.
func (f *fold) checkResumption(p *wire.FlowResumed) error {
	if err := f.byOwner(); err != nil {
		return err
	}
	if hasFailed(f.s) && len(p.Rerun) > 0 && len(p.Fail) == 0 && !p.Hold {
		for _, id := range p.Rerun {
			if f.s.NodeStatus[id] != wire.NodeFailed || f.s.Nodes[id].Open() {
				return f.illegalEvent("node %q did not fail", id)
			}
		}
		return nil
	}
	if err := f.goesOn(); err != nil {
		return err
	}
	if p.Hold && f.s.Status != wire.RunPaused {
		return f.illegalEvent("the run is %s: there is nothing to hold", f.s.Status)
	}
	for _, id := range slices.Concat(p.Rerun, p.Fail) {
		if !Interrupted(f.s, id) {
			return f.illegalEvent("node %q was not interrupted", id)
		}
	}
	return nil
}

// hasFailed reports whether a run has ended badly.
func hasFailed(s *wire.State) bool {
	return s.Status == wire.RunComplete && s.Result == wire.FlowStatusFailed
}

// Failed reports whether a run has ended badly and can go on from what failed: a copy of one isn't executed.
func Failed(s *wire.State) bool { return hasFailed(s) && s.Imported == "" }

// agentType is the type of nodes that agents execute.
const agentType = "agent"

// strategyManual leaves open calls as they are.
const strategyManual = "manual"

// Interrupted reports whether a crash ended the latest execution of a node and
// the operator hasn't decided yet what follows.
func Interrupted(s *wire.State, node string) bool {
	if s.NodeStatus[node] != wire.NodeFailed {
		return false
	}
	t := s.Nodes[node].ErrorType
	return t == wire.ErrorInterrupted || t == wire.ErrorSessionNotFound
}

// mergeOverrides adds settings to those there are; those of a node are merged in
// turn. What is no object changes nothing.
func mergeOverrides(old, given wire.Raw) wire.Raw {
	fields, ok := given.Any().(map[string]any)
	if !ok || len(fields) == 0 {
		return old
	}
	merged, _ := old.Any().(map[string]any)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, v := range fields {
		inner, isObject := v.(map[string]any)
		if below, ok := merged[name].(map[string]any); ok && isObject {
			maps.Copy(below, inner)
		} else {
			merged[name] = v
		}
	}
	return mustMarshal(merged)
}

func (f *fold) flowAborted(p *wire.FlowAborted) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	f.countPause()
	f.s.Status, f.s.Reason, f.s.PausedAt = wire.RunAborted, p.Reason, 0
	f.s.EndedAt = f.e.Timestamp
	f.removeObeyed(func(c wire.Raw) bool { return c.TextAt("type") == "abort" })
	return nil
}

// foldFork replaces the state by the parent's. What belongs to the parent stays
// there: its writers, its commands, what it spent, and the run that waits for it. The
// sessions of agents that were at work stay too: theirs begin as copies.
func (f *fold) foldFork(p *wire.RunForked) error {
	if err := f.byOwner(); err != nil {
		return err
	}
	if f.s.Status != wire.RunIdle {
		return f.illegalEvent("the run is %s", f.s.Status)
	}
	parent, err := Decode(p.State)
	if err != nil {
		return f.illegalEvent("the parent's state: %v", err)
	}
	self := f.s.Nodes[wire.RunNode]
	for id, n := range parent.Nodes {
		n.Epoch, n.Seq, n.Runner, n.Holder, n.CostUsd, n.ExecCost = 0, 0, "", "", 0, 0
		n.Process, n.Trials = "", 0
		moveBefore(&n, f.pos.Seq)
		n.ComputedUsd, n.Unpriced, n.Unsettled, n.Settled = 0, 0, nil, false
		// An execution that hasn't begun has the session of the one before.
		begun := parent.ExecSessions[n.Exec] != ""
		if n.Open() && begun && n.Session != "" && n.Fork == nil {
			n.Fork = &wire.AgentPoint{Session: n.Session, Point: n.Point}
			n.Session = ""
			delete(parent.AgentSessions, id)
		}
		n.Resume = nil
		f.restartClock(&n)
		parent.Nodes[id] = n
	}
	for key, c := range parent.Tools {
		if c.AskedAt != 0 {
			c.AskedAt = f.e.Timestamp
			parent.Tools[key] = c
		}
	}
	clear(parent.ExecSessions)
	for i, b := range parent.Bookmarks {
		parent.Bookmarks[i].Run = cmp.Or(b.Run, p.ParentRun)
	}
	parent.Nodes[wire.RunNode] = self
	ancestor := wire.Ancestor{RunID: p.ParentRun, Position: p.ParentPos, Label: p.Label}
	parent.Lineage = append([]wire.Ancestor{ancestor}, parent.Lineage...)
	parent.RunID, parent.ParentRun, parent.ParentNode, parent.ParentCall = f.s.RunID, "", "", ""
	parent.StartedAt, parent.StartedBy = f.e.Timestamp, p.By
	parent.Inbox = forkInbox(parent)
	parent.CommandPos, parent.CommandIDs, parent.NoticesLost = 0, nil, 0
	parent.BudgetFrom = nil
	parent.Deadline, parent.TimeLeftMs = 0, 0
	parent.Usage, parent.WaitedMs, parent.WaitsSince = wire.UsageTotals{}, 0, 0
	parent.EndedAt, parent.PausedAt, parent.ResumedAt = 0, 0, 0
	parent.VoidEvents, parent.EventCount = f.s.VoidEvents, f.s.EventCount
	parent.PausedSince = cmp.Or(parent.PausedSince, parent.UpdatedAt) // from the point on, until now
	*f.s = *parent
	f.countPause()
	f.setDeadline(ledger.TimeoutOf(f.s.Limits))
	return nil
}

// forkInbox is what a fork has of the inbox of its parent: the messages that agents at work haven't read. The parent does whatever else it
// was told.
func forkInbox(s *wire.State) []wire.InboxEntry {
	unread := []wire.InboxEntry{}
	for _, m := range s.Inbox {
		n := s.Nodes[m.Node]
		if m.Command.TextAt("type") == "send" && n.Open() && (m.Exec == "" || m.Exec == n.Exec) {
			unread = append(unread, m)
		}
	}
	return unread
}

// restartClock has an execution that a fork goes on with begin, and ask a person, at the fork. What it had taken of its time in the
// parent stays taken.
func (f *fold) restartClock(n *wire.NodeState) {
	took := f.e.Timestamp - n.StartedAt
	if !n.Open() || n.Started < n.Scheduled || n.StartedAt == 0 || took <= 0 {
		return
	}
	n.StartedAt, n.PausedBefore = f.e.Timestamp, n.PausedBefore+took
	if n.PromptID != "" {
		n.PromptAt = f.e.Timestamp
	}
	n.Asked = slices.Clone(n.Asked)
	for i := range n.Asked {
		n.Asked[i].Since = f.e.Timestamp
	}
}

// moveBefore has the positions of a node's latest execution be ones before end, where the fork is. They are, but for a fork that
// was imported: the positions of its parent's log say nothing in this one, only which of them came first.
func moveBefore(n *wire.NodeState, end uint64) {
	if max(n.Scheduled, n.Started, n.Ended) < end {
		return
	}
	for _, pos := range []*uint64{&n.Started, &n.Ended} {
		if *pos < n.Scheduled { // of the execution before
			*pos = 0
		}
		*pos = min(*pos, end)
	}
	n.Scheduled = min(n.Scheduled, end)
}

func (f *fold) setEdge(id, from, to string, status wire.EdgeStatus) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	key := edgeKey(id, from, to)
	if old := f.s.EdgeStatus[key]; old != "" && old != wire.EdgePending {
		return f.illegalEvent("edge %s has %s already", key, old)
	}
	f.s.EdgeStatus[key] = status
	return nil
}

// statePatch changes the user's state.
func (f *fold) statePatch(p *wire.StatePatch) error {
	if err := f.checkDecision(); err != nil {
		return err
	}
	state, err := Patch(f.s.State, p.Patch)
	if err != nil {
		return f.illegalEvent("%v", err)
	}
	f.s.State = state
	return nil
}

// maxAutomatic bounds the bookmarks that no user asked for; the older ones are in
// WAKE_BOOKMARKS.
const maxAutomatic = 256

// MaxLabels bounds the labels of a run, without those of its ancestors: the state at each is kept whole. A label that is one too many
// is a position like any other.
const MaxLabels = 1000

// HasLabel reports whether a run has a label.
func HasLabel(s *wire.State, label string) bool {
	return slices.ContainsFunc(s.Bookmarks, func(b wire.Bookmark) bool { return b.Label == label })
}

// CountLabels counts the labels of a run, without those of its ancestors.
func CountLabels(s *wire.State) (n int) {
	for _, b := range s.Bookmarks {
		if b.Kind == wire.CheckpointLabelled && b.Run == "" {
			n++
		}
	}
	return n
}

// addBookmark keeps a labelled point. The same label again moves it.
func (f *fold) addBookmark(p *wire.Checkpoint) {
	if p.Label == "" {
		return
	}
	f.removeObeyed(func(c wire.Raw) bool {
		return c.TextAt("type") == "bookmark" && c.TextAt("label") == p.Label
	})
	if p.Kind == wire.CheckpointLabelled && CountLabels(f.s) >= MaxLabels && !HasLabel(f.s, p.Label) {
		return
	}
	b := wire.Bookmark{Label: p.Label, Kind: p.Kind, Position: cmp.Or(p.AtPos, f.pos.Seq)}
	if f.e.NodeID != wire.RunNode {
		b.Node = f.e.NodeID
	}
	automatic, oldest := 0, -1
	kept := make([]wire.Bookmark, 0, len(f.s.Bookmarks)+1)
	for _, old := range f.s.Bookmarks {
		if old.Label == b.Label {
			continue
		}
		if old.Kind != wire.CheckpointLabelled {
			if automatic++; oldest < 0 {
				oldest = len(kept)
			}
		}
		kept = append(kept, old)
	}
	if automatic >= maxAutomatic && b.Kind != wire.CheckpointLabelled {
		kept = append(kept[:oldest], kept[oldest+1:]...)
	}
	f.s.Bookmarks = append(kept, b)
}
