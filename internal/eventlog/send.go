package eventlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/tracing"
)

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

// processPatience is how long a message of the same id may be in process.
const processPatience = 5 * time.Second

// codeInProcess is what servers of a cluster say while they store another message of the same id: that may yet come to nothing.
const codeInProcess = 10158

func isInProcess(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return ok && e.ErrorCode == codeInProcess
}

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
	for begun := time.Now(); isInProcess(err) && ctx.Err() == nil && time.Since(begun) < processPatience; {
		pull.Sleep(ctx, 20*time.Millisecond)
		ack, err = l.js.PublishMsg(ctx, m, o...)
	}
	if !keys.IsConflict(err) {
		tracing.Fail(span, err) // else the message was stored before, which the sender has asked about
	}
	return ack, err
}
