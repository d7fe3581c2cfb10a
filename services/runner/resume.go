package runner

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"wake/internal/agent"
	"wake/internal/ask"
	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/internal/snapshot"
	"wake/pkg/wire"
)

// defaultMessage is what an agent is told that goes on (seeds/000 §5.2).
const defaultMessage = "continue"

// continuation is how an agent goes on that has begun.
type continuation struct {
	session string           // to go on with; "": it begins a new one
	fork    *wire.AgentPoint // which begins as a copy of this one
	prompt  string           // "": the node's own
	first   string           // a message besides
	message string           // what it is told, in case it has to begin afresh
	opening []*wire.Event    // to be stored with its agent:start
	seen    []wire.Raw       // inputs of its calls so far
	facts   []agent.Fact     // which its session may have lost
	bare    bool             // it is told nothing but prompt
}

// ask makes a request that begins a session one that goes on.
func (c continuation) ask(r *agent.Request) {
	switch {
	case c.prompt != "":
		r.Prompt = wire.RawString(c.prompt)
	case c.bare:
		r.Prompt = wire.Null
	}
	r.Facts = c.facts
	switch {
	case c.fork != nil:
		r.ForkOf, r.ForkAt = c.fork.Session, c.fork.Point
	case c.session != "":
		r.SessionID, r.Resume = c.session, true
	}
}

// goOn deals with the calls that an interrupted agent has left open and says how
// it goes on. What is to be told of them is in the log, so that a crash at any
// point in here neither seals twice nor leaves anything untold. If the execution is
// only held, that is all, and is on record.
func (w *worker) goOn(ctx context.Context, n wire.NodeState, in agentInput) (c continuation, err error) {
	resume := wire.Resume{}
	if n.Resume != nil {
		resume = *n.Resume
	}
	resume.Strategy = cmp.Or(resume.Strategy, strategyCrash)
	c.session, c.fork = w.state.ExecSessions[n.Exec], n.Fork
	if in.name == nativeProvider && (c.session != "" || c.fork != nil) {
		return w.carryOn(ctx, n, in, resume)
	}
	resumed := &wire.AgentResumed{Strategy: resume.Strategy}
	if c.session == "" && c.fork == nil { // nothing was begun
		if n.Resume != nil {
			c.opening, c.first = []*wire.Event{{Payload: resumed}}, resume.Message
		}
	} else {
		p, err := w.past(ctx, n, in.Prompt)
		if err != nil {
			return c, err
		}
		if resume.Strategy != strategyManual {
			if err := w.seal(ctx, n, in, &p); err != nil {
				return c, err
			}
		}
		resumed.Sealed = p.sealed
		c.opening = []*wire.Event{{SessionID: c.session, Payload: resumed}}
		if p.rolledBack && n.Point != "" && cmp.Or(p.session, c.session) != "" {
			c.fork = &wire.AgentPoint{Session: cmp.Or(p.session, c.session), Point: n.Point}
		}
		c.prompt, c.seen, c.facts = w.prompt(resume.Message, p), p.inputs, p.facts
		if c.message = resume.Message; c.message == "" && p.prompt != defaultMessage {
			c.message = p.prompt
		}
	}
	if !w.holds(n) || len(c.opening) == 0 {
		return c, nil
	}
	return c, w.append(ctx, c.opening...)
}

// prompt is what an agent that goes on is told: exactly the message, unless there
// is something to add.
func (w *worker) prompt(message string, p past) string {
	told := p.told
	if message == "" && p.prompt != "" { // nobody knows whether the agent got it
		message, told = p.prompt, p.told[p.promptTold:]
	}
	text := cmp.Or(message, defaultMessage)
	if notice := run.Notice(told); notice != "" {
		text += "\n\n" + notice
	}
	if len(p.answers) > 0 {
		text += "\n\nWhat you had asked was answered while you were interrupted:\n\n" + strings.Join(p.answers, "\n\n")
	}
	if w.workdir.fresh {
		what := "empty"
		if w.workdir.git {
			what = "a fresh clone of the repository"
		}
		text += fmt.Sprintf("\n\nYou go on in another folder, %s. It is %s: what you had changed in the former one is not there.", w.workdir.path, what)
	}
	return text
}

// past is what the log tells of an execution beyond its state.
type past struct {
	sealed     []string           // calls sealed since the agent last went on
	told       []run.Interruption // what the agent hasn't been told for sure
	prompt     string             // of the last agent:start, if nobody knows whether the agent got it
	promptTold int                // how many of told it tells of
	session    string             // the last one that is known to have worked
	pointSeq   uint64             // seq of the event of NodeState.Point
	rolledBack bool               // since then
	answers    []string           // to what it had asked people, which it hasn't been told
	inputs     []wire.Raw         // of its calls
	facts      []agent.Fact       // the last ones that its session has

	factSeqs []uint64
	bound    string // session of the last agent:start
}

