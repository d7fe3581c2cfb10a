package acp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/pkg/wire"
)

// source is what events name as the origin of raw messages.
const source = "acp"

// fold turns what the program says into events. It is pure.
type fold struct {
	state

	session string       // that the runner has chosen
	blocks  agent.Blocks // see [agent.Options]
	mode    string       // of permissions
	cwd     string
	renews  bool // a session that can't be gone on with may be a new one
	at      int64
	out     []*wire.Event
}

// newFold returns the one of a program that hasn't said anything.
func newFold(r agent.Request) *fold {
	logged := map[string]bool{}
	for _, id := range slices.Concat(r.Calls.Open, r.Calls.Ended) {
		logged[id] = true
	}
	return &fold{
		state: state{
			Version: stateVersion, Sent: map[string]request{}, Calls: map[string]*call{}, Asks: map[string]int{}, Questions: map[string]string{}, Afresh: !r.Resume && r.ForkOf == "",
			Asked: slices.Clone(r.Asked), Aligned: r.Calls.Whole && len(logged) == 0, Logged: logged,
		},
		session: r.SessionID, blocks: r.Options.Blocks, mode: cmp.Or(r.Options.PermissionMode, bypass), cwd: r.Options.Cwd,
		renews: r.Options.NewSession,
	}
}

// sessionID returns the session as far as it is known.
func (f *fold) sessionID() string {
	if f.Session != "" {
		return f.Session
	}
	return f.session
}

func (f *fold) emit(call string, p wire.Payload) {
	f.out = append(f.out, &wire.Event{Timestamp: f.at, SessionID: f.sessionID(), Turn: f.Turn, CallID: call, Payload: p})
}

// takeEvents returns the events since the last time.
func (f *fold) takeEvents() []*wire.Event {
	out := f.out
	f.out = nil
	return out
}

// maxBroken is how many lines that are no JSON-RPC a program may print before its session is open.
const maxBroken = 200

// isNoAgent reports whether the program has shown that it doesn't speak the protocol.
func (f *fold) isNoAgent() bool { return f.Broken >= maxBroken && !f.Opened }

// cancelRequest is the notification that takes a request back.
const cancelRequest = "$/cancel_request"

// takeBroken takes a line that is no JSON-RPC.
func (f *fold) takeBroken(line []byte, reason error) {
	data := wire.RawString(toValidUTF8(string(line)))
	f.emit("", &wire.RawMessage{Source: source, Name: "malformed", Data: data, Reason: toValidUTF8(reason.Error()), Line: f.Lines})
	if f.Broken++; f.isNoAgent() {
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("the agent doesn't speak the Agent Client Protocol: it has printed %d lines that are no JSON-RPC. "+
			"Its command may lack an argument, such as --acp", f.Broken), nil)
	}
}

func (f *fold) emitRaw(name string, data wire.Raw, reason string) {
	if len(data) == 0 {
		data = wire.Null
	}
	f.emit("", &wire.RawMessage{Source: source, Name: name, Data: data, Reason: reason})
}

// shortParams are the parameters of a request that are recorded: what is written is in the file.
func shortParams(method string, params wire.Raw) wire.Raw {
	if method != acp.ClientMethodFsWriteTextFile {
		return params
	}
	return wire.RawOf(map[string]any{"path": params.TextAt("path"), "bytes": len(params.TextAt("content"))})
}

// fail notes why the execution fails. The first reason counts.
func (f *fold) fail(kind, message string, details wire.Raw) {
	phase := "lifecycle"
	if f.Prompted {
		phase = "model"
	}
	if f.Failure == nil {
		f.Failure = &failure{Type: kind, Message: toValidUTF8(message), Phase: phase, Details: details}
	}
}

// beginTurn begins the turn of the prompt that the program was given, with the first sign of it.
func (f *fold) beginTurn() {
	for id, r := range f.Sent {
		if r.Method == acp.AgentMethodSessionPrompt && !r.Begun {
			f.startTurn(id, r)
		}
	}
}

func (f *fold) startTurn(id string, r request) {
	r.Begun = true
	f.Sent[id] = r
	f.noteTurn(r)
}

func (f *fold) noteTurn(r request) {
	f.Turn++
	f.Text = ""
	if r.CommandID != "" || r.Content != "" {
		f.emit("", &wire.UserMessage{Content: r.Content, Source: "command", CommandID: r.CommandID})
	}
	f.emit("", &wire.TurnStart{Model: f.Model})
}

