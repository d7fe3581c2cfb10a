// Package apitest is a Messages API that answers as a test tells it to: over HTTP as a
// handler, or without a network as the transport of a client, which fake time needs.
package apitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Reply is the answer to one request. The zero value is a message without content.
type Reply struct {
	Status int         // 0: 200
	Header http.Header // besides the content type
	Kind   string      // error type of an answer with a status, or of an error within the stream
	Blocks []Block
	Stop   string // default tool_use if a block is a call, else end_turn
	Cut    bool   // the stream ends before the message does
	Hang   bool   // likewise, but the connection stays open
	Input  int64  // tokens; default 100; -1: none are told
	Output int64  // tokens; default 10; likewise
}

// Block is a content block.
type Block struct{ kind, id, name, text string }

// Text is a block of text.
func Text(s string) Block { return Block{kind: "text", text: s} }

// Thinking is a block of thinking.
func Thinking(s string) Block { return Block{kind: "thinking", text: s} }

// Call is a tool call. Its input is streamed as it is, valid JSON or not.
func Call(id, name, input string) Block {
	return Block{kind: "tool_use", id: id, name: name, text: input}
}

// Message is a reply with content.
func Message(blocks ...Block) Reply { return Reply{Blocks: blocks} }

// Failure is a reply with a status.
func Failure(status int, kind string) Reply { return Reply{Status: status, Kind: kind} }

// Script answers requests for messages in the order of its replies, and those for a
// model with its limits. What it has no reply for is answered by status 400.
type Script struct {
	Window  int64 // of every model; 0: the API doesn't say
	Replies []Reply
	// ByTurn has the n-th reply answer every request with n-1 messages of the model.
	ByTurn bool

	mu       sync.Mutex
	requests [][]byte
}

// Requests returns the bodies of the requests for messages so far.
func (s *Script) Requests() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte(nil), s.requests...)
}

// Client returns a client that reaches nothing but the script.
func (s *Script) Client() *http.Client { return &http.Client{Transport: s} }

// RoundTrip implements [http.RoundTripper].
func (s *Script) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, n, err := s.nextReply(r)
	if err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	if reply == nil {
		s.answerLimits(w, r)
		return w.Result(), nil
	}
	reply.writeTo(w, n)
	response := w.Result()
	response.Request = r
	switch {
	case reply.Hang:
		response.Body = &broken{Reader: response.Body, ctx: r.Context}
	case reply.Cut:
		response.Body = &broken{Reader: response.Body}
	}
	return response, nil
}

// broken is a body that breaks off at its end, or hangs there until its request is
// given up.
type broken struct {
	io.Reader

	ctx func() context.Context
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if n > 0 || err == nil {
		return n, nil
	}
	if b.ctx == nil {
		return 0, io.ErrUnexpectedEOF
	}
	<-b.ctx().Done()
	return 0, b.ctx().Err()
}

// Close implements [io.Closer].
func (b *broken) Close() error { return nil }

// ServeHTTP implements [http.Handler].
func (s *Script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply, n, err := s.nextReply(r)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case reply == nil:
		s.answerLimits(w, r)
	default:
		reply.writeTo(w, n)
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		if reply.Hang {
			<-r.Context().Done()
		}
		if reply.Cut {
			panic(http.ErrAbortHandler)
		}
	}
}

// nextReply takes the reply to a request, and its number from 1; nil to one that isn't for a
// message.
func (s *Script) nextReply(r *http.Request) (*Reply, int, error) {
	if r.Method == http.MethodGet {
		return nil, 0, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, body)
	n := len(s.requests)
	if s.ByTurn {
		n = bytes.Count(body, []byte(`"role":"assistant"`)) + 1
	}
	if n > len(s.Replies) {
		return &Reply{Status: http.StatusBadRequest, Kind: "invalid_request_error"}, n, nil
	}
	return &s.Replies[n-1], n, nil
}

// answerLimits answers the question for a model.
func (s *Script) answerLimits(w http.ResponseWriter, r *http.Request) {
	if s.Window == 0 {
		http.Error(w, `{"type":"error","error":{"type":"not_found_error","message":"no such model"}}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "model", "id": name, "max_input_tokens": s.Window, "max_tokens": 64_000})
}

// writeTo writes the reply, the n-th of its script.
func (r *Reply) writeTo(w http.ResponseWriter, n int) {
	maps.Copy(w.Header(), r.Header)
	if r.Status != 0 && r.Status != http.StatusOK {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(r.Status)
		_, _ = fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":"the script says so"}}`, r.Kind)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	var b bytes.Buffer
	r.writeStream(&b, n)
	_, _ = w.Write(b.Bytes())
}

func (r *Reply) writeStream(b *bytes.Buffer, n int) {
	input, output := r.Input, r.Output
	input = cmp.Or(input, 100)
	output = cmp.Or(output, 10)
	told := int64(1)
	if input, output = max(0, input), max(0, output); output == 0 {
		told = 0
	}
	writeEvent(b, "message_start", map[string]any{"message": map[string]any{
		"id": fmt.Sprintf("msg_%d", n), "type": "message", "role": "assistant", "model": "scripted", "content": []any{},
		"usage": map[string]any{"input_tokens": input, "output_tokens": told},
	}})
	stop := "end_turn"
	for i, block := range r.Blocks {
		block.writeBlock(b, i)
		if block.kind == "tool_use" {
			stop = "tool_use"
		}
	}
	if r.Stop != "" {
		stop = r.Stop
	}
	switch {
	case r.Cut || r.Hang:
	case r.Kind != "":
		writeEvent(b, "error", map[string]any{"error": map[string]any{"type": r.Kind, "message": "the script says so"}})
	default:
		writeEvent(b, "message_delta", map[string]any{
			"delta": map[string]any{"stop_reason": stop}, "usage": map[string]any{"output_tokens": output},
		})
		writeEvent(b, "message_stop", map[string]any{})
	}
}

// writeBlock writes a block in two pieces.
func (k Block) writeBlock(b *bytes.Buffer, i int) {
	start := map[string]any{"type": k.kind, "text": ""}
	delta, field := "text_delta", "text"
	switch k.kind {
	case "thinking":
		start = map[string]any{"type": k.kind, "thinking": "", "signature": ""}
		delta, field = "thinking_delta", "thinking"
	case "tool_use":
		start = map[string]any{"type": k.kind, "id": k.id, "name": k.name, "input": map[string]any{}}
		delta, field = "input_json_delta", "partial_json"
	}
	writeEvent(b, "content_block_start", map[string]any{"index": i, "content_block": start})
	half := len(k.text) / 2
	for _, text := range []string{k.text[:half], k.text[half:]} {
		if text != "" {
			writeEvent(b, "content_block_delta", map[string]any{"index": i, "delta": map[string]any{"type": delta, field: text}})
		}
	}
	if k.kind == "thinking" {
		writeEvent(b, "content_block_delta", map[string]any{"index": i, "delta": map[string]any{"type": "signature_delta", "signature": "signed"}})
	}
	writeEvent(b, "content_block_stop", map[string]any{"index": i})
}

func writeEvent(b *bytes.Buffer, name string, fields map[string]any) {
	fields["type"] = name
	data, _ := json.Marshal(fields) // of maps and texts
	_, _ = fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, data)
}
