// Command fakeclaude stands in for the Claude Code CLI where an agent must be
// slow, countable and free of charge. It speaks the part of the CLI's
// stream-json protocol that wake uses: init, streamed text, tool calls with the
// PreToolUse hook, results, interruptions, injected messages. Its session files
// are where the CLI's are and look like them.
//
// The prompt is its script: "… calls=3 ms=200 ledger=DIR …". Per call it says
// something, asks the hook and then works: the work of call n appends
//
//	begin SESSION n CALLID TIME
//	end SESSION n CALLID TIME
//
// to DIR/tools, time in Unix nanoseconds. A session that is resumed goes on behind the last call with a result.
// One without a result is dropped, as the CLI does it, so the work is done again,
// unless the prompt tells that it may have been done: that is the difference which
// the log has to make. "repeat SESSION n" in the ledger is such a repetition.
package main

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	c, err := parse(os.Args[1:])
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// claude is one process.
type claude struct {
	session      string
	resume, fork string // session to go on with, to copy
	at           string // last message of the copy

	path string // session file
	out  *bufio.Writer
	in   chan inputLine
	told map[string]bool // answers to hooks

	interrupted bool
	prompt      string
	calls, done int
	pending     bool   // the last call has no result
	last, work  string // id and work of the last call
	heard       string // what the user said since
	pause       time.Duration
	ledger      string
	script      string // the session's first prompt
	turns       int
}

type object = map[string]any

// inputLine is a line of standard input.
type inputLine struct {
	Type    string `json:"type"`
	UUID    string `json:"uuid"`
	Message struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	RequestID string `json:"request_id"`
	Request   struct {
		Subtype string `json:"subtype"`
	} `json:"request"`
	Response struct {
		RequestID string `json:"request_id"`
	} `json:"response"`
}

func parse(args []string) (*claude, error) {
	c := &claude{out: bufio.NewWriter(os.Stdout), in: make(chan inputLine), told: make(map[string]bool)}
	resume, fork := "", false
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--session-id":
			c.session = value
		case "--resume":
			resume = value
		case "--fork-session":
			fork = true
		case "--resume-session-at":
			c.at = value
		}
	}
	if fork {
		c.fork = resume
	} else {
		c.resume = resume
		c.session = cmp.Or(c.session, resume)
	}
	if c.session == "" {
		return nil, errors.New("fakeclaude: no session")
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(configDir(), "projects", regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(cwd, "-"))
	c.path = filepath.Join(dir, c.session+".jsonl")
	return c, os.MkdirAll(dir, 0o700)
}

func configDir() string {
	if dir := os.Getenv("CLAUDE_CONFIG_DIR"); dir != "" { //nolint:forbidigo // the CLI's own setting
		return dir
	}
	return filepath.Join(os.Getenv("HOME"), ".claude") //nolint:forbidigo // as above
}

// run says what there is to say, call by call.
func (c *claude) run() error {
	if err := c.open(); err != nil {
		return err
	}
	go c.read()
	c.hear(func() bool { return c.prompt != "" })
	c.script = cmp.Or(c.script, c.prompt)
	if err := c.understand(); err != nil {
		return err
	}
	c.print(object{
		"type": "system", "subtype": "init", "cwd": filepath.Dir(c.path), "session_id": c.session, "tools": []string{"Work"},
		"mcp_servers": []any{}, "model": "fake-1", "permissionMode": "bypassPermissions", "claude_code_version": "2.1.197", "uuid": id(""),
	})
	for c.done < c.calls && !c.interrupted {
		if err := c.call(c.done + 1); err != nil {
			return err
		}
	}
	if !c.interrupted {
		c.say("All done.", nil)
	}
	c.result()
	c.hear(func() bool { return false }) // until the input is closed
	return nil
}

// open reads the session that is resumed or copied; a new one must not be there.
func (c *claude) open() error {
	source := c.path
	if c.fork != "" {
		source = filepath.Join(filepath.Dir(c.path), c.fork+".jsonl")
	}
	data, err := os.ReadFile(source)
	switch {
	case c.resume == "" && c.fork == "" && err == nil:
		return fmt.Errorf("Error: Session ID %s is already in use.", c.session) //nolint:revive,staticcheck // as the CLI says it
	case c.resume == "" && c.fork == "":
		return nil
	case err != nil:
		c.print(object{
			"type": "result", "subtype": "error_during_execution", "is_error": true, "num_turns": 0, "session_id": c.session, "duration_ms": 0,
			"errors": []string{"No conversation found with session ID: " + cmp.Or(c.resume, c.fork)}, "usage": object{}, "modelUsage": object{}, "uuid": id(""),
		})
		os.Exit(1)
	}
	return c.load(data)
}

// contentBlock is a content block of a message in a session file.
type contentBlock struct {
	Type, Text, ID string
	ToolUseID      string `json:"tool_use_id"`
	Input          struct{ Work string }
}