// takeUpdate takes a notification of what the agent does.
func (f *fold) takeUpdate(m rpcMessage, params wire.Raw) {
	name := "session/update/" + params.TextAt("update", "sessionUpdate")
	var n acp.SessionNotification
	if err := json.Unmarshal(m.Params, &n); err != nil {
		f.emitRaw(name, params, toValidUTF8(err.Error()))
		return
	}
	switch u, raw := n.Update, params.Get("update"); {
	case f.Opened && string(n.SessionId) != f.Session:
		f.emitRaw(name, params, "it is of another session")
	case !f.Opened && f.Initialized && u.UsageUpdate == nil: // what it repeats while it loads its session
		f.noteKnown(u, raw)
	case u.AgentMessageChunk != nil:
		f.takeChunk("text", u.AgentMessageChunk.Content, name, raw)
	case u.AgentThoughtChunk != nil:
		f.takeChunk("thinking", u.AgentThoughtChunk.Content, name, raw)
	case u.ToolCall != nil:
		f.takeCall(string(u.ToolCall.ToolCallId), string(u.ToolCall.Status), raw)
	case u.ToolCallUpdate != nil:
		status := ""
		if s := u.ToolCallUpdate.Status; s != nil {
			status = string(*s)
		}
		f.takeCall(string(u.ToolCallUpdate.ToolCallId), status, raw)
	case u.Plan != nil:
		f.takePlan(u.Plan.Entries)
	case u.UsageUpdate != nil:
		f.takeUsage(u.UsageUpdate)
	default:
		f.emitRaw(name, raw, "")
	}
}

// noteKnown notes a call that the agent repeats while it loads its session: its record has that, and maybe its end. One that it repeats
// behind those that the log has is one of which the log was never told, see [fold.recoverCalls]. An end that is told with the call, without
// a result, is none: codex-acp says so of calls that were cut off, too.
func (f *fold) noteKnown(u acp.SessionUpdate, raw wire.Raw) {
	id, status := "", ""
	switch {
	case u.ToolCall != nil:
		id = string(u.ToolCall.ToolCallId)
		if told := (&call{Output: raw.Get("rawOutput"), Parts: raw.Get("content")}); !isOver(string(u.ToolCall.Status)) || !isEmpty(told.output()) {
			status = string(u.ToolCall.Status)
		}
	case u.ToolCallUpdate != nil:
		id = string(u.ToolCallUpdate.ToolCallId)
		if s := u.ToolCallUpdate.Status; s != nil {
			status = string(*s)
		}
	}
	if id == "" || len(id) > maxCallID {
		return
	}
	switch {
	case f.Logged[id] && u.ToolCall == nil: // its end: it says nothing of what was begun beside it
	case f.Logged[id]:
		clear(f.Calls)
		f.Order, f.Aligned = nil, true
	case f.Aligned && (f.Calls[id] != nil || len(f.Order) < maxEnded):
		c := f.openCall(id)
		c.learn(raw)
		c.Status = cmp.Or(status, c.Status)
	}
	if isOver(status) && !slices.Contains(f.Known, id) {
		f.Known = append(f.Known, id)
		f.Known = f.Known[max(0, len(f.Known)-maxEnded):]
	}
}

// isOver reports whether a call of a status has ended.
func isOver(status string) bool {
	return status == string(acp.ToolCallStatusCompleted) || status == string(acp.ToolCallStatusFailed)
}

// recoverCalls puts calls on record that the agent had begun when it died, without a word. Without an end they were cut off.
func (f *fold) recoverCalls() {
	for _, id := range f.Order {
		c := f.Calls[id]
		input := c.input()
		sum := sha256.Sum256(input)
		f.emit(id, &wire.ToolIntent{
			ToolName: c.name(), ToolInput: input, InputHash: hex.EncodeToString(sum[:]), Idempotent: c.isReading(), Recovered: wire.RecoveredTranscript,
		})
		p := &wire.AgentTool{ToolName: c.name(), ToolInput: input, ToolOutput: c.output(), Structured: c.structured(), Recovered: wire.RecoveredTranscript}
		switch {
		case !isOver(c.Status):
			p.ToolOutput, p.Error, p.Recovered = wire.RawString(""), wire.CallInterrupted, ""
			f.Cut = append(f.Cut, fmt.Sprintf("- %s %s", c.name(), input.Plain()))
		case c.Status == string(acp.ToolCallStatusFailed):
			p.Error = cmp.Or(c.outputText(), "the call failed")
		default:
			f.tellParent(id, c)
		}
		f.emit(id, p)
		if p.Error == "" {
			f.noteDiffs(c)
		}
		f.noteEnd(id)
	}
	clear(f.Calls)
	f.Order = nil
}

