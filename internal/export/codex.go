package export

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Codex writes a conversation as a session file of Codex, whichever agent it was of. Where that looks for it,
// `codex resume ID` goes on with it.
//
// Thinking is left out: only the model's own provider can read it. So is what sub-agents said.
func Codex(w io.Writer, run Run, events Events, c Conversation) (Result, error) {
	r := Result{RunID: run.ID, Session: codexSession(run.ID, c), Cwd: c.Cwd}
	s := &codexThread{out: bufio.NewWriter(w), c: c, result: &r, open: map[string]bool{}}
	err := c.writeShown(&r, events, s.takeEvent, s.finish, s.out)
	return r, err
}

// CodexFile is where Codex looks for the file of a session, below its home, if it was begun at a time.
func CodexFile(session string, begun time.Time) string {
	return begun.UTC().Format("sessions/2006/01/02/rollout-2006-01-02T15-04-05-") + session + ".jsonl"
}

// codexVersion is the version of Codex that writes session files like these.
const codexVersion = "0.169.0"

// codexSession is the session's id if Codex can have such a one, else one that follows from the run and the node.
func codexSession(run string, c Conversation) string {
	if isUUID(c.Session) {
		return strings.ToLower(c.Session)
	}
	return uuidOf(run, c.Node, 0)
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, r := range s {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdefABCDEF", r) {
			return false
		}
	}
	return true
}

// codexThread is a session file under way.
type codexThread struct {
	out    *bufio.Writer
	c      Conversation
	result *Result

	current string // session of the agent at the moment
	at      int64
	begun   bool
	turns   int
	piece   strings.Builder // text that is being said
	number  int
	open    map[string]bool // calls without a result
	order   []string
	told    []string // while calls were open
}

func (s *codexThread) takeEvent(e *wire.Event) error {
	if p, is := e.Payload.(*wire.AgentStart); is {
		if s.current = e.SessionID; !s.c.sessions[s.current] {
			return nil
		}
		if err := s.endPiece(); err != nil {
			return err
		}
		s.at = max(s.at, e.Timestamp)
		if err := s.closeCalls(); err != nil {
			return err
		}
		return s.addUser(promptText(p.Prompt))
	}
	if !s.c.sessions[s.current] {
		return nil
	}
	s.at = max(s.at, e.Timestamp)
	return s.addPayload(e)
}

func (s *codexThread) addPayload(e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		if p.Block != s.number {
			if err := s.endPiece(); err != nil {
				return err
			}
			s.number = p.Block
		}
		s.piece.WriteString(p.Content)
		return nil
	case *wire.AgentText:
		if p.Supersedes == 0 && p.Block != s.number {
			if err := s.endPiece(); err != nil {
				return err
			}
		}
		s.piece.Reset() // what was streamed of it
		s.piece.WriteString(p.Content)
		s.number = p.Block
		return nil
	}
	if err := s.endPiece(); err != nil {
		return err
	}
	switch p := e.Payload.(type) {
	case *wire.UserMessage:
		return s.addUser(p.Content)
	case *wire.ToolIntent:
		return s.addCall(e.CallID, p)
	case *wire.AgentTool:
		return s.addResult(e.CallID, p)
	case *wire.AgentComplete:
		return s.endTurn(p.Result)
	}
	return nil
}

// endTurn writes that the agent has done what it was asked.
func (s *codexThread) endTurn(result string) error {
	if err := s.closeCalls(); err != nil || !s.begun {
		return err
	}
	s.turns++
	return s.writeLine("event_msg", map[string]any{"type": "task_complete", "turn_id": fmt.Sprintf("turn-%d", s.turns), "last_agent_message": result})
}

// endPiece writes what was said.
func (s *codexThread) endPiece() error {
	text := s.piece.String()
	s.piece.Reset()
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return s.writeMessage("assistant", text, map[string]any{"type": "agent_message", "message": text}, "output_text")
}

// writeMessage writes a message, as people are shown it and as the model gets it.
func (s *codexThread) writeMessage(role, text string, shown map[string]any, kind string) error {
	if err := s.writeLine("event_msg", shown); err != nil {
		return err
	}
	return s.writeLine("response_item", map[string]any{"type": "message", "role": role, "content": []any{map[string]any{"type": kind, "text": text}}})
}

