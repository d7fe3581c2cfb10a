package export

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Conversation is what the agent of a node said and was told, as its last session
// has it.
type Conversation struct {
	Node    string
	Session string
	Cwd     string // folder that the session belongs to, if the agent said it

	sessions map[string]bool // that lead to Session
	hidden   truncations
}

// Conversations finds those of a run, in the order in which the nodes began.
// Events of kind agent suffice.
func Conversations(events Events) ([]Conversation, error) {
	var all []*Conversation
	of := map[string]*Conversation{}
	err := eachVisible(&Result{}, events, func(e *eventlog.Entry) error {
		if e.Event.Parent != "" {
			return nil
		}
		c := of[e.NodeID]
		if start, is := e.Event.Payload.(*wire.AgentStart); is {
			if c == nil {
				c = &Conversation{Node: e.NodeID}
				of[e.NodeID], all = c, append(all, c)
			}
			c.beginSession(e.Event.SessionID, start.Cwd)
		}
		if c != nil {
			c.noteEvent(e.Event)
		}
		return nil
	})
	found := make([]Conversation, len(all))
	for i, c := range all {
		found[i] = *c
	}
	return found, err
}

// beginSession notes that the agent starts: in its session, or with a new one in which
// nothing has been said.
func (c *Conversation) beginSession(session, cwd string) {
	if !c.sessions[session] {
		c.sessions = map[string]bool{session: true}
	}
	c.Session = session
	c.Cwd = cmp.Or(cwd, c.Cwd)
}

func (c *Conversation) noteEvent(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.SessionBound:
		c.sessions[p.NewSession], c.Session = true, p.NewSession
	case *wire.AgentInit:
		c.Cwd = cmp.Or(p.Cwd, c.Cwd)
	case *wire.LogTruncated:
		c.hidden = append(c.hidden, truncation{p.AtSeq, e.Seq})
	}
}

// Claude writes a conversation as a session file of Claude Code. Where that looks
// for it, `claude --resume ID` goes on with it.
//
// Thinking without its signature is left out, since the model's API refuses it,
// and so is what sub-agents said: they have files of their own.
func Claude(w io.Writer, run Run, events Events, c Conversation) (Result, error) {
	r := Result{RunID: run.ID, Session: c.Session, Cwd: c.Cwd}
	s := &sessionWriter{out: bufio.NewWriter(w), run: run.ID, c: c, result: &r}
	err := c.writeShown(&r, events, s.handleEvent, s.flushTurn, s.out)
	return r, err
}

// sessionWriter is a session file under way. It holds one turn of the agent: what a
// model said in one message, and the results of its calls, which stand behind it.
type sessionWriter struct {
	out    *bufio.Writer
	run    string
	c      Conversation
	result *Result

	current string // session of the agent at the moment
	lines   int
	parent  string // uuid of the line before
	model   string
	joint   bool // a turn is one message of the model
	at      int64

	turn     *wire.Usage // of the message, once known
	blocks   []claudeBlock
	results  []toolResult
	told     []userContent // while calls were open
	open     map[string]bool
	piece    *claudeBlock    // that is being streamed
	streamed strings.Builder // its text so far
	number   int

	compacted *wire.Compaction // its summary comes next
}

// claudeBlock is a block of a message.
type claudeBlock struct {
	at      int64
	number  int // of the block within the execution, 0 if it has none
	content map[string]any
}

type toolResult struct {
	at     int64
	call   string
	event  *wire.AgentTool
	source string // uuid of the call's line
}

// userContent is what the agent was told.
type userContent struct {
	at      int64
	content any
	meta    bool
}

func (s *sessionWriter) handleEvent(e *wire.Event) error {
	if p, is := e.Payload.(*wire.AgentStart); is {
		if s.current = e.SessionID; !s.c.sessions[s.current] {
			return nil
		}
		s.at, s.model = e.Timestamp, cmp.Or(p.Model, s.model)
		s.joint = slices.Contains(messageTurns, p.Provider)
		return s.addPrompt(e.Timestamp, p.Prompt)
	}
	if !s.c.sessions[s.current] {
		return nil
	}
	if e.Type() != wire.TypeAgentTextDelta && e.Type() != wire.TypeAgentThinkingDelta {
		s.endPiece()
	}
	if s.isNextMessage(e) {
		if err := s.flushTurn(); err != nil {
			return err
		}
	}
	return s.addPayload(e)
}

// messageTurns are the agents that tell of a turn for each message of their model. Those of others are of many.
var messageTurns = []string{"", "claude", wire.ProviderNative, "fixture", "ingest"}

// isNextMessage reports whether the model says something behind the results of all its calls, of which it has been told then, in a turn of
// many messages.
func (s *sessionWriter) isNextMessage(e *wire.Event) bool {
	if s.joint || len(s.results) == 0 || len(s.open) > 0 {
		return false
	}
	switch p := e.Payload.(type) {
	case *wire.AgentText:
		return p.Supersedes == 0
	case *wire.AgentThinking:
		return p.Supersedes == 0
	case *wire.AgentTextDelta, *wire.AgentThinkingDelta, *wire.ToolIntent:
		return true
	}
	return false
}

