package queries

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Status answers a [wire.StatusRequest] as of now, in at most limit bytes.
func (a *Answers) Status(ctx context.Context, q wire.StatusRequest, now time.Time, limit int) (wire.StatusResponse, error) {
	var r wire.StatusResponse
	id, node := request.Named(q.Run, q.AgentID, q.Node)
	answered, err := a.fromLive(ctx, id, func(l *liveRun) (known bool, err error) {
		r = l.statusOf(node, now.UnixMilli())
		return l.hasNode(node), nil
	})
	if !answered && err == nil {
		r, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (wire.StatusResponse, error) {
			return readStatus(ctx, t, q, now.UnixMilli(), a.views.stateUpTo)
		})
	}
	if err != nil {
		return r, request.Wrap("status", err)
	}
	omitAgents(&r, limit)
	return r, nil
}

// FillAlerts fills in how many alerts a run and its agents have raised, as far as they are recorded.
func (a *Answers) FillAlerts(ctx context.Context, r *wire.StatusResponse) error {
	counts, err := archive.Ask(ctx, a.Archive, func(t *archive.Tx) (alertCounts, error) { return countAlerts(ctx, t, r.RunID) })
	counts.fillStatus(r.RunID, &r.AgentStatus, r.Agents)
	return request.Wrap("status", err)
}

// Asked is the status of what an agentId names: a node, if it names one, as
// seeds/004 §3 has it, or else the run.
func Asked(q wire.StatusRequest, r wire.StatusResponse) wire.AgentStatus {
	if len(r.Agents) == 1 {
		if a := r.Agents[0]; q.AgentID == a.AgentID || strings.HasSuffix(q.AgentID, "/"+a.AgentID) {
			return a
		}
	}
	return r.AgentStatus
}

// agentSize is at least what an agent takes in an answer beside its texts.
const agentSize = 800

// omitAgents leaves out agents of a very wide run until the answer is small enough:
// those that have nothing to do any more, then the last ones.
func omitAgents(r *wire.StatusResponse, limit int) {
	room := (limit - agentSize) / (agentSize + 6*700)
	over := len(r.Agents) - room
	if over <= 0 {
		return
	}
	r.Omitted = over
	r.Agents = slices.DeleteFunc(r.Agents, func(a wire.AgentStatus) bool {
		settled := a.State == stateComplete || a.State == stateSkipped
		if settled && over > 0 {
			over--
			return true
		}
		return false
	})
	r.Agents = r.Agents[:len(r.Agents)-over]
}

func readStatus(ctx context.Context, tx *archive.Tx, q wire.StatusRequest, now int64, load stateLoader) (wire.StatusResponse, error) {
	t, err := request.Resolve(ctx, tx, q.Run, q.AgentID, q.Node)
	if err != nil {
		return wire.StatusResponse{}, err
	}
	f, err := figureOf(ctx, tx, t, load)
	if err != nil {
		return wire.StatusResponse{}, err
	}
	return f.statusOf(t.Node, now), nil
}

// statusOf is how a run is doing, of its agents the one that is named and its items.
func (f *figure) statusOf(node string, now int64) wire.StatusResponse {
	r := wire.StatusResponse{
		RunID: f.run, FlowName: f.state.FlowName, Status: f.state.Status, Result: f.state.Result, Labels: maps.Clone(f.state.Labels),
		By: f.state.StartedBy, Imported: f.state.Imported, Feeds: f.feeds,
		Position: f.position, Agents: []wire.AgentStatus{},
	}
	open := byNode(f.state)
	for _, n := range append(f.inheritedNodes(), f.nodes...) {
		if n.Node == wire.RunNode || !archive.IsOf(n.Node, node) {
			continue
		}
		r.Agents = append(r.Agents, nodeStatus(n, f.state, now, len(open[n.Node]) > 0))
	}
	waitingFor(open, r.Agents)
	r.AgentStatus = runStatus(r.AgentStatus, f.state, r.Agents)
	r.LastActivity = lastActivity(r.State, f.activity)
	r.WaitedMs, r.Unread = waitedMillis(f.state, now), unreadMessages(f.state)
	fillTimes(&r.AgentStatus, f.activityAt, goneUntil(f.state), now)
	return r
}

