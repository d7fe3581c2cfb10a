package native

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// chatAPI is the chat completions API of OpenAI, which many servers speak. It is spoken
// by hand: what such servers have in common is small, and they differ in the rest.
type chatAPI struct {
	client    *http.Client
	base, key string
}

// modelLimits knows none: the API doesn't tell them.
func (a *chatAPI) modelLimits(context.Context, string) (limits, error) { return limits{}, nil }

func (a *chatAPI) streamAnswer(ctx context.Context, q modelQuestion, tell func(streamPiece) error) (modelAnswer, error) {
	body, err := json.Marshal(q.chatRequest())
	if err != nil {
		return modelAnswer{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return modelAnswer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if a.key != "" {
		request.Header.Set("Authorization", "Bearer "+a.key)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return modelAnswer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return modelAnswer{}, chatRefusal(response)
	}
	return readChat(response.Body, q.heard, tell)
}

// maxErrorBody bounds what is read of an answer that is an error.
const maxErrorBody = 64 << 10

func chatRefusal(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil {
		return err
	}
	var e struct {
		Error chatError
	}
	_ = json.Unmarshal(body, &e) // a proxy answers as it likes
	return newAPIError(response.StatusCode, e.Error.Type, cmp.Or(e.Error.Message, strings.TrimSpace(string(body)), response.Status), response.Header)
}

func (q modelQuestion) chatRequest() map[string]any {
	messages := []any{map[string]any{"role": "system", "content": q.system}}
	for _, m := range q.messages {
		messages = append(messages, m.chatMessages()...)
	}
	body := map[string]any{
		"model": q.model, "stream": true, "stream_options": map[string]any{"include_usage": true}, "messages": messages,
	}
	var tools []any
	for _, t := range q.tools {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": t.name, "description": t.description, "parameters": jsonOf(t.schema),
		}})
	}
	if tools != nil {
		body["tools"] = tools
	}
	if q.maxTokens > 0 {
		body["max_completion_tokens"] = q.maxTokens
	}
	if q.effort != "" {
		body["reasoning_effort"] = q.effort
	}
	if len(q.schema) > 0 {
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": "answer", "schema": jsonOf(q.schema),
		}}
	}
	return body
}

// chatMessages returns the messages of the chat API for one: results of calls are messages of
// their own. Thinking is left out, as the API doesn't take it back.
func (m message) chatMessages() []any {
	var out, calls []any
	var text []string
	for _, b := range m.blocks {
		switch b.TextAt("type") {
		case "text":
			text = append(text, b.TextAt("text"))
		case "tool_use":
			calls = append(calls, map[string]any{"id": b.TextAt("id"), "type": "function", "function": map[string]any{
				"name": b.TextAt("name"), "arguments": string(jsonOf(b.Get("input"))),
			}})
		case "tool_result":
			out = append(out, map[string]any{"role": "tool", "tool_call_id": b.TextAt("tool_use_id"), "content": resultText(b.Get("content"))})
		}
	}
	if len(text) == 0 && len(calls) == 0 {
		return out
	}
	own := map[string]any{"role": m.role, "content": strings.Join(text, "\n\n")}
	if calls != nil {
		own["tool_calls"] = calls
	}
	return append(out, own)
}

func resultText(content wire.Raw) string {
	if s, ok := content.Text(); ok {
		return s
	}
	var parts []string
	for _, b := range content.Items() {
		parts = append(parts, cmp.Or(b.TextAt("text"), "["+b.TextAt("type")+"]"))
	}
	return strings.Join(parts, "\n")
}

