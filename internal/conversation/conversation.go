// Package conversation folds what the agent of a node does into a conversation: turns,
// messages of the model, tool calls, sub-agents, and what waits for a person. Every reader that
// shows or measures these takes them from here.
package conversation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

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
	turn = cmp.Or(turn, c.Turn+1)
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

// DropInputs forgets what calls without a result were given, as storing the conversation does.
func (c *Conversation) DropInputs() {
	for i := range c.Threads {
		for j := range c.Threads[i].Calls {
			c.Threads[i].Calls[j].Input = nil
		}
	}
}

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

// Waits reports whether the call waits for a person: it was asked about, or asks itself.
func (k Call) Waits() bool {
	return k.State == wire.ToolApprovalRequired || k.Tool == ask.Tool && k.State == wire.ToolPending
}

// Call returns a call of the thread that has no result.
func (th *Thread) Call(id string) (Call, bool) {
	if k := th.findCall(id); k != nil {
		return *k, true
	}
	return Call{}, false
}

func (th *Thread) findCall(id string) *Call {
	id = callKey(id)
	i := slices.IndexFunc(th.Calls, func(k Call) bool { return k.ID == id })
	if i < 0 {
		return nil
	}
	return &th.Calls[i]
}

// applyCallEvent takes an event of a call that hasn't ended.
func (c *Conversation) applyCallEvent(pos uint64, e *wire.Event, s *Step) {
	th := s.Thread
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		c.beginCall(pos, e, p, s)
	case *wire.ToolState:
		th.moveCall(e, p.To, s)
	case *wire.ToolSealed:
		th.moveCall(e, wire.ToolSealedState, s)
		s.Call.Tool = p.ToolName
	case *wire.PermissionRequired:
		th.requireDecision(e, p, s)
	case *wire.PermissionDecided:
		th.decideCall(e, p, s)
	}
}

// beginCall begins a call, which is a part of the model's message unless that has named it.
func (c *Conversation) beginCall(pos uint64, e *wire.Event, p *wire.ToolIntent, s *Step) {
	th := s.Thread
	s.Known = th.findCall(e.CallID) != nil
	named := slices.Index(th.Named, callKey(e.CallID))
	if s.Named = s.Known || named >= 0; !s.Named {
		c.assignMessage(pos, e, s)
	}
	if named >= 0 {
		th.Named = slices.Delete(th.Named, named, named+1)
	}
	k := th.callFor(e.CallID)
	*k = Call{ID: callKey(e.CallID), Tool: p.ToolName, Batch: p.Batch, Turn: e.Turn, State: wire.ToolPending, At: e.Timestamp, Input: p.ToolInput}
	th.WentOn = len(th.Asked) > 0
	s.Call = *k
}

// callFor returns a call of the thread. One that isn't there is made: its beginning isn't on
// record.
func (th *Thread) callFor(id string) *Call {
	if k := th.findCall(id); k != nil {
		return k
	}
	th.Calls = append(withRoom(th.Calls, maxCalls), Call{ID: callKey(id)})
	return &th.Calls[len(th.Calls)-1]
}

// moveCall takes the next state of a call. Only the result follows an end, so an end
// doesn't add an unknown call, unless it is sealed.
func (th *Thread) moveCall(e *wire.Event, to wire.ToolCallState, s *Step) {
	s.Call, s.Known = th.Call(e.CallID)
	switch s.Call.State = to; to {
	case wire.ToolPending, wire.ToolApprovalRequired, wire.ToolApproved, wire.ToolExecuting, wire.ToolSealedState:
		th.callFor(e.CallID).State = to
	default:
		if s.Known {
			th.findCall(e.CallID).State = to
		}
	}
}

// requireDecision has a call wait for a decision on its input, which a hook may have changed.
func (th *Thread) requireDecision(e *wire.Event, p *wire.PermissionRequired, s *Step) {
	s.Known = th.findCall(e.CallID) != nil
	k := th.callFor(e.CallID)
	k.Tool, k.Input, k.State = p.ToolName, p.ToolInput, wire.ToolApprovalRequired
	s.Call = *k
}

// decideCall takes the decision on a call. A rule decides without having asked.
func (th *Thread) decideCall(e *wire.Event, p *wire.PermissionDecided, s *Step) {
	to := wire.ToolDenied
	if p.Decision == wire.DecisionAllow {
		to = wire.ToolApproved
	}
	before, _ := th.Call(e.CallID)
	th.moveCall(e, to, s)
	s.Answered = before.Waits()
}

