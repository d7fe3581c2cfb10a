package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// NearExpiry is a part of the age at which the stream drops events: from there on an
// event that a reader still has to read is in danger.
const NearExpiry = 0.8

// Lag is how far a reader is behind the stream of events.
type Lag struct {
	Events uint64        // that it has to read
	Age    time.Duration // of the oldest of them; 0 if there is none
	Part   float64       // Age as a part of the stream's max age, 0 if it has none; 1 or more: events were dropped unread
	Gone   bool          // all of them were
}

// Danger reports whether the stream is about to drop what isn't read.
func (l Lag) Danger() bool { return l.Part >= NearExpiry && !l.Gone }

// Lag returns how far a service is behind, as its durable consumer shows that.
func (l *Log) Lag(ctx context.Context, durable string) (Lag, error) {
	return LagOf(ctx, l.js, l.names, durable)
}

// LagOf is [Log.Lag] for a caller without a log.
func LagOf(ctx context.Context, js jetstream.JetStream, names subjects.Names, durable string) (Lag, error) {
	fail := func(err error) (Lag, error) { return Lag{}, fmt.Errorf("eventlog: lag of %s: %w", durable, err) }
	stream, err := js.Stream(ctx, names.EventsStream())
	if err != nil {
		return fail(err)
	}
	c, err := stream.Consumer(ctx, durable)
	if err != nil {
		return fail(err)
	}
	lag, err := lagAt(ctx, stream, c.CachedInfo().AckFloor.Stream)
	if err != nil {
		return fail(err)
	}
	return lag, nil
}

// LagAt returns how far a reader is behind after reading up to a position.
func (l *Log) LagAt(ctx context.Context, pos uint64) (Lag, error) {
	stream, err := l.js.Stream(ctx, l.names.EventsStream())
	var lag Lag
	if err == nil {
		lag, err = lagAt(ctx, stream, pos)
	}
	if err != nil {
		return Lag{}, fmt.Errorf("eventlog: lag: %w", err)
	}
	return lag, nil
}

func lagAt(ctx context.Context, stream jetstream.Stream, pos uint64) (Lag, error) {
	info := stream.CachedInfo()
	if info.State.LastSeq <= pos {
		return Lag{}, nil
	}
	lag := Lag{Events: info.State.LastSeq - pos}
	lag.Gone = info.State.FirstSeq > info.State.LastSeq
	if pos+1 < info.State.FirstSeq {
		lag.Age, lag.Part = info.Config.MaxAge, 1
		return lag, nil
	}
	m, err := stream.GetMsg(ctx, pos+1)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // it has just aged out
		lag.Age, lag.Part = info.Config.MaxAge, 1
		return lag, nil
	}
	if err != nil {
		return Lag{}, err
	}
	lag.Age = max(info.TimeStamp.Sub(m.Time), 0)
	if info.Config.MaxAge > 0 {
		lag.Part = float64(lag.Age) / float64(info.Config.MaxAge)
	}
	return lag, nil
}
