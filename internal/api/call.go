package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// DefaultWait is how long [Call] waits for an answer if its context doesn't say.
const DefaultWait = MaxWork + time.Second

// Call asks verb and returns its answer. Except where ctx was cancelled, errors
// are a [*wire.APIError]: what the service said, or [wire.CodeUnreachable] or
// [wire.CodeTimeout] if it said nothing.
func Call[A any](ctx context.Context, nc *nats.Conn, names subjects.Names, verb string, q any) (A, error) {
	return CallAt[A](ctx, nc, names, names.API(verb), verb, q)
}

// CallAt is [Call] of an endpoint that is at another subject; see [Endpoint.At].
func CallAt[A any](ctx context.Context, nc *nats.Conn, names subjects.Names, subject, verb string, q any) (A, error) {
	var answer A
	body, err := wire.Marshal(q)
	if err != nil {
		return answer, fmt.Errorf("api: call %s: %w", verb, err)
	}
	wait := DefaultWait
	if end, ok := ctx.Deadline(); ok {
		wait = time.Until(end).Round(time.Millisecond)
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ask := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	tracing.Inject(ctx, ask.Header)
	if name, err := access.NameService(nc); err == nil && name != "" {
		ask.Header.Set(access.CallerHeader, name)
	}
	m, err := nc.RequestMsgWithContext(limited, ask)
	if err != nil {
		return answer, unansweredError(ctx, names, verb, wait, err)
	}
	if m.Header.Get(micro.ErrorCodeHeader) != "" {
		return answer, serviceError(verb, m)
	}
	if err := wire.Unmarshal(m.Data, &answer); err != nil {
		return answer, &wire.APIError{
			Code:    wire.CodeInternal,
			Message: fmt.Sprintf("the answer to %s can't be read: %v", verb, err),
			Hint:    "is the " + servedBy(verb) + " of the same version?",
		}
	}
	return answer, nil
}

// RunRemoved asks the recorder whether it has removed the events of a run for good, and returns what it says of that; nil: it hasn't.
func RunRemoved(ctx context.Context, nc *nats.Conn, names subjects.Names, run string) (removed *wire.APIError, err error) {
	_, err = Call[wire.StatusResponse](ctx, nc, names, wire.VerbStatus, wire.StatusRequest{Run: run})
	if refused, ok := errors.AsType[*wire.APIError](err); ok && refused.Code == wire.CodeRunNotFound {
		if refused.RemovedAt > 0 {
			return refused, nil
		}
		return nil, nil
	}
	return nil, err
}

// serviceError returns the error that a service answered with.
func serviceError(verb string, m *nats.Msg) error {
	var r wire.ErrorResponse
	if err := wire.Unmarshal(m.Data, &r); err != nil || r.Error == nil {
		return &wire.APIError{
			Code:    wire.CodeInternal,
			Message: fmt.Sprintf("%s was refused: %s %s", verb, m.Header.Get(micro.ErrorCodeHeader), m.Header.Get(micro.ErrorHeader)),
		}
	}
	return r.Error
}

// unansweredError says why there is no answer.
func unansweredError(ctx context.Context, names subjects.Names, verb string, wait time.Duration, err error) error {
	service := servedBy(verb)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Cause(ctx)
	case errors.Is(err, nats.ErrMaxPayload):
		return &wire.APIError{Code: wire.CodeTooLarge, Message: "the request is larger than what the server takes"}
	case errors.Is(err, nats.ErrNoResponders) && strings.HasPrefix(verb, wire.VerbSink("")):
		return &wire.APIError{
			Code:    wire.CodeUnreachable,
			Message: fmt.Sprintf("no alerter sends to a sink %q", strings.TrimPrefix(verb, wire.VerbSink(""))),
			Hint:    "name it in the rules of one that runs, or start one with `wake up` or `wake alerter`",
		}
	case errors.Is(err, nats.ErrNoResponders):
		return &wire.APIError{
			Code:    wire.CodeUnreachable,
			Message: fmt.Sprintf("no %s answers %s", service, names.API(verb)),
			Hint:    fmt.Sprintf("start one with `wake up` or `wake %s`", service),
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return &wire.APIError{
			Code:    wire.CodeTimeout,
			Message: fmt.Sprintf("the %s did not answer %s within %s", service, names.API(verb), wait),
			Hint:    "`wake doctor` says what is wrong",
		}
	}
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // what is asked isn't kept until there is a connection
		err = errors.New("the connection to the NATS server is lost, and is being made anew")
	}
	return &wire.APIError{
		Code:    wire.CodeUnreachable,
		Message: fmt.Sprintf("%s can't be asked: %v", names.API(verb), err),
		Hint:    "is the NATS server up? `wake doctor` says what is wrong",
	}
}

// servedBy names the service that answers verb.
func servedBy(verb string) string {
	switch {
	case verb == wire.VerbIngest, verb == wire.VerbPack, verb == wire.VerbWorkspace:
		return "runner"
	case verb == wire.VerbSnapshot:
		return "snapshotter"
	case verb == wire.VerbSinks, verb == wire.VerbLetters, strings.HasPrefix(verb, wire.VerbSink("")):
		return "alerter"
	}
	return "recorder"
}
