package providers_test

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// claudeScript is the environment variable with the script of a program that speaks as Claude Code does: lines as in acptest.
const claudeScript = "WAKE_TEST_CLAUDE_SCRIPT"

// fakeClaude is that program.
type fakeClaude struct {
	session, from, until string // its session, that which it begins with, and the last message of that
	goesOn               bool
	folder               string // of session files

	mu          sync.Mutex // of what follows, and of stdout
	answers     map[string]chan json.RawMessage
	interrupted chan struct{}
	prompts     chan message
}

type object = map[string]any

// message is a line of the program's input, or of a session file.
type message struct {
	Type      string `json:"type"`
	UUID      string `json:"uuid"`
	RequestID string `json:"request_id"`
	Message   object `json:"message"`
	Request   struct{ Subtype string }
	Response  struct {
		RequestID string `json:"request_id"`
		Response  json.RawMessage
	}
}

func newID() string {
	text := strings.ToLower(rand.Text() + rand.Text())
	id := make([]byte, 32)
	for i := range id {
		id[i] = "0123456789abcdef"[text[i]%16]
	}
	return fmt.Sprintf("%s-%s-4%s-8%s-%s", id[:8], id[8:12], id[13:16], id[17:20], id[20:])
}

// playClaude plays the script of the environment and reports true, if there is one.
func playClaude() bool {
	script, ok := os.LookupEnv(claudeScript)
	if !ok {
		return false
	}
	c := &fakeClaude{answers: map[string]chan json.RawMessage{}, interrupted: make(chan struct{}, 1), prompts: make(chan message, 10)}
	for _, arg := range os.Args[1:] {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--session-id":
			c.session = value
		case "--resume":
			c.from, c.goesOn = value, true
		case "--resume-session-at":
			c.until = value
		}
	}
	if c.session == "" {
		c.session = c.from
	}
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	c.folder = filepath.Join(os.Getenv("CLAUDE_CONFIG_DIR"), "projects", regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(dir, "-"))
	turn := c.openSession()
	go c.readInput()
	parts := strings.Split(script, "\n--\n")
	for p := range c.prompts {
		c.takeTurn(p, parts[min(turn, len(parts)-1)])
		turn++
	}
	return true
}

func (c *fakeClaude) file(session string) string { return filepath.Join(c.folder, session+".jsonl") }

// openSession reads the session that it goes on with, and returns how many turns that had.
func (c *fakeClaude) openSession() (turns int) {
	if !c.goesOn {
		return 0
	}
	content, err := os.ReadFile(c.file(c.from))
	if err != nil {
		c.print(object{
			"type": "result", "subtype": "error_during_execution", "is_error": true, "num_turns": 0, "session_id": c.session, "duration_ms": 0,
			"errors": []string{"No conversation found with session ID: " + c.from}, "usage": object{}, "modelUsage": object{}, "uuid": newID(),
		})
		os.Exit(1)
	}
	var kept []byte
	found := c.until == ""
	for line := range strings.Lines(string(content)) {
		var m message
		if json.Unmarshal([]byte(line), &m) != nil {
			break
		}
		if kept = append(kept, line...); m.Type == "user" {
			turns++
		}
		if m.UUID == c.until {
			found = true
			break
		}
	}
	if !found {
		fmt.Fprintln(os.Stderr, "No message found with message.uuid of:", c.until)
		os.Exit(1)
	}
	if err := os.WriteFile(c.file(c.session), kept, 0o600); err != nil {
		panic(err)
	}
	return turns
}

func (c *fakeClaude) readInput() {
	defer close(c.prompts)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		switch m.Type {
		case "user":
			c.prompts <- m
		case "control_response":
			c.mu.Lock()
			if answer := c.answers[m.Response.RequestID]; answer != nil {
				answer <- m.Response.Response
			}
			c.mu.Unlock()
		case "control_request":
			c.print(object{"type": "control_response", "response": object{"subtype": "success", "request_id": m.RequestID, "response": object{}}})
			if m.Request.Subtype == "interrupt" {
				c.interrupted <- struct{}{}
			}
		}
	}
}

func (c *fakeClaude) print(v object) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Printf("%s\n", line)
}

