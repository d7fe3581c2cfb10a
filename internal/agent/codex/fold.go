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
	model   string
	cwd     string
	mode    string
	blocks  agent.Blocks

	foldState

	at       int64
	asked    []string        // its parent, without an answer, by call
	onRecord map[string]bool // calls that have asked and are heard again: asked has those without an answer
	out      []*wire.Event
}

// foldState is what a session that goes on from a line of a program has to know of what came before.
type foldState struct {
	Version int    `json:"version"`
	Thread  string `json:"thread"` // "": Codex hasn't named it yet
	Line    int    `json:"line"`
	Index   int    `json:"index"`   // events that were made of that line
	Named   bool   `json:"named"`   // the program has named its thread
	Unnamed int    `json:"unnamed"` // its lines before that
	Begun   int64  `json:"begun"`   // when the program's thread was told of, Unix ms
	TurnAt  int64  `json:"turnAt"`
	Turn    int    `json:"turn"`
	Block   int    `json:"block"`
	InTurn  bool   `json:"inTurn"`
	Ended   bool   `json:"ended"` // the program has told the end of its turn
	Text    string `json:"text"`

	Calls map[string]*openCall `json:"calls"`
	Order []string             `json:"order"` // of Calls

	Total   tokens           `json:"total"` // of the thread
	Spent   tokens           `json:"spent"` // of the session's turns
	Turns   int64            `json:"turns"`
	Time    int64            `json:"time"` // of turns, ms
	Trouble string           `json:"trouble"`
	Failed  *wire.AgentError `json:"failed"`
}

// stateVersion is that of [foldState].
const stateVersion = 1

// tokens are counted over a thread. Input has those of the cache in it.
type tokens struct {
	Input   int64 `json:"input"`
	Cached  int64 `json:"cached"`
	Written int64 `json:"written"`
	Output  int64 `json:"output"`
}

// openCall is one that has no result.
type openCall struct {
	Name    string     `json:"name"`
	Input   wire.Raw   `json:"input"`
	At      int64      `json:"at"`
	Changes []wire.Raw `json:"changes"` // of files
}

func newFold(r agent.Request) *sessionFold {
	return &sessionFold{
		session: r.SessionID, model: r.Options.Model, cwd: r.Options.Cwd, mode: cmp.Or(r.Options.PermissionMode, "bypassPermissions"),
		blocks: r.Options.Blocks, asked: slices.Clone(r.Asked), foldState: foldState{Version: stateVersion, Calls: map[string]*openCall{}},
	}
}

func (f *sessionFold) emitEvent(call string, p wire.Payload) {
	f.out = append(f.out, &wire.Event{Timestamp: f.at, SessionID: cmp.Or(f.Thread, f.session), Turn: f.Turn, CallID: call, Payload: p})
}

func (f *sessionFold) takeEvents() []*wire.Event {
	out := f.out
	f.out = nil
	return out
}

// maxUnnamed is how many lines a program may print before it names its thread.
const maxUnnamed = 200

// isNoCodex reports whether the program has shown that it isn't Codex.
func (f *sessionFold) isNoCodex() bool { return f.Unnamed >= maxUnnamed && !f.Named }

// beginProgram begins another program of the session.
func (f *sessionFold) beginProgram() {
	f.InTurn, f.Ended, f.Trouble, f.Named, f.Unnamed = false, false, "", false, 0
}