// inheritedNodes are those that a fork has from its parent, and that haven't done anything in it yet, in the order of their work.
func (f *figure) inheritedNodes() (nodes []*table.Node) {
	if len(f.state.Lineage) == 0 {
		return nil
	}
	own := map[string]bool{}
	for _, n := range f.nodes {
		own[n.Node] = true
	}
	all := f.state.Nodes
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if !own[id] && all[id].Scheduled > 0 {
			nodes = append(nodes, &table.Node{Node: id})
		}
	}
	slices.SortStableFunc(nodes, func(a, b *table.Node) int { return cmp.Compare(all[a.Node].Scheduled, all[b.Node].Scheduled) })
	return nodes
}

// maxUnread is how many messages are shown that nobody has read.
const maxUnread = 10

// unreadMessages are those that came too late for an agent of a run that has ended.
func unreadMessages(s *wire.State) (unread []string) {
	if s.Status != wire.RunComplete && s.Status != wire.RunAborted {
		return nil
	}
	for _, m := range s.Inbox {
		if text := m.Command.TextAt("message"); m.Command.TextAt("type") == "send" && text != "" && len(unread) < maxUnread {
			unread = append(unread, briefText(text))
		}
	}
	return unread
}

// waitedMillis is how long something of a run has waited for a person.
func waitedMillis(s *wire.State, now int64) int64 {
	if s.WaitsSince == 0 || s.EndedAt != 0 || s.Imported == wire.ImportedCopy { // nobody is asked by a copy
		return s.WaitedMs
	}
	return s.WaitedMs + max(0, now-s.WaitsSince)
}

// runStatus fills in what the run as a whole is doing.
func runStatus(a wire.AgentStatus, s *wire.State, nodes []wire.AgentStatus) wire.AgentStatus {
	a.AgentID = cmp.Or(s.Labels["name"], s.RunID)
	a.State = stateOfRun(s, nodes)
	a.Reason, a.Error = briefText(s.Reason), briefText(s.Error)
	a.StartedAt, a.EndedAt = s.StartedAt, s.EndedAt
	u := s.Usage
	a.CostUsd, a.TokensIn, a.TokensOut = u.CostUsd, ledger.TotalIn(u), u.OutputTokens
	a.CostBasis = ledger.Basis(u.CostUsd, u.ComputedUsd, u.Unpriced)
	a.ToolsUsed, a.ToolErrors = u.ToolCalls, u.ToolErrors
	for _, n := range nodes {
		if n.SessionID != "" && (a.SessionID == "" || n.State == stateActive || n.State == stateWaiting) {
			a.SessionID = n.SessionID
		}
		a.OpenTool = cmp.Or(n.OpenTool, a.OpenTool)
		if n.State == stateActive || n.State == stateWaiting {
			a.ContextPct = max(a.ContextPct, n.ContextPct)
		}
		if n.WaitingFor != "" && (a.WaitingFor == "" || n.WaitsSince < a.WaitsSince) {
			a.WaitingFor, a.WaitsSince = n.AgentID+": "+n.WaitingFor, n.WaitsSince
		}
	}
	if a.State == statePaused {
		a.WaitingFor = cmp.Or(a.WaitingFor, pausedFor(s.Reason))
	}
	return a
}

// The states of an agent or a run.
const (
	stateActive   = "active"
	stateWaiting  = "waiting" // for a human or a parent
	stateIdle     = "idle"
	statePaused   = "paused"
	stateAborted  = "aborted"
	stateComplete = "complete"
	stateFailed   = "failed"
	stateSkipped  = "skipped"
)

// lastActivity is what a run or a node in a state last did: an agent that was stopped amid something isn't at it any more.
func lastActivity(state, activity string) string {
	cut := state == statePaused || state == stateAborted || state == stateFailed && !timeline.IsOver(activity) // by its time, or by another node
	if activity != "" && cut {
		return "was " + activity
	}
	return activity
}

