package ingest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// lineRun is a run that lines tell of. Lines are stored one after the other: one
// is only written once those before it are stored, so that however this ends, what
// is there is the beginning of the file.
type lineRun struct {
	log     *eventlog.Log
	id      string
	options LinesOptions
	result  LinesRun
	check   kahn.Checker
	problem string // of the line that is being taken, if it is no event

	state  *wire.State
	pos    uint64   // up to which the run was read
	stored []digest // its lines
	at     int      // how many of them the input has told
	now    int64    // when the last one says that it was, Unix ms

	owner   *eventlog.Writer
	workers map[string]*eventlog.Writer // by node
	agents  map[string]*lineAgent
	spent   map[string]*lineSpending // by agent

	waiting []*wire.Event // for one writer
	waitsOn *eventlog.Writer
}

// lineAgent is an agent of the run.
type lineAgent struct {
	node  string
	execs int
	open  bool
	due   bool // an execution is scheduled that no worker has begun
	done  bool // its last execution completed
	loops int
}

// lineSpending is what an agent has used so far, of a model.
type lineSpending struct {
	model string
	total wire.Spending
}

// maxWaiting bounds the events that wait to be stored together.
const maxWaiting = 500

// openLines reads what is recorded of a run.
func openLines(ctx context.Context, log *eventlog.Log, id string, o LinesOptions) (*lineRun, error) {
	r := &lineRun{
		log: log, id: id, options: o, result: LinesRun{RunID: id}, state: run.New(id),
		workers: map[string]*eventlog.Writer{}, agents: map[string]*lineAgent{}, spent: map[string]*lineSpending{},
	}
	return r, r.loadRecorded(ctx)
}

// loadRecorded reads what has been recorded since.
func (r *lineRun) loadRecorded(ctx context.Context) error {
	for e, err := range r.log.Read(ctx, eventlog.Query{Run: r.id, From: r.pos + 1}) {
		switch {
		case err != nil:
			return err
		case e.Err != nil:
			continue // poison is no agent's line
		}
		r.pos = e.Pos
		if err := run.Apply(r.state, wire.Position{Incarnation: r.log.Incarnation(), Seq: e.Pos}, e.Event); err != nil {
			continue // the services that follow the log report it
		}
		if n := r.state.Nodes[e.Event.NodeID]; e.Event.Epoch < n.Epoch {
			continue // of a writer that had been replaced
		}
		if line, ok := kahn.LineOf(e.Event); ok {
			r.stored = append(r.stored, digestOf(line))
		}
	}
	if r.state.Status == wire.RunIdle {
		return nil
	}
	if format := r.state.Input.TextAt("format"); format != kahn.Format || r.state.Imported == "" {
		return fmt.Errorf("%w, and was not made of lines of KAHN: %s", ErrExists, r.id)
	}
	for node, n := range r.state.Nodes {
		if node != wire.RunNode {
			r.agents[node] = &lineAgent{
				node: node, execs: n.Execs, open: n.Open() && n.Started > 0, done: r.state.NodeStatus[node] == wire.NodeDone,
				due: n.Open() && n.Started == 0, loops: r.state.LoopCounters[loopID(node)],
			}
		}
	}
	return nil
}

// loopID is the loop that a node goes round when its agent starts anew.
func loopID(node string) string { return "again:" + node }

// nodeOf is the node of an agent. Node ids have no colons, and agent ids no
// underscores.
func nodeOf(agentID string) string { return strings.ReplaceAll(agentID, ":", "_") }

// takeLine takes a line; e is nil if it is no event.
func (r *lineRun) takeLine(ctx context.Context, number int, line string, e *kahn.Event) error {
	r.result.Lines++
	var used []*wire.Event
	if e != nil {
		r.now, used = e.Time(), r.takeSpending(number, e)
	}
	if r.at == len(r.stored) && r.owner == nil {
		if err := r.claimRun(ctx); err != nil {
			return err
		}
	}
	if r.at < len(r.stored) {
		if r.stored[r.at] != digestOf(line) {
			return &ChangedError{RunID: r.id, Line: number}
		}
		r.at++
		return nil
	}
	if r.state.Status == wire.RunComplete {
		return fmt.Errorf("%w: %s, line %d", ErrComplete, r.id, number)
	}
	r.at++
	r.stored = append(r.stored, digest{}) // from here on it is written, not compared
	r.result.Added++
	return r.writeLine(ctx, number, line, e, used)
}

