package index

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// loadRun returns the row of a run, which is made if pos is its first position.
func (w *writer) loadRun(id string, pos uint64) (*runRow, error) {
	if r, ok := w.runs[id]; ok {
		return r, nil
	}
	if k := w.x.known.runs[id]; k != nil {
		r := &runRow{Run: k.Run, nodes: k.nodes, head: k.head, fresh: w.x.spare.takeSlice()}
		r.Head = r.head[:]
		w.runs[id] = r
		w.order = append(w.order, r)
		return r, nil
	}
	r := &runRow{nodes: map[string]*nodeRow{}, fresh: w.x.spare.takeSlice()}
	err := w.scanRow(findRun, []any{id}, append(table.Fields(&r.Run), &r.gone)...)
	if errors.Is(err, sql.ErrNoRows) {
		first := chain.FirstLink(w.batch.Incarnation, id)
		r.Run = table.Run{RunID: id, Status: string(wire.RunIdle), FirstPos: pos, Head: first[:], Derivation: Derivation}
		if err = w.scanRow(isRetired, []any{id}, &r.gone); err == nil && !r.gone {
			err = w.scanRow(addRun, table.Values(&r.Run), &r.ID)
		}
	}
	if err == nil && len(r.Head) != len(r.head) {
		err = errors.New("its head is no hash: the file is damaged")
	}
	if err != nil {
		return nil, fmt.Errorf("run %q: %w", id, err)
	}
	copy(r.head[:], r.Head)
	w.runs[id] = r
	if !r.gone {
		w.order = append(w.order, r)
	}
	return r, nil
}

// empty is what a timeline, or a conversation, begins with.
const empty = "\x80"

// loadNode returns the row of a node of r, which is made if it is new.
func (w *writer) loadNode(r *runRow, id string) (*nodeRow, error) {
	if n, ok := r.nodes[id]; ok {
		if n.batch != w.number {
			n.batch = w.number
			r.order = append(r.order, n)
		}
		return n, nil
	}
	n := &nodeRow{batch: w.number}
	err := w.scanRow(findNode, []any{r.ID, id}, table.Fields(&n.Node)...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		n.Node = table.Node{Run: r.ID, Node: id, Timeline: []byte(empty), Talk: []byte(empty)}
		err = w.scanRow(addNode, table.Values(&n.Node), &n.ID)
	case err == nil:
		n.shown = math.MaxUint64 // it isn't known
		err = errors.Join(wire.Unmarshal(n.Timeline, &n.timeline), wire.Unmarshal(n.Talk, &n.talk))
	}
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", id, err)
	}
	r.nodes[id] = n
	r.order = append(r.order, n)
	return n, nil
}

// countEvent takes what an event says about how its node and its run are doing.
func (n *nodeRow) countEvent(r *runRow, e *wire.Event) {
	r.LastActiveAt = e.Timestamp
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		n.Model, n.Cwd = cmp.Or(p.Model, n.Model), cmp.Or(p.Cwd, n.Cwd)
	case *wire.AgentInit:
		n.Model, n.Cwd = cmp.Or(p.Model, n.Model), cmp.Or(p.Cwd, n.Cwd)
	case *wire.Usage:
		n.noteContext(e, p)
	case *wire.TurnEnd:
		n.noteWindow(e, p.ModelUsage)
	case *wire.AgentComplete:
		n.noteWindow(e, p.ModelUsage)
	case *wire.AgentTool:
		n.Tools++
		if p.Error != "" && !p.Denied {
			n.ToolErrors++
		}
	case *wire.SessionCompared:
		r.Feeds = completeness.Worse(r.Feeds, p.Verdict)
	case *wire.Compaction:
		if p.PostTokens > 0 {
			n.ContextTokens = p.PostTokens
		}
	}
	if activity, ok := timeline.Activity(e, n.Cwd); ok {
		n.Activity, n.ActivityAt = activity, e.Timestamp
		r.LastActivity, r.ActivityAt = activity, e.Timestamp
	}
}

// noteContext notes how full the context is. Only the node's own agent tells, not its
// sub-agents.
func (n *nodeRow) noteContext(e *wire.Event, p *wire.Usage) {
	if e.Parent != "" {
		return
	}
	if p.ContextTokens > 0 {
		n.ContextTokens = p.ContextTokens
	}
	if p.ContextWindow > 0 {
		n.ContextWindow = p.ContextWindow
	}
}