// takeChunk takes a piece of what the agent says or thinks. Pieces of one kind that follow each other are a block.
func (f *fold) takeChunk(kind string, content acp.ContentBlock, name string, raw wire.Raw) {
	f.beginTurn()
	if content.Text == nil {
		f.emitRaw(name, raw, "")
		return
	}
	text := content.Text.Text
	if text == "" {
		return
	}
	if f.Kind != kind {
		f.endBlock()
		f.Kind = kind
		f.Blocks++
	}
	if f.blocks == agent.BlocksAlways {
		f.Block += text
	}
	if kind == "thinking" {
		f.emit("", &wire.AgentThinkingDelta{Content: text, Block: f.Blocks})
		return
	}
	f.Text += text
	f.emit("", &wire.AgentTextDelta{Content: text, Block: f.Blocks})
}

// endBlock ends the block that is open.
func (f *fold) endBlock() {
	switch {
	case f.Kind == "" || f.blocks != agent.BlocksAlways:
	case f.Kind == "thinking":
		f.emit("", &wire.AgentThinking{Content: f.Block, Block: f.Blocks})
	default:
		f.emit("", &wire.AgentText{Content: f.Block, Block: f.Blocks})
	}
	f.Kind, f.Block = "", ""
}

// maxCallID bounds the id of a call, in bytes; maxEnded how many calls are remembered that have ended.
const (
	maxCallID = 512
	maxEnded  = 1024
)

// takeCall takes what is told of a call: that there is one, or what has become of it. The same may be told again, or in
// pieces.
func (f *fold) takeCall(id, status string, raw wire.Raw) {
	f.beginTurn()
	f.endBlock()
	switch {
	case id == "" || len(id) > maxCallID:
		f.emitRaw("session/update/tool_call", raw, "the call has no id that can be used")
		return
	case slices.Contains(f.Ended, id):
		f.emitRaw("session/update/tool_call", raw, "the call has ended")
		return
	}
	c := f.openCall(id)
	c.learn(raw)
	if c.State == "" && (!c.isVague() || status != "" && status != string(acp.ToolCallStatusPending)) {
		f.intend(id, c)
	}
	switch acp.ToolCallStatus(status) {
	case acp.ToolCallStatusInProgress:
		f.execute(id, c)
	case acp.ToolCallStatusCompleted:
		f.endCall(id, c, "")
	case acp.ToolCallStatusFailed:
		failed := cmp.Or(c.outputText(), "the call failed")
		f.endCall(id, c, failed)
	case acp.ToolCallStatusPending:
	}
}

// openCall returns the call of an id, which begins unless it is known.
func (f *fold) openCall(id string) *call {
	c := f.Calls[id]
	if c == nil {
		c = &call{At: f.at}
		f.Calls[id] = c
		f.Order = append(f.Order, id)
		f.Text = ""
	}
	return c
}

// learn takes what an update tells of a call. What it leaves out stays as it is.
func (c *call) learn(u wire.Raw) {
	for _, x := range []struct {
		to   *string
		from string
	}{{&c.Title, u.TextAt("title")}, {&c.Kind, u.TextAt("kind")}, {&c.Name, u.TextAt("_meta", "claudeCode", "toolName")}} {
		if x.from != "" {
			*x.to = x.from
		}
	}
	for _, x := range []struct {
		to   *wire.Raw
		from wire.Raw
	}{{&c.Input, u.Get("rawInput")}, {&c.Output, u.Get("rawOutput")}, {&c.Parts, u.Get("content")}, {&c.Places, u.Get("locations")}} {
		if !isEmpty(x.from) {
			*x.to = x.from
		}
	}
	if isEmpty(c.Input) && c.State == "" {
		c.Input = shownInput(c.Parts)
	}
}

