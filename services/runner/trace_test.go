package runner_test

import (
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// A runner that takes a run over from one that died goes on with its trace.
func TestTraceOfTakeover(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		b := newBench(t)
		b.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
		release := make(chan struct{})
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		r1.kill()
		close(release)
		<-time.After(time.Hour)
		b.process("r2", gated(release))
		b.ended("run1")

		begun, taken := named(t, spans, "process wake.queue.run"), named(t, spans, tracing.RunTakenOver)
		if len(begun) != 1 || len(taken) != 1 || taken[0].Parent().SpanID() != begun[0].SpanContext().SpanID() {
			t.Errorf("%d and %d", len(begun), len(taken))
		}
		resumed := 0
		for _, s := range named(t, spans, "process wake.queue.node") {
			for _, a := range s.Attributes() {
				if a == tracing.Resumed.Bool(true) {
					resumed++
				}
			}
			if s.SpanContext().TraceID() != begun[0].SpanContext().TraceID() {
				t.Errorf("%v is of another trace", s.Attributes())
			}
		}
		if resumed != 1 {
			t.Errorf("%d nodes were resumed", resumed)
		}
	})
}

// named returns the spans of a name that have ended.
func named(t *testing.T, spans *tracetest.SpanRecorder, name string) (found []sdk.ReadOnlySpan) {
	t.Helper()
	for _, s := range spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}
