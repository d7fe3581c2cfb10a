package eventlog

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// Tracer returns what makes the spans of the process.
func (l *Log) Tracer() trace.Tracer { return l.o.Tracer }

// spanOrigin is the span of the context in which an event is appended.
func (l *Log) spanOrigin(ctx context.Context) trace.SpanContext {
	if !l.traced {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(ctx)
}

// beginSpan starts the span of a batch. Batches of nothing but texts and deltas have
// none: there are many, and no caller waits for them.
func (l *lane) beginSpan(ctx context.Context, frames []*frame, begun time.Time) trace.Span {
	if !l.log.traced || l == l.log.dead || !slices.ContainsFunc(frames, (*frame).isRelevant) {
		return noop.Span{}
	}
	b := tracing.Batch{Destination: l.log.eventsDestination(), Count: len(frames), Begun: begun}
	for _, f := range frames {
		b.Origins = append(b.Origins, f.origin)
	}
	ctx, span := b.Publish(ctx, l.log.o.Tracer)
	l.parent = tracing.ParentOf(ctx)
	return span
}

// isRelevant reports whether a caller may wait for the event.
func (f *frame) isRelevant() bool {
	return !strings.HasSuffix(f.subject, "."+string(wire.KindText)) && !strings.HasSuffix(f.subject, "."+string(wire.KindDelta))
}

func (l *Log) eventsDestination() string {
	return tracing.Destination(l.names.Prefix(), l.names.AllEvents())
}

// Traced starts the span of entries that a service deals with, in the trace in which
// they were stored. Entries of nothing but texts and deltas have none.
func (l *Log) Traced(ctx context.Context, service string, entries []Entry, begun time.Time) (context.Context, trace.Span) {
	matters := func(e Entry) bool { return e.Kind != wire.KindText && e.Kind != wire.KindDelta }
	if !l.traced || !slices.ContainsFunc(entries, matters) {
		return ctx, noop.Span{}
	}
	b := tracing.Batch{Destination: l.eventsDestination(), Count: len(entries), Group: service, Begun: begun}
	for _, e := range entries {
		if e.Trace != "" {
			b.Origins = append(b.Origins, trace.SpanContextFromContext(tracing.With(ctx, e.Trace)))
		}
	}
	ctx, span := b.Process(ctx, l.o.Tracer)
	span.SetAttributes(tracing.Position.Int64(int64(entries[len(entries)-1].Pos)))
	return ctx, span
}
