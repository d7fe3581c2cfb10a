package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"wake/pkg/wire"
)

// deadService is who dead letters of this package are from.
const deadService = "eventlog"

// maxDamage is how much of a damaged spool one dead letter shows.
const maxDamage = 64 << 10

// DeadLetter stores in WAKE_DEADLETTER what a service couldn't use, with the
// reason, and returns when it is stored.
func (l *Log) DeadLetter(ctx context.Context, service, reason string, e Entry) error {
	data, err := wire.Marshal(&wire.Poison{
		V: wire.Version, Service: service, Reason: reason,
		Subject: e.Subject, Stream: l.names.EventsStream(), Position: e.Pos,
		Data: e.Data, Timestamp: time.Now().UnixMilli(),
	})
	if err == nil {
		_, err = l.js.Publish(ctx, l.names.DeadLetter(service), data)
	}
	if err != nil {
		return fmt.Errorf("eventlog: dead letter of %s: %w", service, err)
	}
	return nil
}

// bury hands a frame that will never be stored to the dead letters.
func (l *lane) bury(ctx context.Context, f *frame, reason string) error {
	data, err := wire.Marshal(&wire.Poison{
		V: wire.Version, Service: deadService, Reason: reason, Subject: f.subject,
		Stream: l.log.names.EventsStream(), Data: f.data, Timestamp: time.Now().UnixMilli(),
	})
	if err != nil {
		return err
	}
	return l.handOver(ctx, f, &frame{
		subject: l.log.names.DeadLetter(deadService), data: data, blobs: f.blobs,
	})
}

// handOver gives a dead letter to the lane that publishes them.
func (l *lane) handOver(ctx context.Context, f, letter *frame) error {
	if _, err := l.log.dead.put(ctx, []*frame{letter}, false, nil); err != nil {
		return err
	}
	f.gone = true
	return nil
}

// setAside deals with a frame that has no writer: a dead letter, or what a
// damaged spool left of one.
func (l *lane) setAside(ctx context.Context, f *frame) error {
	switch {
	case f.subject == "":
		f.data = f.data[:min(len(f.data), maxDamage)]
		l.log.logger.Warn("the spool is damaged", slog.String("reason", f.broken))
		return l.bury(ctx, f, f.broken)
	case l != l.log.dead:
		return l.handOver(ctx, f, &frame{subject: f.subject, data: f.data, blobs: f.blobs})
	}
	if err := l.putBlobs(ctx, []*frame{f}); err != nil {
		return err
	}
	if err := l.attempt(ctx, []*frame{f}); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	f.gone = true
	return nil
}
