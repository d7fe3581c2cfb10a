package run

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Past is what the log tells of an agent's execution beyond its state, to the worker that goes
// on with it: a fold over the events of the execution.
type Past struct {
	Sealed     []string   // calls sealed since the agent last went on
	Inputs     []wire.Raw // of its calls
	Facts      []Fact     // the last ones that its session has
	Session    string     // the last one that is known to have worked
	PointSeq   uint64     // seq of the event of [wire.NodeState.Point]
	RolledBack bool       // since the agent last worked
	Open       []string   // calls, of sub-agents too
	Ended      []string   // likewise
	Denied     []string   // likewise, by a permission decision
	Unseen     []string   // likewise, that were made when no runner was there
	Counted    []string   // messages with a usage on record
	Whole      bool       // the agent's session began with the execution

	own     wire.Raw // the prompt of the node
	point   string   // its last safe point
	begun   bool     // see [Seal]
	late    bool     // its session may lack what it was asked until it has answered
	owed    bool     // the node's prompt is among that
	prompt  string   // of the last agent:start, if it is unknown whether the agent got it
	news    []news   // what the agent hasn't been told for sure
	told    int      // how many of news the prompt tells of
	answers []string // to what it had asked people, which it hasn't been told
	noted   bool     // its program has, see [Notice]
	cause   string   // of the last interruption, see [Notice]
	bound   string   // session of the last agent:start
	message uint64   // seq of the agent's last message, of those that are told in whole
	hidden  bool     // it was rolled back since, with its calls
	seqs    []uint64 // of Facts
	states  map[string]wire.ToolCallState
}

// Fact is something that the agent's session has to have: the result of a call, or a message.
type Fact struct {
	Mark string // the id of the call or message in the agent's record
	Text string // what an agent without it is told
}

// news is a call of which the agent is to be told.
type news struct {
	cut   Interruption
	ended string // its result, if it isn't cut
}

// NewPast returns the past of an execution before its first event. own is the prompt of the
// node, point the last safe point of its agent, begun is that of [Seal], cause why it was interrupted first, see [Notice].
// late says that its session may lack what it was asked until it has answered.
func NewPast(own wire.Raw, point string, begun, late bool, cause string) *Past {
	return &Past{own: own, point: point, begun: begun, late: late, cause: cause, states: make(map[string]wire.ToolCallState)}
}

// Take follows the execution by one event.
func (p *Past) Take(e *wire.Event) {
	state := p.followCall(e)
	switch payload := e.Payload.(type) {
	case *wire.ToolSealed:
		p.Sealed = append(p.Sealed, e.CallID)
	case *wire.AgentResumed:
		p.Sealed = nil
	case *wire.AgentPaused:
		if e.Parent == "" {
			p.cause = payload.Reason
		}
	case *wire.LogTruncated:
		if p.RolledBack = false; payload.Lost == 0 {
			p.RollBack(payload.AtSeq)
		}
	case *wire.AgentMessage:
		if e.Parent == "" {
			p.message = e.Seq
		}
	case *wire.AgentStart:
		if e.Parent == "" {
			p.notePrompt(e, payload)
		}
	case *wire.AgentTool:
		p.endCall(e, payload, state)
	case *wire.UserMessage:
		if payload.Source == "synthetic" && e.Parent == "" && strings.HasPrefix(payload.Content, interrupted) {
			p.noted = true
		}
		if payload.Source == "command" {
			p.learnFact(e, payload.Point, "- A message to you\n  "+payload.Content)
			if p.late && e.Parent == "" {
				p.prompt, p.told = payload.Content, len(p.news)
				return
			}
		}
		p.notePoint(e, payload.Point)
		p.noteSignOfLife(e)
	case *wire.ToolIntent:
		p.Inputs = append(p.Inputs, payload.ToolInput)
		if payload.Recovered != "" {
			p.Unseen = append(p.Unseen, e.CallID)
			return
		}
		p.noteWork(e)
	case *wire.TurnStart:
		if !p.late {
			p.noteWork(e)
		}
	case *wire.Usage:
		if p.noteSignOfLife(e); payload.MessageID != "" {
			p.Counted = append(p.Counted, payload.MessageID)
		}
	case *wire.TurnEnd:
		p.noteSignOfLife(e)
	}
}

// followCall follows the states of calls, and returns that of the event's call before it.
func (p *Past) followCall(e *wire.Event) wire.ToolCallState {
	before := p.states[e.CallID]
	switch payload := e.Payload.(type) {
	case *wire.ToolIntent:
		p.states[e.CallID] = wire.ToolPending
		p.Open = append(p.Open, e.CallID)
	case *wire.ToolState:
		p.states[e.CallID] = payload.To
	case *wire.PermissionRequired:
		p.states[e.CallID] = wire.ToolApprovalRequired
	case *wire.PermissionDecided:
		if p.states[e.CallID] = wire.ToolApproved; payload.Decision == wire.DecisionDeny {
			p.states[e.CallID], p.Denied = wire.ToolDenied, append(p.Denied, e.CallID)
		}
	case *wire.AgentTool:
		delete(p.states, e.CallID)
		p.Open = slices.DeleteFunc(p.Open, func(id string) bool { return id == e.CallID })
		p.Ended = append(p.Ended, e.CallID)
	}
	return before
}

