package codex

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/pkg/wire"
)

// source is what events name as the origin of raw messages.
const source = "codex"

// sessionFold turns what the programs of a session say into events. It is pure.
type sessionFold struct {
	session string // that the runner has chosen
	thread  string // "": Codex hasn't named it yet
	model   string
	cwd     string
	mode    string
	blocks  agent.Blocks

	at       int64
	line     int
	named    bool  // the program has named its thread
	unnamed  int   // its lines before that
	begun    int64 // when the program's thread was told of, Unix ms
	turnAt   int64
	turn     int
	block    int
	inTurn   bool
	ended    bool // the program has told the end of its turn
	text     string
	asked    []string        // its parent, without an answer, by call
	onRecord map[string]bool // calls that have asked and are heard again: asked has those without an answer
	calls    map[string]*openCall
	order    []string
	total    tokens // of the thread
	spent    tokens // of the session's turns
	turns    int64
	time     int64 // of turns, ms
	trouble  string
	failed   *wire.AgentError
	out      []*wire.Event
}

// tokens are counted over a thread. input has those of the cache in it.
type tokens struct{ input, cached, written, output int64 }

// openCall is one that has no result.
type openCall struct {
	name    string
	input   wire.Raw
	at      int64
	changes []wire.Raw // of files
}

func newFold(r agent.Request) *sessionFold {
	return &sessionFold{
		session: r.SessionID, model: r.Options.Model, cwd: r.Options.Cwd, mode: cmp.Or(r.Options.PermissionMode, "bypassPermissions"),
		blocks: r.Options.Blocks, calls: map[string]*openCall{}, asked: slices.Clone(r.Asked),
	}
}

func (f *sessionFold) emitEvent(call string, p wire.Payload) {
	f.out = append(f.out, &wire.Event{Timestamp: f.at, SessionID: cmp.Or(f.thread, f.session), Turn: f.turn, CallID: call, Payload: p})
}

func (f *sessionFold) takeEvents() []*wire.Event {
	out := f.out
	f.out = nil
	return out
}

// maxUnnamed is how many lines a program may print before it names its thread.
const maxUnnamed = 200

// isNoCodex reports whether the program has shown that it isn't Codex.
func (f *sessionFold) isNoCodex() bool { return f.unnamed >= maxUnnamed && !f.named }

// beginProgram begins another program of the session.
func (f *sessionFold) beginProgram() {
	f.inTurn, f.ended, f.trouble, f.named, f.unnamed = false, false, "", false, 0
}

// takeLine takes a line of the program.
func (f *sessionFold) takeLine(at int64, line []byte) {
	f.at = at
	f.line++
	f.unnamed++
	if strings.TrimSpace(string(line)) == "" {
		return
	}
	m, err := wire.RawFromJSON(line)
	if err != nil {
		f.emitEvent("", &wire.RawMessage{
			Source: source, Name: "malformed", Data: wire.RawString(toValidUTF8(string(line))), Reason: toValidUTF8(err.Error()), Line: f.line,
		})
		return
	}
	switch kind := m.TextAt("type"); kind {
	case threadStarted:
		f.takeThread(m.TextAt("thread_id"), m)
	case "turn.started":
		f.beginTurn()
	case "item.started", "item.updated", "item.completed":
		f.takeItem(strings.TrimPrefix(kind, "item."), m.Get("item"), m)
	case "turn.completed":
		f.takeTurnEnd(m)
	case "turn.failed":
		f.failTurn(m.TextAt("error", "message"), m)
	case "error":
		f.emitWarning(m.TextAt("message"), m)
	default:
		f.emitRaw(m)
	}
}

func (f *sessionFold) emitRaw(m wire.Raw) {
	f.emitEvent("", &wire.RawMessage{Source: source, Name: strings.Trim(m.TextAt("type")+"/"+m.TextAt("item", "type"), "/"), Data: m})
}

// threadStarted is the first line of a program.
const threadStarted = "thread.started"

// maxID bounds the id of a thread or an item, in bytes.
const maxID = 512

