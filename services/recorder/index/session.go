package index

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// deriveMessages notes what an event is in the conversation of its node's agent. What
// the agent says becomes a message with its line, see says.
func (w *writer) deriveMessages(r *runRow, n *nodeRow, pos uint64, e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		return w.takePrompt(r, n, pos, e, plainText(p.Prompt), true)
	case *wire.UserMessage:
		return w.takePrompt(r, n, pos, e, p.Content, p.Source == "prompt" || p.Source == "replay")
	case *wire.TurnStart:
		w.followEvent(r, n, pos, e)
		return w.noteModel(r, n, pos, e, p.Model)
	case *wire.ToolIntent:
		return w.noteCall(r, n, pos, e, p)
	case *wire.AgentMessage:
		return w.fillMessage(r, n, pos, e, p.Content)
	case *wire.AgentTool:
		return w.takeToolResult(r, n, pos, e, p)
	case *wire.TurnEnd:
		w.endTurn(r, n, pos, e, !p.IsError)
	case *wire.AgentComplete:
		w.endTurn(r, n, pos, e, true)
	case *wire.AgentPaused, *wire.AgentAborted:
		w.endTurn(r, n, pos, e, false)
	case *wire.AgentError:
		return w.recordError(r, n, pos, e, p)
	case *wire.Checkpoint:
		return w.recordCheckpoint(r, n, pos, e, p)
	case *wire.ToolState, *wire.ToolSealed, *wire.PermissionRequired, *wire.PermissionDecided, *wire.CCMessage, *wire.RawMessage:
		if n.talk.Session != "" {
			w.followEvent(r, n, pos, e)
		}
	}
	return nil
}

// followEvent takes an event into the conversation. A turn that another one follows was done whole,
// and a message that begins is a row.
func (w *writer) followEvent(r *runRow, n *nodeRow, pos uint64, e *wire.Event) conversation.Step {
	t := &n.talk
	turn, busy := t.Said.Turn, t.hasOpenCalls()
	step := t.Said.Apply(pos, e)
	if step.Turns {
		w.markTurn(r, n, pos, e, turn, busy)
	}
	if step.Turns || step.Begins && e.Parent == "" {
		t.Context = ""
	}
	if step.Begins {
		w.appendMessage(r, n, pos, e, "assistant", nil, nil, nil)
	}
	return step
}

// hasOpenCalls reports whether calls of the node's own agent have no result.
func (t *talk) hasOpenCalls() bool {
	own := t.Said.Thread("")
	return own != nil && len(own.Calls)+len(own.Named) > 0
}

// sessionOf returns the session that an event is of, and makes it the node's. "": none.
func (w *writer) sessionOf(r *runRow, n *nodeRow, pos uint64, e *wire.Event) (string, error) {
	id, t := e.SessionID, &n.talk
	if id == "" || !database.IsKey(id) || id == t.Session || e.Parent != "" && t.Session != "" {
		return t.Session, nil
	}
	if err := w.bindSession(r, n, pos, e, id); err != nil {
		return "", err
	}
	t.Session, t.Asked = id, ""
	if n.silent == id {
		n.silent, t.Last = "", 0
		return id, nil
	}
	return id, w.findLastMessage(n)
}

// bindSession notes a session of a node, and that one is new: to look for a message of it would cost all there are of the node.
func (w *writer) bindSession(r *runRow, n *nodeRow, pos uint64, e *wire.Event, session string) error {
	var known bool
	if err := w.scanRow(isBound, []any{session, r.ID, n.ID}, &known); err != nil {
		return err
	}
	if !known {
		n.silent = session
	}
	n.talk.Model = database.PostgresText(cmp.Or(n.Model, n.talk.Model)) // whatever the database is, since verify compares it
	return w.putRow(addSession, &table.Binding{
		Session: session, Run: r.ID, Node: n.ID, Exec: e.ExecID, Pos: pos, Agent: cmp.Or(e.AgentID, n.Node.Node),
		Model: n.talk.Model, Provider: n.talk.Provider, TS: e.Timestamp,
	})
}

// noteModel notes the model of a session if its agent didn't name it.
func (w *writer) noteModel(r *runRow, n *nodeRow, pos uint64, e *wire.Event, model string) error {
	t := &n.talk
	if t.Session == "" || t.Model != "" || model == "" || e.Parent != "" {
		return nil
	}
	t.Model = database.PostgresText(model)
	return w.bindSession(r, n, pos, e, t.Session)
}