// isVague reports whether what the call is given isn't known yet. opencode names the folder of a command before the command.
func (c *call) isVague() bool {
	var fields map[string]wire.Raw
	return isEmpty(c.Input) || wire.Unmarshal(c.Input, &fields) == nil && len(fields) == 1 && !isEmpty(fields["cwd"])
}

// shownInput is the input of a call that an agent shows as its content, since it tells none; nil: it doesn't.
func shownInput(parts wire.Raw) wire.Raw {
	for _, part := range parts.Items() {
		var fields map[string]wire.Raw
		if input, err := wire.RawFromJSON([]byte(part.TextAt("content", "text"))); err == nil && wire.Unmarshal(input, &fields) == nil {
			return input
		}
	}
	return nil
}

// name is what the tool is called: by the agent, else by the kind of the call.
func (c *call) name() string {
	switch {
	case c.Name != "":
		return c.Name
	case c.Kind != "":
		return c.Kind
	}
	return "unknown"
}

// input is what the tool was given, or what else the agent tells of the call.
func (c *call) input() wire.Raw {
	if !isEmpty(c.Input) {
		return c.Input
	}
	about := map[string]any{"title": c.Title}
	if places := c.paths(); len(places) > 0 {
		about["path"] = places[0]
	}
	return wire.RawOf(about)
}