// takeThread takes the thread of the program. It is on record before anything that it does.
func (f *sessionFold) takeThread(id string, m wire.Raw) {
	if id == "" || len(id) > maxID {
		f.emitRaw(m)
		return
	}
	f.begun = f.at
	f.emitEvent("", &wire.AgentInit{Model: f.model, Cwd: f.cwd, PermissionMode: f.mode})
	if old := cmp.Or(f.thread, f.session); id != old { // last: a replay knows the session already
		f.emitEvent("", &wire.SessionBound{OldSession: old, NewSession: id})
	}
	f.thread, f.named = id, true
}

func (f *sessionFold) beginTurn() {
	if f.inTurn || f.ended {
		return
	}
	f.inTurn, f.turnAt, f.text = true, f.at, ""
	f.turn++
	f.emitEvent("", &wire.TurnStart{Model: f.model})
}

// emitWarning tells of trouble that may pass: Codex tries again.
func (f *sessionFold) emitWarning(message string, m wire.Raw) {
	f.trouble = cmp.Or(message, "Codex tells of an error without a word")
	f.emitEvent("", &wire.AgentError{ErrorType: wire.ErrorExecution, Message: f.trouble, Severity: wire.SeverityWarning, Phase: "model", Details: m})
}

// takeItem takes what is told of an item: that it has begun, changed or ended.
func (f *sessionFold) takeItem(state string, item, m wire.Raw) {
	kind := item.TextAt("type")
	if kind == "error" { // also of what comes before the turn
		f.emitWarning(item.TextAt("message"), m)
		return
	}
	f.beginTurn()
	id := item.TextAt("id")
	switch {
	case kind == "todo_list":
		f.takeTodos(item)
	case kind == "agent_message" || kind == "reasoning":
		if state == "completed" {
			f.takeBlock(kind, item.TextAt("text"))
		}
	case !isCall(kind) || id == "" || len(id) > maxID:
		f.emitRaw(m)
	default:
		f.takeCall(state, id+"-"+strconv.FormatInt(f.begun, 36), kind, item)
	}
}

func isCall(kind string) bool {
	return kind == commandTool || kind == "file_change" || kind == "mcp_tool_call" || kind == "web_search"
}

// takeBlock takes a message or a thought, which Codex tells whole.
func (f *sessionFold) takeBlock(kind, text string) {
	if text == "" {
		return
	}
	f.block++
	switch {
	case kind == "reasoning" && f.blocks == agent.BlocksNever:
		f.emitEvent("", &wire.AgentThinkingDelta{Content: text, Block: f.block})
	case kind == "reasoning":
		f.emitEvent("", &wire.AgentThinking{Content: text, Block: f.block})
	case f.blocks == agent.BlocksNever:
		f.emitEvent("", &wire.AgentTextDelta{Content: text, Block: f.block})
	default:
		f.emitEvent("", &wire.AgentText{Content: text, Block: f.block})
	}
	if kind == "agent_message" {
		f.text = text
	}
}

func (f *sessionFold) takeTodos(item wire.Raw) {
	p := &wire.TodoChanged{}
	for _, x := range item.Get("items").Items() {
		todo := wire.Todo{Content: x.TextAt("text"), Status: "pending"}
		if done, _ := x.Get("completed").Any().(bool); done {
			todo.Status = "completed"
			p.Done++
		}
		p.Items = append(p.Items, todo)
	}
	p.Total = len(p.Items)
	f.emitEvent("", p)
}