// findLastMessage finds the session's last message that counts.
func (w *writer) findLastMessage(n *nodeRow) error {
	if err := w.writeMessages(); err != nil {
		return err
	}
	return w.scanRow(lastMessage, []any{n.ID, n.talk.Session}, &n.talk.Last)
}

// takePrompt takes what the agent is told. What was told last is told once, if the
// agent begins anew: it has it already.
func (w *writer) takePrompt(r *runRow, n *nodeRow, pos uint64, e *wire.Event, content string, again bool) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	w.followEvent(r, n, pos, e)
	sum := sha256.Sum256([]byte(content))
	asked := hex.EncodeToString(sum[:8])
	if content == "" || again && asked == n.talk.Asked {
		return nil
	}
	w.appendMessage(r, n, pos, e, "user", &content, nil, nil)
	if e.Parent == "" {
		n.talk.Asked = asked
	}
	return nil
}

// appendMessage adds a message.
func (w *writer) appendMessage(r *runRow, n *nodeRow, pos uint64, e *wire.Event, role string, content, call, tool *string) {
	t := &n.talk
	m := &pendingMessage{pos: pos, row: &table.ChatMessage{
		Pos: pos, Run: r.ID, Node: n.ID, Seq: e.Seq, Session: t.Session, Agent: cmp.Or(e.AgentID, n.Node.Node), Turn: t.Said.TurnOf(e),
		Role: role, Content: content, Call: call, Tool: tool, TS: e.Timestamp,
	}}
	t.Last, t.Asked = pos, ""
	w.said = append(w.said, m)
}

// messageOfText returns the message that a text of the agent is a part of, which begins
// with it if none is open; 0: none.
func (w *writer) messageOfText(r *runRow, n *nodeRow, pos uint64, e *wire.Event) (uint64, error) {
	switch e.Payload.(type) {
	case *wire.AgentText, *wire.AgentTextDelta:
		session, err := w.sessionOf(r, n, pos, e)
		if err != nil || session == "" {
			return 0, err
		}
		return w.followEvent(r, n, pos, e).Message, nil
	}
	return 0, nil
}

// markTurn marks a turn as one that has been done whole, unless the agent
// does that itself, or calls are open.
func (w *writer) markTurn(r *runRow, n *nodeRow, pos uint64, e *wire.Event, turn int, busy bool) {
	t := &n.talk
	if t.Own || turn <= t.Marked || t.Last == 0 || busy {
		return
	}
	t.Marked = turn
	w.queueRow(addCheckpoint, &table.ChatCheckpoint{
		Pos: pos, Run: r.ID, Node: n.ID, Seq: e.Seq, Session: t.Session, Agent: n.Node.Node, Turn: turn, Last: t.Last,
		Kind: string(wire.CheckpointTurn), TS: e.Timestamp,
	})
}

// noteCall adds a call to the agent's message, unless one has it.
func (w *writer) noteCall(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.ToolIntent) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	step := w.followEvent(r, n, pos, e)
	if step.Named {
		return nil
	}
	return w.addCall(step.Message, e, p.ToolName, p.ToolInput)
}

