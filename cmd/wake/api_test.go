package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"code.wake.dev/wake/internal/agent/native/apitest"
)

// api FILE starts a Messages API for native agents, and sets the variables that name it. The
// file is a JSON object: what stands in the first message of a conversation, and the answers
// to it. An answer is a list of texts and of calls, {"id", "name", "input"}.
func startAPI(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: api FILE")
	}
	var file map[string][][]json.RawMessage
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &file))
	talks := talks{}
	for prompt, answers := range file {
		s := &apitest.Script{ByTurn: true}
		for _, blocks := range answers {
			reply, err := replyOf(blocks)
			ts.Check(err)
			s.Replies = append(s.Replies, reply)
		}
		talks[prompt] = s
	}
	server := httptest.NewServer(talks)
	ts.Defer(server.Close)
	ts.Setenv("ANTHROPIC_BASE_URL", server.URL)
	ts.Setenv("ANTHROPIC_API_KEY", "k")
}

func replyOf(blocks []json.RawMessage) (apitest.Reply, error) {
	var reply apitest.Reply
	for _, b := range blocks {
		var text string
		if json.Unmarshal(b, &text) == nil {
			reply.Blocks = append(reply.Blocks, apitest.Text(text))
			continue
		}
		var call struct {
			ID, Name string
			Input    json.RawMessage
		}
		if err := json.Unmarshal(b, &call); err != nil {
			return reply, fmt.Errorf("a block: %w", err)
		}
		reply.Blocks = append(reply.Blocks, apitest.Call(call.ID, call.Name, string(call.Input)))
	}
	return reply, nil
}

// talks are the scripts of conversations, by what stands in their first message.
type talks map[string]*apitest.Script

// ServeHTTP implements [http.Handler].
func (t talks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if r.Method == http.MethodGet {
		(&apitest.Script{}).ServeHTTP(w, r)
		return
	}
	first, err := firstMessage(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for prompt, s := range t {
		if strings.Contains(first, prompt) {
			s.ServeHTTP(w, r)
			return
		}
	}
	http.Error(w, "no answers to "+first, http.StatusBadRequest)
}

func firstMessage(request []byte) (string, error) {
	var q struct {
		Messages []struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(request, &q); err != nil {
		return "", err
	}
	if len(q.Messages) == 0 {
		return "", errors.New("no messages")
	}
	return string(q.Messages[0].Content), nil
}
