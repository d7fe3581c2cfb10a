package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
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
	modelLimits(ctx context.Context, name string) (limits, error)
	// answer has the model answer. Pieces of text and thinking are told while they
	// come. An error that isn't the API's own is one of tell or of the transport. Beside it is what of the answer was told.
	streamAnswer(ctx context.Context, q modelQuestion, tell func(streamPiece) error) (modelAnswer, error)
}

// readAnswer is [model.streamAnswer]. What a server sends must not end the process, with all other agents in it.
func readAnswer(ctx context.Context, m model, q modelQuestion, tell func(streamPiece) error) (a modelAnswer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("defect in reading the model's answer: %v", p)
		}
	}()
	return m.streamAnswer(ctx, q, tell)
}

// limits are those of a model, in tokens.
type limits struct{ context, output int64 }

// modelQuestion is what a model is asked.
type modelQuestion struct {
	model     string
	system    string
	messages  []message
	tools     []*tool
	schema    wire.Raw // JSON Schema of the answer
	maxTokens int64
	thinking  string // "", "adaptive" or a number of tokens
	effort    string

	heard func() // called for whatever comes of the answer, which isn't silent then
}

// streamPiece is a part of a message that is streamed.
type streamPiece struct {
	block    int // index within the message
	thinking bool
	text     string // "" when the message begins
}

// modelAnswer is a whole message of a model.
type modelAnswer struct {
	id, model, stop string
	blocks          []wire.Raw
	usage           wire.Usage
	hour            int64 // of the tokens that were written into the cache, those kept for an hour
}

// apiError is a failure of a model's API.
type apiError struct {
	status  int    // 0: none, as the connection or the stream broke
	kind    string // the error type on record
	name    string // what the API calls it, such as overloaded_error; "": nothing
	request string // the API's id of the request, if it has told one
	message string // its words
	retry   bool
	after   time.Duration // that the API wants to pass; 0: none
}

// Error is all that is known of the failure in one line, as the run's error shows it:
// "overloaded (HTTP 529, overloaded_error, request req_1): Overloaded".
func (e *apiError) Error() string {
	var known []string
	if e.status > 0 {
		known = append(known, "HTTP "+strconv.Itoa(e.status))
	}
	if e.name != "" && e.name != e.kind {
		known = append(known, e.name)
	}
	if e.request != "" {
		known = append(known, "request "+e.request)
	}
	if len(known) == 0 {
		return e.message
	}
	return e.kind + " (" + strings.Join(known, ", ") + "): " + e.message
}

// errorDetails is the failure as the API's own answers have it; nil if it isn't the API's.
func (e *apiError) errorDetails() wire.Raw {
	if e.name == "" && e.request == "" {
		return nil
	}
	d := map[string]any{"error": map[string]any{"type": e.name, "message": e.message}}
	if e.request != "" {
		d["request_id"] = e.request
	}
	return wire.RawOf(d)
}

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
	return &apiError{kind: wire.ErrorNetwork, message: toValidUTF8(message), retry: true}
}

// newAPIError is the error of an answer with a status of its own, or of one within a stream.
// name is what the API calls it.
func newAPIError(status int, name, message string, header http.Header) *apiError {
	e := &apiError{
		status: status, kind: agent.APIErrorType(status, name), name: firstWord(name), message: toValidUTF8(message),
		request: firstWord(cmp.Or(header.Get("Request-Id"), header.Get("X-Request-Id"))),
		after:   retryAfter(header.Get("Retry-After"), time.Now()),
	}
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusConflict, status >= 500:
		e.retry = true
	case status < http.StatusBadRequest: // within a stream
		e.status = 0
		if e.kind == wire.ErrorExecution {
			e.kind = agent.ErrorServer
		}
		e.retry = !slices.Contains([]string{agent.ErrorAuthentication, agent.ErrorBilling, agent.ErrorInvalidRequest, agent.ErrorModelNotFound}, e.kind)
	}
	return e
}

// maxAPIName bounds what an API calls its failures and requests, in bytes.
const maxAPIName = 100

// firstWord is a name that an API has told, so that it is one.
func firstWord(s string) string {
	words := strings.Fields(toValidUTF8(s))
	if len(words) == 0 {
		return ""
	}
	return runeCut(words[0][:min(len(words[0]), maxAPIName)], false)
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

// toolUse is the block of a call with an input streamed as text.
func toolUse(id, name, input string) wire.Raw {
	object, err := wire.RawFromJSON([]byte(input))
	if strings.TrimSpace(input) == "" {
		object, err = wire.RawOf(map[string]any{}), nil
	}
	if _, ok := object.Any().(map[string]any); err != nil || !ok {
		object = wire.RawOf(map[string]any{malformedKey: toValidUTF8(input)})
	}
	return wire.RawOf(map[string]any{"type": "tool_use", "id": id, "name": name, "input": object})
}

// dropCutCall leaves out the last call of a message if it was cut off at the limit of the
// message's length: its input may not even have begun.
func dropCutCall(stop string, blocks []wire.Raw) []wire.Raw {
	last := len(blocks) - 1
	if stop != stopLength || last < 0 || blocks[last].TextAt("type") != "tool_use" {
		return blocks
	}
	input := blocks[last].Get("input")
	if m, _ := input.Any().(map[string]any); len(m) == 0 || inputProblem(input) != "" {
		return blocks[:last]
	}
	return blocks
}

// inputProblem returns why the input of a call can't be used, "" if it can.
func inputProblem(input wire.Raw) string {
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