// keep puts a message into the session's file, and prints it.
func (c *fakeClaude) keep(kind, uuid string, m object) {
	line, err := json.Marshal(object{"type": kind, "message": m, "uuid": uuid, "sessionId": c.session, "isSidechain": false, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)})
	if err != nil {
		panic(err)
	}
	if err := os.MkdirAll(c.folder, 0o700); err != nil {
		panic(err)
	}
	f, err := os.OpenFile(c.file(c.session), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	_, _ = f.Write(append(line, '\n'))
	_ = f.Close()
	c.print(object{"type": kind, "message": m, "parent_tool_use_id": nil, "session_id": c.session, "uuid": uuid, "isReplay": kind == "user"})
}

// say is a message of the model.
func (c *fakeClaude) say(blocks ...object) {
	c.keep("assistant", newID(), object{
		"id": "msg_" + newID(), "type": "message", "role": "assistant", "model": "fake", "content": blocks, "stop_reason": nil,
		"usage": object{"input_tokens": 1, "output_tokens": 1},
	})
}

// ask asks wake something and returns the answer.
func (c *fakeClaude) ask(request object) json.RawMessage {
	id, answer := newID(), make(chan json.RawMessage, 1)
	c.mu.Lock()
	c.answers[id] = answer
	c.mu.Unlock()
	c.print(object{"type": "control_request", "request_id": id, "request": request})
	return <-answer
}

// takeTurn plays a part of the script.
func (c *fakeClaude) takeTurn(p message, part string) {
	if home := os.Getenv("CLAUDE_CONFIG_DIR"); os.WriteFile(filepath.Join(home, "prompts"), nil, 0o600) != nil {
		panic("no home")
	}
	c.keep("user", p.UUID, object{"role": "user", "content": p.Message["content"]})
	c.print(object{
		"type": "system", "subtype": "init", "cwd": c.folder, "session_id": c.session, "tools": []string{"Bash"}, "mcp_servers": []any{},
		"model": "fake", "permissionMode": "default", "claude_code_version": "2.1.197", "uuid": newID(),
	})
	result := object{
		"type": "result", "subtype": "success", "is_error": false, "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "result": "Done.", "stop_reason": "end_turn",
		"session_id": c.session, "modelUsage": object{}, "permission_denials": []any{}, "terminal_reason": "completed", "uuid": newID(),
	}
	for line := range strings.Lines(part) {
		select {
		case m := <-c.prompts: // it is told at once
			c.keep("user", m.UUID, object{"role": "user", "content": m.Message["content"]})
		default:
		}
		if !c.play(strings.TrimSpace(line)) {
			result["subtype"], result["is_error"], result["terminal_reason"] = "error_during_execution", true, "aborted_tools"
			delete(result, "result")
			break
		}
	}
	result["usage"], result["total_cost_usd"] = object{"input_tokens": 3, "output_tokens": 1}, 0.5
	c.print(result)
}

// play plays a line. It returns false if the turn was interrupted.
func (c *fakeClaude) play(line string) bool {
	verb, rest, _ := strings.Cut(line, " ")
	words := strings.Fields(rest)
	switch verb {
	case "say":
		c.say(object{"type": "text", "text": rest})
	case "call", "ask":
		input := object{"command": "make"}
		c.say(object{"type": "tool_use", "id": words[0], "name": "Bash", "input": input})
		c.ask(object{"subtype": "hook_callback", "callback_id": "pre", "tool_use_id": words[0], "input": object{
			"hook_event_name": "PreToolUse", "session_id": c.session, "tool_name": "Bash", "tool_input": input, "tool_use_id": words[0], "permission_mode": "default",
		}})
		if verb == "call" {
			return true
		}
		var verdict struct{ Behavior, Message string }
		result := object{"type": "tool_result", "tool_use_id": words[0], "content": "made"}
		if json.Unmarshal(c.ask(object{"subtype": "can_use_tool", "tool_name": "Bash", "input": input, "tool_use_id": words[0]}), &verdict) == nil && verdict.Behavior == "deny" {
			result["content"], result["is_error"] = verdict.Message, true
		}
		c.keep("user", newID(), object{"role": "user", "content": []object{result}})
	case "await":
		for {
			if _, err := os.Stat(rest); err != nil {
				<-time.After(5 * time.Millisecond)
				continue
			}
			select {
			case m := <-c.prompts: // what was sent before the file was made may be on its way
				c.keep("user", m.UUID, object{"role": "user", "content": m.Message["content"]})
			case <-time.After(time.Second):
			}
			return true
		}
	case "cancelled":
		<-c.interrupted
		return false
	case "die":
		code, _ := strconv.Atoi(rest)
		os.Exit(code)
	}
	return true
}
