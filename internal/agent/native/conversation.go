package native

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// message is what one side has said: content blocks as the Messages API has them.
type message struct {
	role   string
	blocks []wire.Raw
}

// call is a tool call of the last message of the model.
type call struct {
	id, tool string
	input    wire.Raw
	state    wire.ToolCallState // "" before its intent is on record
	asked    bool               // a person has been asked for a decision, in this run
	note     string             // of the decision on it
	started  int64              // Unix ms of its intent
	begun    int64              // of its execution
	nth      int                // of the calls so far that start the same as it; 0: it starts nothing
	result   wire.Raw           // a tool_result block; nil: none yet
}

// conversation is the fold of an execution's events: what the model is told next. The
// zero value is that of an agent that hasn't begun.
type conversation struct {
	messages []message // up to the last one of the model
	calls    []*call   // of the last, in its order
	said     []wire.Raw
	first    []wire.Raw // the prompt
	turns    int        // messages of the model
	earlier  int        // of them, those of failed attempts that this execution is a retry of
	stop     string     // why the last one ended
	cut      int        // how many of the last ones ended at the limit of their length
	blocks   int        // streamed so far
	context  int64      // tokens of the last call, its answer included
	bill     bill
	denials  []wire.Raw
	made     map[string]bool // ids of all calls so far
	started  map[string]int  // how many calls there were that start an agent, or a flow
	sum      [sha256.Size]byte

	ended    bool // the last turn's end is on record
	greeted  bool // hooks were asked about the agent's start
	reviewed bool // hooks were asked about the end of the last turn
	stopped  bool // one of them wants the agent to end
}

// foldEvents folds events of an execution of a run. Those of earlier runs, from which it was
// forked, come first, and those of failed attempts with its session. It fails if a
// checkpoint doesn't fit what precedes it.
func foldEvents(run, exec string, events iter.Seq2[*wire.Event, error]) (*conversation, error) {
	var list []*wire.Event
	var paid bill
	for e, err := range events {
		if err != nil {
			return nil, fmt.Errorf("native: events so far: %w", err)
		}
		if e.RunID == run && e.ExecID == exec {
			paid.takeEvent(e)
		}
		if p, ok := e.Payload.(*wire.LogTruncated); ok && p.Lost == 0 {
			list = slices.DeleteFunc(list, func(old *wire.Event) bool { return old.RunID == e.RunID && old.Seq > p.AtSeq })
			continue
		}
		list = append(list, e)
	}
	c := &conversation{}
	for _, e := range list {
		if p, ok := e.Payload.(*wire.Checkpoint); ok && p.PrefixHash != "" && e.Parent == "" && p.PrefixHash != c.prefixHash() {
			return nil, fmt.Errorf("native: the log differs from what the agent has seen before event %d of run %s", e.Seq, e.RunID)
		}
		c.applyEvent(e)
		if e.RunID != run {
			c.forgetQuestions()
		}
		c.stopped = c.stopped && e.RunID == run // a fork goes on
		if e.RunID == run && e.ExecID != exec { // limits are those of one attempt
			c.earlier, c.stopped = c.turns, false
		}
	}
	c.bill = paid
	return c, nil
}

// forgetQuestions has a person be asked again for each decision: what is answered in another run isn't in this one.
func (c *conversation) forgetQuestions() {
	for _, k := range c.calls {
		k.asked = false
	}
}

// prefixHash identifies all that was said.
func (c *conversation) prefixHash() string { return hex.EncodeToString(c.sum[:]) }

// addToHash takes what was said into the hash.
func (c *conversation) addToHash(what string, content ...wire.Raw) {
	h := sha256.New()
	h.Write(c.sum[:])
	h.Write([]byte(what))
	for _, b := range content {
		h.Write(b)
	}
	h.Sum(c.sum[:0])
}

// applyEvent takes the next event. Those of sub-agents and those that the model isn't
// told of leave it as it is.
func (c *conversation) applyEvent(e *wire.Event) {
	if e.Parent != "" {
		return
	}
	c.bill.takeEvent(e)
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		c.applyStart(p)
	case *wire.TurnStart:
		c.greeted = true
	case *wire.TurnEnd:
		c.ended = true
	case *wire.HookFired:
		c.applyHook(p)
	case *wire.UserMessage:
		c.hearMessage(p.Source, blocksOf(wire.RawString(p.Content)))
		if p.Source == sourceHook { // which comes before the firing is on record
			c.greeted, c.reviewed = true, c.reviewed || c.ended
		}
	case *wire.AgentMessage:
		c.applyAnswer(p)
	case *wire.Usage:
		c.context = p.ContextTokens + p.OutputTokens
	case *wire.Compaction:
		c.applyCompaction(p)
	default:
		if k := c.findCall(e.CallID); k != nil {
			c.applyCallEvent(k, e)
		}
	}
}

// applyStart takes the prompt, or what an agent that goes on is told.
func (c *conversation) applyStart(p *wire.AgentStart) {
	blocks := blocksOf(p.Prompt)
	if !p.Resumed && c.turns == 0 {
		c.said, c.greeted = nil, false // it began afresh, without a word said
	}
	if len(blocks) == 0 {
		return
	}
	if c.first == nil {
		c.first = blocks
	}
	c.hearMessage("prompt", blocks)
}

// sourceHook is the source of what no user has said: what a hook has for the model, or what
// the model is told when its answer was cut off.
const sourceHook = "synthetic"

// applyHook takes the firing of a hook. That of a tool's hook matters if it ends the agent.
func (c *conversation) applyHook(p *wire.HookFired) {
	switch p.HookEvent {
	case flow.HookAgentStart:
		c.greeted = true
	case flow.HookTurnEnd:
		c.reviewed = true
	case flow.HookAgentStop:
		return // it ends anyway
	}
	c.stopped = c.stopped || p.Decision == string(hook.Stop)
}