// past reads the events of the execution. own is the prompt of the node.
func (w *worker) past(ctx context.Context, n wire.NodeState, own wire.Raw) (past, error) {
	var p past
	query := eventlog.Query{
		Run: w.offer.RunID, Node: w.offer.NodeID, From: n.Started, Kinds: []wire.Kind{wire.KindAgent, wire.KindTool},
	}
	for e, err := range w.runner.log.Read(ctx, query) {
		if err != nil {
			return p, err
		}
		if e.Event == nil || e.Event.ExecID != w.offer.ExecID {
			continue
		}
		event := e.Event
		if event.Type() == wire.TypeAgentStart && len(event.Blobs) > 0 {
			if whole, err := snapshot.Inline(ctx, w.runner.log, event); err == nil {
				event = whole
			}
		}
		p.take(event, n, own)
	}
	return p, nil
}

// take follows the execution by one event.
func (p *past) take(e *wire.Event, n wire.NodeState, own wire.Raw) {
	switch payload := e.Payload.(type) {
	case *wire.ToolSealed:
		p.sealed = append(p.sealed, e.CallID)
	case *wire.AgentResumed:
		p.sealed = nil
	case *wire.LogTruncated:
		if p.rolledBack = payload.Lost == 0; p.rolledBack {
			p.forget(payload.AtSeq)
		}
	case *wire.AgentStart:
		if e.Parent == "" {
			p.begin(e, payload, own)
		}
	case *wire.AgentTool:
		p.inputs = append(p.inputs, payload.ToolInput)
		if i, ok := run.AsInterruption(e.CallID, payload); ok {
			p.told = append(p.told, i)
			p.learn(e, e.CallID, i.String())
			return
		}
		p.learn(e, e.CallID, run.Result(payload))
		p.at(e, payload.Point, n)
		p.works(e)
	case *wire.UserMessage:
		if payload.Source == "command" {
			p.learn(e, payload.Point, "- A message to you\n  "+payload.Content)
		}
		p.at(e, payload.Point, n)
		p.works(e)
	case *wire.ToolIntent:
		p.inputs = append(p.inputs, payload.ToolInput)
		p.works(e)
	case *wire.TurnStart, *wire.TurnEnd, *wire.Usage:
		p.works(e)
	}
}

// begin notes a session's prompt. The node's own is told again by asking for
// what the session does anyway.
func (p *past) begin(e *wire.Event, start *wire.AgentStart, own wire.Raw) {
	if !start.Resumed {
		p.facts, p.factSeqs = nil, nil
	}
	p.bound, p.prompt, p.promptTold = e.SessionID, "", 0
	if text, ok := start.Prompt.Text(); ok && !bytes.Equal(start.Prompt, own) {
		p.prompt, p.promptTold = text, len(p.told)
	}
}

// maxFacts is how many facts a session is checked for. It lacks few, if any: its
// record is kept as it grows.
const maxFacts = 100

// learn notes what the session of the node's own agent has to know.
func (p *past) learn(e *wire.Event, mark, text string) {
	if e.Parent != "" || mark == "" {
		return
	}
	if len(p.facts) == maxFacts {
		p.facts, p.factSeqs = slices.Delete(p.facts, 0, 1), slices.Delete(p.factSeqs, 0, 1)
	}
	p.facts, p.factSeqs = append(p.facts, agent.Fact{Mark: mark, Text: text}), append(p.factSeqs, e.Seq)
}

// forget drops what came after a point to which the session was taken back.
func (p *past) forget(after uint64) {
	n, _ := slices.BinarySearch(p.factSeqs, after+1)
	p.facts, p.factSeqs = p.facts[:n], p.factSeqs[:n]
}

// at notes where in the node's events the agent's last safe point is.
func (p *past) at(e *wire.Event, point string, n wire.NodeState) {
	if e.Parent == "" && point != "" && point == n.Point {
		p.pointSeq = e.Seq
	}
}

// works notes that the agent does something, so it has got its prompt.
func (p *past) works(e *wire.Event) {
	if e.Parent != "" || p.bound == "" {
		return
	}
	p.session, p.prompt, p.told, p.promptTold, p.rolledBack = p.bound, "", nil, 0, false
}