// takeSpending returns the usage of an agent that a line tells beyond what lines before it have told.
func (r *lineRun) takeSpending(number int, e *kahn.Event) []*wire.Event {
	x := r.spent[e.AgentID]
	if x == nil {
		x = new(lineSpending)
		r.spent[e.AgentID] = x
	}
	switch b := e.Body.(type) {
	case *kahn.RunStart:
		x.model = wire.ValueOf(b.Model)
	case *kahn.RunEnd:
		before, now := x.total, e.Spending()
		if now == before {
			return nil
		}
		x.total = now
		p := &wire.Usage{
			MessageID: fmt.Sprintf("line-%d", number), Model: x.model,
			InputTokens: max(0, now.InputTokens-before.InputTokens), OutputTokens: max(0, now.OutputTokens-before.OutputTokens),
		}
		if now.ComputedUsd > 0 {
			p.CostSource = kahn.Format
		}
		if now.Unpriced == 0 || now.CostUsd > 0 {
			p.CostUsd = new(max(0, now.CostUsd-before.CostUsd))
		}
		used := singleEvent(e, &wire.Event{Payload: p})
		if p.CostUsd != nil && now.Unpriced > 0 { // more than that was spent
			used = append(used, singleEvent(e, &wire.Event{Payload: &wire.Usage{MessageID: p.MessageID + "-unpriced", Model: x.model}})...)
		}
		return used
	}
	return nil
}

// claimRun makes this process the writer of the run, and looks what another process
// has written meanwhile. That process can add nothing any more: every node
// is claimed, and a new one begins on the owner's.
func (r *lineRun) claimRun(ctx context.Context) error {
	if r.state.Status == wire.RunComplete {
		return nil
	}
	claim := eventlog.Claim{Runner: r.options.Runner}
	var err error
	if r.owner, err = r.log.Claim(ctx, r.id, wire.RunNode, claim); err != nil {
		return err
	}
	for known := -1; known < len(r.state.Nodes); {
		known = len(r.state.Nodes)
		for node := range r.state.Nodes {
			if node == wire.RunNode || r.workers[node] != nil {
				continue
			}
			if r.workers[node], err = r.log.Claim(ctx, r.id, node, claim); err != nil {
				return err
			}
		}
		if err := r.loadRecorded(ctx); err != nil {
			return err
		}
	}
	if r.state.Status != wire.RunIdle {
		return nil
	}
	return r.beginRun(ctx)
}

func (r *lineRun) beginRun(ctx context.Context) error {
	definition, err := wire.Marshal(map[string]any{"name": kahn.Format, "nodes": []any{}})
	if err != nil {
		return err
	}
	input, err := wire.Marshal(map[string]any{"format": kahn.Format})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(definition)
	_, err = r.owner.Append(ctx, &wire.Event{Timestamp: r.now, Payload: &wire.FlowStart{
		FlowName: kahn.Format, Definition: definition, DefinitionHash: hex.EncodeToString(sum[:]), Input: input,
		Labels: r.options.Labels, Imported: "ingest",
	}})
	r.state.Status = wire.RunRunning
	return err
}

// writeLine writes a line: the last of its events holds it.
func (r *lineRun) writeLine(ctx context.Context, number int, line string, e *kahn.Event, used []*wire.Event) error {
	if e == nil {
		data, err := wire.Marshal(line)
		if err != nil {
			return err
		}
		raw := &wire.Event{Payload: &wire.RawMessage{Source: kahn.Format, Data: data, Reason: r.problem, Line: number}}
		return r.putLine(ctx, r.owner, line, raw)
	}
	if e.AgentID == "" {
		return r.putLine(ctx, r.owner, line, &wire.Event{Timestamp: e.Time(), Payload: auditOf(e.Body)})
	}
	a, worker, events, err := r.agentOf(ctx, e)
	if err != nil {
		return err
	}
	made, err := eventsOf(e, number)
	if err != nil {
		return err
	}
	events = slices.Concat(events, used, made)
	for _, w := range events {
		w.Timestamp = e.Time()
		w.ExecID = run.ExecID(a.node, a.execs)
	}
	if end, ends := e.Body.(*kahn.RunEnd); ends && a.open { // a second end changes nothing
		a.open, a.done = false, end.Outcome != kahn.OutcomeAborted
	}
	return r.putLine(ctx, worker, line, events...)
}