func (s *sessionWriter) addPayload(e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.TurnStart:
		s.model = cmp.Or(p.Model, s.model)
		return s.flushTurn()
	case *wire.AgentTextDelta:
		s.addTextPiece(e.Timestamp, p.Block, p.Content)
	case *wire.AgentText:
		s.addWhole(claudeBlock{e.Timestamp, p.Block, map[string]any{"type": "text", "text": p.Content}}, p.Supersedes)
	case *wire.AgentThinking:
		if p.Signature != "" {
			s.addWhole(claudeBlock{e.Timestamp, p.Block, map[string]any{"type": "thinking", "thinking": p.Content, "signature": p.Signature}}, p.Supersedes)
		}
	case *wire.ToolIntent:
		s.addToolUse(e, p)
	case *wire.AgentTool:
		s.results = append(s.results, toolResult{at: e.Timestamp, call: e.CallID, event: p})
		delete(s.open, e.CallID)
	case *wire.Usage:
		s.turn = p
	case *wire.UserMessage:
		return s.addUserContent(userContent{e.Timestamp, p.Content, p.Source == "synthetic"})
	case *wire.Compaction:
		if p.Error == "" {
			s.compacted = p
		}
	case *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted, *wire.TurnEnd:
		return s.flushTurn()
	}
	return nil
}

// addTextPiece adds a streamed piece of the answer.
func (s *sessionWriter) addTextPiece(at int64, number int, content string) {
	if s.piece == nil || s.number != number {
		s.endPiece()
		s.piece, s.number = &claudeBlock{at, number, map[string]any{"type": "text"}}, number
	}
	s.streamed.WriteString(content)
}

func (s *sessionWriter) endPiece() {
	if s.piece != nil {
		s.piece.content["text"] = s.streamed.String()
		s.streamed.Reset()
		s.addBlock(*s.piece)
		s.piece = nil
	}
}

// addWhole adds a block as a whole, in the place of its pieces, or of those of the block
// that the agent gave up for it.
func (s *sessionWriter) addWhole(b claudeBlock, supersedes int) {
	s.blocks = slices.DeleteFunc(s.blocks, func(other claudeBlock) bool {
		return other.number > 0 && (other.number == b.number || other.number == supersedes)
	})
	s.addBlock(b)
}

// addBlock adds a block to the message. The API refuses blank text.
func (s *sessionWriter) addBlock(b claudeBlock) {
	if text, is := b.content["text"].(string); is && strings.TrimSpace(text) == "" {
		return
	}
	s.blocks = append(s.blocks, b)
}

func (s *sessionWriter) addToolUse(e *wire.Event, p *wire.ToolIntent) {
	if s.open == nil {
		s.open = map[string]bool{}
	}
	s.open[e.CallID] = true
	input, is := p.ToolInput.Any().(map[string]any)
	if !is {
		input = map[string]any{"input": p.ToolInput}
	}
	s.addBlock(claudeBlock{e.Timestamp, 0, map[string]any{"type": "tool_use", "id": e.CallID, "name": p.ToolName, "input": input}})
}

// addPrompt takes what the agent was started with: text, or a list of messages.
func (s *sessionWriter) addPrompt(at int64, prompt wire.Raw) error {
	if text, is := prompt.Text(); is {
		return s.addUserContent(userContent{at: at, content: text})
	}
	messages, _ := prompt.Any().([]any)
	if isContent(messages) && len(messages) > 0 {
		return s.addUserContent(userContent{at: at, content: messages})
	}
	for _, m := range messages {
		content := m
		if fields, is := m.(map[string]any); is {
			content = fields["content"]
		}
		if err := s.addUserContent(userContent{at: at, content: content}); err != nil {
			return err
		}
	}
	return nil
}

// addUserContent writes what the agent was told, behind the results of the calls that are
// open.
func (s *sessionWriter) addUserContent(t userContent) error {
	if text, is := t.content.(string); t.content == nil || is && strings.TrimSpace(text) == "" {
		return nil
	}
	if t.meta && s.compacted != nil {
		return s.writeSummary(t)
	}
	if len(s.open) > 0 {
		s.told = append(s.told, t)
		return nil
	}
	if err := s.flushTurn(); err != nil {
		return err
	}
	return s.writeUser(t)
}

func (s *sessionWriter) writeUser(t userContent) error {
	fields := map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": t.content}}
	if t.meta {
		fields["isMeta"] = true
	}
	return s.writeLine(t.at, fields)
}