func (c *conversation) hearMessage(source string, blocks []wire.Raw) {
	c.said = append(c.said, blocks...)
	c.stop = ""
	c.addToHash(source, blocks...)
}

// applyAnswer takes a message of the model.
func (c *conversation) applyAnswer(p *wire.AgentMessage) {
	c.messages = c.nextPrompt()
	if saysSomething(p.Content.Items()) {
		c.messages = append(c.messages, message{"assistant", p.Content.Items()})
	}
	c.calls, c.said = nil, nil
	for _, b := range p.Content.Items() {
		if b.TextAt("type") == "tool_use" {
			k := &call{id: b.TextAt("id"), tool: b.TextAt("name"), input: b.Get("input")}
			c.calls = append(c.calls, k)
			if c.made == nil {
				c.made = map[string]bool{}
			}
			c.made[k.id] = true
			if what := startTarget(k.tool, k.input); what != "" {
				if c.started == nil {
					c.started = map[string]int{}
				}
				c.started[what]++
				k.nth = c.started[what]
			}
		}
	}
	c.turns++
	c.ended, c.reviewed = false, false
	if c.stop = cmp.Or(p.StopReason, stopEnd); c.stop == stopLength {
		c.cut++
	} else {
		c.cut = 0
	}
	c.blocks = max(c.blocks, p.Blocks)
	c.addToHash("assistant", p.Content)
}

// distinctCalls returns the blocks of the model's next message with calls that can be told
// apart: not every API keeps the ids of calls unique, but what becomes of a call is known
// by its id.
func (c *conversation) distinctCalls(blocks []wire.Raw) []wire.Raw {
	blocks = append([]wire.Raw{}, blocks...)
	here := map[string]bool{"": true}
	for i, b := range blocks {
		if b.TextAt("type") != "tool_use" {
			continue
		}
		id := b.TextAt("id")
		for n := 0; here[id] || c.made[id]; n++ {
			id = fmt.Sprintf("call-%d-%d-%d", c.turns+1, i, n)
		}
		here[id] = true
		if id != b.TextAt("id") {
			blocks[i] = wire.RawOf(map[string]any{"type": "tool_use", "id": id, "name": b.TextAt("name"), "input": b.Get("input")})
		}
	}
	return blocks
}

func (c *conversation) applyCallEvent(k *call, e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		k.state, k.started = wire.ToolPending, e.Timestamp
	case *wire.ToolState:
		k.state, k.begun = p.To, e.Timestamp
	case *wire.PermissionRequired:
		k.state, k.asked = wire.ToolApprovalRequired, true
		if len(p.ToolInput) > 0 { // a hook may have changed it
			k.input = p.ToolInput
		}
	case *wire.PermissionDecided:
		k.state, k.note = wire.ToolApproved, p.Note
		if p.Decision == wire.DecisionDeny {
			k.state = wire.ToolDenied
		} else if len(p.UpdatedInput) > 0 {
			k.input = p.UpdatedInput
		}
	case *wire.AgentTool:
		c.finishCall(k, p)
	}
}

// finishCall takes the result of a call, the first one that there is.
func (c *conversation) finishCall(k *call, p *wire.AgentTool) {
	if k.result != nil {
		return
	}
	k.state = wire.ToolCompleted
	if p.Denied {
		k.state = wire.ToolDenied
		c.denials = append(c.denials, wire.RawOf(map[string]any{"tool_name": k.tool, "tool_use_id": k.id, "tool_input": k.input}))
	}
	k.result = resultBlock(k.id, p.ToolOutput, p.Error != "")
	c.addToHash("result", k.result)
}

// applyCompaction replaces what was said by a summary of it.
func (c *conversation) applyCompaction(p *wire.Compaction) {
	if p.Summary == "" || p.Error != "" {
		return
	}
	rest := c.said
	if len(c.messages) == 0 {
		rest = nil // the prompt itself
	}
	c.messages, c.calls, c.stop, c.context = nil, nil, "", 0
	c.said = slices.Concat(c.first, []wire.Raw{textBlock(summaryHead + p.Summary)}, rest)
	c.addToHash("compaction", c.said...)
}

// summaryHead introduces a summary to the model.
const summaryHead = "This conversation was shortened, as it had become too long. What has happened since the task above:\n\n"

// findCall returns the call of the last message with an id, or nil.
func (c *conversation) findCall(id string) *call {
	if id == "" {
		return nil
	}
	for _, k := range c.calls {
		if k.id == id {
			return k
		}
	}
	return nil
}

// openCalls returns the calls that have no result.
func (c *conversation) openCalls() []*call {
	return slices.DeleteFunc(slices.Clone(c.calls), func(k *call) bool { return k.result != nil })
}

// nextPrompt is what the model is told next: all messages, and the results of its calls
// with what it was told since as the last one.
func (c *conversation) nextPrompt() []message {
	var last []wire.Raw
	for _, k := range c.calls {
		if k.result != nil {
			last = append(last, k.result)
		}
	}
	if last = append(last, c.said...); len(last) == 0 {
		return c.messages
	}
	return append(slices.Clone(c.messages), message{"user", last})
}

// isOver reports whether the model has come to an end and nothing was said since.
func (c *conversation) isOver() bool {
	return c.turns > 0 && len(c.calls) == 0 && len(c.said) == 0 && c.stop != "" && c.stop != stopPause
}

// lastText is the text of the last message of the model, if nothing was said since.
func (c *conversation) lastText() string {
	last := len(c.messages) - 1
	if last < 0 || c.messages[last].role != "assistant" {
		return ""
	}
	return textOf(c.messages[last].blocks)
}