func (c *call) paths() (paths []string) {
	for _, place := range c.Places.Items() {
		if path := place.TextAt("path"); path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// output is the result as the agent tells it, else the texts of its content.
func (c *call) output() wire.Raw {
	if !isEmpty(c.Output) {
		return c.Output
	}
	return wire.RawString(c.outputText())
}

func (c *call) outputText() string {
	if s := c.Output.Plain(); !isEmpty(c.Output) && s != "" {
		return s
	}
	var texts []string
	for _, part := range c.Parts.Items() {
		if text := part.TextAt("content", "text"); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}

// isReading reports whether a call of a kind changes nothing.
func (c *call) isReading() bool {
	return c.Kind == string(acp.ToolKindRead) || c.Kind == string(acp.ToolKindSearch) || c.Kind == string(acp.ToolKindThink)
}

// intend puts the intent of a call on record.
func (f *fold) intend(id string, c *call) {
	c.State = wire.ToolPending
	input := c.input()
	sum := sha256.Sum256(input)
	f.emit(id, &wire.ToolIntent{ToolName: c.name(), ToolInput: input, InputHash: hex.EncodeToString(sum[:]), Idempotent: c.isReading()})
}

// execute puts on record that a call is at work.
func (f *fold) execute(id string, c *call) {
	if c.State == wire.ToolPending || c.State == wire.ToolApproved {
		f.emit(id, &wire.ToolState{From: c.State, To: wire.ToolExecuting})
		c.State = wire.ToolExecuting
	}
}

// endCall ends a call; failed says why it failed, if it did.
func (f *fold) endCall(id string, c *call, failed string) {
	if c.State == "" {
		f.intend(id, c)
	}
	if failed == "" {
		f.tellParent(id, c)
	}
	p := &wire.AgentTool{
		ToolName: c.name(), ToolInput: c.input(), ToolOutput: c.output(), DurationMs: new(max(0, f.at-c.At)), Error: failed,
		Denied: c.Denied && failed != "", Structured: c.structured(),
	}
	f.emit(id, p)
	if failed == "" {
		f.noteDiffs(c)
	}
	delete(f.Calls, id)
	f.Order = slices.DeleteFunc(f.Order, func(x string) bool { return x == id })
	f.noteEnd(id)
}

func (f *fold) noteEnd(call string) {
	f.Ended = append(f.Ended, call)
	f.Ended = f.Ended[max(0, len(f.Ended)-maxEnded):]
}

// structured is what the agent has told of a call besides its input and output.
func (c *call) structured() wire.Raw {
	about := map[string]any{"title": c.Title, "kind": c.Kind}
	for name, r := range map[string]wire.Raw{"content": c.Parts, "locations": c.Places} {
		if !isEmpty(r) {
			about[name] = r
		}
	}
	return wire.RawOf(about)
}

// tellParent takes a message to the agent's parent, if the call is one. Agents name the tool, and wrap its input, each in its way.
func (f *fold) tellParent(id string, c *call) {
	if !strings.Contains(c.Name+" "+c.Title, parent.Tool) {
		return
	}
	for _, input := range []wire.Raw{c.Input, c.Input.Get("arguments")} {
		p, problem := parent.Parse(input)
		if problem != "" {
			continue
		}
		f.emit(id, p)
		if p.Priority != wire.PriorityInfo {
			f.Asked = append(f.Asked, id)
		}
		return
	}
}

// noteDiffs tells of the files that a call has changed, as its diffs say.
func (f *fold) noteDiffs(c *call) {
	for _, part := range c.Parts.Items() {
		path := part.TextAt("path")
		if part.TextAt("type") != "diff" || path == "" {
			continue
		}
		change := "modified"
		if old := part.Get("oldText"); len(old) == 0 || old.Any() == nil {
			change = "created"
		}
		f.emit("", &wire.FileChanged{Path: path, Change: change})
	}
}

// closeCalls ends the calls that have no result.
func (f *fold) closeCalls(why string) {
	for _, id := range slices.Clone(f.Order) {
		f.endCall(id, f.Calls[id], why)
	}
}

// takePlan takes the agent's list of what is to be done.
func (f *fold) takePlan(entries []acp.PlanEntry) {
	f.beginTurn()
	p := &wire.TodoChanged{Total: len(entries)}
	for _, e := range entries {
		status := cmp.Or(string(e.Status), string(acp.PlanEntryStatusPending))
		p.Items = append(p.Items, wire.Todo{Content: e.Content, Status: status})
		if e.Status == acp.PlanEntryStatusCompleted {
			p.Done++
		}
	}
	f.emit("", p)
}

// takeUsage keeps what the session has cost so far and what is in its context.
func (f *fold) takeUsage(u *acp.SessionUsageUpdate) {
	y := &f.Tally
	y.Context, y.Window = int64(max(0, u.Used)), int64(max(0, u.Size))
	if c := u.Cost; c != nil && strings.EqualFold(c.Currency, "USD") && c.Amount >= 0 && c.Amount <= wire.MaxCostUsd {
		y.Total = &c.Amount
		if !f.Prompted { // of what the session was before
			y.Before = c.Amount
		}
	}
}

// takeQuestion takes a question for permission.
func (f *fold) takeQuestion(m rpcMessage, params wire.Raw) {
	f.beginTurn()
	f.endBlock()
	about := params.Get("toolCall")
	id := about.TextAt("toolCallId")
	if id == "" || len(id) > maxCallID || !f.Opened {
		f.emitRaw(m.Method, params, "the call has no id that can be used")
		return
	}
	f.Ended = slices.DeleteFunc(f.Ended, func(x string) bool { return x == id }) // it is tried again
	c := f.openCall(id)
	c.learn(about)
	if f.Asks[id]++; f.Asks[id] > 1 { // an answer is to one question: this one has an id of its own
		again := &call{Name: c.Name, Title: c.Title, Kind: c.Kind, Input: c.Input, Parts: c.Parts, Places: c.Places, At: f.at, Asking: true}
		id = fmt.Sprintf("%s#%d", id, f.Asks[id])
		f.Calls[id], f.Order, c = again, append(f.Order, id), again
	}
	if c.State == "" {
		f.intend(id, c)
	}
	c.State = wire.ToolApprovalRequired
	f.Questions[string(m.ID)] = id
	f.emit(id, &wire.PermissionRequired{ToolName: c.name(), ToolInput: c.input(), Description: c.Title, Suggestions: params.Get("options")})
}

// takeDecision takes the decision on a question of the program, which lets the call begin or not.
func (f *fold) takeDecision(at int64, question string, p *wire.PermissionDecided) {
	id := f.Questions[question]
	delete(f.Questions, question)
	c := f.Calls[id]
	if c == nil || c.State != wire.ToolApprovalRequired {
		return
	}
	f.at = at
	f.emit(id, p)
	c.State, c.Denied = wire.ToolApproved, p.Decision == wire.DecisionDeny
	switch {
	case c.Denied && c.Asking:
		f.endCall(id, c, "denied")
	case c.Denied:
		c.State = wire.ToolDenied
	case c.Asking:
		c.Output = wire.RawString("allowed")
		f.endCall(id, c, "")
	default:
		f.execute(id, c)
	}
}