// chatChunk is an event of the stream.
type chatChunk struct {
	ID, Model string
	Choices   []struct {
		Delta struct {
			Content   string
			Refusal   string
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				Index    int
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *chatError
}

// chatError is why a stream breaks off: an object, or of some servers a text.
type chatError struct{ Type, Message string }

// UnmarshalJSON implements [json.Unmarshaler].
func (e *chatError) UnmarshalJSON(b []byte) error {
	type object chatError
	if json.Unmarshal(b, (*object)(e)) == nil {
		return nil
	}
	if json.Unmarshal(b, &e.Message) != nil {
		e.Message = string(b)
	}
	return nil
}

// chatMessage puts a streamed message together.
type chatMessage struct {
	answer modelAnswer
	text   strings.Builder
	calls  []streamBlock
}

// maxChunk bounds a line of the stream.
const maxChunk = 32 << 20

func readChat(body io.Reader, heard func(), tell func(streamPiece) error) (modelAnswer, error) {
	if err := tell(streamPiece{}); err != nil {
		return modelAnswer{}, err
	}
	var m chatMessage
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxChunk)
	for lines.Scan() {
		heard()
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if data = bytes.TrimSpace(data); !ok || len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			break
		}
		var c chatChunk
		if err := json.Unmarshal(data, &c); err != nil {
			return modelAnswer{}, fmt.Errorf("stream: %w", err)
		}
		if err := m.takeChunk(c, tell); err != nil {
			return modelAnswer{}, err
		}
	}
	if err := lines.Err(); err != nil {
		return modelAnswer{}, err
	}
	if m.answer.stop == "" {
		return modelAnswer{}, errBroken
	}
	return m.toAnswer(), nil
}

func (m *chatMessage) takeChunk(c chatChunk, tell func(streamPiece) error) error {
	if c.Error != nil {
		return newAPIError(http.StatusOK, c.Error.Type, cmp.Or(c.Error.Message, "the stream reports an error"), http.Header{})
	}
	m.answer.id, m.answer.model = cmp.Or(m.answer.id, c.ID), cmp.Or(m.answer.model, c.Model)
	if u := c.Usage; u != nil {
		m.answer.usage = wire.Usage{
			InputTokens: u.Prompt - u.Details.Cached, OutputTokens: u.Completion,
			CacheReadInputTokens: new(u.Details.Cached), ContextTokens: u.Prompt,
		}
	}
	if len(c.Choices) == 0 {
		return nil
	}
	choice := c.Choices[0]
	if choice.FinishReason != "" {
		m.answer.stop = chatStop(choice.FinishReason)
	}
	for _, t := range choice.Delta.ToolCalls {
		m.growCall(t.Index, t.ID, t.Function.Name, t.Function.Arguments)
	}
	if choice.Delta.Refusal != "" {
		m.answer.stop = stopRefusal
	}
	m.text.WriteString(choice.Delta.Content + choice.Delta.Refusal)
	if s := choice.Delta.Reasoning; s != "" {
		if err := tell(streamPiece{block: 0, thinking: true, text: s}); err != nil {
			return err
		}
	}
	if s := choice.Delta.Content + choice.Delta.Refusal; s != "" {
		return tell(streamPiece{block: 1, text: s})
	}
	return nil
}

func (m *chatMessage) growCall(index int, id, name, input string) {
	for i, c := range slices.Backward(m.calls) {
		if c.index == int64(index) && (id == "" || id == c.id) { // some servers give all calls the same index
			m.calls[i].input = append(m.calls[i].input, input...)
			return
		}
	}
	m.calls = append(m.calls, streamBlock{index: int64(index), id: cmp.Or(id, fmt.Sprintf("%s-%d", m.answer.id, index)), name: name, input: []byte(input)})
}

func chatStop(reason string) string {
	switch reason {
	case "length":
		return stopLength
	case "tool_calls", "function_call":
		return stopTools
	case "content_filter":
		return stopRefusal
	}
	return stopEnd
}

func (m *chatMessage) toAnswer() modelAnswer {
	a := m.answer
	if strings.TrimSpace(m.text.String()) != "" {
		a.blocks = append(a.blocks, textBlock(toValidUTF8(m.text.String())))
	}
	for _, c := range m.calls {
		a.blocks = append(a.blocks, toolUse(c.id, c.name, string(c.input)))
	}
	a.blocks = dropCutCall(a.stop, a.blocks)
	a.usage.Model, a.usage.StopReason = a.model, a.stop // without the id: not every server has a new one for each answer
	return a
}
