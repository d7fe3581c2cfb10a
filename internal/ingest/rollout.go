package ingest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// rollout reads a session file of Codex: what its model was sent and has said, and what happened besides.
type rollout struct {
	*story

	codes map[string]int // exit codes of commands, by call
	total string         // tokens of the thread so far
	calls int            // of the model
}

// rolloutLine is a line of the file.
type rolloutLine struct {
	Timestamp string          `json:"timestamp"`
	Type      string          `json:"type"`
	Payload   json.RawMessage `json:"payload"`
}

// rolloutItem has the fields of all payloads.
type rolloutItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Cwd       string          `json:"cwd"`
	Version   string          `json:"cli_version"`
	Model     string          `json:"model"`
	Role      string          `json:"role"`
	Content   []rolloutText   `json:"content"`
	Summary   json.RawMessage `json:"summary"` // of reasoning; in what a turn begins with it is a setting
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	CallID    string          `json:"call_id"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Action    json.RawMessage `json:"action"`
	Output    json.RawMessage `json:"output"`
	Message   string          `json:"message"`
	Reason    string          `json:"reason"`
	ExitCode  *int            `json:"exit_code"`
	Item      *rolloutItem    `json:"item"`
	Info      *struct {
		Total json.RawMessage `json:"total_token_usage"`
		Last  struct {
			Input   int64 `json:"input_tokens"`
			Cached  int64 `json:"cached_input_tokens"`
			Written int64 `json:"cache_write_input_tokens"`
			Output  int64 `json:"output_tokens"`
		} `json:"last_token_usage"`
	} `json:"info"`
}

type rolloutText struct {
	Text string `json:"text"`
}

func joinTexts(texts []rolloutText) string {
	var parts []string
	for _, t := range texts {
		if t.Text != "" {
			parts = append(parts, t.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// Line takes a line.
func (r *rollout) Line(at int64, line []byte) []*wire.Event {
	r.beginLine(at)
	if strings.TrimSpace(string(line)) == "" {
		return nil
	}
	var l rolloutLine
	var p rolloutItem
	err := json.Unmarshal(line, &l)
	r.tellTime(parseMillis(l.Timestamp))
	if err == nil {
		err = json.Unmarshal(l.Payload, &p)
	}
	if err != nil {
		r.keep("malformed", line, err.Error())
		return r.takeEvents()
	}
	switch l.Type {
	case "session_meta":
		r.takeMeta(p)
	case "turn_context":
		r.model = cmp.Or(p.Model, r.model)
	case "event_msg":
		r.takeNotice(p, line)
	case "response_item":
		r.takeItem(p, line)
	default:
		r.keep(l.Type, line, "")
	}
	return r.takeEvents()
}

// takeMeta takes what the session is. That of a fork has that of its origin behind its own.
func (r *rollout) takeMeta(p rolloutItem) {
	r.nameSession(p.ID)
	r.cwd, r.version = cmp.Or(r.cwd, p.Cwd), cmp.Or(r.version, p.Version)
}

// takeNotice takes what happened. What the model's items tell, too, is passed over.
func (r *rollout) takeNotice(p rolloutItem, line json.RawMessage) {
	switch p.Type {
	case "task_complete", "turn_complete":
		r.endTurn("")
	case "turn_aborted":
		if r.inTurn {
			r.failTurn(wire.ErrorInterrupted, "the turn was cut short: "+cmp.Or(p.Reason, "interrupted"))
		}
	case "error", "stream_error", "warning":
		r.warn(p.Message)
	case "token_count":
		r.takeTokens(p)
	case "exec_command_end":
		r.noteExit(p.CallID, p.ExitCode)
	case "item_completed":
		if p.Item != nil && p.Item.Type == "CommandExecution" {
			r.noteExit(p.Item.ID, p.Item.ExitCode)
		}
	case "task_started", "turn_started", "user_message", "agent_message", "agent_reasoning", "item_started":
	default:
		r.keep(p.Type, line, "")
	}
}

func (r *rollout) noteExit(call string, code *int) {
	if code != nil {
		r.codes[call] = *code
	}
}

// takeTokens takes what a model call has used. The same is told again.
func (r *rollout) takeTokens(p rolloutItem) {
	if p.Info == nil || string(p.Info.Total) == r.total {
		return
	}
	r.total = string(p.Info.Total)
	r.calls++
	u := p.Info.Last
	r.count(fmt.Sprintf("%s/%d", r.session, r.calls), u.Input-u.Cached-u.Written, u.Output, u.Cached, u.Written, nil)
}

// takeItem takes an item of what the model was sent, or has said.
func (r *rollout) takeItem(p rolloutItem, line json.RawMessage) {
	switch p.Type {
	case "message":
		r.takeMessage(p, line)
	case "reasoning":
		var summary []rolloutText
		if json.Unmarshal(p.Summary, &summary) == nil {
			r.think(joinTexts(summary))
		}
	case "function_call":
		r.call(p.CallID, toolName(p), rawOf(json.RawMessage(p.Arguments)))
	case "custom_tool_call":
		r.call(p.CallID, toolName(p), wire.RawString(p.Input))
	case "local_shell_call":
		r.call(p.CallID, "local_shell", rawOf(p.Action))
	case "web_search_call":
		id := cmp.Or(p.ID, fmt.Sprintf("search-%d", r.line))
		r.call(id, "web_search", rawOf(p.Action))
		r.result(id, nil, "")
	case "function_call_output", "custom_tool_call_output":
		failed := ""
		if code := r.codes[p.CallID]; code != 0 {
			failed = fmt.Sprintf("the command ended with exit code %d", code)
		}
		if !r.result(p.CallID, rawOf(p.Output), failed) {
			r.keep(p.Type, line, "its call isn't there")
		}
	default:
		r.keep(p.Type, line, "")
	}
}

func toolName(p rolloutItem) string {
	if p.Namespace != "" {
		return p.Namespace + "__" + p.Name
	}
	return p.Name
}

func (r *rollout) takeMessage(p rolloutItem, line json.RawMessage) {
	text := joinTexts(p.Content)
	switch p.Role {
	case "assistant":
		r.say(text)
	case "user":
		if r.answered && !isContext(text) { // said while it works: the file tells where turns end
			r.emit("", &wire.UserMessage{Content: text, Source: "replay"})
			return
		}
		r.hear(text, isContext(text))
	default:
		r.keep("message/"+p.Role, line, "")
	}
}

// isContext reports whether a message in the user's name is by the program: it begins with an element that programs write.
func isContext(text string) bool {
	for _, name := range []string{"environment_context", "user_instructions", "turn_aborted", "skill", "session_context", "subagent_notification"} {
		if strings.HasPrefix(text, "<"+name+">") {
			return true
		}
	}
	return strings.HasPrefix(text, "# AGENTS.md instructions")
}
