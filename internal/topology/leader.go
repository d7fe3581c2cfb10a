package topology

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
)

// How long a leader is waited for. An election takes seconds, a server that is started again longer.
const (
	leaderPatience = 2 * time.Minute
	leaderPauses   = 250 * time.Millisecond // the first pause, each other one is twice as long
	longestPause   = 5 * time.Second
	longAttempts   = 5 // that may last longer than a leader is waited for
)

// ErrLeaderMoved is wrapped in errors that say that the servers changed roles while something was asked.
var ErrLeaderMoved = errors.New("another server leads the stream")

// AwaitLeader repeats f while it fails since no server leads a stream, or another one does than a moment ago: a leader
// stepped down, or its server ended. It is bounded by ctx, and by two minutes in which nothing worked: an attempt that itself
// took longer than that was at work, so that the two minutes begin anew after it, five times at most.
func AwaitLeader(ctx context.Context, nc *nats.Conn, f func() error) error {
	reconnects, pause := nc.Stats().Reconnects, leaderPauses
	var deadline time.Time
	for long := 0; ; pause = min(2*pause, longestPause) {
		begun := time.Now()
		err := f()
		lasted := time.Since(begun) > leaderPatience
		if lasted {
			long++
		}
		if deadline.IsZero() || lasted && long < longAttempts {
			deadline, pause = time.Now().Add(leaderPatience), leaderPauses
		}
		switch {
		case err == nil || ctx.Err() != nil || nc.IsClosed() || !leaderMoved(err):
			return err
		case nc.ConnectedClusterName() == "" && nc.IsConnected() && nc.Stats().Reconnects == reconnects:
			return err // a server of its own, which was there all the time, says what it means
		case time.Now().Add(pause).After(deadline):
			return err
		}
		pull.Sleep(ctx, pause)
	}
}

// leaderMoved reports whether an error goes away once there is a leader.
func leaderMoved(err error) bool {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.Code == statusUnavailable || e.Code == statusTimeout
	}
	for _, known := range []error{
		ErrLeaderMoved, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, pull.ErrUnanswered, pull.ErrGap, pull.ErrDisconnected,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Codes of the server's API.
const (
	statusTimeout     = 408
	statusUnavailable = 503
)
