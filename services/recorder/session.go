package recorder

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"wake/pkg/wire"
)

// talk is where the conversation of a node's agent stands.
type talk struct {
	Session  string   `json:"session,omitempty"`
	Provider string   `json:"provider,omitempty"`
	Model    string   `json:"model,omitempty"`   // of the session, as far as it is known
	Turn     int      `json:"turn,omitempty"`    // index of the model call
	Begun    bool     `json:"begun,omitempty"`   // it was announced, and has said nothing yet
	Marked   int      `json:"marked,omitempty"`  // last turn that has a checkpoint
	Own      bool     `json:"own,omitempty"`     // the agent records checkpoints itself
	Last     uint64   `json:"last,omitempty"`    // last message of the session
	Asked    string   `json:"asked,omitempty"`   // hash of the last message, if the user wrote it
	Context  string   `json:"context,omitempty"` // of the last error of the turn
	Tries    int      `json:"tries,omitempty"`   // errors of this context
	Threads  []thread `json:"threads,omitempty"`
}

// thread is what the agent, or one of its sub-agents, is saying.
type thread struct {
	Parent string   `json:"parent,omitempty"` // call whose sub-agent it is
	Open   uint64   `json:"open,omitempty"`   // message that may still grow; 0: none
	Latest uint64   `json:"latest,omitempty"` // message since the user's last one; 0: none
	Calls  []string `json:"calls,omitempty"`  // that have no result yet
}

// Bounds of a conversation's state.
const (
	maxThreads = 16
	maxCalls   = 64 // of a thread
)

// thread returns the thread of a sub-agent, or with no parent that of the agent.
// It is valid until the next call.
func (t *talk) thread(parent string) *thread {
	i := slices.IndexFunc(t.Threads, func(o thread) bool { return o.Parent == parent })
	if i < 0 {
		if len(t.Threads) == maxThreads {
			t.Threads = slices.Delete(t.Threads, 0, 1)
		}
		t.Threads = append(t.Threads, thread{Parent: parent})
		i = len(t.Threads) - 1
	}
	return &t.Threads[i]
}

// answered closes a call and reports whether it was open. Its sub-agent is done.
func (t *talk) answered(parent, call string) bool {
	if call != "" {
		t.Threads = slices.DeleteFunc(t.Threads, func(o thread) bool { return o.Parent == call })
	}
	th := t.thread(parent)
	i := slices.Index(th.Calls, call)
	if i >= 0 {
		th.Calls = slices.Delete(th.Calls, i, i+1)
	}
	return i >= 0
}

// turnOf returns the turn that an event is of.
func (t *talk) turnOf(e *wire.Event) int {
	if e.Turn > 0 {
		return e.Turn
	}
	return t.Turn
}

// pendingMessage is a message that the batch adds, or one to which it adds calls.
type pendingMessage struct {
	pos     uint64
	row     []any    // nil: it is in the store
	content any      // nil: as it is
	args    []string // calls as JSON
}

// converse notes what an event is in the conversation of its node's agent. What
// the agent says becomes a message with its line, see says.
func (w *writer) converse(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		return w.asked(r, n, pos, e, plain(p.Prompt), true)
	case *wire.UserMessage:
		return w.asked(r, n, pos, e, p.Content, p.Source == "prompt" || p.Source == "replay")
	case *wire.TurnStart:
		w.turn(r, n, pos, e)
		return w.answers(r, n, pos, e, p.Model)
	case *wire.ToolIntent:
		return w.calls(r, n, pos, e, p.ToolName, p.ToolInput)
	case *wire.AgentMessage:
		return w.whole(r, n, pos, e, p.Content)
	case *wire.AgentTool:
		return w.called(r, n, pos, e, p)
	case *wire.TurnEnd:
		w.ended(r, n, pos, e, !p.IsError)
	case *wire.AgentComplete:
		w.ended(r, n, pos, e, true)
	case *wire.AgentPaused, *wire.AgentAborted:
		w.ended(r, n, pos, e, false)
	case *wire.AgentError:
		return w.erred(r, n, pos, e, p)
	case *wire.Checkpoint:
		return w.checkpoint(r, n, pos, e, p)
	}
	return nil
}

// in returns the session that an event is of, and makes it the node's. "": none.
func (w *writer) in(r *runRow, n *nodeRow, pos uint64, e *wire.Event) (string, error) {
	id, t := e.SessionID, &n.talk
	if id == "" || len(id) > maxKey || id == t.Session || e.Parent != "" && t.Session != "" {
		return t.Session, nil
	}
	if err := w.bind(r, n, pos, e, id); err != nil {
		return "", err
	}
	t.Session, t.Asked = id, ""
	return id, w.last(n)
}

