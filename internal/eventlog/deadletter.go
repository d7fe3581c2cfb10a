package eventlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/wire"
)

// maxDamage is how much of a damaged spool one dead letter shows.
const maxDamage = 64 << 10

// DeadLetter stores in WAKE_DEADLETTER what a service couldn't use, with the
// reason, and returns when it is stored.
func (l *Log) DeadLetter(ctx context.Context, service, reason string, e Entry) error {
	data, err := l.encodeLetter(service, reason, e)
	if err == nil {
		_, err = l.Send(ctx, l.names.DeadLetter(service), data)
	}
	if err != nil {
		return fmt.Errorf("eventlog: dead letter of %s: %w", service, err)
	}
	l.metrics.letters.WithLabelValues(service).Inc()
	return nil
}

// QueueDeadLetter is [Log.DeadLetter] that doesn't wait until the letter is stored, as [Writer.Enqueue] doesn't for an event: the
// server may be away.
func (l *Log) QueueDeadLetter(ctx context.Context, service, reason string, e Entry) error {
	letter, err := l.sealLetter(service, reason, e)
	if err == nil {
		_, err = l.dead.queueUnit(ctx, []*frame{letter}, false, nil)
	}
	if err != nil {
		return fmt.Errorf("eventlog: dead letter of %s: %w", service, err)
	}
	l.metrics.letters.WithLabelValues(service).Inc()
	return nil
}

// sealLetter returns a dead letter as the lane that publishes them takes it.
func (l *Log) sealLetter(service, reason string, e Entry) (*frame, error) {
	data, err := l.encodeLetter(service, reason, e)
	if err != nil {
		return nil, err
	}
	subject := l.names.DeadLetter(service)
	if data, err = l.o.Keys.Value(subject, data); err != nil {
		return nil, err
	}
	return &frame{subject: subject, data: data}, nil
}

// maxReason bounds the reason in a dead letter, which may quote the event.
const maxReason = 1000

// encodeLetter returns a dead letter. Of data that no message can hold beside the rest it has the beginning, and says so.
func (l *Log) encodeLetter(service, reason string, e Entry) ([]byte, error) {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	room := int(l.nc.MaxPayload()) - 3*headroom // the subject may be long
	if l.o.Keys != nil {
		room = room/4*3 - headroom // a box is base64
	}
	if room = max(room, 0); len(e.Data) > room {
		reason += fmt.Sprintf(" (the first %d of %d bytes follow, all of them are at position %d)", room, len(e.Data), e.Pos)
		e.Data = e.Data[:room]
	}
	return wire.Marshal(&wire.Poison{
		V: wire.Version, Service: service, Reason: reason,
		Subject: e.Subject, Stream: l.names.EventsStream(), Position: e.Pos,
		Data: e.Data, Timestamp: time.Now().UnixMilli(),
	})
}

// buryFrame hands a frame that will never be stored to the dead letters.
func (l *lane) buryFrame(ctx context.Context, f *frame, reason string) error {
	letter, err := l.log.sealLetter(DeadService, reason, Entry{Subject: f.subject, Data: f.data})
	if err != nil {
		return err
	}
	letter.blobs = f.blobs
	return l.handOver(ctx, f, letter)
}

// handOver gives a dead letter to the lane that publishes dead letters.
func (l *lane) handOver(ctx context.Context, f, letter *frame) error {
	if _, err := l.log.dead.queueUnit(ctx, []*frame{letter}, false, nil); err != nil {
		return err
	}
	f.gone = true
	l.log.metrics.letters.WithLabelValues(DeadService).Inc()
	return nil
}

// setAside hands a frame that has no writer over: a dead letter that was found, or
// what a damaged spool left of one.
func (l *lane) setAside(ctx context.Context, f *frame) error {
	if f.subject != "" {
		return l.handOver(ctx, f, &frame{subject: f.subject, data: f.data, blobs: f.blobs})
	}
	f.data = f.data[:min(len(f.data), maxDamage)]
	l.log.logger.Warn("the spool is damaged", slog.String("reason", f.broken))
	return l.buryFrame(ctx, f, f.broken)
}

// lettersAtOnce is how many dead letters are sent before their acknowledgements
// are awaited.
const lettersAtOnce = 64

// tryLetters publishes dead letters. Their order doesn't matter. A message id keeps
// a letter from being stored twice after its acknowledgement was lost.
func (l *lane) tryLetters(ctx context.Context, frames []*frame) error {
	for letters := range slices.Chunk(frames, lettersAtOnce) {
		if err := l.putBlobs(ctx, letters); err != nil {
			return err
		}
		if err := l.sendLetters(ctx, letters); err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
	}
	return nil
}

func (l *lane) sendLetters(ctx context.Context, letters []*frame) error {
	if !l.log.nc.IsConnected() {
		return errDisconnected
	}
	reply := l.nextReply()
	sent := 0
	for _, f := range letters {
		if f.gone {
			continue
		}
		sum := sha256.Sum256(f.data)
		m := &nats.Msg{Subject: f.subject, Reply: reply, Data: f.data, Header: nats.Header{}}
		m.Header.Set(jetstream.MsgIDHeader, hex.EncodeToString(sum[:16]))
		if err := l.sendMessage(m); err != nil {
			return err
		}
		sent++
	}
	err := l.readAnswers(ctx, func(m *nats.Msg) (over bool, err error) {
		if m.Subject != reply {
			return false, nil
		}
		_, _, err = parseAck(m)
		sent--
		return sent == 0, err
	})
	if err != nil {
		return err
	}
	for _, f := range letters {
		f.gone = true
	}
	return nil
}