// agentOf returns the agent of a line, with an execution: the events that begin one,
// if it has none.
func (r *lineRun) agentOf(ctx context.Context, e *kahn.Event) (*lineAgent, *eventlog.Writer, []*wire.Event, error) {
	node := nodeOf(e.AgentID)
	a := r.agents[node]
	if a == nil {
		a = &lineAgent{node: node}
		r.agents[node] = a
	}
	start, begins := e.Body.(*kahn.RunStart)
	if a.open || !a.due && a.execs > 0 && !begins {
		return a, r.workers[node], nil, nil
	}
	if err := r.scheduleAgent(ctx, a, e.Time()); err != nil {
		return nil, nil, nil, err
	}
	a.open = true
	begin := &wire.NodeStart{NodeType: "agent", Attempt: 1}
	if begins {
		var err error
		if begin.Input, err = wire.Marshal(map[string]any{"prompt": start.Task}); err != nil {
			return nil, nil, nil, err
		}
	}
	return a, r.workers[node], []*wire.Event{{Payload: begin}}, nil
}

// scheduleAgent decides that an agent is executed, and makes this process the writer of
// its node.
func (r *lineRun) scheduleAgent(ctx context.Context, a *lineAgent, at int64) error {
	var decisions []*wire.Event
	if a.done {
		a.loops++
		decisions = append(decisions, &wire.Event{Timestamp: at, Payload: &wire.LoopIterate{EdgeID: loopID(a.node), Iteration: a.loops, Nodes: []string{a.node}}})
	}
	if !a.due {
		a.execs++
		decisions = append(decisions, &wire.Event{
			Timestamp: at, ExecID: run.ExecID(a.node, a.execs), Payload: &wire.NodeScheduled{Target: a.node, Attempt: 1},
		})
	}
	a.due, a.done = false, false
	if err := r.queueEvents(ctx, r.owner, decisions...); err != nil || r.workers[a.node] != nil {
		return err
	}
	if err := r.flushWaiting(ctx); err != nil {
		return err
	}
	w, err := r.log.Claim(ctx, r.id, a.node, eventlog.Claim{Runner: r.options.Runner, ExecID: run.ExecID(a.node, a.execs)})
	if err == nil {
		r.workers[a.node] = w
	}
	return err
}

func (r *lineRun) putLine(ctx context.Context, w *eventlog.Writer, line string, events ...*wire.Event) error {
	if err := kahn.Keep(events[len(events)-1], line); err != nil {
		return err
	}
	return r.queueEvents(ctx, w, events...)
}

// queueEvents lets events wait for those that follow on the same node.
func (r *lineRun) queueEvents(ctx context.Context, w *eventlog.Writer, events ...*wire.Event) error {
	if r.waitsOn != w || len(r.waiting)+len(events) > maxWaiting {
		if err := r.flushWaiting(ctx); err != nil {
			return err
		}
	}
	r.waitsOn = w
	r.waiting = append(r.waiting, events...)
	return nil
}

func (r *lineRun) flushWaiting(ctx context.Context) error {
	if len(r.waiting) == 0 {
		return nil
	}
	events := r.waiting
	r.waiting = nil
	_, err := r.waitsOn.Append(ctx, events...)
	return err
}

// finishRun completes the run if all agents have ended.
func (r *lineRun) finishRun(ctx context.Context, more bool) error {
	if err := r.completeRun(ctx, more); err != nil {
		return err
	}
	r.result.Complete = r.state.Status == wire.RunComplete
	if r.owner == nil {
		return nil
	}
	for _, w := range r.workers {
		if err := w.Close(ctx); err != nil {
			return err
		}
	}
	return r.owner.Close(ctx)
}

func (r *lineRun) completeRun(ctx context.Context, more bool) error {
	agents := r.check.Agents()
	p := &wire.FlowComplete{FlowName: kahn.Format, Status: wire.FlowStatusComplete}
	for _, a := range agents {
		if !a.Ended {
			return nil
		}
		if a.Outcome == kahn.OutcomeAborted && p.FailedNode == "" {
			p.Status, p.FailedNode, p.Error = wire.FlowStatusFailed, nodeOf(a.AgentID), a.AgentID+" was aborted"
		}
	}
	if more || len(agents) == 0 || r.at < len(r.stored) || r.state.Status == wire.RunComplete {
		return nil
	}
	if r.owner == nil {
		if err := r.claimRun(ctx); err != nil || r.at < len(r.stored) || r.state.Status == wire.RunComplete {
			return err
		}
	}
	if _, err := r.owner.Append(ctx, &wire.Event{Timestamp: r.now, Payload: p}); err != nil {
		return err
	}
	r.state.Status = wire.RunComplete
	return nil
}

// breakpoints are where an agent of wake is that has a status of KAHN.
func breakpointOf(s kahn.Status) string {
	switch s {
	case kahn.Thinking:
		return "PRE_MODEL"
	case kahn.ToolCall:
		return "TOOL_EXECUTING"
	case kahn.ToolResult:
		return "POST_TOOL"
	case kahn.Response:
		return "STREAMING_MODEL"
	case kahn.Blocked:
		return "AWAITING_APPROVAL"
	default:
		return "READY"
	}
}