// takeLine takes a line of the program.
func (f *sessionFold) takeLine(at int64, line []byte) {
	f.at = at
	f.Line++
	f.Unnamed++
	if strings.TrimSpace(string(line)) == "" {
		return
	}
	m, err := wire.RawFromJSON(line)
	if err != nil {
		f.emitEvent("", &wire.RawMessage{
			Source: source, Name: "malformed", Data: wire.RawString(toValidUTF8(string(line))), Reason: toValidUTF8(err.Error()), Line: f.Line,
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
	f.Begun = f.at
	f.emitEvent("", &wire.AgentInit{Model: f.model, Cwd: f.cwd, PermissionMode: f.mode})
	if old := cmp.Or(f.Thread, f.session); id != old { // last: a replay knows the session already
		f.emitEvent("", &wire.SessionBound{OldSession: old, NewSession: id})
	}
	f.Thread, f.Named = id, true
}

func (f *sessionFold) beginTurn() {
	if f.InTurn || f.Ended {
		return
	}
	f.InTurn, f.TurnAt, f.Text = true, f.at, ""
	f.Turn++
	f.emitEvent("", &wire.TurnStart{Model: f.model})
}

// emitWarning tells of trouble that may pass: Codex tries again.
func (f *sessionFold) emitWarning(message string, m wire.Raw) {
	f.Trouble = cmp.Or(message, "Codex tells of an error without a word")
	f.emitEvent("", &wire.AgentError{ErrorType: wire.ErrorExecution, Message: f.Trouble, Severity: wire.SeverityWarning, Phase: "model", Details: m})
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
		f.takeCall(state, id+"-"+strconv.FormatInt(f.Begun, 36), kind, item)
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
	f.Block++
	switch {
	case kind == "reasoning" && f.blocks == agent.BlocksNever:
		f.emitEvent("", &wire.AgentThinkingDelta{Content: text, Block: f.Block})
	case kind == "reasoning":
		f.emitEvent("", &wire.AgentThinking{Content: text, Block: f.Block})
	case f.blocks == agent.BlocksNever:
		f.emitEvent("", &wire.AgentTextDelta{Content: text, Block: f.Block})
	default:
		f.emitEvent("", &wire.AgentText{Content: text, Block: f.Block})
	}
	if kind == "agent_message" {
		f.Text = text
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
	c := f.Calls[id]
	if c == nil {
		c = &openCall{At: f.at}
		c.Name, c.Input = toolOf(kind, item)
		f.Calls[id], f.Order = c, append(f.Order, id)
		sum := sha256.Sum256(c.Input)
		f.emitEvent(id, &wire.ToolIntent{ToolName: c.Name, ToolInput: c.Input, InputHash: hex.EncodeToString(sum[:]), Idempotent: kind == "web_search"})
		f.emitEvent(id, &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
	}
	if kind == "file_change" {
		c.Changes = item.Get("changes").Items()
	}
	if state != "completed" {
		return
	}
	output, failed, denied := resultOf(kind, item)
	f.endCall(id, &wire.AgentTool{ToolOutput: output, Error: failed, Denied: denied, Structured: item})
	if failed != "" {
		return
	}
	for _, x := range c.Changes {
		change := map[string]string{"add": "created", "delete": "deleted"}[x.TextAt("kind")]
		if path := x.TextAt("path"); path != "" {
			f.emitEvent("", &wire.FileChanged{Path: path, Change: cmp.Or(change, "modified")})
		}
	}
}

func (f *sessionFold) endCall(id string, p *wire.AgentTool) {
	c := f.Calls[id]
	p.ToolName, p.ToolInput, p.DurationMs = c.Name, c.Input, new(max(0, f.at-c.At))
	if told := toldParent(p); told != nil {
		f.emitEvent(id, told)
		if told.Priority != wire.PriorityInfo && !f.onRecord[id] {
			f.asked = append(f.asked, id)
		}
	}
	f.emitEvent(id, p)
	delete(f.Calls, id)
	f.Order = slices.DeleteFunc(f.Order, func(x string) bool { return x == id })
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
	added := now.since(f.Total)
	f.Total, f.Spent = now, f.Spent.plus(added)
	usage := added.usage()
	f.emitEvent("", &wire.Usage{
		MessageID: fmt.Sprintf("%s/%s", f.Thread, strconv.FormatInt(f.Begun, 36)), Model: f.model, StopReason: "end_turn",
		InputTokens: usage.InputTokens, OutputTokens: usage.OutputTokens,
		CacheCreationInputTokens: usage.CacheCreationInputTokens, CacheReadInputTokens: usage.CacheReadInputTokens,
	})
	f.endTurn(&wire.TurnEnd{Subtype: "success", StopReason: "end_turn", Result: f.Text, Usage: &usage})
}

// since returns what a thread has used since before. One that has used less counts anew.
func (t tokens) since(before tokens) tokens {
	d := tokens{t.Input - before.Input, t.Cached - before.Cached, t.Written - before.Written, t.Output - before.Output}
	if d.Input < 0 || d.Cached < 0 || d.Written < 0 || d.Output < 0 {
		return t
	}
	return d
}

func (t tokens) plus(x tokens) tokens {
	return tokens{t.Input + x.Input, t.Cached + x.Cached, t.Written + x.Written, t.Output + x.Output}
}

// usage counts tokens of the cache apart, as the wire does.
func (t tokens) usage() wire.TokenUsage {
	return wire.TokenUsage{
		InputTokens: max(0, t.Input-t.Cached-t.Written), OutputTokens: t.Output, CacheReadInputTokens: &t.Cached, CacheCreationInputTokens: &t.Written,
	}
}

// failTurn takes the end of a turn that failed.
func (f *sessionFold) failTurn(message string, m wire.Raw) {
	f.beginTurn()
	f.closeCalls(wire.CallInterrupted)
	message = cmp.Or(message, f.Trouble, "the turn failed")
	f.endTurn(&wire.TurnEnd{Subtype: "error", IsError: true, Result: message})
	f.Failed = &wire.AgentError{ErrorType: errorType(message), Message: message, Severity: wire.SeverityError, Phase: "model", Details: m}
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
	p.NumTurns, p.DurationMs = 1, max(0, f.at-f.TurnAt)
	f.Turns++
	f.Time += p.DurationMs
	f.InTurn, f.Ended = false, true
	f.emitEvent("", p)
}

// closeCalls ends the calls that have no result.
func (f *sessionFold) closeCalls(why string) {
	for _, id := range slices.Clone(f.Order) {
		f.endCall(id, &wire.AgentTool{ToolOutput: wire.Null, Error: why})
	}
}

// completeTurn ends the execution well.
func (f *sessionFold) completeTurn(at int64) {
	f.at = at
	f.emitEvent("", &wire.AgentComplete{Result: f.Text, Usage: f.Spent.usage(), NumTurns: f.Turns, DurationMs: f.Time, StopReason: "end_turn"})
}

// pauseAgent ends the execution of an agent that was interrupted.
func (f *sessionFold) pauseAgent(at int64) {
	f.at = at
	f.closeCalls(wire.CallInterrupted)
	f.emitEvent("", &wire.AgentPaused{Reason: "interrupted", NumTurns: f.Turns})
}

// fail ends the execution of a program that has ended before its turn, or that failed in it.
func (f *sessionFold) fail(at int64, kind, message string, details wire.Raw) {
	f.at = at
	f.closeCalls(wire.CallInterrupted)
	p := f.Failed
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