// endCall takes the result of a call.
func (p *Past) endCall(e *wire.Event, payload *wire.AgentTool, state wire.ToolCallState) {
	p.Inputs = append(p.Inputs, payload.ToolInput)
	c := wire.ToolCall{CallID: e.CallID, Tool: payload.ToolName, State: state}
	if i, ok := AsInterruption(c, payload, p.begun); ok {
		p.news = append(p.news, news{cut: i})
		p.learnFact(e, e.CallID, i.String())
		return
	}
	p.learnFact(e, e.CallID, Result(payload))
	p.notePoint(e, payload.Point)
	if payload.Recovered != "" {
		p.news = append(p.news, news{ended: Result(payload)})
		return
	}
	p.noteSignOfLife(e)
}

// Close takes the result of a call that is closed now, since its agent is gone. Its event
// follows in the log.
func (p *Past) Close(callID string, result *wire.AgentTool) {
	if i, ok := AsInterruption(wire.ToolCall{CallID: callID}, result, p.begun); ok {
		p.news = append(p.news, news{cut: i})
	}
}

// Answer takes the answer to a question of the agent that came when that was gone.
func (p *Past) Answer(result *wire.AgentTool) { p.answers = append(p.answers, Result(result)) }

// Prompt is what an agent that goes on is told: exactly the message, or else what it may not have
// got, or "continue", unless there is something to add. folder is that of
// [Notice]. It begins with the node's own prompt if its session may lack that.
func (p *Past) Prompt(message string, folder *Folder) string {
	untold := p.news
	if message == "" && p.prompt != "" {
		message, untold = p.prompt, p.news[p.told:]
	}
	n := Notice{Cause: p.cause, Answers: p.answers, Folder: folder, Noted: p.noted}
	for _, x := range untold {
		if x.ended != "" {
			n.Ended = append(n.Ended, x.ended)
		} else {
			n.Calls = append(n.Calls, x.cut)
		}
	}
	text := cmp.Or(message, DefaultPrompt)
	if p.owed {
		text = strings.TrimSpace(p.own.Plain() + "\n\n" + message)
	}
	if notice := n.String(); notice != "" {
		text += "\n\n" + notice
	}
	return text
}

// Message is what an agent that has to begin afresh is told besides its own prompt: message, or
// else what it may not have got.
func (p *Past) Message(message string) string {
	if message == "" && p.prompt != DefaultPrompt {
		return p.prompt
	}
	return message
}

// DefaultPrompt is what an agent is told that goes on (seeds/000 §5.2).
const DefaultPrompt = "continue"

// notePrompt notes a session's prompt. The node's own is told again by asking for
// what the session does anyway, if that has it.
func (p *Past) notePrompt(e *wire.Event, start *wire.AgentStart) {
	if !start.Resumed {
		p.Facts, p.seqs = nil, nil
	}
	if p.bound == "" || !start.Resumed {
		p.Whole = !start.Resumed
	}
	p.bound, p.prompt, p.told, p.cause, p.noted = e.SessionID, "", 0, "", false
	p.owed = p.late && (!start.Resumed || p.owed)
	text, ok := start.Prompt.Text()
	if p.owed {
		text = strings.TrimSpace(strings.TrimPrefix(text, p.own.Plain()))
	}
	if ok && !bytes.Equal(start.Prompt, p.own) {
		p.prompt, p.told = text, len(p.news)
	}
}

// maxFacts is how many facts a session is checked for. It lacks few, if any: its
// record is kept as it grows.
const maxFacts = 100

// learnFact notes what the session of the node's own agent has to know.
func (p *Past) learnFact(e *wire.Event, mark, text string) {
	if e.Parent != "" || mark == "" {
		return
	}
	if len(p.Facts) == maxFacts {
		p.Facts, p.seqs = slices.Delete(p.Facts, 0, 1), slices.Delete(p.seqs, 0, 1)
	}
	p.Facts, p.seqs = append(p.Facts, Fact{Mark: mark, Text: text}), append(p.seqs, e.Seq)
}

// RollBack takes the session back to what it was behind an event of the node.
func (p *Past) RollBack(after uint64) {
	n, _ := slices.BinarySearch(p.seqs, after+1)
	p.Facts, p.seqs = p.Facts[:n], p.seqs[:n]
	p.RolledBack = true
	p.hidden = p.hidden || p.message > after
}

// Addition is what an agent that goes on from its log is told and that doesn't tell it, behind message: that it has another
// folder, and which calls were interrupted that the log shows it no more. It is message alone if there is nothing of that.
func (p *Past) Addition(message string, folder *Folder) string {
	n := Past{cause: p.cause}
	if p.hidden {
		n.news = p.news
	}
	if folder == nil && len(n.news) == 0 {
		return message
	}
	return n.Prompt(message, folder)
}

// notePoint notes where in the node's events the agent's last safe point is.
func (p *Past) notePoint(e *wire.Event, point string) {
	if e.Parent == "" && point != "" && point == p.point {
		p.PointSeq = e.Seq
	}
}

// noteSignOfLife notes a sign of the agent, so it has got its prompt. It needn't know of what was cut
// off since: the end of an interrupted turn is such a sign, too.
func (p *Past) noteSignOfLife(e *wire.Event) {
	if e.Parent != "" || p.bound == "" {
		return
	}
	p.Session, p.prompt, p.owed, p.RolledBack, p.hidden = p.bound, "", false, false, false
	p.news, p.told = slices.Clone(p.news[p.told:]), 0
}

// noteWork notes that the agent begins something: it goes on, whatever has come before.
func (p *Past) noteWork(e *wire.Event) {
	if p.noteSignOfLife(e); e.Parent == "" && p.bound != "" {
		p.news = nil
	}
}