// events are what a line says in the words of wake.
func eventsOf(e *kahn.Event, number int) ([]*wire.Event, error) {
	switch b := e.Body.(type) {
	case *kahn.RunStart:
		prompt, err := wire.Marshal(b.Task)
		if err != nil {
			return nil, err
		}
		start := &wire.AgentStart{Prompt: prompt, Task: b.Task, Provider: kahn.Format}
		if b.Model != nil {
			start.Model = *b.Model
		}
		return singleEvent(e, &wire.Event{SessionID: e.RunID + "/" + e.AgentID, Payload: start}), nil
	case *kahn.Transition:
		return singleEvent(e, &wire.Event{Step: int(b.Step), Payload: &wire.BreakpointChanged{Previous: breakpointOf(b.From), Current: breakpointOf(b.To)}}), nil
	case *kahn.ToolInvocation:
		p, err := toolOf(b)
		return singleEvent(e, &wire.Event{Step: int(b.Step), CallID: fmt.Sprintf("line-%d", number), Payload: p}), err
	case *kahn.Audit:
		return singleEvent(e, &wire.Event{Payload: auditOf(b)}), nil
	case *kahn.RunEnd:
		return endOf(e, b)
	}
	return nil, fmt.Errorf("%s has no form", e.Body.Name())
}

func singleEvent(e *kahn.Event, w *wire.Event) []*wire.Event {
	w.AgentID = e.AgentID
	return []*wire.Event{w}
}

func toolOf(b *kahn.ToolInvocation) (*wire.AgentTool, error) {
	p := &wire.AgentTool{ToolName: cmp.Or(b.ToolName, "unknown"), ToolInput: wire.Null, ToolOutput: wire.Null, DurationMs: new(toMillis(b.DurationS))}
	var err error
	if b.InputSummary != nil {
		if p.ToolInput, err = wire.Marshal(*b.InputSummary); err != nil {
			return nil, err
		}
	}
	if b.OutputSummary != nil {
		if p.ToolOutput, err = wire.Marshal(*b.OutputSummary); err != nil {
			return nil, err
		}
	}
	if !b.OK {
		p.Error = "failed"
		if b.Error != nil {
			p.Error = cmp.Or(*b.Error, p.Error)
		}
	}
	return p, nil
}

// maxMillis is about three thousand centuries: what a line says may be anything.
const maxMillis = 1e16

func toMillis(seconds float64) int64 { return int64(min(seconds*1000, maxMillis)) }

func auditOf(b kahn.Body) *wire.AuditCheckpoint {
	a, ok := b.(*kahn.Audit)
	if !ok {
		return nil
	}
	p := &wire.AuditCheckpoint{CheckpointID: a.CheckpointID, Result: wire.AuditResult(a.Result), DurationMs: toMillis(a.DurationS)}
	if evidence, err := wire.RawFromJSON(a.Evidence); err == nil {
		p.Evidence = evidence
	}
	return p
}

// end ends an execution. Only what was ended from outside has failed: what else
// came of it is the output's to say.
func endOf(e *kahn.Event, b *kahn.RunEnd) ([]*wire.Event, error) {
	output := map[string]any{
		"outcome": string(b.Outcome), "totalSteps": b.TotalSteps, "totalToolCalls": b.TotalToolCalls,
		"auditsPassed": b.AuditsPassed, "auditsFailed": b.AuditsFailed,
	}
	if b.ConvergenceScore != nil {
		output["convergenceScore"] = *b.ConvergenceScore
	}
	raw, err := wire.Marshal(output)
	if err != nil {
		return nil, err
	}
	ms := toMillis(b.TotalDurationS)
	if b.Outcome == kahn.OutcomeAborted {
		return append(
			singleEvent(e, &wire.Event{Payload: &wire.AgentAborted{Reason: string(b.Outcome)}}),
			singleEvent(e, &wire.Event{Payload: &wire.NodeError{Error: string(b.Outcome), ErrorType: string(b.Outcome), Output: raw, DurationMs: ms}})...,
		), nil
	}
	return append(
		singleEvent(e, &wire.Event{Payload: &wire.AgentComplete{Result: string(b.Outcome), DurationMs: ms, NumTurns: b.TotalSteps}}),
		singleEvent(e, &wire.Event{Payload: &wire.NodeComplete{Output: raw, DurationMs: ms}})...,
	), nil
}