// endCall ends a call, and with it the sub-agent that it was, unless that works on in the
// background.
func (c *Conversation) endCall(e *wire.Event, p *wire.AgentTool, s *Step) {
	th := s.Thread
	s.Call, s.Known = th.Call(e.CallID)
	s.Result, s.Named = p, s.Known || slices.Contains(th.Named, callKey(e.CallID))
	th.Calls = slices.DeleteFunc(th.Calls, func(k Call) bool { return k.ID == callKey(e.CallID) })
	th.Named = slices.DeleteFunc(th.Named, func(id string) bool { return id == callKey(e.CallID) })
	if s.Known && s.Call.At > 0 {
		s.TookMs = e.Timestamp - s.Call.At
	}
	if p.DurationMs != nil {
		s.TookMs = *p.DurationMs
	}
	s.Answered = s.Call.Waits() && p.Error != wire.CallInterrupted
	if !s.Named {
		s.Message = th.Latest
	}
	th.Message = 0
	s.Call.Tool, s.Call.Input = p.ToolName, p.ToolInput
	if s.Call.State != wire.ToolSealedState {
		s.Call.State = stateOf(p)
	}
	if sub := c.Thread(e.CallID); sub != nil && e.CallID != "" && !sub.Over && !isBackground(p) {
		s.Closed = sub.endThread(e.CallID, e.Timestamp, causeOf(p))
	}
}

func stateOf(p *wire.AgentTool) wire.ToolCallState {
	switch {
	case p.Denied:
		return wire.ToolDenied
	case p.Error != "":
		return wire.ToolFailed
	}
	return wire.ToolCompleted
}

func causeOf(p *wire.AgentTool) string {
	switch {
	case p.Error == wire.CallInterrupted:
		return wire.CallInterrupted
	case p.Error != "" || p.Denied:
		return wire.ErrorToolUse
	}
	return ""
}

// isBackground reports whether the result of a call only says that its sub-agent works in the
// background.
func isBackground(p *wire.AgentTool) bool {
	async, _ := p.Structured.Get("isAsync").Any().(bool)
	return async
}

// endThread ends a sub-agent.
func (th *Thread) endThread(call string, at int64, cause string) *Ending {
	th.Over, th.Message, th.Latest, th.Calls, th.Named, th.Asked = true, 0, 0, nil, nil, nil
	th.measureWaiting(at)
	return &Ending{Parent: call, Cause: cause}
}

// The reports of Claude Code on work in the background, which nothing else tells of: a line of its stream, in its session's
// file a message in the user's name.
const (
	taskNotification = "system/task_notification"
	taskMessage      = "<task-notification>"
)

// readTaskReport returns which call a report is about, and how its task has ended; "" if it is none.
func readTaskReport(payload wire.Payload) (call, status string) {
	switch p := payload.(type) {
	case *wire.RawMessage:
		if p.Name == taskNotification {
			call = p.Data.TextAt("tool_use_id")
			status = p.Data.TextAt("status")
		}
	case *wire.UserMessage:
		if p.Source == "synthetic" && strings.HasPrefix(p.Content, taskMessage) {
			call, status = elementOf(p.Content, "tool-use-id"), elementOf(p.Content, "status")
		}
	}
	return call, status
}

// elementOf returns the content of the first element of a name: what agents say comes behind those that count.
func elementOf(text, name string) string {
	_, text, _ = strings.Cut(text, "<"+name+">")
	content, _, _ := strings.Cut(text, "</"+name+">")
	return content
}

// noteTaskReport takes the report on a sub-agent in the background. One with an open call ends with
// the call.
func (c *Conversation) noteTaskReport(e *wire.Event, s *Step) {
	call, status := readTaskReport(e.Payload)
	sub := c.Thread(call)
	if call == "" || sub == nil || sub.Over || c.isOpen(call) {
		return
	}
	cause := wire.ErrorToolUse
	switch status {
	case "completed":
		cause = ""
	case "stopped", "killed":
		cause = wire.CallInterrupted
	}
	s.Closed = sub.endThread(call, e.Timestamp, cause)
}

func (c *Conversation) isOpen(call string) bool {
	return slices.ContainsFunc(c.Threads, func(th Thread) bool { return th.findCall(call) != nil })
}
