package kill_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"code.wake.dev/wake/internal/agent/native/apitest"
)

// This is a model behind the APIs that agents' programs speak: Anthropic's Messages, OpenAI's Responses and Gemini's. It thinks nothing: it does
// what its prompt says, a line at a time.
//
//	$ make test                      the shell, by whatever name the agent has a tool for that
//	@notify_parent {"message":"x"}   a tool whose name ends so, with its input
//
// After the last of them it says [ModelDone]. What it has done is in the conversation that it is sent: a line counts as done once a call, or a text
// of the user that isn't such a line, names it. So an agent that goes on with its session after its death, or in another process, goes on where
// it was, and doesn't repeat a call that it is told ended in an unknown way.

// ModelDone is what the model says at the end.
const ModelDone = "All of it is done."

// ModelAPI serves the three APIs.
type ModelAPI struct {
	*httptest.Server

	mu       sync.Mutex
	requests []ModelRequest
}

// ModelRequest is what an agent has asked the model.
type ModelRequest struct {
	Path string
	Said string // the newest text of the user
	Next string // the line that was next; "": none
}

// NewModelAPI starts one on loopback, which ends with the test.
func NewModelAPI(t *testing.T) *ModelAPI {
	t.Helper()
	a := new(ModelAPI)
	a.Server = httptest.NewServer(http.HandlerFunc(a.answer))
	t.Cleanup(a.CloseClientConnections) // before it closes, which waits for them
	t.Cleanup(a.Close)
	return a
}

// Requests returns what was asked so far.
func (a *ModelAPI) Requests() []ModelRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]ModelRequest(nil), a.requests...)
}

// dialect is how an API says it.
type dialect struct {
	read  func(body []byte) (conversation, error)
	write func(w http.ResponseWriter, r *http.Request, text string, c *call)
}

func (a *ModelAPI) answer(w http.ResponseWriter, r *http.Request) {
	d, ok := dialectOf(r.URL.Path)
	if !ok || r.Method != http.MethodPost {
		http.Error(w, `{"error":{"message":"the model has no such address","type":"not_found_error"}}`, http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it is gone
	}
	c, err := d.read(body)
	if err != nil {
		http.Error(w, `{"error":{"message":"the model can't read this","type":"invalid_request_error"}}`, http.StatusBadRequest)
		return
	}
	line, next := c.next()
	a.mu.Lock()
	a.requests = append(a.requests, ModelRequest{r.URL.Path, c.said, line})
	n := len(a.requests)
	a.mu.Unlock()
	if next == nil {
		d.write(w, r, ModelDone, nil)
		return
	}
	next.id = fmt.Sprintf("call_%d", n)
	d.write(w, r, "Now "+line, next)
}

func dialectOf(path string) (dialect, bool) {
	switch {
	case strings.HasSuffix(path, "/messages"):
		return dialect{readMessages, writeMessage}, true
	case strings.HasSuffix(path, "/responses"):
		return dialect{readResponses, writeResponse}, true
	case strings.HasSuffix(path, ":streamGenerateContent"), strings.HasSuffix(path, ":generateContent"):
		return dialect{readContents, writeContent}, true
	}
	return dialect{}, false
}

// conversation is what a request tells.
type conversation struct {
	tools []string // by name
	lines []string // of the newest prompt that says what to do
	told  []string // what else was said, and called
	said  string   // the newest text of the user
}

func (c *conversation) addText(text string) {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "@") {
			lines = append(lines, line)
		} else {
			c.told = append(c.told, line)
		}
	}
	if c.said = text; len(lines) > 0 {
		c.lines = lines
	}
}

func (c *conversation) addCall(name string, input json.RawMessage) {
	var arguments any
	if json.Unmarshal(input, &arguments) == nil {
		c.told = append(c.told, name+" "+textsOf(arguments))
	}
}

// textsOf are the texts of a value. OpenAI's arguments are JSON in a text.
func textsOf(v any) string {
	var texts []string
	switch v := v.(type) {
	case string:
		var inner map[string]any
		if json.Unmarshal([]byte(v), &inner) != nil {
			return v
		}
		return textsOf(inner)
	case []any:
		for _, item := range v {
			texts = append(texts, textsOf(item))
		}
	case map[string]any:
		for _, field := range v {
			texts = append(texts, textsOf(field))
		}
	}
	return strings.Join(texts, " ")
}

// call is one that the model makes.
type call struct {
	id, name string
	input    map[string]any
}

// next is the first line that isn't done, and its call; nil: there is none, or the agent has no tool for it.
func (c *conversation) next() (string, *call) {
	for _, line := range c.lines {
		command, isCommand := strings.CutPrefix(line, "$ ")
		if !isCommand {
			command, _, _ = strings.Cut(line[1:], " ")
		}
		if slices.ContainsFunc(c.told, func(s string) bool { return strings.Contains(s, command) }) {
			continue
		}
		if isCommand {
			return line, c.shell(command)
		}
		return line, c.toolCall(command, line)
	}
	return "", nil
}

// toolCall is a call of the tool whose name ends so.
func (c *conversation) toolCall(name, line string) *call {
	var input map[string]any
	if _, text, _ := strings.Cut(line, " "); json.Unmarshal([]byte(text), &input) != nil {
		return nil
	}
	for _, tool := range c.tools {
		if strings.HasSuffix(tool, name) {
			return &call{name: tool, input: input}
		}
	}
	return nil
}

