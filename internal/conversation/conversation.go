// Package conversation folds what the agent of a node does into a conversation: turns,
// messages of the model, tool calls, sub-agents, and what waits for a person. Every reader that
// shows or measures these takes them from here.
package conversation

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

// Conversation is that of a node's agent and of the sub-agents that its calls have begun.
// The zero value is that of an agent that hasn't begun. It can be stored: it is bounded, and
// without what is large.
type Conversation struct {
	Exec    string   `json:"exec,omitempty"`    // of the last agent:start
	Turn    int      `json:"turn,omitempty"`    // number of the agent's last model call
	Begun   bool     `json:"begun,omitempty"`   // that was announced, and has said nothing yet
	Threads []Thread `json:"threads,omitempty"` // of agents that have spoken, the longest known first
}

// Thread is what the agent says and does, or one of its sub-agents.
type Thread struct {
	Parent  string     `json:"parent,omitempty"`  // call that began the sub-agent; "": the node's own agent
	Message uint64     `json:"message,omitempty"` // position of the model's message that may still grow; 0: none
	Latest  uint64     `json:"latest,omitempty"`  // of its last one since it was told something; 0: none
	Calls   []Call     `json:"calls,omitempty"`   // without a result, in the order in which they began
	Named   []string   `json:"named,omitempty"`   // calls of its last message that haven't begun
	Asked   []Question `json:"asked,omitempty"`   // messages to a person without an answer
	WentOn  bool       `json:"wentOn,omitempty"`  // it works without the answer to what it has asked
	Over    bool       `json:"over,omitempty"`    // the sub-agent has ended

	BlockedAt int64 `json:"blockedAt,omitempty"` // since when it waits for a person, Unix ms; 0: it doesn't
	BlockedMs int64 `json:"blockedMs,omitempty"` // how long it has waited before
}

// Call is a tool call.
type Call struct {
	ID    string             `json:"id"` // in a thread, what stands for a long one
	Tool  string             `json:"tool,omitempty"`
	Batch string             `json:"batch,omitempty"` // see [wire.ToolIntent]
	Turn  int                `json:"turn,omitempty"`
	State wire.ToolCallState `json:"state,omitempty"`
	At    int64              `json:"at,omitempty"` // of its intent, Unix ms; 0: that isn't known
	Input wire.Raw           `json:"-"`            // "": the conversation was stored since the intent
}

// Question is a message to a person that wants an answer.
type Question struct {
	ID       string        `json:"id,omitempty"`
	Priority wire.Priority `json:"priority"`
}

// Bounds of a conversation. What is beyond is forgotten, the oldest first.
const (
	maxThreads = 32
	maxCalls   = 256 // of a thread
	maxAsked   = 32  // of a thread
	maxID      = 512 // bytes of an id that are kept
)

// Step is what an event has done.
type Step struct {
	Thread   *Thread         // the event's, valid until the next event; nil: of a sub-agent of which nothing else is known
	Opened   bool            // the thread begins, or goes on after its end
	Message  uint64          // position of the model's message that the event adds to; 0: none
	Begins   bool            // that message begins with it
	Turns    bool            // a turn of the node's own agent begins with it
	Call     Call            // that it is about; of one that has ended, as it ended
	Known    bool            // Call was open before
	Named    bool            // Call is in a message of the model that came before
	Calls    []Call          // that a whole message of the model names
	Texts    []string        // of that; nil: its content is no list of blocks
	Result   *wire.AgentTool // of Call
	TookMs   int64           // how long Call took, with what it has waited unless its agent says how long that was
	Answered bool            // a person has answered what the thread waited for
	Closed   *Ending         // of a sub-agent
}

// Ending is the end of a sub-agent.
type Ending struct {
	Parent string
	Cause  string // "": it has done what it was to do; [wire.CallInterrupted]: it was ended; or the type of its error
}