// bind notes a session of a node.
func (w *writer) bind(r *runRow, n *nodeRow, pos uint64, e *wire.Event, session string) error {
	n.talk.Model = postgresText(orElse(n.model, n.talk.Model)) // whatever the database is, since verify compares it
	return w.exec(addSession, session, r.id, n.id, e.ExecID, pos, orElse(e.AgentID, n.node), n.talk.Model, n.talk.Provider, e.Timestamp)
}

// answers notes the model of a session whose agent didn't say which it uses.
func (w *writer) answers(r *runRow, n *nodeRow, pos uint64, e *wire.Event, model string) error {
	t := &n.talk
	if t.Session == "" || t.Model != "" || model == "" || e.Parent != "" {
		return nil
	}
	t.Model = postgresText(model)
	return w.bind(r, n, pos, e, t.Session)
}

// last finds the session's last message that counts.
func (w *writer) last(n *nodeRow) error {
	if err := w.writeMessages(); err != nil {
		return err
	}
	return w.scan(lastMessage, []any{n.id, n.talk.Session}, &n.talk.Last)
}

// asked takes what the agent is told. What was told last is told once, if the
// agent begins anew: it has it already.
func (w *writer) asked(r *runRow, n *nodeRow, pos uint64, e *wire.Event, content string, again bool) error {
	session, err := w.in(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	th := n.talk.thread(e.Parent)
	th.Open, th.Latest = 0, 0
	sum := sha256.Sum256([]byte(content))
	asked := hex.EncodeToString(sum[:8])
	if content == "" || again && asked == n.talk.Asked {
		return nil
	}
	w.message(r, n, pos, e, "user", content, nil, nil)
	if e.Parent == "" {
		n.talk.Asked = asked
	}
	return nil
}

// message adds a message.
func (w *writer) message(r *runRow, n *nodeRow, pos uint64, e *wire.Event, role string, content, call, tool any) {
	t := &n.talk
	m := &pendingMessage{pos: pos, row: []any{
		pos, r.id, n.id, e.Seq, t.Session, orElse(e.AgentID, n.node), t.turnOf(e), role, content, call, tool, nil, e.Timestamp,
	}}
	t.Last, t.Asked = pos, ""
	w.said = append(w.said, m)
}

// says returns the message that a text of the agent is a part of, which begins
// with it if none is open; 0: none.
func (w *writer) says(r *runRow, n *nodeRow, pos uint64, e *wire.Event) (uint64, error) {
	switch e.Payload.(type) {
	case *wire.AgentText, *wire.AgentTextDelta:
		return w.begin(r, n, pos, e)
	}
	return 0, nil
}

// begin returns the agent's open message. One that isn't there begins; if its
// turn wasn't announced, it is the next one.
func (w *writer) begin(r *runRow, n *nodeRow, pos uint64, e *wire.Event) (uint64, error) {
	session, err := w.in(r, n, pos, e)
	if err != nil || session == "" {
		return 0, err
	}
	t := &n.talk
	if open := t.thread(e.Parent).Open; open > 0 {
		return open, nil
	}
	if e.Parent == "" {
		turn := t.turnOf(e)
		if e.Turn == 0 && !t.Begun {
			turn++
		}
		w.turnTo(r, n, pos, e, turn)
		t.Begun, t.Context = false, ""
	}
	w.message(r, n, pos, e, "assistant", nil, nil, nil)
	th := t.thread(e.Parent)
	th.Open, th.Latest = pos, pos
	return pos, nil
}

// turn begins a turn.
func (w *writer) turn(r *runRow, n *nodeRow, pos uint64, e *wire.Event) {
	t := &n.talk
	t.thread(e.Parent).Open = 0
	if e.Parent != "" {
		return
	}
	turn := e.Turn
	if turn == 0 {
		turn = t.Turn + 1
	}
	t.Begun = true
	w.turnTo(r, n, pos, e, turn)
}

// turnTo ends the turn before.
func (w *writer) turnTo(r *runRow, n *nodeRow, pos uint64, e *wire.Event, turn int) {
	if turn > n.talk.Turn {
		w.turnOver(r, n, pos, e)
		n.talk.Turn, n.talk.Context = turn, ""
	}
}

// turnOver marks the turn as one that has been done whole, unless the agent
// does that itself.
func (w *writer) turnOver(r *runRow, n *nodeRow, pos uint64, e *wire.Event) {
	t := &n.talk
	if t.Own || t.Turn <= t.Marked || t.Last == 0 || len(t.thread("").Calls) > 0 {
		return
	}
	t.Marked = t.Turn
	w.add(addCheckpoint, pos, r.id, n.id, e.Seq, t.Session, n.node, t.Turn, t.Last, string(wire.CheckpointTurn), "", nil, nil, e.Timestamp)
}

// calls adds a call to the agent's message, unless that has it.
func (w *writer) calls(r *runRow, n *nodeRow, pos uint64, e *wire.Event, tool string, input wire.Raw) error {
	if slices.Contains(n.talk.thread(e.Parent).Calls, callKey(e.CallID)) {
		return nil
	}
	open, err := w.begin(r, n, pos, e)
	if err != nil || open == 0 {
		return err
	}
	n.talk.thread(e.Parent).call(e.CallID)
	return w.addCall(open, e, tool, input)
}

// call notes that a call has begun.
func (th *thread) call(id string) {
	if len(th.Calls) == maxCalls {
		th.Calls = slices.Delete(th.Calls, 0, 1)
	}
	th.Calls = append(th.Calls, callKey(id))
}

// callKey is what a call is known by. It isn't longer than a key may be.
func callKey(id string) string {
	if len(id) <= maxKey {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

// addCall adds the call of an event to a message.
func (w *writer) addCall(message uint64, e *wire.Event, tool string, input wire.Raw) error {
	if input.IsZero() {
		input = wire.RawString(missing(e, "toolInput"))
	}
	return w.addArgs(message, e.CallID, tool, input)
}

// missing says that a large field couldn't be found.
func missing(e *wire.Event, field string) string {
	for _, b := range e.Blobs {
		if b.Field == field {
			return missingNote(b)
		}
	}
	return ""
}

func (w *writer) addArgs(message uint64, id, tool string, input wire.Raw) error {
	call, err := wire.Marshal(struct {
		ID   string   `json:"id"`
		Name string   `json:"name"`
		Args wire.Raw `json:"args"`
	}{id, tool, input})
	if err != nil {
		return err
	}
	text, err := wire.AppendJSON(nil, call)
	if err == nil {
		m := w.pending(message)
		m.args = append(m.args, string(text))
	}
	return err
}

// pending returns what the batch does to a message.
func (w *writer) pending(message uint64) *pendingMessage {
	for _, m := range slices.Backward(w.said) {
		if m.pos == message {
			return m
		}
	}
	m := &pendingMessage{pos: message}
	w.said = append(w.said, m)
	return m
}

// whole takes a message as the model's API has it, parts of which may have been
// streamed.
func (w *writer) whole(r *runRow, n *nodeRow, pos uint64, e *wire.Event, content wire.Raw) error {
	open, err := w.begin(r, n, pos, e)
	if err != nil || open == 0 {
		return err
	}
	th := n.talk.thread(e.Parent)
	th.Open = 0
	list, ok := content.Any().([]any)
	if !ok {
		w.pending(open).content = orElse(plain(content), missing(e, "content"))
		return nil
	}
	var texts []string
	for _, item := range list {
		b, _ := item.(map[string]any)
		switch text, _ := b["text"].(string); b["type"] {
		case "text":
			texts = append(texts, text)
		case "tool_use":
			id, _ := b["id"].(string)
			name, _ := b["name"].(string)
			input, err := wire.Marshal(b["input"])
			if err != nil {
				return err
			}
			th.call(id)
			if err := w.addArgs(open, id, name, input); err != nil {
				return err
			}
		}
	}
	w.pending(open).content = strings.Join(texts, "\n")
	return nil
}

// called takes the result of a call, which ends the message that has the call. A
// call that nobody has announced becomes one of the agent's last message.
func (w *writer) called(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.AgentTool) error {
	session, err := w.in(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	announced := n.talk.answered(e.Parent, callKey(e.CallID))
	th := n.talk.thread(e.Parent)
	if !announced && th.Latest > 0 {
		if err := w.addCall(th.Latest, e, p.ToolName, p.ToolInput); err != nil {
			return err
		}
	}
	th.Open = 0
	w.message(r, n, pos, e, "tool", result(e, p), e.CallID, p.ToolName)
	return nil
}

// result is what the model saw of a call.
func result(e *wire.Event, p *wire.AgentTool) string {
	if p.ToolOutput.IsZero() {
		return missing(e, "toolOutput")
	}
	return orElse(plain(p.ToolOutput), p.Error)
}

// ended ends the agent's turn, or the agent.
func (w *writer) ended(r *runRow, n *nodeRow, pos uint64, e *wire.Event, well bool) {
	if e.Parent != "" || n.talk.Session == "" {
		return
	}
	if well {
		w.turnOver(r, n, pos, e)
	}
	n.talk.Threads, n.talk.Begun = nil, false
}

// erred takes an error of the agent.
func (w *writer) erred(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.AgentError) error {
	session, err := w.in(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	context := p.ErrorType
	switch {
	case p.ErrorType == wire.ErrorMaxTurns:
		context = "max_turns"
	case p.Phase == "model":
		context = "llm_stream"
	}
	t := &n.talk
	attempt := 0
	if p.Attempt != nil { // counted here, since agents don't agree on the first one's number
		if t.Context != context {
			t.Context, t.Tries = context, 0
		}
		attempt = t.Tries
		t.Tries++
	}
	return w.exec(addError, pos, r.id, n.id, session, orElse(e.AgentID, n.node), t.turnOf(e), context, p.ErrorType, p.Message, attempt, e.Timestamp)
}

// checkpoint takes a checkpoint that the agent recorded.
func (w *writer) checkpoint(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.Checkpoint) error {
	session, err := w.in(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	t := &n.talk
	turn := t.turnOf(e)
	var index, call any
	switch p.Kind {
	case wire.CheckpointTurn:
		if marked := t.Marked == turn && !t.Own; marked {
			t.Own = true
			return nil // by us
		}
		t.Own, t.Marked = true, turn
	case wire.CheckpointSubturn:
		t.Own = true
		if p.SubIdx != nil {
			index = *p.SubIdx
		}
		call = e.CallID
	case wire.CheckpointSFP, wire.CheckpointLabelled:
	}
	w.add(addCheckpoint, pos, r.id, n.id, e.Seq, session, orElse(e.AgentID, n.node), turn, t.Last, string(p.Kind), p.Label, index, call, e.Timestamp)
	return nil
}

// rollBack hides the messages and checkpoints of a node after seq.
func (w *writer) rollBack(n *nodeRow, seq uint64) error {
	if err := w.writeMessages(); err != nil {
		return err
	}
	for _, s := range []statement{hideMessages, hideCheckpoints} {
		if err := w.exec(s, n.id, seq); err != nil {
			return err
		}
	}
	n.talk.Threads, n.talk.Asked, n.talk.Begun = nil, "", false
	n.talk.Marked = n.talk.Turn // it wasn't done
	return w.last(n)
}

// writeMessages writes what was said, and the checkpoints.
func (w *writer) writeMessages() error {
	for _, m := range w.said {
		if m.row == nil {
			continue
		}
		if m.content != nil {
			m.row[messageContent] = m.content
		}
		if len(m.args) > 0 {
			m.row[messageArgs] = "[" + strings.Join(m.args, ",") + "]"
		}
		w.add(addMessage, m.row...)
	}
	if err := errors.Join(w.insert(addMessage), w.insert(addCheckpoint)); err != nil {
		return err
	}
	for _, m := range w.said {
		if m.row != nil {
			continue
		}
		if err := w.exec(growMessage, m.content, strings.Join(m.args, ","), m.pos); err != nil {
			return err
		}
	}
	clear(w.said)
	w.said = w.said[:0]
	return nil
}

// Places in the row of a message.
const (
	messageContent = 8
	messageArgs    = 11
)

// plain is a value as text: a string as it is, the texts of a list of blocks, any
// other as JSON.
func plain(v wire.Raw) string {
	if s, ok := v.Text(); ok || len(v) == 0 {
		return s
	}
	if text, ok := blocks(v.Any()); ok {
		return text
	}
	text, err := wire.AppendJSON(nil, v)
	if err != nil {
		return ""
	}
	return string(text)
}

// blocks joins the texts of a list that has nothing else.
func blocks(v any) (string, bool) {
	list, ok := v.([]any)
	if v == nil {
		return "", true
	}
	var parts []string
	for _, item := range list {
		switch b := item.(type) {
		case string:
			parts = append(parts, b)
		case map[string]any:
			text, is := b["text"].(string)
			if kind, given := b["type"]; !is || given && kind != "text" {
				return "", false
			}
			parts = append(parts, text)
		default:
			return "", false
		}
	}
	return strings.Join(parts, "\n"), ok
}