func stateOfRun(s *wire.State, nodes []wire.AgentStatus) string {
	switch s.Status {
	case wire.RunIdle:
		return stateIdle
	case wire.RunPaused:
		if s.Reason != wire.PauseIdle {
			return statePaused
		}
	case wire.RunAborted:
		return stateAborted
	case wire.RunComplete:
		if s.Result == wire.FlowStatusFailed {
			return stateFailed
		}
		return stateComplete
	case wire.RunRunning:
	}
	if slices.ContainsFunc(nodes, func(n wire.AgentStatus) bool { return n.State == stateWaiting }) {
		return stateWaiting
	}
	if s.Status == wire.RunPaused { // it is watched, and nothing goes on
		return stateIdle
	}
	return stateActive
}

// stateOfNode is how a node is doing; waits says that a person has to decide or to answer
// something.
func stateOfNode(id string, s *wire.State, waits bool) string {
	n := s.Nodes[id]
	switch s.NodeStatus[id] {
	case wire.NodeDone:
		if n.Skipped {
			return stateSkipped
		}
		return stateComplete
	case wire.NodeFailed:
		if _, again := flow.NextTry(s, id); again {
			return stateIdle
		}
		return stateFailed
	case wire.NodeRunning:
	case wire.NodePending:
		return stateIdle
	default:
		return stateIdle
	}
	switch {
	case s.Status.Ended():
		return stateAborted // no worker goes on with it
	case n.Reason == "paused", s.Status == wire.RunPaused && s.Reason != wire.PauseIdle:
		return statePaused
	case n.Reason == "aborted":
		return stateAborted
	case waits:
		return stateWaiting
	case s.Status == wire.RunPaused:
		return stateIdle
	}
	return stateActive
}

func nodeStatus(n *table.Node, s *wire.State, now int64, waits bool) wire.AgentStatus {
	st := s.Nodes[n.Node]
	a := wire.AgentStatus{
		AgentID: n.Node, State: stateOfNode(n.Node, s, waits), SessionID: st.Session,
		CostUsd: st.CostUsd, CostBasis: ledger.Basis(st.CostUsd, st.ComputedUsd, st.Unpriced), TokensIn: n.TokensIn, TokensOut: n.TokensOut, ToolsUsed: n.Tools, ToolErrors: n.ToolErrors,
		StartedAt: st.StartedAt, EndedAt: st.EndedAt,
		NodeType: st.Type, Reason: briefText(st.Reason), Error: briefText(st.Error), Attempt: st.Attempt, Iteration: st.Iteration, Model: n.Model,
		OpenTool: openTool(n.Node, s),
	}
	a.LastActivity = lastActivity(a.State, n.Activity)
	if st.Open() && st.Started < st.Scheduled && st.Pool != "" && s.Status == wire.RunRunning && a.LastActivity == "" {
		a.LastActivity = timeline.Line("waiting for a worker of pool "+st.Pool, 120)
	}
	if a.Reason == "" && run.Interrupted(s, n.Node) {
		a.Reason = st.ErrorType
	}
	switch due, again := flow.NextTry(s, n.Node); {
	case again && st.Due != 0: // its activity says until when, and why
		a.Reason, a.Error = "limit", ""
	case again:
		a.Reason = "retry"
		a.LastActivity = timeline.Line(fmt.Sprintf("waiting for try %d, at %s: %s", st.Attempt+1, timeline.UTCText(due), n.Activity), 120)
	}
	a.ContextPct = int(min(100, n.ContextTokens*100/windowSize(n)))
	if s.EndedAt > 0 { // what was at work was ended with it
		a.OpenTool = ""
		if a.EndedAt < a.StartedAt {
			a.EndedAt = s.EndedAt
		}
	}
	fillTimes(&a, n.ActivityAt, goneUntil(s), now)
	return a
}

// The sizes of a context window that are assumed until the agent has told its own,
// which it does at the end of a turn: the usual one, and for what doesn't fit in
// there the next larger one.
const (
	usualWindow = 200_000
	largeWindow = 1_000_000
)