// load takes in a session file.
func (c *claude) load(data []byte) error {
	var kept []string
	for line := range strings.Lines(string(data)) {
		var m struct {
			Type, UUID string
			Message    struct{ Content json.RawMessage }
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			break // it was cut by a crash
		}
		kept = append(kept, line)
		var blocks []contentBlock
		_ = json.Unmarshal(m.Message.Content, &blocks) // some lines have none
		for _, b := range blocks {
			c.remember(m.Type, b)
		}
		if c.fork != "" && m.UUID == c.at {
			break
		}
	}
	if c.fork == "" {
		return nil
	}
	return os.WriteFile(c.path, []byte(strings.Join(kept, "")), 0o600)
}

// remember takes in a block: a text of the user, a call, a result. A call without a result is pending.
func (c *claude) remember(role string, b contentBlock) {
	switch {
	case role == "user" && b.Type == "text":
		c.script = cmp.Or(c.script, b.Text)
		c.heard += "\n" + b.Text
	case b.Type == "tool_use":
		n, err := strconv.Atoi(b.Input.Work[strings.LastIndexByte(b.Input.Work, '-')+1:])
		if err != nil {
			return
		}
		c.last = b.ID
		c.done, c.pending, c.work, c.heard = n-1, true, b.Input.Work, ""
	case b.Type == "tool_result" && c.pending && b.ToolUseID == c.last:
		c.done, c.pending = c.done+1, false
	}
}

// understand reads the script, and what the user has told of calls of unknown outcome.
func (c *claude) understand() error {
	var ms int
	for field := range strings.FieldsSeq(c.script) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "calls":
			c.calls, _ = strconv.Atoi(value)
		case "ms":
			ms, _ = strconv.Atoi(value)
		case "ledger":
			c.ledger = value
		}
	}
	if c.ledger == "" || c.calls == 0 || ms == 0 {
		return fmt.Errorf("fakeclaude: no script in the prompt %q", c.script)
	}
	c.pause = time.Duration(ms) * time.Millisecond
	if c.resume == "" && c.fork == "" {
		return nil
	}
	told, owner := 0, cmp.Or(c.work[:max(0, strings.LastIndexByte(c.work, '-'))], c.session) // of a copied session
	for mayHaveBegun(c.heard+"\n"+c.prompt, fmt.Sprintf("%s-%d", owner, c.done+told+1)) {
		told++ // calls that the file may not know
	}
	if err := c.note(fmt.Sprintf("resume %s done=%d pending=%t told=%d %q\n", c.session, c.done, c.pending, told, c.prompt)); err != nil {
		return err
	}
	if c.done += told; told == 0 && c.pending {
		return c.note(fmt.Sprintf("repeat %s %d\n", c.session, c.done+1))
	}
	return nil
}

// mayHaveBegun reports whether a text says of a work that it may have been
// begun.
func mayHaveBegun(text, work string) bool {
	_, about, ok := strings.Cut(text, `"`+work+`"`)
	about, _, _ = strings.Cut(about, "\n- ")
	return ok && !strings.Contains(about, "has not been executed")
}

