package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"wake/pkg/wire"
)

// The reasons for which a model ends a message, by the Messages API's names.
const (
	stopEnd     = "end_turn"
	stopTools   = "tool_use"
	stopLength  = "max_tokens"
	stopRefusal = "refusal"
	stopPause   = "pause_turn"
	stopContext = "model_context_window_exceeded"
)

// model is an API that answers a conversation.
type model interface {
	// limits returns what the API says of the model; zero is unknown.
	limits(ctx context.Context, name string) (limits, error)
	// answer has the model answer. Pieces of text and thinking are told while they
	// come. An error that isn't the API's own is one of tell or of the transport.
	answer(ctx context.Context, q question, tell func(piece) error) (answer, error)
}

// limits are those of a model, in tokens.
type limits struct{ context, output int64 }

// question is what a model is asked.
type question struct {
	model     string
	system    string
	messages  []message
	tools     []*tool
	schema    wire.Raw // JSON Schema of the answer
	maxTokens int64
	thinking  string // "", "adaptive" or a number of tokens
	effort    string
}

// piece is a part of a message that is streamed.
type piece struct {
	block    int // index within the message
	thinking bool
	text     string // "" when the message begins
}

// answer is a whole message of a model.
type answer struct {
	id, model, stop string
	blocks          []wire.Raw
	usage           wire.Usage
}

// apiError is a failure of a model's API.
type apiError struct {
	status  int // 0: none, as the connection or the stream broke
	kind    string
	message string
	retry   bool
	after   time.Duration // that the API wants to pass; 0: none
}

func (e *apiError) Error() string { return e.message }

// broken is the error of a stream that ended before its message.
var errBroken = errors.New("the stream ended before the message was whole")

// asAPIError makes an [apiError] of an error of the transport.
func asAPIError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	message := err.Error()
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		message = "no answer in time: " + message
	}
	return &apiError{kind: wire.ErrorNetwork, message: valid(message), retry: true}
}

// refused is the error of an answer with a status of its own.
func refused(status int, kind, message string, header http.Header) *apiError {
	e := &apiError{status: status, message: valid(message), kind: errorType(status, kind)}
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusConflict, status >= 500:
		e.retry = true
	case status < 400: // an error within a stream
		e.retry = kind != "invalid_request_error"
	}
	e.after = retryAfter(header.Get("Retry-After"), time.Now())
	return e
}

// statusOverloaded is Anthropic's status for too much load.
const statusOverloaded = 529

func errorType(status int, kind string) string {
	switch {
	case status == http.StatusTooManyRequests, kind == "rate_limit_error":
		return wire.ErrorRateLimit
	case status == statusOverloaded, kind == "overloaded_error":
		return wire.ErrorOverloaded
	case kind != "":
		return valid(strings.TrimSuffix(kind, "_error"))
	}
	return "http_" + strconv.Itoa(status)
}

// retryAfter reads the header of that name: seconds or a date.
func retryAfter(value string, now time.Time) time.Duration {
	if s, err := strconv.ParseFloat(value, 64); err == nil && s > 0 && s < 1e6 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// malformedKey holds the input of a call that is no JSON object, so that the next
// prompt can repeat it.
const malformedKey = "malformed_input"

// toolUse is the block of a call whose input was streamed as text.
func toolUse(id, name, input string) wire.Raw {
	object, err := wire.RawFromJSON([]byte(input))
	if strings.TrimSpace(input) == "" {
		object, err = mustMarshal(map[string]any{}), nil
	}
	if _, ok := object.Any().(map[string]any); err != nil || !ok {
		object = mustMarshal(map[string]any{malformedKey: valid(input)})
	}
	return mustMarshal(map[string]any{"type": "tool_use", "id": id, "name": name, "input": object})
}

// malformed returns why the input of a call can't be used, "" if it can.
func malformed(input wire.Raw) string {
	text, ok := input.Get(malformedKey).Text()
	if m, _ := input.Any().(map[string]any); !ok || len(m) != 1 {
		return ""
	}
	_, err := wire.RawFromJSON([]byte(text))
	if err == nil {
		return "The input of the call is no JSON object."
	}
	return fmt.Sprintf("The input of the call is not valid JSON: %v", err)
}