// windowSize is the size of the context window, in tokens.
func windowSize(n *table.Node) int64 {
	switch {
	case n.ContextWindow > 0:
		return n.ContextWindow
	case n.ContextTokens > usualWindow, strings.HasSuffix(n.Model, "[1m]"):
		return largeWindow
	}
	return usualWindow
}

// openTool names the call that has been open longest.
func openTool(node string, s *wire.State) string {
	name, since := "", int64(0)
	for _, c := range s.Tools {
		if c.Node == node && (name == "" || c.Since < since || c.Since == since && c.Tool < name) {
			name, since = c.Tool, c.Since
		}
	}
	return name
}

// goneUntil is until when (Unix ms) what has no end in a run has gone on: a copy, see [wire.FlowStart.Imported], isn't told more. 0: it goes on.
func goneUntil(s *wire.State) int64 {
	if s.Imported == wire.ImportedCopy {
		return s.UpdatedAt
	}
	return 0
}

// fillTimes fills in how long something runs, until now by default, and how long ago it last did anything.
func fillTimes(a *wire.AgentStatus, activityAt, until, now int64) {
	switch {
	case a.StartedAt == 0:
	case a.EndedAt >= a.StartedAt:
		a.RuntimeMs = a.EndedAt - a.StartedAt
	default:
		a.RuntimeMs, a.EndedAt = max(0, cmp.Or(until, now)-a.StartedAt), 0
	}
	a.Runtime = timeline.Span(a.RuntimeMs)
	if activityAt > 0 {
		a.LastActivityAt, a.LastActivityAgeMs = activityAt, max(0, now-activityAt)
		a.LastActivityAge = timeline.Span(a.LastActivityAgeMs) + " ago"
	}
}

// byNode sorts what waits in a run by node, the longest waiting first.
func byNode(s *wire.State) map[string][]wire.Approval {
	open := map[string][]wire.Approval{}
	for _, a := range ask.Pending(s) {
		open[a.NodeID] = append(open[a.NodeID], a)
	}
	return open
}

// pausedFor says what a paused run is waiting for.
func pausedFor(reason string) string {
	switch reason {
	case wire.PauseRequiresAction:
		return "a decision about what was interrupted"
	case wire.PauseWorkspaceLost:
		return "the runner that has its folder"
	case wire.PauseEndedItsRunner:
		return "an operator to find out why it ended its runners"
	case wire.PauseBudget:
		return "an operator to grant more, its budget is spent"
	case wire.PauseSharedBudget:
		return "more of a budget that it shares: `wake budget list` says which is spent"
	case wire.PauseParent:
		return "its parent run, which is paused"
	case wire.PauseOperator:
		return "an operator to resume it"
	}
	return "an operator to resume it" + afterColon(reason)
}

// waitingFor fills in what agents wait for: the first of what a person has to decide or to
// answer, and how much else there is.
func waitingFor(open map[string][]wire.Approval, agents []wire.AgentStatus) {
	for i := range agents {
		a := &agents[i]
		waits := open[a.AgentID]
		if a.State != stateWaiting || len(waits) == 0 {
			continue
		}
		a.WaitsSince = waits[0].Since
		if a.WaitingFor = waitsFor(waits[0]); len(waits) > 1 {
			a.WaitingFor += fmt.Sprintf(" (and %d more)", len(waits)-1)
		}
	}
}

func afterColon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// waitsFor says in a line which decision or answer an approval waits for.
func waitsFor(a wire.Approval) string {
	switch a.Kind {
	case wire.ApprovalCall:
		return "permission" + afterColon(timeline.Line(a.ToolName+" "+timeline.WholeInput(a.ToolName, a.ToolInput), 120))
	case wire.ApprovalAsk:
		return "an answer to " + a.CallID + afterColon(timeline.Line(a.Text, 200))
	case wire.ApprovalMessage:
		return "an answer" + afterColon(fmt.Sprintf("%q (%s)", timeline.Line(a.Text, 200), a.Priority))
	default:
		return "an answer" + afterColon(timeline.Line(a.Text, 200))
	}
}

// briefText is a foreign text in a list; the log has the whole of it.
func briefText(s string) string { return timeline.Line(s, 300) }
