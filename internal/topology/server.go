package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
)

// The server's own codes of errors that deserve advice.
const (
	codeNoPeers          jetstream.ErrorCode = 10005
	codeNoStorage        jetstream.ErrorCode = 10047
	codeSubjectsOverlap  jetstream.ErrorCode = 10065
	codeReplicasRefused  jetstream.ErrorCode = 10074
	codeMaxBytesRequired jetstream.ErrorCode = 10113
	codeStreamOffline    jetstream.ErrorCode = 10118
)

// errorCode returns the server's code of an error, or 0.
func errorCode(err error) jetstream.ErrorCode {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode
	}
	return 0
}

// explainError adds what was tried and what to do about it; nil stays nil.
func explainError(err error, tried string) error {
	if err == nil {
		return nil
	}
	if tried != "" {
		err = fmt.Errorf("%s: %w", tried, err)
	}
	if advice := adviceFor(err); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func adviceFor(err error) string {
	switch errorCode(err) {
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return "enable JetStream on the server and for the account"
	case codeNoPeers:
		return "the cluster has fewer servers with JetStream than replicas"
	case codeReplicasRefused:
		return "a single server can't replicate; use a cluster, or --replicas 1"
	case codeNoStorage:
		return "the server has less room than is reserved; lower --max-bytes or add storage"
	case codeMaxBytesRequired:
		return "the account wants each stream to have a limit; wake's have none but that of events"
	default: // the server's text is all there is to say
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "enable JetStream on the server"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return "the server didn't answer; a user without the permission to use the JetStream API sees the same"
	}
	return ""
}

// minMajor and minMinor are the version of the first server that can reset a
// consumer to a position.
const minMajor, minMinor = 2, 14

// checkServer fails if the server is too old. One with an unreadable version
// passes.
func checkServer(js jetstream.JetStream) error {
	version := js.Conn().ConnectedServerVersion()
	major, minor, ok := parseVersion(version)
	if ok && (major < minMajor || major == minMajor && minor < minMinor) {
		return fmt.Errorf("topology: nats-server %s is too old: wake needs %d.%d or later", version, minMajor, minMinor)
	}
	return nil
}

func parseVersion(s string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err1 == nil && err2 == nil
}

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
		case err == nil || ctx.Err() != nil || nc.IsClosed() || !LeaderMoved(err):
			return err
		case nc.ConnectedClusterName() == "" && nc.IsConnected() && nc.Stats().Reconnects == reconnects:
			return err // a server of its own, which was there all the time, says what it means
		case time.Now().Add(pause).After(deadline):
			return err
		}
		pull.Sleep(ctx, pause)
	}
}

// LeaderMoved reports whether an error goes away once there is a leader.
func LeaderMoved(err error) bool {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.Code == statusUnavailable || e.Code == statusTimeout
	}
	return slices.ContainsFunc([]error{
		ErrLeaderMoved, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, pull.ErrUnanswered, pull.ErrGap, pull.ErrDisconnected,
	}, func(known error) bool { return errors.Is(err, known) })
}

// Codes of the server's API.
const (
	statusTimeout     = 408
	statusUnavailable = 503
)
