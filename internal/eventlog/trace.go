package eventlog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"wake/internal/tracing"
	"wake/pkg/wire"
)

// Tracer returns what makes the spans of the process.
func (l *Log) Tracer() trace.Tracer { return l.o.Tracer }

// Send stores a message that is no event, such as a command or an offer, sealed if the
// log has keys. Its header says to which trace it belongs, if ctx belongs to one.
func (l *Log) Send(ctx context.Context, subject string, data []byte, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	data, err := l.o.Keys.Value(subject, data)
	if err != nil {
		return nil, err
	}
	ctx, span := tracing.Send(ctx, l.o.Tracer, tracing.Destination(l.names.Prefix(), subject))
	defer span.End()
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
	tracing.Inject(ctx, m.Header)
	ack, err := l.js.PublishMsg(ctx, m, o...)
	tracing.Fail(span, err)
	return ack, err
}

// origin is the span in whose context an event is appended.
func (l *Log) origin(ctx context.Context) trace.SpanContext {
	if !l.traced {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(ctx)
}

// begin starts the span of a batch. Batches of nothing but texts and deltas have
// none: there are many, and nobody waits for them.
func (l *lane) begin(ctx context.Context, frames []*frame, begun time.Time) trace.Span {
	if !l.log.traced || l == l.log.dead || !slices.ContainsFunc(frames, (*frame).matters) {
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

// matters reports whether somebody may wait for the event.
func (f *frame) matters() bool {
	return !strings.HasSuffix(f.subject, "."+string(wire.KindText)) && !strings.HasSuffix(f.subject, "."+string(wire.KindDelta))
}

func (l *Log) eventsDestination() string {
	return tracing.Destination(l.names.Prefix(), l.names.AllEvents())
}

// Traced starts the span of entries that a service deals with; it belongs to the
// trace of what stored them. Of nothing but texts and deltas there is none.
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
	span.SetAttributes(tracing.Position(entries[len(entries)-1].Pos))
	return ctx, span
}
