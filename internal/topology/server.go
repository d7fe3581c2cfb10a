package topology

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