// addUser writes what the agent was told, behind the results of the calls that are open.
func (s *codexThread) addUser(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if len(s.open) > 0 {
		s.told = append(s.told, text)
		return nil
	}
	return s.writeMessage("user", text, map[string]any{"type": "user_message", "message": text, "kind": "plain"}, "input_text")
}

func (s *codexThread) addCall(id string, p *wire.ToolIntent) error {
	if id = codexCall(id); s.open[id] {
		return nil
	}
	s.open[id] = true
	s.order = append(s.order, id)
	input, is := p.ToolInput.Any().(map[string]any)
	if !is {
		input = map[string]any{"input": p.ToolInput}
	}
	arguments, err := json.Marshal(input)
	if err != nil {
		return err
	}
	return s.writeLine("response_item", map[string]any{"type": "function_call", "name": codexName(p.ToolName), "arguments": string(arguments), "call_id": id})
}

func (s *codexThread) addResult(id string, p *wire.AgentTool) error {
	if id = codexCall(id); !s.open[id] {
		return nil // its call isn't in the conversation
	}
	output := resultText(p.ToolOutput)
	if strings.TrimSpace(output) == "" && p.Error != "" {
		output = p.Error
	}
	return s.writeResult(id, output)
}

// writeResult writes the result of a call, and behind the last one what the agent was told meanwhile.
func (s *codexThread) writeResult(id, output string) error {
	delete(s.open, id)
	err := s.writeLine("response_item", map[string]any{"type": "function_call_output", "call_id": id, "output": output})
	if err != nil || len(s.open) > 0 {
		return err
	}
	told := s.told
	s.told, s.order = nil, nil
	for _, text := range told {
		if err := s.addUser(text); err != nil {
			return err
		}
	}
	return nil
}

// closeCalls writes that calls were cut off: the model's API wants a result for each.
func (s *codexThread) closeCalls() error {
	for _, id := range s.order {
		if s.open[id] {
			if err := s.writeResult(id, wire.CallInterrupted); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *codexThread) finish() error {
	if err := s.endPiece(); err != nil {
		return err
	}
	return s.closeCalls()
}

// promptText is a prompt as text: what else it has is left out.
func promptText(prompt wire.Raw) string {
	if text, is := prompt.Text(); is {
		return text
	}
	items, _ := prompt.Any().([]any)
	var texts []string
	for _, item := range items {
		fields, _ := item.(map[string]any)
		switch content := fields["content"].(type) {
		case string:
			texts = append(texts, content)
		case []any:
			for _, block := range content {
				if part, _ := block.(map[string]any); part["type"] == "text" {
					texts = append(texts, fmt.Sprint(part["text"]))
				}
			}
		default:
			if fields["type"] == "text" {
				texts = append(texts, fmt.Sprint(fields["text"]))
			}
		}
	}
	return strings.Join(texts, "\n")
}

// resultText is a tool's output as text.
func resultText(output wire.Raw) string {
	switch v := resultContent(output).(type) {
	case string:
		return v
	case []any:
		var texts []string
		for _, block := range v {
			if part, _ := block.(map[string]any); part["type"] == "text" {
				texts = append(texts, fmt.Sprint(part["text"]))
			} else {
				texts = append(texts, fmt.Sprintf("[%v]", part["type"]))
			}
		}
		return strings.Join(texts, "\n")
	}
	return ""
}

// maxCodexName bounds names and ids, in bytes, as the model's API does.
const maxCodexName = 64

// codexName is a tool's name as the model's API takes it.
func codexName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	name = cmp.Or(name, "unknown")
	return name[:min(len(name), maxCodexName)]
}

// codexCall is a call's id as the model's API takes it.
func codexCall(id string) string {
	if id != "" && len(id) <= maxCodexName && codexName(id) == id {
		return id
	}
	sum := hashTexts("call", id)
	return fmt.Sprintf("call_%x", sum[:12])
}

// writeLine writes a line; what the session is comes before the first.
func (s *codexThread) writeLine(kind string, payload map[string]any) error {
	at := time.UnixMilli(s.at).UTC().Format("2006-01-02T15:04:05.000Z")
	if !s.begun {
		s.begun = true
		s.result.Begun = s.at
		if err := s.writeLine("session_meta", map[string]any{
			"id": s.result.Session, "timestamp": at, "cwd": s.c.Cwd, "originator": "wake", "cli_version": codexVersion, "source": "exec",
		}); err != nil {
			return err
		}
	}
	s.result.Written++
	return writeLine(s.out, map[string]any{"timestamp": at, "type": kind, "payload": payload})
}