// callKey is what a call is known by. It can be found by an index.
func callKey(id string) string {
	if database.IsKey(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

// addCall adds the call of an event to a message.
func (w *writer) addCall(message uint64, e *wire.Event, tool string, input wire.Raw) error {
	if input.IsZero() {
		input = wire.RawString(missingNote(e, "toolInput"))
	}
	return w.addArgs(message, e.CallID, tool, input)
}

// missingNote says that a large field couldn't be found.
func missingNote(e *wire.Event, field string) string {
	for _, b := range e.Blobs {
		if b.Field == field {
			return archive.MissingNote(b)
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
		m := w.pendingFor(message)
		m.args = append(m.args, string(text))
	}
	return err
}

// pendingFor returns what the batch does to a message.
func (w *writer) pendingFor(message uint64) *pendingMessage {
	for _, m := range slices.Backward(w.said) {
		if m.pos == message {
			return m
		}
	}
	m := &pendingMessage{pos: message}
	w.said = append(w.said, m)
	return m
}

// fillMessage takes a message as the model's API has it, parts of which may have been
// streamed.
func (w *writer) fillMessage(r *runRow, n *nodeRow, pos uint64, e *wire.Event, content wire.Raw) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	step := w.followEvent(r, n, pos, e)
	for _, c := range step.Calls {
		if err := w.addArgs(step.Message, c.ID, c.Tool, c.Input); err != nil {
			return err
		}
	}
	text := strings.Join(step.Texts, "\n")
	if step.Texts == nil {
		text = cmp.Or(plainText(content), missingNote(e, "content"))
	}
	w.pendingFor(step.Message).content = &text
	return nil
}

// takeToolResult takes the result of a call, which ends the message that has the call. A
// call that no event has announced becomes one of the agent's last message.
func (w *writer) takeToolResult(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.AgentTool) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	if step := w.followEvent(r, n, pos, e); step.Message > 0 {
		if err := w.addCall(step.Message, e, p.ToolName, p.ToolInput); err != nil {
			return err
		}
	}
	w.appendMessage(r, n, pos, e, "tool", new(resultText(e, p)), &e.CallID, &p.ToolName)
	return nil
}

// resultText is what the model saw of a call.
func resultText(e *wire.Event, p *wire.AgentTool) string {
	if p.ToolOutput.IsZero() {
		return missingNote(e, "toolOutput")
	}
	return cmp.Or(plainText(p.ToolOutput), p.Error)
}

// endTurn ends the agent's turn, or the agent.
func (w *writer) endTurn(r *runRow, n *nodeRow, pos uint64, e *wire.Event, well bool) {
	if e.Parent != "" || n.talk.Session == "" {
		return
	}
	if well {
		w.markTurn(r, n, pos, e, n.talk.Said.Turn, n.talk.hasOpenCalls())
	}
	w.followEvent(r, n, pos, e)
}

// recordError takes an error of the agent.
func (w *writer) recordError(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.AgentError) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	w.followEvent(r, n, pos, e)
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
	return w.putRow(addError, &table.ChatError{
		Pos: pos, Run: r.ID, Node: n.ID, Session: session, Agent: cmp.Or(e.AgentID, n.Node.Node), Turn: t.Said.TurnOf(e),
		Context: context, Type: p.ErrorType, Message: p.Message, Attempt: attempt, TS: e.Timestamp,
	})
}

// recordCheckpoint takes a checkpoint that the agent recorded.
func (w *writer) recordCheckpoint(r *runRow, n *nodeRow, pos uint64, e *wire.Event, p *wire.Checkpoint) error {
	session, err := w.sessionOf(r, n, pos, e)
	if err != nil || session == "" {
		return err
	}
	t := &n.talk
	turn := t.Said.TurnOf(e)
	var index *int
	var call *string
	switch p.Kind {
	case wire.CheckpointTurn:
		if marked := t.Marked == turn && !t.Own; marked {
			t.Own = true
			return nil // by us
		}
		t.Own, t.Marked = true, turn
	case wire.CheckpointSubturn:
		t.Own = true
		index, call = p.SubIdx, &e.CallID
	case wire.CheckpointSFP, wire.CheckpointLabelled, wire.CheckpointNode:
	}
	w.queueRow(addCheckpoint, &table.ChatCheckpoint{
		Pos: pos, Run: r.ID, Node: n.ID, Seq: e.Seq, Session: session, Agent: cmp.Or(e.AgentID, n.Node.Node), Turn: turn, Last: t.Last,
		Kind: string(p.Kind), Label: p.Label, SubIdx: index, SubCall: call, TS: e.Timestamp,
	})
	return nil
}

// rollBack hides the messages and checkpoints of a node after seq.
func (w *writer) rollBack(n *nodeRow, seq uint64) error {
	if err := w.writeMessages(); err != nil {
		return err
	}
	for _, s := range []statement{hideMessages, hideCheckpoints} {
		if err := w.exec(s, n.ID, seq); err != nil {
			return err
		}
	}
	n.talk.Said.Forget()
	n.talk.Asked, n.talk.Marked = "", n.talk.Said.Turn // it wasn't done
	return w.findLastMessage(n)
}

// writeMessages writes what was said, and the checkpoints.
func (w *writer) writeMessages() error {
	for _, m := range w.said {
		if m.row == nil {
			continue
		}
		if m.content != nil {
			m.row.Content = m.content
		}
		if len(m.args) > 0 {
			m.row.Args = new("[" + strings.Join(m.args, ",") + "]")
		}
		w.queueRow(addMessage, m.row)
	}
	if err := errors.Join(w.insertRows(addMessage), w.insertRows(addCheckpoint)); err != nil {
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

// plainText is a value as text: a string as it is, the texts of a list of blocks, any
// other as JSON.
func plainText(v wire.Raw) string {
	if s, ok := v.Text(); ok || len(v) == 0 {
		return s
	}
	if text, ok := joinBlocks(v.Any()); ok {
		return text
	}
	text, err := wire.AppendJSON(nil, v)
	if err != nil {
		return ""
	}
	return string(text)
}

// joinBlocks joins the texts of a list that has nothing else.
func joinBlocks(v any) (string, bool) {
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