func (s *sessionWriter) flushTurn() error {
	s.endPiece()
	calls := map[string]string{}
	id := s.messageID()
	for _, b := range s.blocks {
		if err := s.writeAssistant(id, b); err != nil {
			return err
		}
		if id, is := b.content["id"].(string); is {
			calls[id] = s.parent
		}
	}
	for _, r := range s.results {
		if r.source = calls[r.call]; r.source == "" {
			continue // its call isn't in the conversation
		}
		if err := s.writeResult(r); err != nil {
			return err
		}
	}
	pending := s.told
	s.turn, s.blocks, s.results, s.told = nil, nil, nil, nil
	clear(s.open)
	for _, t := range pending {
		if err := s.writeUser(t); err != nil {
			return err
		}
	}
	return nil
}

func (s *sessionWriter) writeAssistant(id string, b claudeBlock) error {
	usage := map[string]any{"input_tokens": 0, "output_tokens": 0}
	message := map[string]any{
		"id": id, "type": "message", "role": "assistant", "model": s.model,
		"content": []any{b.content}, "stop_reason": nil, "stop_sequence": nil, "usage": usage,
	}
	if u := s.turn; u != nil {
		usage["input_tokens"], usage["output_tokens"] = u.InputTokens, u.OutputTokens
		usage["cache_creation_input_tokens"] = wire.ValueOf(u.CacheCreationInputTokens)
		usage["cache_read_input_tokens"] = wire.ValueOf(u.CacheReadInputTokens)
		message["model"] = cmp.Or(u.Model, s.model)
		if u.StopReason != "" {
			message["stop_reason"] = u.StopReason
		}
	}
	return s.writeLine(b.at, map[string]any{"type": "assistant", "message": message})
}

// messageID is the id of the message that is held: the blocks of one share it.
func (s *sessionWriter) messageID() string {
	if s.turn != nil && s.turn.MessageID != "" {
		return s.turn.MessageID
	}
	sum := hashTexts("message", s.run, s.c.Node, strconv.Itoa(s.lines))
	return fmt.Sprintf("msg_%x", sum[:12])
}

func (s *sessionWriter) writeResult(r toolResult) error {
	content := map[string]any{"type": "tool_result", "tool_use_id": r.call, "content": resultContent(r.event.ToolOutput)}
	if r.event.Error != "" {
		content["is_error"] = true
	}
	fields := map[string]any{
		"type": "user", "message": map[string]any{"role": "user", "content": []any{content}},
		"sourceToolAssistantUUID": r.source,
	}
	if !r.event.Structured.IsZero() {
		fields["toolUseResult"] = r.event.Structured
	}
	return s.writeLine(r.at, fields)
}

// resultContent is a tool's output as the model's API takes it: text, or blocks.
func resultContent(output wire.Raw) any {
	switch v := output.Any().(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		if isContent(v) {
			return v
		}
	}
	text, err := wire.AppendJSON(nil, output)
	if err != nil {
		return ""
	}
	return string(text)
}

func isContent(blocks []any) bool {
	for _, b := range blocks {
		fields, _ := b.(map[string]any)
		switch fields["type"] {
		case "text", "image", "document", "search_result", "tool_reference":
		default:
			return false
		}
	}
	return true
}

// writeSummary writes that the agent goes on with a summary of what came before.
func (s *sessionWriter) writeSummary(t userContent) error {
	if err := s.flushTurn(); err != nil {
		return err
	}
	p, before := s.compacted, s.parent
	s.compacted, s.parent = nil, ""
	err := s.writeLine(t.at, map[string]any{
		"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted", "isMeta": false, "level": "info",
		"logicalParentUuid": before, "compactMetadata": map[string]any{"trigger": cmp.Or(p.Trigger, "auto"), "preTokens": p.PreTokens},
	})
	if err != nil {
		return err
	}
	return s.writeLine(t.at, map[string]any{
		"type": "user", "message": map[string]any{"role": "user", "content": t.content},
		"isVisibleInTranscriptOnly": true, "isCompactSummary": true,
	})
}

// writeLine writes a line that follows the one before. Its uuid depends on its place.
func (s *sessionWriter) writeLine(at int64, fields map[string]any) error {
	uuid := uuidOf(s.run, s.c.Node, s.lines)
	fields["parentUuid"] = nil
	if s.parent != "" {
		fields["parentUuid"] = s.parent
	}
	s.at = max(s.at, at)
	fields["uuid"], fields["sessionId"] = uuid, s.c.Session
	fields["timestamp"] = time.UnixMilli(s.at).UTC().Format("2006-01-02T15:04:05.000Z")
	fields["isSidechain"], fields["userType"], fields["cwd"] = false, "external", s.c.Cwd
	fields["version"], fields["gitBranch"] = claudeVersion, ""
	s.parent = uuid
	s.lines++
	s.result.Written++
	return writeLine(s.out, fields)
}

// claudeVersion is the version of Claude Code that writes session files like these.
const claudeVersion = "2.1.197"

// uuidOf is a UUID of version 8, derived from a line's place.
func uuidOf(run, node string, line int) string {
	sum := hashTexts("line", run, node, strconv.Itoa(line))
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
