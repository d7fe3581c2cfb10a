package recorder

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"wake/internal/run"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

// Status answers a [wire.StatusRequest] as of now, in at most limit bytes.
func (s *Store) Status(ctx context.Context, q wire.StatusRequest, now time.Time, limit int) (wire.StatusResponse, error) {
	var r wire.StatusResponse
	id, node := named(q.Run, q.AgentID, q.Node)
	answered, err := s.fromLive(ctx, id, func(l *liveRun) (known bool, err error) {
		r, known = l.answer(node, now.UnixMilli())
		return known, nil
	})
	if !answered && err == nil {
		r, err = s.stored(ctx, q, now.UnixMilli())
	}
	if err != nil {
		return r, wrap("status", err)
	}
	omit(&r, limit)
	return r, nil
}

// stored answers from the store.
func (s *Store) stored(ctx context.Context, q wire.StatusRequest, now int64) (wire.StatusResponse, error) {
	tx, err := s.view(ctx)
	if err != nil {
		return wire.StatusResponse{}, err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return status(ctx, tx, q, now, s.views.state)
}

// asked is how the one is doing that an agentId names: a node, if it is one, as
// seeds/004 §3 has it, or else the run.
func asked(q wire.StatusRequest, r wire.StatusResponse) wire.AgentStatus {
	if len(r.Agents) == 1 {
		if a := r.Agents[0]; q.AgentID == a.AgentID || strings.HasSuffix(q.AgentID, "/"+a.AgentID) {
			return a
		}
	}
	return r.AgentStatus
}

// agentSize is at least what an agent takes in an answer beside its texts.
const agentSize = 800

// omit leaves out agents of a very wide run until the answer is small enough:
// those that have nothing to do any more, then the last ones.
func omit(r *wire.StatusResponse, limit int) {
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

func status(ctx context.Context, tx *tx, q wire.StatusRequest, now int64, load stateLoader) (wire.StatusResponse, error) {
	t, err := resolve(ctx, tx, q.Run, q.AgentID, q.Node)
	if err != nil {
		return wire.StatusResponse{}, err
	}
	f, err := figureOf(ctx, tx, t, load)
	if err != nil {
		return wire.StatusResponse{}, err
	}
	return f.status(t.node, now), nil
}

// figure is what a status is made of.
type figure struct {
	run        string
	position   wire.Position
	activity   string
	activityAt int64
	state      *wire.State
	nodes      []*nodeRow // in the order of their ids
}

// figureOf reads a run from the store.
func figureOf(ctx context.Context, tx *tx, t target, load stateLoader) (figure, error) {
	f := figure{run: t.run}
	row := tx.row(ctx, `SELECT activity, activity_at, CASE WHEN last_pos < derived THEN last_pos ELSE derived END, incarnation FROM runs, streams WHERE runs.id = ?1`, t.id)
	err := row.Scan(&f.activity, &f.activityAt, &f.position.Seq, &f.position.Incarnation)
	if err != nil {
		return f, err
	}
	if f.state, err = load(ctx, tx, t, f.position.Seq); err != nil {
		return f, err
	}
	f.nodes, err = nodesOf(ctx, tx, t.id)
	return f, err
}

// status is how a run is doing, of its agents the one that is named and its items.
func (f *figure) status(node string, now int64) wire.StatusResponse {
	r := wire.StatusResponse{
		RunID: f.run, FlowName: f.state.FlowName, Status: f.state.Status, Result: f.state.Result, Labels: maps.Clone(f.state.Labels),
		Position: f.position, Agents: []wire.AgentStatus{},
	}
	r.LastActivity = f.activity
	open := byNode(f.state)
	for _, n := range f.nodes {
		if n.node == wire.RunNode || node != "" && n.node != node && !strings.HasPrefix(n.node, node+"/") {
			continue
		}
		r.Agents = append(r.Agents, nodeStatus(n, f.state, now, len(open[n.node]) > 0))
	}
	waitingFor(open, r.Agents)
	r.AgentStatus = runStatus(r.AgentStatus, f.state, r.Agents)
	r.WaitedMs = waited(f.state, now)
	timed(&r.AgentStatus, f.activityAt, now)
	return r
}

// waited is how long something of a run has waited for a person.
func waited(s *wire.State, now int64) int64 {
	if s.WaitsSince == 0 || s.EndedAt != 0 {
		return s.WaitedMs
	}
	return s.WaitedMs + max(0, now-s.WaitsSince)
}

// runStatus fills in what the run as a whole is doing.
func runStatus(a wire.AgentStatus, s *wire.State, nodes []wire.AgentStatus) wire.AgentStatus {
	a.AgentID = orElse(s.Labels["name"], s.RunID)
	a.State = stateOfRun(s, nodes)
	a.Reason, a.Error = brief(s.Reason), brief(s.Error)
	a.StartedAt, a.EndedAt = s.StartedAt, s.EndedAt
	u := s.Usage
	a.CostUsd, a.TokensIn, a.TokensOut = u.CostUsd, tokensIn(u), u.OutputTokens
	a.ToolsUsed, a.ToolErrors = u.ToolCalls, u.ToolErrors
	for _, n := range nodes {
		if n.SessionID != "" && (a.SessionID == "" || n.State == stateActive || n.State == stateWaiting) {
			a.SessionID = n.SessionID
		}
		a.OpenTool = orElse(n.OpenTool, a.OpenTool)
		if n.State == stateActive || n.State == stateWaiting {
			a.ContextPct = max(a.ContextPct, n.ContextPct)
		}
		if a.WaitingFor == "" && n.WaitingFor != "" {
			a.WaitingFor = n.AgentID + ": " + n.WaitingFor
		}
	}
	if a.State == statePaused {
		a.WaitingFor = orElse(a.WaitingFor, pausedFor(s.Reason))
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

func stateOfRun(s *wire.State, nodes []wire.AgentStatus) string {
	switch s.Status {
	case wire.RunIdle:
		return stateIdle
	case wire.RunPaused:
		return statePaused
	case wire.RunAborted:
		return stateAborted
	case wire.RunComplete:
		if s.Result == wire.FlowStatusFailed {
			return stateFailed
		}
		return stateComplete
	case wire.RunRunning:
	}
	for _, n := range nodes {
		if n.State == stateWaiting {
			return stateWaiting
		}
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
		return stateFailed
	case wire.NodeRunning:
	case wire.NodePending:
		return stateIdle
	default:
		return stateIdle
	}
	switch {
	case ended(s):
		return stateAborted // nobody goes on with it
	case n.Reason == "paused", s.Status == wire.RunPaused:
		return statePaused
	case n.Reason == "aborted":
		return stateAborted
	case waits:
		return stateWaiting
	}
	return stateActive
}

// nodesOf reads the nodes of a run.
func nodesOf(ctx context.Context, q *tx, run int64) ([]*nodeRow, error) {
	all := q.query(ctx, `SELECT id, node, model, activity, activity_at, tokens_in, tokens_out, tools, tool_errors, context_tokens, context_window
		FROM nodes WHERE run = ?1 ORDER BY id`, run)
	var nodes []*nodeRow
	for rows, err := range all {
		if err != nil {
			return nil, err
		}
		n := new(nodeRow)
		if err := rows.Scan(&n.id, &n.node, &n.model, &n.activity, &n.activityAt, &n.tokensIn, &n.tokensOut, &n.tools, &n.toolErrors,
			&n.contextTokens, &n.contextWindow); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func nodeStatus(n *nodeRow, s *wire.State, now int64, waits bool) wire.AgentStatus {
	st := s.Nodes[n.node]
	a := wire.AgentStatus{
		AgentID: n.node, State: stateOfNode(n.node, s, waits), SessionID: st.Session,
		CostUsd: st.CostUsd, TokensIn: n.tokensIn, TokensOut: n.tokensOut, ToolsUsed: n.tools, ToolErrors: n.toolErrors,
		LastActivity: n.activity, StartedAt: st.StartedAt, EndedAt: st.EndedAt,
		NodeType: st.Type, Reason: brief(st.Reason), Error: brief(st.Error), Attempt: st.Attempt, Iteration: st.Iteration, Model: n.model,
		OpenTool: openTool(n.node, s),
	}
	if a.Reason == "" && run.Interrupted(s, n.node) {
		a.Reason = st.ErrorType
	}
	a.ContextPct = int(min(100, n.contextTokens*100/n.windowSize()))
	timed(&a, n.activityAt, now)
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
func (n *nodeRow) windowSize() int64 {
	switch {
	case n.contextWindow > 0:
		return n.contextWindow
	case n.contextTokens > usualWindow, strings.HasSuffix(n.model, "[1m]"):
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

// timed fills in how long something runs and how long ago it last did anything.
func timed(a *wire.AgentStatus, activityAt, now int64) {
	switch {
	case a.StartedAt == 0:
	case a.EndedAt >= a.StartedAt:
		a.RuntimeMs = a.EndedAt - a.StartedAt
	default:
		a.RuntimeMs, a.EndedAt = max(0, now-a.StartedAt), 0
	}
	a.Runtime = timeline.Span(a.RuntimeMs)
	if activityAt > 0 {
		a.LastActivityAt, a.LastActivityAgeMs = activityAt, max(0, now-activityAt)
		a.LastActivityAge = timeline.Span(a.LastActivityAgeMs) + " ago"
	}
}