// Apply takes the next event of the node, which is at a position of the log.
func (c *Conversation) Apply(pos uint64, e *wire.Event) Step {
	s := c.beginStep(e)
	if s.Thread == nil {
		return s
	}
	th := s.Thread
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		s.Thread = c.beginExecution(e, th)
		th = s.Thread
	case *wire.TurnStart:
		c.beginTurn(e, &s)
	case *wire.AgentText, *wire.AgentTextDelta:
		c.assignMessage(pos, e, &s)
	case *wire.AgentMessage:
		c.addWhole(pos, e, p, &s)
	case *wire.AgentTool:
		c.endCall(e, p, &s)
	case *wire.AgentError:
		c.endAttempt(p, th)
	case *wire.UserMessage:
		th.noteUserMessage(p, &s)
		c.noteTaskReport(e, &s)
	case *wire.CCMessage:
		if p.Priority != wire.PriorityInfo {
			th.Asked = append(withRoom(th.Asked, maxAsked), Question{callKey(e.CallID), p.Priority})
			th.WentOn = false
		}
	case *wire.TurnEnd, *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
		c.endTurn(e)
	case *wire.RawMessage:
		c.noteTaskReport(e, &s)
	default:
		c.applyCallEvent(pos, e, &s)
	}
	s.Call.ID = e.CallID
	th.measureWaiting(e.Timestamp)
	return s
}

// Thread returns the thread of a sub-agent, with no parent that of the node's own agent; nil
// if it isn't known. It is valid until the next event.
func (c *Conversation) Thread(parent string) *Thread {
	parent = callKey(parent)
	i := slices.IndexFunc(c.Threads, func(t Thread) bool { return t.Parent == parent })
	if i < 0 {
		return nil
	}
	return &c.Threads[i]
}

// beginStep finds the thread of an event. A sub-agent that is over goes on only if it is told
// something or does something: what follows the result of its call, such as the usage of its
// last message, is no new beginning.
func (c *Conversation) beginStep(e *wire.Event) Step {
	s := Step{Thread: c.Thread(e.Parent)}
	if s.Thread != nil && !s.Thread.Over {
		return s
	}
	switch e.Payload.(type) {
	case *wire.UserMessage, *wire.ToolIntent, *wire.AgentTool:
		s.Opened = true
	case *wire.Usage, *wire.RawMessage:
		s.Opened = e.Parent == ""
	default:
		s.Opened = s.Thread == nil
	}
	switch {
	case s.Opened && s.Thread != nil:
		s.Thread.Over = false
	case s.Opened:
		s.Thread = c.openThread(callKey(e.Parent))
	}
	return s
}

// openThread begins a thread. If there are too many, one is forgotten that is over, or the oldest.
func (c *Conversation) openThread(parent string) *Thread {
	if len(c.Threads) >= maxThreads {
		i := slices.IndexFunc(c.Threads, func(t Thread) bool { return t.Over })
		if i < 0 {
			i = slices.IndexFunc(c.Threads, func(t Thread) bool { return t.Parent != "" })
		}
		c.Threads = slices.Delete(c.Threads, i, i+1)
	}
	c.Threads = append(c.Threads, Thread{Parent: parent})
	return &c.Threads[len(c.Threads)-1]
}

// beginExecution begins an execution, or goes on with it: what was open has no result any more, but
// questions stand.
func (c *Conversation) beginExecution(e *wire.Event, th *Thread) *Thread {
	if th.Parent == "" && e.ExecID != c.Exec {
		c.Exec, c.Threads = e.ExecID, nil
		return c.openThread("")
	}
	th.Message, th.Latest, th.Calls, th.Named, th.WentOn = 0, 0, nil, nil, true
	return th
}

// beginTurn begins a call of the model.
func (c *Conversation) beginTurn(e *wire.Event, s *Step) {
	s.Thread.Message = 0
	if s.Thread.Parent != "" {
		return
	}
	turn := e.Turn
	if turn == 0 {
		turn = c.Turn + 1
	}
	c.Begun = true
	c.turnTo(turn, s)
}

func (c *Conversation) turnTo(turn int, s *Step) {
	if turn > c.Turn {
		c.Turn, s.Turns = turn, true
	}
}

// assignMessage finds the message of the model that an event adds to. One that isn't there begins; if
// its turn wasn't announced, it is the next one.
func (c *Conversation) assignMessage(pos uint64, e *wire.Event, s *Step) {
	th := s.Thread
	s.Message = th.Message
	if s.Message > 0 {
		return
	}
	if th.Parent == "" {
		turn := c.TurnOf(e)
		if e.Turn == 0 && !c.Begun {
			turn++
		}
		c.turnTo(turn, s)
		c.Begun = false
	}
	s.Message, s.Begins = pos, true
	th.Message, th.Latest = pos, pos
}