// seal closes the open calls of the execution in one commit, and notes what the
// agent is to be told of them.
func (w *worker) seal(ctx context.Context, n wire.NodeState, in agentInput, p *past) error {
	policy := ""
	if w.node.Policy != nil {
		policy = w.node.Policy.Interrupted
	}
	calls := run.OpenCalls(w.state, w.offer.NodeID, w.offer.ExecID)
	if len(calls) == 0 {
		return nil
	}
	given := decisions(w.state.Inbox, w.offer.NodeID, w.offer.ExecID)
	s := sealing{policy: policy, begun: in.begun, session: w.state.ExecSessions[n.Exec], past: p}
	if policy == run.SealRollback {
		s.rollBack(n)
	}
	for _, c := range calls {
		var err error
		if c.Input, err = w.runner.inline(ctx, w.offer.RunID, c.Input); err != nil {
			return err
		}
		cmd, decided := given[c.CallID]
		if !decided && asksPerson(c) && in.name != fixtureProvider && !w.holds(n) {
			if cmd, err = w.answer(ctx, c.CallID); err != nil {
				return err
			}
			decided = true
		}
		if !decided {
			s.seal(c)
			continue
		}
		s.decide(c, cmd)
	}
	return w.append(ctx, s.events...)
}

// inline returns a value of a run that may be in the object store; a reference stays one if
// its content is gone.
func (r *Runner) inline(ctx context.Context, id string, v wire.Raw) (wire.Raw, error) {
	if run.Ref(v) == "" {
		return v, nil
	}
	const node = "value"
	one := run.New(id)
	one.Nodes[node] = wire.NodeState{Input: v}
	whole, err := r.whole(ctx, one)
	if err != nil {
		return nil, err
	}
	return whole.Nodes[node].Input, nil
}

// asksPerson reports whether a call is a question of the node's own agent that waits for
// its answer.
func asksPerson(c wire.ToolCall) bool {
	return c.Tool == ask.Tool && c.State == wire.ToolApprovalRequired && c.Parent == ""
}

// answer waits for the answer to a question whose agent is gone: it goes on when it has
// that, and not before.
func (w *worker) answer(ctx context.Context, call string) (wire.Command, error) {
	_ = w.seat.rest(ctx, true) // to leave a place takes no time
	for {
		cmd, ok, news := w.asked.get(call)
		if ok {
			return cmd, w.seat.rest(ctx, false)
		}
		select {
		case <-news:
		case <-w.halt.told:
			return cmd, errHalted
		case <-ctx.Done():
			return cmd, context.Cause(ctx)
		}
	}
}

// sealing collects the events that close open calls.
type sealing struct {
	policy  string
	begun   bool // calls may have begun although nothing says so
	note    string
	session string
	past    *past
	events  []*wire.Event
}

func (s *sealing) add(c wire.ToolCall, p wire.Payload) {
	s.events = append(s.events, &wire.Event{CallID: c.CallID, Parent: c.Parent, SessionID: s.session, Payload: p})
}

func (s *sealing) seal(c wire.ToolCall) {
	p := run.Seal(c, s.policy, s.begun)
	p.Message += s.note
	s.add(c, p)
	s.close(c, run.SealResult(c, p))
	s.past.sealed = append(s.past.sealed, c.CallID)
}

func (s *sealing) close(c wire.ToolCall, result *wire.AgentTool) {
	s.add(c, result)
	if i, ok := run.AsInterruption(c.CallID, result); ok {
		s.past.told = append(s.past.told, i)
	}
}

// decide records the decision on a call that came when its agent was gone. A
// denied call has come to its end by that; of one that isn't waiting any more the
// decision is only noted.
func (s *sealing) decide(c wire.ToolCall, cmd wire.Command) {
	p := &wire.PermissionDecided{Decision: wire.DecisionAllow, By: decidedBy(cmd), Note: cmd.Note, UpdatedInput: cmd.UpdatedInput}
	if cmd.Type == "deny" {
		p.Decision, p.UpdatedInput = wire.DecisionDeny, nil
	}
	waits := c.State == wire.ToolApprovalRequired || c.State == wire.ToolPending && !s.begun
	switch {
	case !waits:
		s.seal(c)
		p.Note = cmp.Or(p.Note, "the call had been interrupted before")
		s.add(c, p)
	case p.Decision == wire.DecisionDeny:
		s.add(c, p)
		s.close(c, run.DeniedResult(c, p))
	case c.Tool == ask.Tool && ask.Answered(p.UpdatedInput):
		s.add(c, p)
		result := &wire.AgentTool{ToolName: c.Tool, ToolInput: p.UpdatedInput, ToolOutput: wire.RawString(ask.Result(p.UpdatedInput))}
		s.add(c, result)
		s.past.answers = append(s.past.answers, run.Result(result))
	default:
		s.add(c, p)
		c.State = wire.ToolApproved
		s.seal(c)
	}
}

// rollBack takes the agent's session back to its last safe point; without one
// the seals say so.
func (s *sealing) rollBack(n wire.NodeState) {
	if n.Point == "" {
		s.note = " The session could not be taken back: it has no safe point."
		return
	}
	s.events = append(s.events, &wire.Event{
		SessionID: s.session, Payload: &wire.LogTruncated{AtSeq: s.past.pointSeq, Reason: run.SealRollback},
	})
	s.past.rolledBack = true
}