// call says something and then works.
func (c *claude) call(n int) error {
	call := id("toolu_")
	input := object{"work": fmt.Sprintf("%s-%d", c.session, n)}
	c.say(fmt.Sprintf("Now the work number %d of %d.", n, c.calls), object{"type": "tool_use", "id": call, "name": "Work", "input": input})
	if c.interrupted {
		return nil
	}
	request := id("")
	c.print(object{"type": "control_request", "request_id": request, "request": object{
		"subtype": "hook_callback", "callback_id": "pre", "tool_use_id": call,
		"input": object{"hook_event_name": "PreToolUse", "session_id": c.session, "tool_name": "Work", "tool_input": input, "tool_use_id": call, "permission_mode": "bypassPermissions"},
	}})
	if !c.hear(func() bool { return c.told[request] }) && !c.interrupted {
		os.Exit(1) // the driver is gone, which would allow it
	}
	content, failed := "worked", false
	if !c.interrupted {
		if err := c.line("begin", n, call); err != nil {
			return err
		}
		c.sleep(2 * c.pause)
		if err := c.line("end", n, call); err != nil {
			return err
		}
		c.done++
	}
	if c.interrupted {
		content, failed = "The user doesn't want to proceed with this tool use.", true
	}
	c.keep("user", object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": call, "content": content, "is_error": failed}}}, true)
	return nil
}

func (c *claude) line(what string, n int, call string) error {
	return c.note(fmt.Sprintf("%s %s %d %s %d\n", what, c.session, n, call, time.Now().UnixNano()))
}

// note appends a line to the ledger.
func (c *claude) note(line string) error {
	f, err := os.OpenFile(filepath.Join(c.ledger, "tools"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// say streams a message of the model: a text and perhaps a call.
func (c *claude) say(text string, call object) {
	c.turns++
	message := object{
		"id": id("msg_"), "type": "message", "role": "assistant", "model": "fake-1", "content": []any{}, "stop_reason": nil,
		"usage": object{"input_tokens": 10, "output_tokens": 1},
	}
	c.event(object{"type": "message_start", "message": message})
	c.event(object{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}})
	for piece := range strings.SplitAfterSeq(text, " ") {
		c.event(object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": piece}})
		c.sleep(c.pause / 8)
		if c.interrupted {
			return
		}
	}
	c.whole(message, object{"type": "text", "text": text})
	c.event(object{"type": "content_block_stop", "index": 0})
	stop := "end_turn"
	if call != nil {
		stop = "tool_use"
		c.event(object{"type": "content_block_start", "index": 1, "content_block": object{"type": "tool_use", "id": call["id"], "name": call["name"], "input": object{}}})
		input, _ := json.Marshal(call["input"])
		c.event(object{"type": "content_block_delta", "index": 1, "delta": object{"type": "input_json_delta", "partial_json": string(input)}})
		c.whole(message, call)
		c.event(object{"type": "content_block_stop", "index": 1})
	}
	c.event(object{
		"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil},
		"usage": object{"input_tokens": 10, "output_tokens": 20},
	})
	c.event(object{"type": "message_stop"})
}

// whole prints and keeps a whole block of a message.
func (c *claude) whole(message, block object) {
	m := object{}
	maps.Copy(m, message)
	m["content"] = []any{block}
	c.keep("assistant", m, true)
}

// keep adds a message to the session file and prints it.
func (c *claude) keep(typ string, m object, shown bool) {
	uuid := id("")
	line, err := json.Marshal(object{
		"type": typ, "message": m, "uuid": uuid, "sessionId": c.session, "isSidechain": false,
		"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": "2.1.197",
	})
	if err == nil {
		err = c.appendLine(line)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if shown {
		c.print(object{"type": typ, "message": m, "parent_tool_use_id": nil, "session_id": c.session, "uuid": uuid})
	}
}

func (c *claude) appendLine(line []byte) error {
	f, err := os.OpenFile(c.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

func (c *claude) result() {
	r := object{
		"type": "result", "subtype": "success", "is_error": false, "duration_ms": 1, "duration_api_ms": 1, "num_turns": c.turns,
		"result": "All done.", "stop_reason": "end_turn", "session_id": c.session, "total_cost_usd": 0.001,
		"usage": object{"input_tokens": 10 * c.turns, "output_tokens": 20 * c.turns}, "modelUsage": object{},
		"permission_denials": []any{}, "terminal_reason": "completed", "uuid": id(""),
	}
	if c.interrupted {
		r["subtype"], r["is_error"], r["terminal_reason"] = "error_during_execution", true, "aborted_streaming"
		delete(r, "result")
	}
	c.print(r)
}

func (c *claude) event(e object) {
	c.print(object{"type": "stream_event", "event": e, "session_id": c.session, "parent_tool_use_id": nil, "uuid": id("")})
}

// print writes a line. Without a reader the program ends, as by SIGPIPE.
func (c *claude) print(v object) {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = c.out.Write(append(line, '\n'))
	}
	if err = errors.Join(err, c.out.Flush()); err != nil {
		os.Exit(1)
	}
}

// read reads the input until it is closed.
func (c *claude) read() {
	defer close(c.in)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		var m inputLine
		if json.Unmarshal(line, &m) == nil {
			c.in <- m
		}
		if err != nil {
			return
		}
	}
}

// hear takes input until something is so. It returns false if the agent is
// interrupted before, or the input has ended.
func (c *claude) hear(so func() bool) bool {
	for !so() && !c.interrupted {
		m, open := <-c.in
		if !open {
			return false
		}
		c.take(m)
	}
	return so()
}

// sleep takes input meanwhile; an interruption ends it.
func (c *claude) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	in := c.in
	for !c.interrupted {
		select {
		case m, open := <-in:
			if !open {
				in = nil // it goes on for as long as it can
				continue
			}
			c.take(m)
		case <-timer.C:
			return
		}
	}
}

func (c *claude) take(m inputLine) {
	switch m.Type {
	case "user":
		text := textOf(m.Message.Content)
		c.prompt = cmp.Or(c.prompt, text)
		content := []any{object{"type": "text", "text": text}}
		c.keep("user", object{"role": "user", "content": content}, false)
		c.print(object{
			"type": "user", "message": object{"role": "user", "content": content}, "session_id": c.session,
			"parent_tool_use_id": nil, "uuid": m.UUID, "isReplay": true,
		})
	case "control_response":
		c.told[m.Response.RequestID] = true
	case "control_request":
		c.interrupted = c.interrupted || m.Request.Subtype == "interrupt"
		c.print(object{"type": "control_response", "response": object{"subtype": "success", "request_id": m.RequestID, "response": object{}}})
	}
}

func textOf(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var blocks []struct{ Text string }
	_ = json.Unmarshal(content, &blocks) // what isn't text says nothing
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	return strings.Join(texts, "\n")
}

// id returns a UUID, or a random id with a prefix.
func id(prefix string) string {
	var b [16]byte
	_, _ = io.ReadFull(rand.Reader, b[:]) // never fails
	if prefix != "" {
		return fmt.Sprintf("%s01%x", prefix, b[:11])
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