// takeCall takes what is told of a call.
func (f *sessionFold) takeCall(state, id, kind string, item wire.Raw) {
	c := f.calls[id]
	if c == nil {
		c = &openCall{at: f.at}
		c.name, c.input = toolOf(kind, item)
		f.calls[id], f.order = c, append(f.order, id)
		sum := sha256.Sum256(c.input)
		f.emitEvent(id, &wire.ToolIntent{ToolName: c.name, ToolInput: c.input, InputHash: hex.EncodeToString(sum[:]), Idempotent: kind == "web_search"})
		f.emitEvent(id, &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
	}
	if kind == "file_change" {
		c.changes = item.Get("changes").Items()
	}
	if state != "completed" {
		return
	}
	output, failed, denied := resultOf(kind, item)
	f.endCall(id, &wire.AgentTool{ToolOutput: output, Error: failed, Denied: denied, Structured: item})
	if failed != "" {
		return
	}
	for _, x := range c.changes {
		change := map[string]string{"add": "created", "delete": "deleted"}[x.TextAt("kind")]
		if path := x.TextAt("path"); path != "" {
			f.emitEvent("", &wire.FileChanged{Path: path, Change: cmp.Or(change, "modified")})
		}
	}
}

func (f *sessionFold) endCall(id string, p *wire.AgentTool) {
	c := f.calls[id]
	p.ToolName, p.ToolInput, p.DurationMs = c.name, c.input, new(max(0, f.at-c.at))
	if told := toldParent(p); told != nil {
		f.emitEvent(id, told)
		if told.Priority != wire.PriorityInfo && !f.onRecord[id] {
			f.asked = append(f.asked, id)
		}
	}
	f.emitEvent(id, p)
	delete(f.calls, id)
	f.order = slices.DeleteFunc(f.order, func(x string) bool { return x == id })
}

// toldParent is what a call has told the agent's parent; nil: nothing.
func toldParent(p *wire.AgentTool) *wire.CCMessage {
	if p.Error != "" || p.ToolName != "mcp__"+parent.Server+"__"+parent.Tool {
		return nil
	}
	told, _ := parent.Parse(p.ToolInput) // one with a problem tells nothing
	return told
}

// commandTool is the tool of a command, as Codex names it.
const commandTool = "command_execution"

// toolOf returns the tool of a call, and what it was given.
func toolOf(kind string, item wire.Raw) (name string, input wire.Raw) {
	switch kind {
	case commandTool:
		return kind, wire.RawOf(map[string]any{"command": item.TextAt("command")})
	case "file_change":
		about := map[string]any{"changes": item.Get("changes")}
		if changes := item.Get("changes").Items(); len(changes) > 0 {
			about["path"] = changes[0].TextAt("path")
		}
		return kind, wire.RawOf(about)
	case "mcp_tool_call":
		input = item.Get("arguments")
		if len(input) == 0 {
			input = wire.Null
		}
		return "mcp__" + item.TextAt("server") + "__" + item.TextAt("tool"), input
	}
	return kind, wire.RawOf(map[string]any{"query": item.TextAt("query")})
}

// resultOf returns what a call has come to, and why it failed, if it did.
func resultOf(kind string, item wire.Raw) (output wire.Raw, failed string, denied bool) {
	status := item.TextAt("status")
	switch kind {
	case commandTool:
		output = wire.RawString(item.TextAt("aggregated_output"))
		code, known := item.Get("exit_code").Any().(int64)
		switch {
		case status == "declined":
			return output, "the command was declined", true
		case known && code != 0:
			return output, fmt.Sprintf("the command ended with exit code %d", code), false
		case status == "failed":
			return output, "the command failed", false
		}
		return output, "", false
	case "mcp_tool_call":
		if output = item.Get("result").Get("content"); len(output) == 0 {
			output = wire.Null
		}
		failed = item.TextAt("error", "message")
	default:
		output = wire.RawString(status)
	}
	if status == "failed" {
		failed = cmp.Or(failed, "the call failed")
	}
	return output, failed, status == "declined"
}

// takeTurnEnd takes the end of a turn that went well.
func (f *sessionFold) takeTurnEnd(m wire.Raw) {
	f.beginTurn()
	f.closeCalls("the turn ended without the call's result")
	u := m.Get("usage")
	now := tokens{countOf(u, "input_tokens"), countOf(u, "cached_input_tokens"), countOf(u, "cache_write_input_tokens"), countOf(u, "output_tokens")}
	added := now.since(f.total)
	f.total, f.spent = now, f.spent.plus(added)
	usage := added.usage()
	f.emitEvent("", &wire.Usage{
		MessageID: fmt.Sprintf("%s/%s", f.thread, strconv.FormatInt(f.begun, 36)), Model: f.model, StopReason: "end_turn",
		InputTokens: usage.InputTokens, OutputTokens: usage.OutputTokens,
		CacheCreationInputTokens: usage.CacheCreationInputTokens, CacheReadInputTokens: usage.CacheReadInputTokens,
	})
	f.endTurn(&wire.TurnEnd{Subtype: "success", StopReason: "end_turn", Result: f.text, Usage: &usage})
}

// since returns what a thread has used since before. One that has used less counts anew.
func (t tokens) since(before tokens) tokens {
	d := tokens{t.input - before.input, t.cached - before.cached, t.written - before.written, t.output - before.output}
	if d.input < 0 || d.cached < 0 || d.written < 0 || d.output < 0 {
		return t
	}
	return d
}

func (t tokens) plus(x tokens) tokens {
	return tokens{t.input + x.input, t.cached + x.cached, t.written + x.written, t.output + x.output}
}

// usage counts tokens of the cache apart, as the wire does.
func (t tokens) usage() wire.TokenUsage {
	return wire.TokenUsage{
		InputTokens: max(0, t.input-t.cached-t.written), OutputTokens: t.output, CacheReadInputTokens: &t.cached, CacheCreationInputTokens: &t.written,
	}
}

// failTurn takes the end of a turn that failed.
func (f *sessionFold) failTurn(message string, m wire.Raw) {
	f.beginTurn()
	f.closeCalls(wire.CallInterrupted)
	message = cmp.Or(message, f.trouble, "the turn failed")
	f.endTurn(&wire.TurnEnd{Subtype: "error", IsError: true, Result: message})
	f.failed = &wire.AgentError{ErrorType: errorType(message), Message: message, Severity: wire.SeverityError, Phase: "model", Details: m}
}

// errorType recognises failures by the status that Codex tells in its words.
func errorType(message string) string {
	if strings.Contains(message, "usage limit") {
		return wire.ErrorRateLimit
	}
	for _, status := range []int{401, 403, 429, 529, 500, 502, 503, 504, 400, 404} {
		if strings.Contains(message, strconv.Itoa(status)+" ") {
			return agent.APIErrorType(status, "")
		}
	}
	return wire.ErrorExecution
}

func (f *sessionFold) endTurn(p *wire.TurnEnd) {
	p.NumTurns, p.DurationMs = 1, max(0, f.at-f.turnAt)
	f.turns++
	f.time += p.DurationMs
	f.inTurn, f.ended = false, true
	f.emitEvent("", p)
}

// closeCalls ends the calls that have no result.
func (f *sessionFold) closeCalls(why string) {
	for _, id := range slices.Clone(f.order) {
		f.endCall(id, &wire.AgentTool{ToolOutput: wire.Null, Error: why})
	}
}

// completeTurn ends the execution well.
func (f *sessionFold) completeTurn(at int64) {
	f.at = at
	f.emitEvent("", &wire.AgentComplete{Result: f.text, Usage: f.spent.usage(), NumTurns: f.turns, DurationMs: f.time, StopReason: "end_turn"})
}

// pauseAgent ends the execution of an agent that was interrupted.
func (f *sessionFold) pauseAgent(at int64) {
	f.at = at
	f.closeCalls(wire.CallInterrupted)
	f.emitEvent("", &wire.AgentPaused{Reason: "interrupted", NumTurns: f.turns})
}

// fail ends the execution of a program that has ended before its turn, or that failed in it.
func (f *sessionFold) fail(at int64, kind, message string, details wire.Raw) {
	f.at = at
	f.closeCalls(wire.CallInterrupted)
	p := f.failed
	if p == nil {
		p = &wire.AgentError{ErrorType: kind, Message: toValidUTF8(message), Severity: wire.SeverityError, Phase: "lifecycle", Details: details}
	}
	f.emitEvent("", p)
}

// countOf returns a number that isn't negative, at a key; 0 if there is none.
func countOf(r wire.Raw, key string) int64 {
	n, _ := r.Get(key).Any().(int64)
	return min(max(0, n), 1<<50)
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
