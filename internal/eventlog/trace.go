package eventlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// Tracer returns what makes the spans of the process.
func (l *Log) Tracer() trace.Tracer { return l.o.Tracer }

// Send stores a message that is no event, such as a command or an offer, sealed if the
// log has keys. Its header says to which trace it belongs, if ctx belongs to one.
func (l *Log) Send(ctx context.Context, subject string, data []byte, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return l.sendSealed(ctx, subject, data, nats.Header{}, o...)
}

// authorHeader is where a message names its author.
const authorHeader = "Wake-Author"

// SendAs is Send for an author that asks [Log.Author] afterwards, if it got no
// acknowledgement, whether the stored message is its own.
func (l *Log) SendAs(ctx context.Context, author, subject string, data []byte, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return l.sendSealed(ctx, subject, data, nats.Header{authorHeader: {author}}, o...)
}

// NewMessage is one of [Log.SendNew].
type NewMessage struct {
	Author, Subject string
	Data            []byte
}

// SendNew is SendAs of several messages, none of whose subjects may have one yet, in a batch: all of them are stored
// or none, and the disk is waited for once. It has failed for certain if refused is true.
func (l *Log) SendNew(ctx context.Context, all []NewMessage) (refused bool, err error) {
	ctx, span := tracing.Send(ctx, l.o.Tracer, tracing.Destination(l.names.Prefix(), all[0].Subject))
	defer span.End()
	refused, err = l.sendBatch(ctx, all)
	tracing.Fail(span, err)
	return refused, err
}

func (l *Log) sendBatch(ctx context.Context, all []NewMessage) (refused bool, err error) {
	id := rand.Text()
	for i, n := range all {
		data, err := l.o.Keys.Value(n.Subject, n.Data)
		if err != nil {
			return true, err
		}
		m := &nats.Msg{Subject: n.Subject, Data: data, Header: nats.Header{
			authorHeader: {n.Author}, headerLast: {"0"}, headerBatch: {id}, headerBatchSeq: {strconv.Itoa(i + 1)},
		}}
		tracing.Inject(ctx, m.Header)
		if i < len(all)-1 {
			if err := l.nc.PublishMsg(m); err != nil {
				return true, err
			}
			continue
		}
		m.Header.Set(headerBatchOver, "1")
		answer, err := l.nc.RequestMsgWithContext(ctx, m)
		if err != nil {
			return false, err
		}
		_, _, err = parseAck(answer)
		_, refused = errors.AsType[*apiError](err)
		return refused, err
	}
	return true, nil
}

// Author returns as which author the last message of a subject was stored with
// [Log.SendAs]; "" if it was stored otherwise.
func (l *Log) Author(ctx context.Context, stream, subject string) (string, error) {
	s, err := l.js.Stream(ctx, stream)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", stream, err)
	}
	m, err := s.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", subject, err)
	}
	return m.Header.Get(authorHeader), nil
}

// userHeader is the header of a command that names its user.
const userHeader = "Wake-User"

// SendBy is [Log.Send] of a command that a user has given.
func (l *Log) SendBy(ctx context.Context, user, subject string, data []byte) (*jetstream.PubAck, error) {
	h := nats.Header{}
	if user != "" {
		h.Set(userHeader, user)
	}
	return l.sendSealed(ctx, subject, data, h)
}

// UserOf returns the user of a command, as its header says: the truth, where only services
// may store commands.
func UserOf(h nats.Header) string { return h.Get(userHeader) }

func (l *Log) sendSealed(
	ctx context.Context, subject string, data []byte, header nats.Header, o ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	data, err := l.o.Keys.Value(subject, data)
	if err != nil {
		return nil, err
	}
	ctx, span := tracing.Send(ctx, l.o.Tracer, tracing.Destination(l.names.Prefix(), subject))
	defer span.End()
	m := &nats.Msg{Subject: subject, Data: data, Header: header}
	tracing.Inject(ctx, m.Header)
	ack, err := l.js.PublishMsg(ctx, m, o...)
	tracing.Fail(span, err)
	return ack, err
}

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
