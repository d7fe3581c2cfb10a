package recorder

import (
	"database/sql"
	"errors"
	"fmt"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// runRow is a run while a batch is recorded.
type runRow struct {
	id      int64
	run     string
	state   *wire.State // nil until it is needed
	nodes   map[string]*nodeRow
	order   []*nodeRow
	changed bool // the state

	activity   string
	activityAt int64
	events     int64
	void       int64
	refused    int64
	gaps       int64
	lines      int64
	lastAt     int64
	lastPos    uint64

	derived    uint64 // position of the last event of which this batch has derived something
	passed     int    // such events
	head       link
	gone       bool // it was deleted: what comes late isn't kept
	late       int64
	segments   int64
	tailEvents int64
	tailBytes  int64
	fresh      []stored // of this batch
	heard      []heard  // of this batch
	hid        bool     // this batch has hidden lines
	freshBytes int
}

// nodeRow is a node while a batch is recorded.
type nodeRow struct {
	id       int64
	node     string
	epoch    uint64
	seq      uint64
	timeline timeline.Timeline
	talk     talk

	model         string
	cwd           string
	activity      string
	activityAt    int64
	tokensIn      int64
	tokensOut     int64
	tools         int64
	toolErrors    int64
	contextTokens int64
	contextWindow int64
}

// run returns the row of a run, which is made if pos is its first position.
func (w *writer) run(id string, pos uint64) (*runRow, error) {
	if r, ok := w.runs[id]; ok {
		return r, nil
	}
	r := &runRow{run: id, nodes: map[string]*nodeRow{}, fresh: w.s.spare.take()}
	var head []byte
	err := w.scan(findRun, []any{id}, &r.id, &r.activity, &r.activityAt, &r.events, &r.void, &r.refused, &r.gaps, &r.lines, &r.lastAt, &r.lastPos,
		&head, &r.segments, &r.tailEvents, &r.tailBytes, &r.gone)
	if errors.Is(err, sql.ErrNoRows) {
		first := firstLink(w.batch.Incarnation, id)
		head = first[:]
		if r.gone, err = w.retired(id); err == nil && !r.gone {
			err = w.scan(addRun, []any{id, pos}, &r.id)
		}
	}
	if err == nil && len(head) != len(r.head) {
		err = errors.New("its head is no hash: the file is damaged")
	}
	if err != nil {
		return nil, fmt.Errorf("run %q: %w", id, err)
	}
	copy(r.head[:], head)
	w.runs[id] = r
	if !r.gone {
		w.order = append(w.order, r)
	}
	return r, nil
}

// retired reports whether a run was deleted and its events are removed.
func (w *writer) retired(id string) (bool, error) {
	var events int64
	err := w.scan(countLate, []any{0, id}, &events)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// node returns the row of a node of r, which is made if it is new.
func (w *writer) node(r *runRow, id string) (*nodeRow, error) {
	if n, ok := r.nodes[id]; ok {
		return n, nil
	}
	n := &nodeRow{node: id}
	var open, said []byte
	err := w.scan(findNode, []any{r.id, id}, &n.id, &n.epoch, &n.seq, &n.model, &n.cwd, &n.activity, &n.activityAt, &n.tokensIn, &n.tokensOut,
		&n.tools, &n.toolErrors, &n.contextTokens, &n.contextWindow, &open, &said)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = w.scan(addNode, []any{r.id, id, []byte{0x80}}, &n.id) // with an empty timeline
	case err == nil:
		err = errors.Join(wire.Unmarshal(open, &n.timeline), wire.Unmarshal(said, &n.talk))
	}
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", id, err)
	}
	r.nodes[id] = n
	r.order = append(r.order, n)
	return n, nil
}

