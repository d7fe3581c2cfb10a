// Package tracing makes the spans of wake's services, for OpenTelemetry, and passes
// on which trace a message belongs to. It knows names and headers;
// [code.wake.dev/wake/internal/service.Traces] sends the spans.
//
// Spans are short: taking over a run, starting a node, a batch, a command. What
// takes as long as an agent is in the log, and is exported from there. None has a
// text of an agent, of a person or of an error in its attributes.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"code.wake.dev/wake/pkg/wire"
)

// Off returns a tracer that makes no spans. What it starts passes on the trace of
// its context.
func Off() trace.Tracer { return noop.NewTracerProvider().Tracer("") }

// New returns the tracer of wake's spans.
func New(p trace.TracerProvider) trace.Tracer {
	return p.Tracer("wake", trace.WithSchemaURL(schemaURL))
}

// Header is where messages say to which trace they belong, as W3C Trace Context
// spells it.
const Header = "traceparent"

// carrier is the header of a message. NATS keeps the case of names.
type carrier nats.Header

// Get implements [propagation.TextMapCarrier].
func (c carrier) Get(key string) string {
	if v := c[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier].
func (c carrier) Set(key, value string) { c[key] = []string{value} }

// Keys implements [propagation.TextMapCarrier]. No caller asks.
func (c carrier) Keys() []string { return nil }

// Inject says in the header of a message to which trace it belongs, if the context
// belongs to one.
func Inject(ctx context.Context, h nats.Header) {
	propagation.TraceContext{}.Inject(ctx, carrier(h))
}

// Extract returns a context of the trace that a message belongs to. It is ctx if
// the message says none, or nothing that can be read.
func Extract(ctx context.Context, h nats.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, carrier(h))
}

// Parent returns what [Extract] reads from the header of a message; "" if there is
// nothing.
func Parent(h nats.Header) string { return carrier(h).Get(Header) }

// ParentOf returns what a message of the context would say; "" for a context
// without a trace that is recorded.
func ParentOf(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	h := nats.Header{}
	Inject(ctx, h)
	return Parent(h)
}

// With returns a context of the trace of a [Parent]; it is ctx if that is "" or
// can't be read.
func With(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return Extract(ctx, nats.Header{Header: {parent}})
}

// Destination is the subject of a message without what differs from run to run.
func Destination(prefix, subject string) string {
	tokens := strings.SplitN(strings.TrimPrefix(subject, prefix+"."), ".", 3)
	if tokens[0] == "queue" && len(tokens) > 1 {
		return prefix + ".queue." + tokens[1]
	}
	return prefix + "." + tokens[0]
}

// Fail notes on a span that what it stands for has failed: with the kind of the
// error, not with its text, which may be an agent's. That the process ends, or
// the caller, is no failure.
func Fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	if !errors.Is(err, context.Canceled) {
		span.SetStatus(codes.Error, "")
	}
	span.SetAttributes(attribute.String(attrErrorType, ErrorType(err)))
}

// Refuse notes on the span of a request that it was refused. Only what is the
// service's own fault is a failure.
func Refuse(span trace.Span, problem *wire.APIError) {
	switch problem.Code {
	case wire.CodeInternal, wire.CodeTimeout, wire.CodeUnreachable:
		Fail(span, problem)
	default:
		span.SetAttributes(Kind(problem))
	}
}

// ErrorType names the kind of an error: one of few words.
func ErrorType(err error) string {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return string(e.Code)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	switch name := strings.TrimPrefix(fmt.Sprintf("%T", err), "*"); name {
	case "errors.errorString", "errors.joinError", "fmt.wrapError", "fmt.wrapErrors", "fmt.fmtError":
		return errorOther
	default:
		return name
	}
}