// noteWindow notes the size of the context, which the first result of an agent tells.
func (n *nodeRow) noteWindow(e *wire.Event, models map[string]wire.ModelUsage) {
	if e.Parent != "" {
		return
	}
	for name, m := range models {
		if m.ContextWindow > 0 && name == n.Model {
			n.ContextWindow = m.ContextWindow
		}
	}
}

// writeRun writes the events of a run, its row and those of its nodes.
func (w *writer) writeRun(r *runRow) error {
	if err := w.writeEvents(r); err != nil {
		return err
	}
	for _, n := range r.order {
		if err := w.writeNode(n); err != nil {
			return err
		}
	}
	r.Head = r.head[:]
	if r.changed {
		r.takeState(r.state)
	}
	if err := w.putNumbered(putRun, &r.Run, r.ID); err != nil {
		return err
	}
	return w.keepFold(r)
}

// takeState takes what the state of the run says.
func (r *runRow) takeState(s *wire.State) {
	r.FlowName, r.Status, r.Result, r.Reason, r.Error = s.FlowName, string(s.Status), string(s.Result), s.Reason, s.Error
	r.ParentRun, r.Imported, r.StartedAt, r.EndedAt = s.ParentRun, s.Imported, s.StartedAt, s.EndedAt
	r.CostUsd, r.TokensIn, r.TokensOut = s.Usage.CostUsd, ledger.TotalIn(s.Usage), s.Usage.OutputTokens
	r.ComputedUsd, r.Unpriced = s.Usage.ComputedUsd, s.Usage.Unpriced
	r.ToolsUsed, r.ToolErrors = s.Usage.ToolCalls, s.Usage.ToolErrors
}

// writeNode writes the row of a node.
func (w *writer) writeNode(n *nodeRow) error {
	open, err := wire.Marshal(n.timeline)
	if err != nil {
		return err
	}
	said, err := wire.Marshal(n.talk)
	if err != nil {
		return err
	}
	n.Timeline, n.Talk = open, said
	return w.putNumbered(putNode, &n.Node, n.ID)
}

// addLabels notes labels, except for names by which nothing can be asked for.
func (w *writer) addLabels(r *runRow, labels map[string]string) error {
	known := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if database.IsKey(key) {
			known[database.PostgresText(key)] = labels[key] // whatever the database is: to PostgreSQL two names may be one
		}
	}
	for key, value := range known {
		if err := w.putRow(addLabel, &table.Label{Run: r.ID, Key: key, Value: value}); err != nil {
			return err
		}
	}
	return nil
}

// noteSessions notes what the event says of sessions and labels, by which runs are
// found.
func (w *writer) noteSessions(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	for _, ancestor := range ancestorsOf(e, r.state) {
		if err := w.putRow(addParent, &table.Lineage{Run: r.ID, Ancestor: ancestor}); err != nil {
			return err
		}
	}
	sessions := []string{}
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		n.talk.Provider = cmp.Or(p.Provider, n.talk.Provider)
		sessions = append(sessions, e.SessionID)
	case *wire.AgentInit:
		sessions = append(sessions, e.SessionID)
	case *wire.SessionBound:
		sessions = append(sessions, p.OldSession, p.NewSession)
	case *wire.FlowStart:
		if err := w.addLabels(r, p.Labels); err != nil {
			return err
		}
	case *wire.RunForked:
		if err := w.addLabels(r, r.state.Labels); err != nil {
			return err
		}
	}
	for _, session := range sessions {
		if session == "" || !database.IsKey(session) || e.Parent != "" {
			continue
		}
		if err := w.bindSession(r, n, pos, e, session); err != nil {
			return err
		}
	}
	return nil
}

// ancestorsOf returns the runs of which the event makes its own, which is in a state then, a fork at any distance, or a child. What
// can't be a run's name isn't one.
func ancestorsOf(e *wire.Event, state *wire.State) (runs []string) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		runs = append(runs, p.ParentRun)
	case *wire.RunForked:
		runs = append(runs, p.ParentRun)
		for _, a := range state.Lineage {
			runs = append(runs, a.RunID)
		}
	}
	slices.Sort(runs)
	return slices.DeleteFunc(slices.Compact(runs), func(run string) bool { return run == "" || !database.IsKey(run) })
}
