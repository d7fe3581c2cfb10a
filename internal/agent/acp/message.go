package acp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/pkg/wire"
)

// rpcMessage is a line of JSON-RPC 2.0, of either side: a request, a notification or a response.
type rpcMessage struct {
	JSONRPC string            `json:"jsonrpc"`
	ID      json.RawMessage   `json:"id,omitempty"`
	Method  string            `json:"method,omitempty"`
	Params  json.RawMessage   `json:"params,omitempty"`
	Result  json.RawMessage   `json:"result,omitempty"`
	Error   *acp.RequestError `json:"error,omitempty"`
}

// parseMessage reads a line. An id is a number or a text.
func parseMessage(line []byte) (m rpcMessage, err error) {
	if err := json.Unmarshal(line, &m); err != nil {
		return m, err
	}
	if bytes.Equal(m.ID, []byte("null")) {
		m.ID = nil
	}
	if len(m.ID) > 0 && (m.ID[0] == '{' || m.ID[0] == '[' || m.ID[0] == 't' || m.ID[0] == 'f') {
		return m, errors.New("the id is no number and no text")
	}
	if m.Method == "" && len(m.ID) == 0 {
		return m, errors.New("it has neither a method nor an id")
	}
	return m, nil
}

func (m rpcMessage) isRequest() bool  { return m.Method != "" && len(m.ID) > 0 }
func (m rpcMessage) isResponse() bool { return m.Method == "" }

// number returns the id of a response as that of a request of ours; 0 if it is none.
func (m rpcMessage) number() int64 {
	n, _ := strconv.ParseInt(string(m.ID), 10, 64)
	return n
}

// resultOf is the response to a request.
func resultOf(id json.RawMessage, result any) rpcMessage {
	b, err := json.Marshal(result)
	if err != nil {
		return failureOf(id, acp.NewInternalError(err.Error()))
	}
	return rpcMessage{JSONRPC: "2.0", ID: id, Result: b}
}

func failureOf(id json.RawMessage, problem *acp.RequestError) rpcMessage {
	return rpcMessage{JSONRPC: "2.0", ID: id, Error: problem}
}

// requestError makes an error one that the agent is told.
func requestError(err error) *acp.RequestError {
	if e, is := errors.AsType[*acp.RequestError](err); is {
		return e
	}
	return &acp.RequestError{Code: invalidParams, Message: err.Error()}
}

// The codes of errors that matter here.
const (
	invalidParams = -32602
	authRequired  = -32000
)

// errorText is what an error says, with its details.
func errorText(e *acp.RequestError) string {
	text := e.Message
	switch data := e.Data.(type) {
	case nil:
	case string:
		text += ": " + data
	default:
		if b, err := json.Marshal(data); err == nil && !bytes.Equal(b, []byte("{}")) {
			text += ": " + string(b)
		}
	}
	text = cmp.Or(text, "error "+strconv.Itoa(e.Code))
	return toValidUTF8(text)
}

// isEmpty reports whether a value says nothing: it is absent, null, or an empty object, list or text.
func isEmpty(r wire.Raw) bool {
	if len(r) == 0 {
		return true
	}
	switch v := r.Any().(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	case string:
		return v == ""
	}
	return false
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
