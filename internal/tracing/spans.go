package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Send starts the span of a message that is sent to a destination.
func Send(ctx context.Context, t trace.Tracer, destination string) (context.Context, trace.Span) {
	return startSpan(ctx, t, trace.SpanKindProducer, opSend, typeSend, destination)
}

// Process starts the span of a message that is dealt with, under the trace of the
// context.
func Process(ctx context.Context, t trace.Tracer, destination string, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return startSpan(ctx, t, trace.SpanKindConsumer, opProcess, typeProcess, destination, trace.WithAttributes(more...))
}

// Obey starts the span of a command, under the trace of its sender, with a
// link to what it is about, the trace of the context.
func Obey(ctx context.Context, t trace.Tracer, parent, destination string, more ...attribute.KeyValue) (context.Context, trace.Span) {
	sender := With(ctx, parent)
	var links []trace.Link
	if about := trace.SpanContextFromContext(ctx); about.IsValid() && sender != ctx {
		links = []trace.Link{{SpanContext: about}}
	}
	return startSpan(sender, t, trace.SpanKindConsumer, opProcess, typeProcess, destination, trace.WithAttributes(more...), trace.WithLinks(links...))
}

// Deliver starts the span of a notification on its way to a sink.
func Deliver(ctx context.Context, t trace.Tracer, destination string, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return startSpan(ctx, t, trace.SpanKindConsumer, opDeliver, typeProcess, destination, trace.WithAttributes(more...))
}

// Serve starts the span of a request that is answered.
func Serve(ctx context.Context, t trace.Tracer, method string) (context.Context, trace.Span) {
	return t.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String(attrRPCSystem, system), attribute.String(attrRPCMethod, method)))
}

// Batch is several messages that are published, or dealt with, at once.
type Batch struct {
	Destination string
	Origins     []trace.SpanContext // what the messages come from
	Count       int                 // of messages
	Group       string              // the service that deals with them
	Begun       time.Time
}

// maxLinks bounds what a span refers to.
const maxLinks = 32

// Publish starts the span of a batch that is published.
func (b Batch) Publish(ctx context.Context, t trace.Tracer) (context.Context, trace.Span) {
	ctx, o := b.spanOptions(ctx)
	return startSpan(ctx, t, trace.SpanKindProducer, opPublish, typeSend, b.Destination, o...)
}

// Process starts the span of a batch that is dealt with.
func (b Batch) Process(ctx context.Context, t trace.Tracer) (context.Context, trace.Span) {
	ctx, o := b.spanOptions(ctx)
	return startSpan(ctx, t, trace.SpanKindConsumer, opProcess, typeProcess, b.Destination, o...)
}

// spanOptions are those of a batch's span. If all of it comes from one trace, the span
// belongs to that; else it is a trace of its own, with links to where it comes from.
func (b Batch) spanOptions(ctx context.Context) (context.Context, []trace.SpanStartOption) {
	more := []attribute.KeyValue{attribute.Int(attrBatch, b.Count)}
	if b.Group != "" {
		more = append(more, Group.String(b.Group))
	}
	o := []trace.SpanStartOption{trace.WithAttributes(more...), trace.WithTimestamp(b.Begun)}
	ctx, links := Join(ctx, b.Origins)
	return ctx, append(o, trace.WithLinks(links...))
}

// Join returns the context of a span for what has come about in several places,
// and what it refers to besides.
func Join(ctx context.Context, origins []trace.SpanContext) (context.Context, []trace.Link) {
	var all []trace.SpanContext
	seen := map[trace.SpanID]bool{}
	one := true
	for _, c := range origins {
		if !c.IsValid() || seen[c.SpanID()] {
			continue
		}
		seen[c.SpanID()] = true
		all = append(all, c)
		one = one && c.TraceID() == all[0].TraceID()
	}
	var none trace.SpanContext
	ctx = trace.ContextWithSpanContext(ctx, none)
	if one && len(all) > 0 {
		ctx = trace.ContextWithRemoteSpanContext(ctx, all[len(all)-1])
		all = all[:len(all)-1]
	}
	var links []trace.Link
	for _, c := range all[:min(len(all), maxLinks)] {
		links = append(links, trace.Link{SpanContext: c})
	}
	return ctx, links
}

func startSpan(ctx context.Context, t trace.Tracer, kind trace.SpanKind, op, operation, destination string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	o = append(o, trace.WithSpanKind(kind), trace.WithAttributes(
		attribute.String(attrSystem, system), attribute.String(attrOperation, op),
		attribute.String(attrOperationType, operation), attribute.String(attrDestination, destination)))
	return t.Start(ctx, op+" "+destination, o...)
}

// Kind is the kind of an error, for an event of a span.
func Kind(err error) attribute.KeyValue { return attribute.String(attrErrorType, ErrorType(err)) }