// shell is a call of the agent's shell.
func (c *conversation) shell(command string) *call {
	const why = "what the prompt says"
	for _, tool := range c.tools {
		switch tool {
		case "Bash", "bash", "run_shell_command":
			return &call{name: tool, input: map[string]any{"command": command, "description": why}}
		case "exec_command":
			return &call{name: tool, input: map[string]any{"cmd": command}}
		case "shell_command":
			return &call{name: tool, input: map[string]any{"command": command}}
		case "shell":
			return &call{name: tool, input: map[string]any{"command": []string{"sh", "-c", command}}}
		}
	}
	return nil
}

// part is a piece of a message as the APIs have it, more or less.
type part struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Name      string          `json:"name"`
	Text      string          `json:"text"`
	Content   json.RawMessage `json:"content"`
	Input     json.RawMessage `json:"input"`
	Arguments json.RawMessage `json:"arguments"`
	Parts     []part          `json:"parts"`
	Tools     []part          `json:"tools"` // of a namespace
	Call      *struct {
		Name string
		Args json.RawMessage
	} `json:"functionCall"`
}

// partsOf are the pieces of a content, which may be a text.
func partsOf(content json.RawMessage) []part {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []part{{Type: "text", Text: text}}
	}
	var parts []part
	_ = json.Unmarshal(content, &parts) // what is none says nothing
	return parts
}

func readMessages(body []byte) (c conversation, err error) {
	var r struct{ Messages, Tools []part }
	if err := json.Unmarshal(body, &r); err != nil {
		return c, err
	}
	for _, t := range r.Tools {
		c.tools = append(c.tools, t.Name)
	}
	for _, m := range r.Messages {
		for _, p := range partsOf(m.Content) {
			switch {
			case m.Role == "user" && p.Type == "text":
				c.addText(p.Text)
			case p.Type == "tool_use":
				c.addCall(p.Name, p.Input)
			}
		}
	}
	return c, nil
}

func writeMessage(w http.ResponseWriter, r *http.Request, text string, c *call) {
	blocks := []apitest.Block{apitest.Text(text)}
	if c != nil {
		blocks = append(blocks, apitest.Call("toolu_"+c.id, c.name, string(mustMarshal(c.input))))
	}
	(&apitest.Script{Replies: []apitest.Reply{apitest.Message(blocks...)}}).ServeHTTP(w, r)
}

func readResponses(body []byte) (c conversation, err error) {
	var r struct{ Input, Tools []part }
	if err := json.Unmarshal(body, &r); err != nil {
		return c, err
	}
	for _, t := range r.Tools {
		c.tools = append(c.tools, t.Name)
		for _, inner := range t.Tools {
			c.tools = append(c.tools, t.Name+"/"+inner.Name)
		}
	}
	for _, item := range r.Input {
		switch {
		case item.Type == "function_call":
			c.addCall(item.Name, item.Arguments)
		case item.Role == "user":
			for _, p := range partsOf(item.Content) {
				c.addText(p.Text)
			}
		}
	}
	return c, nil
}

func writeResponse(w http.ResponseWriter, _ *http.Request, text string, c *call) {
	w.Header().Set("Content-Type", "text/event-stream")
	id := "resp_1"
	send := func(kind string, fields map[string]any) {
		fields["type"] = kind
		_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, mustMarshal(fields)) // it may be gone
	}
	items := []map[string]any{{
		"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": text, "annotations": []any{}}},
	}}
	if c != nil {
		item := map[string]any{
			"type": "function_call", "id": "fc_" + c.id, "call_id": c.id, "name": c.name, "arguments": string(mustMarshal(c.input)), "status": "completed",
		}
		if space, name, inner := strings.Cut(c.name, "/"); inner {
			item["namespace"], item["name"] = space, name
		}
		items = append(items, item)
	}
	send("response.created", map[string]any{"response": map[string]any{"id": id, "status": "in_progress"}})
	for i, item := range items {
		send("response.output_item.added", map[string]any{"output_index": i, "item": item})
		send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	send("response.completed", map[string]any{"response": map[string]any{"id": id, "status": "completed", "output": items, "usage": map[string]any{
		"input_tokens": 100, "input_tokens_details": map[string]any{"cached_tokens": 40}, "output_tokens": 10,
		"output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": 110,
	}}})
}

func readContents(body []byte) (c conversation, err error) {
	var r struct {
		Contents []part
		Tools    []struct{ FunctionDeclarations []part }
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return c, err
	}
	for _, t := range r.Tools {
		for _, f := range t.FunctionDeclarations {
			c.tools = append(c.tools, f.Name)
		}
	}
	for _, m := range r.Contents {
		for _, p := range m.Parts {
			switch {
			case p.Call != nil:
				c.addCall(p.Call.Name, p.Call.Args)
			case m.Role == "user" && p.Text != "":
				c.addText(p.Text)
			}
		}
	}
	return c, nil
}

func writeContent(w http.ResponseWriter, r *http.Request, text string, c *call) {
	parts := []any{map[string]any{"text": text}}
	if c != nil {
		parts = append(parts, map[string]any{"functionCall": map[string]any{"id": c.id, "name": c.name, "args": c.input}})
	}
	answer := mustMarshal(map[string]any{
		"candidates":    []any{map[string]any{"index": 0, "finishReason": "STOP", "content": map[string]any{"role": "model", "parts": parts}}},
		"usageMetadata": map[string]any{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}, "modelVersion": "scripted",
	})
	if !strings.HasSuffix(r.URL.Path, ":streamGenerateContent") {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // it may be gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, "data: %s\n\n", answer) // it may be gone
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps and texts
	}
	return b
}