// count takes what an event says about how its node and its run are doing.
func (n *nodeRow) count(r *runRow, e *wire.Event) {
	r.lastAt = e.Timestamp
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		n.model, n.cwd = orElse(p.Model, n.model), orElse(p.Cwd, n.cwd)
	case *wire.AgentInit:
		n.model, n.cwd = orElse(p.Model, n.model), orElse(p.Cwd, n.cwd)
	case *wire.Usage:
		n.context(e, p)
	case *wire.TurnEnd:
		n.window(e, p.ModelUsage)
	case *wire.AgentComplete:
		n.window(e, p.ModelUsage)
	case *wire.AgentTool:
		n.tools++
		if p.Error != "" && !p.Denied {
			n.toolErrors++
		}
	case *wire.Compaction:
		if p.PostTokens > 0 {
			n.contextTokens = p.PostTokens
		}
	}
	if activity, ok := timeline.Activity(e, n.cwd); ok {
		n.activity, n.activityAt = activity, e.Timestamp
		r.activity, r.activityAt = activity, e.Timestamp
	}
}

// context notes how full the context is. Only the node's own agent tells, not its
// sub-agents.
func (n *nodeRow) context(e *wire.Event, p *wire.Usage) {
	if e.Parent != "" {
		return
	}
	if p.ContextTokens > 0 {
		n.contextTokens = p.ContextTokens
	}
	if p.ContextWindow > 0 {
		n.contextWindow = p.ContextWindow
	}
}

// window notes the size of the context, which the first result of an agent tells.
func (n *nodeRow) window(e *wire.Event, models map[string]wire.ModelUsage) {
	if e.Parent != "" {
		return
	}
	for name, m := range models {
		if m.ContextWindow > 0 && name == n.model {
			n.contextWindow = m.ContextWindow
		}
	}
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// writeRun writes the events of a run, its row and those of its nodes.
func (w *writer) writeRun(r *runRow) error {
	if err := w.writeEvents(r); err != nil {
		return err
	}
	for _, n := range r.order {
		open, err := wire.Marshal(n.timeline)
		if err != nil {
			return err
		}
		said, err := wire.Marshal(n.talk)
		if err != nil {
			return err
		}
		if err := w.exec(putNode, n.epoch, n.seq, n.model, n.cwd, n.activity, n.activityAt, n.tokensIn, n.tokensOut,
			n.tools, n.toolErrors, n.contextTokens, n.contextWindow, []byte(open), []byte(said), n.id); err != nil {
			return err
		}
	}
	if err := w.exec(putRun, r.activity, r.activityAt, r.events, r.void, r.refused, r.gaps, r.lines, r.lastAt, r.lastPos,
		r.head[:], r.segments, r.tailEvents, r.tailBytes, r.id); err != nil {
		return err
	}
	if !r.changed {
		return w.keepFold(r)
	}
	st, u := r.state, r.state.Usage
	if err := w.exec(putState, st.FlowName, string(st.Status), string(st.Result), st.Reason, st.Error, st.ParentRun, st.Imported,
		st.StartedAt, st.EndedAt, u.CostUsd, tokensIn(u), u.OutputTokens, u.ToolCalls, u.ToolErrors, r.id); err != nil {
		return err
	}
	return w.keepFold(r)
}

func tokensIn(u wire.UsageTotals) int64 {
	return u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens
}

// label notes labels, except for names that nobody will ask for.
func (w *writer) label(r *runRow, labels map[string]string) error {
	for key, value := range labels {
		if len(key) > maxKey {
			continue
		}
		if err := w.exec(addLabel, r.id, key, value); err != nil {
			return err
		}
	}
	return nil
}

// session notes what the event says of sessions and labels, by which runs are
// found.
func (w *writer) session(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	if parent := parentOf(e); parent != "" {
		if err := w.exec(addParent, r.id, parent); err != nil {
			return err
		}
	}
	sessions := []string{}
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		n.talk.Provider = orElse(p.Provider, n.talk.Provider)
		sessions = append(sessions, e.SessionID)
	case *wire.AgentInit:
		sessions = append(sessions, e.SessionID)
	case *wire.SessionBound:
		sessions = append(sessions, p.OldSession, p.NewSession)
	case *wire.FlowStart:
		if err := w.label(r, p.Labels); err != nil {
			return err
		}
	case *wire.RunForked:
		if err := w.label(r, r.state.Labels); err != nil {
			return err
		}
	}
	for _, session := range sessions {
		if session == "" || len(session) > maxKey || e.Parent != "" {
			continue
		}
		if err := w.bind(r, n, pos, e, session); err != nil {
			return err
		}
	}
	return nil
}
