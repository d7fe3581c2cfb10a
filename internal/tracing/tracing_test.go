package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// What isn't wake's own is a name of the semantic conventions.
func TestNames(t *testing.T) {
	t.Parallel()
	known := []string{
		semconv.SchemaURL, semconv.MessagingOperationTypeSend.Value.AsString(), semconv.MessagingOperationTypeProcess.Value.AsString(),
		semconv.ErrorTypeOther.Value.AsString(),
	}
	for _, k := range []attribute.Key{
		semconv.MessagingSystemKey, semconv.MessagingOperationNameKey, semconv.MessagingOperationTypeKey, semconv.MessagingDestinationNameKey,
		semconv.MessagingBatchMessageCountKey, semconv.MessagingConsumerGroupNameKey, semconv.RPCSystemNameKey, semconv.RPCMethodKey, semconv.ErrorTypeKey,
	} {
		known = append(known, string(k))
	}
	source, err := os.ReadFile("names.go")
	if err != nil {
		t.Fatal(err)
	}
	ours, _, _ := bytes.Cut(source, []byte("// Names of wake's own."))
	names := regexp.MustCompile(`= +(?:attribute\.Key\()?"([^"]+)"`).FindAllSubmatch(ours, -1)
	if len(names) < len(known) {
		t.Fatalf("%d names", len(names))
	}
	for _, n := range names {
		if !slices.Contains(known, string(n[1])) {
			t.Errorf("%s is no name of version 1.41.0", n[1])
		}
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"wake.events.r.n.flow": "wake.events", "wake.cmd.r": "wake.cmd", "wake.queue.run": "wake.queue.run",
		"wake.queue.node.default": "wake.queue.node", "wake.alerts.r.n.k.id": "wake.alerts", "wake.deadletter.runner": "wake.deadletter",
	} {
		if got := tracing.Destination("wake", subject); got != want {
			t.Errorf("%s: %s, not %s", subject, got, want)
		}
	}
	if got := tracing.Destination("a.b", "a.b.queue.node.x"); got != "a.b.queue.node" {
		t.Error(got)
	}
}

// recorded returns a tracer and its spans.
func recorded() (trace.Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))), spans
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	tracer, _ := recorded()
	ctx, span := tracing.Send(t.Context(), tracer, "d")
	h := nats.Header{}
	tracing.Inject(ctx, h)
	if h[tracing.Header] == nil || tracing.Parent(h) != tracing.ParentOf(ctx) {
		t.Errorf("%v", h)
	}
	if got := trace.SpanContextFromContext(tracing.Extract(t.Context(), h)); got.SpanID() != span.SpanContext().SpanID() {
		t.Errorf("%v", got)
	}
	// Without a tracer the trace is passed on.
	quiet, none := tracing.Send(tracing.Extract(t.Context(), h), tracing.Off(), "d")
	if none.IsRecording() || trace.SpanContextFromContext(quiet).SpanID() != span.SpanContext().SpanID() {
		t.Error("it is lost")
	}
	for _, odd := range []string{"", "x", "00-0-0-01", "00-" + string(make([]byte, 1<<16))} {
		if tracing.With(t.Context(), odd) != t.Context() && trace.SpanContextFromContext(tracing.With(t.Context(), odd)).IsValid() {
			t.Errorf("%.20q is taken for a trace", odd)
		}
	}
	if empty := (nats.Header{}); tracing.Parent(empty) != "" || tracing.ParentOf(t.Context()) != "" {
		t.Error("a trace of nothing")
	}
}

// What comes from one trace belongs to it; what comes from several refers to them.
func TestJoin(t *testing.T) {
	t.Parallel()
	tracer, _ := recorded()
	span := func(ctx context.Context) (context.Context, trace.SpanContext) {
		ctx, s := tracing.Send(ctx, tracer, "d")
		return ctx, s.SpanContext()
	}
	ctx, first := span(t.Context())
	_, second := span(ctx)
	_, other := span(t.Context())
	for name, c := range map[string]struct {
		origins []trace.SpanContext
		parent  trace.SpanID
		links   int
	}{
		"nothing":    {nil, trace.SpanID{}, 0},
		"unknown":    {[]trace.SpanContext{{}, {}}, trace.SpanID{}, 0},
		"one":        {[]trace.SpanContext{first, first, {}}, first.SpanID(), 0},
		"one trace":  {[]trace.SpanContext{first, second, first}, second.SpanID(), 1},
		"two traces": {[]trace.SpanContext{first, other, second}, trace.SpanID{}, 3},
	} {
		joined, links := tracing.Join(ctx, c.origins)
		if parent := trace.SpanContextFromContext(joined).SpanID(); parent != c.parent || len(links) != c.links {
			t.Errorf("%s: parent %s, %d links", name, parent, len(links))
		}
	}
	var many []trace.SpanContext
	for range 100 {
		_, c := span(t.Context())
		many = append(many, c)
	}
	if _, links := tracing.Join(ctx, many); len(links) != 32 {
		t.Errorf("%d links", len(links))
	}
}

type agentError struct{ said string }

func (e *agentError) Error() string { return e.said }

// A span shows of which kind an error is, and nothing of what it says.
func TestFail(t *testing.T) {
	t.Parallel()
	const secret = "swordfish"
	for want, err := range map[string]error{
		"_OTHER":                  fmt.Errorf("%w: "+secret, errors.New(secret)),
		"tracing_test.agentError": fmt.Errorf("%w", &agentError{secret}),
		"timeout":                 fmt.Errorf(secret+": %w", nats.ErrTimeout),
		"canceled":                fmt.Errorf(secret+": %w", context.Canceled),
		"RUN_NOT_FOUND":           &wire.APIError{Code: wire.CodeRunNotFound, Message: secret},
	} {
		tracer, spans := recorded()
		_, span := tracing.Send(t.Context(), tracer, "d")
		tracing.Fail(span, nil)
		tracing.Fail(span, err)
		span.End()
		got := fmt.Sprint(spans.Ended()[0].Status(), spans.Ended()[0].Attributes(), spans.Ended()[0].Events())
		if failed := spans.Ended()[0].Status().Code == codes.Error; failed != (want != "canceled") {
			t.Errorf("%v: failed is %t", err, failed)
		}
		if !slices.Contains(spans.Ended()[0].Attributes(), attribute.String("error.type", want)) || bytes.Contains([]byte(got), []byte(secret)) {
			t.Errorf("%v: %s", err, got)
		}
	}
}