// endAttempt ends what a failed try of a model call has said: the next try says it anew, in the same turn.
func (c *Conversation) endAttempt(p *wire.AgentError, th *Thread) {
	if p.Phase != "model" || p.Attempt == nil || th.Message == 0 {
		return
	}
	th.Message = 0
	c.Begun = c.Begun || th.Parent == ""
}

// TurnOf returns the turn that an event is of.
func (c *Conversation) TurnOf(e *wire.Event) int {
	if e.Turn > 0 {
		return e.Turn
	}
	return c.Turn
}

// addWhole takes a message as the model's API has it, parts of which may have been streamed.
func (c *Conversation) addWhole(pos uint64, e *wire.Event, p *wire.AgentMessage, s *Step) {
	c.assignMessage(pos, e, s)
	th := s.Thread
	th.Message = 0
	blocks, list := p.Content.Any().([]any)
	if list {
		s.Texts = []string{}
	}
	for _, block := range blocks {
		b, _ := block.(map[string]any)
		switch text, _ := b["text"].(string); b["type"] {
		case "text":
			s.Texts = append(s.Texts, text)
		case "tool_use":
			id, _ := b["id"].(string)
			name, _ := b["name"].(string)
			input, err := wire.Marshal(b["input"])
			if err != nil {
				input = wire.Null // it was decoded a moment ago
			}
			s.Calls = append(s.Calls, Call{ID: id, Tool: name, Input: input})
			th.Named = append(withRoom(th.Named, maxCalls), callKey(id))
		}
	}
}

// noteUserMessage takes what the agent is told. A message that no person wrote answers no question.
func (th *Thread) noteUserMessage(p *wire.UserMessage, s *Step) {
	th.Message, th.Latest = 0, 0
	if p.Source != "synthetic" && p.Source != "subagent" && len(th.Asked) > 0 {
		th.Asked, th.WentOn, s.Answered = nil, false, true
	}
}

// endTurn ends the turn of the node's own agent, or the agent. A paused one keeps its calls:
// a person may answer them meanwhile.
func (c *Conversation) endTurn(e *wire.Event) {
	if e.Parent != "" {
		return
	}
	c.Begun = false
	for i := range c.Threads {
		th := &c.Threads[i]
		th.Message, th.Latest, th.Named = 0, 0, nil
		if _, paused := e.Payload.(*wire.AgentPaused); th.Parent == "" && !paused {
			th.Calls, th.WentOn = nil, false
		}
	}
}

// Forget forgets what is under way, since the node's log is cut off behind it.
func (c *Conversation) Forget() { c.Threads, c.Begun = nil, false }

// measureWaiting measures how long the thread waits for people.
func (th *Thread) measureWaiting(at int64) {
	switch blocked := th.Blocked(); {
	case blocked && th.BlockedAt == 0:
		th.BlockedAt = max(at, 1)
	case !blocked && th.BlockedAt > 0:
		th.BlockedMs += max(0, at-th.BlockedAt)
		th.BlockedAt = 0
	}
}

// Blocked reports whether the thread waits for a person: for the decision on a call, or for
// the answer to what it has asked, unless it works on without.
func (th *Thread) Blocked() bool {
	return slices.ContainsFunc(th.Calls, Call.Waits) || len(th.Asked) > 0 && len(th.Calls) == 0 && !th.WentOn && !th.Over
}

// Wants says what the thread waits for: question, approval:TOOL, or the priority of what it
// has asked.
func (th *Thread) Wants() string {
	i := slices.IndexFunc(th.Calls, Call.Waits)
	switch {
	case i >= 0 && th.Calls[i].Tool == ask.Tool:
		return "question"
	case i >= 0:
		return "approval:" + th.Calls[i].Tool
	case len(th.Asked) > 0:
		return string(th.Asked[0].Priority)
	}
	return ""
}

// withRoom makes room in a list for one more.
func withRoom[T any](list []T, most int) []T {
	if len(list) < most {
		return list
	}
	return slices.Delete(list, 0, len(list)-most+1)
}

// callKey is what a call is known by: its id, or what stands for a long one.
func callKey(id string) string {
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}
