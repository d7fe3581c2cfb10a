package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

var (
	// ErrFenced is returned to a writer that has been replaced: the node
	// was claimed by another writer, or its history isn't what the writer last
	// stored. What it still held is in WAKE_DEADLETTER.
	ErrFenced = errors.New("the node has another writer")

	// ErrAged is the [ErrFenced] of a writer after its last event has aged out of
	// the stream. The node may be claimed again with [Claim.AtSeq].
	ErrAged = fmt.Errorf("%w: its history aged out of the stream", ErrFenced)

	// ErrAmbiguous is returned if a wait ended before its outcome was known. The
	// events stay queued: they are stored as soon as that is possible, unless the
	// writer is fenced first.
	ErrAmbiguous = errors.New("the outcome is not known yet, the events stay queued")

	// ErrClosed is returned by a closed [Writer], and by every writer once
	// [Log.Run] is ending.
	ErrClosed = errors.New("closed")

	// ErrFull is the reason why nothing is stored while the stream has no room.
	ErrFull = errors.New("the stream of events is full: raise its max bytes with `wake init` (works while it is in use); nothing is lost, writers wait")

	// ErrIncarnation is returned for a position of a stream that isn't there any
	// more: it was re-created or restored. What was derived from it has to be
	// built again.
	ErrIncarnation = errors.New("the position belongs to another incarnation of the stream")

	// ErrBeyond is returned for a position behind the last one of a stream if its leader
	// has said so steadily: the servers have lost the stream's end, or lag for very long.
	ErrBeyond = errors.New("the position is beyond the end of the stream; if it stays so, the servers have lost events that they had acknowledged")

	// ErrBlobMissing is returned for a blob that the object store lacks, in whole or in part, or has other content of: it won't be
	// read later either.
	ErrBlobMissing = errors.New("blob is missing")

	// ErrLost is returned by [Log.Run] if it ended with events that could neither
	// be stored nor spooled.
	ErrLost = errors.New("events were neither stored nor spooled")
)

// errNotFound is a leader's answer that it has no such message.
var errNotFound = errors.New("no message found")

// errUnanswered is the outcome of a request if its answer didn't come in time, or
// was lost with the connection.
var errUnanswered = errors.New("no answer from the server")

// errUnsent is the outcome of a request that no receiver got.
var errUnsent = errors.New("no server takes it at present")

// errDisconnected is an errUnsent.
var errDisconnected = fmt.Errorf("%w: not connected to the server", errUnsent)

// unled is the error of what no leader has answered: it is over once there is one.
type unled struct{ error }

// Unwrap returns what was answered, or not.
func (e unled) Unwrap() error { return e.error }

// Is says so to [topology.AwaitLeader].
func (e unled) Is(target error) bool { return target == topology.ErrLeaderMoved && !isFinal(e.error) }

// The server's error codes that decide something here.
const (
	codeNotFound      = 10037
	codeTooLarge      = 10054 // message larger than the stream allows
	codeStoreFailed   = 10077 // stream full, as far as a publisher can see
	codeNoBatches     = 10174 // the stream doesn't allow atomic batches
	codeIncomplete    = 10176 // the server lacks events of the batch
	codeBatchTooLarge = 10199
	codeTooManyOpen   = 10210 // open batches
)

// apiError is an error that the server answered with.
type apiError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

// Error implements error.
func (e *apiError) Error() string {
	text := fmt.Sprintf("server: %s (%d)", e.Description, e.Code)
	if cause := e.Unwrap(); cause != nil {
		return cause.Error() + "; " + text
	}
	return text
}

// Unwrap tells a full stream from other refusals.
func (e *apiError) Unwrap() error {
	if e.Code == codeStoreFailed {
		return ErrFull
	}
	return nil
}

// As makes it the error that the JetStream client has for the same answer, but for a full stream, which is told apart.
func (e *apiError) As(target any) bool {
	t, ok := target.(**jetstream.APIError)
	if ok = ok && e.Code != codeStoreFailed; ok {
		*t = &jetstream.APIError{Code: e.Status, ErrorCode: jetstream.ErrorCode(e.Code), Description: e.Description}
	}
	return ok
}

// Unavailable reports whether nothing was done since no server does it at present.
func Unavailable(err error) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.Status >= 500 && e.Code != codeStoreFailed || errors.Is(err, errUnsent) || errors.Is(err, errUnanswered)
}

// serverCode returns the server's code of err, or 0 if the server didn't decide.
func serverCode(err error) int {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.Code
	}
	return 0
}

// isFinal reports whether the server refuses what was asked for, rather than being
// unable to do it at present.
func isFinal(err error) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.Status < 500
}

// pubAck is the server's answer to a publish.
type pubAck struct {
	Seq   uint64    `json:"seq"`
	Count int       `json:"count"`
	Error *apiError `json:"error"`
}

// parseAck reads the answer to a publish. An empty answer only confirms that
// the first message of a batch has arrived; ok is false then.
func parseAck(m *nats.Msg) (ack pubAck, ok bool, err error) {
	if len(m.Data) == 0 {
		switch status := m.Header.Get("Status"); status {
		case "":
		case "503":
			return pubAck{}, true, fmt.Errorf("%w: the stream has no leader, or isn't there", errUnsent)
		default:
			return pubAck{}, true, fmt.Errorf("%w: status %s", errUnanswered, status)
		}
		return pubAck{}, false, nil
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return pubAck{}, true, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	if ack.Error != nil {
		return pubAck{}, true, ack.Error
	}
	return ack, true, nil
}

// GoesOn reports whether a run that had ended at a position, when its owner was of an epoch, has gone on since, as
// one may that had failed.
func GoesOn(ctx context.Context, r Reader, run string, ended, epoch uint64) (bool, error) {
	for e, err := range r.Read(ctx, Query{Run: run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: ended + 1}) {
		if err != nil {
			return false, err
		}
		if e.Event == nil || e.Event.Epoch < epoch {
			continue
		}
		switch e.Event.Payload.(type) {
		case *wire.RunClaimed:
			epoch = e.Event.Epoch
		case *wire.FlowResumed:
			return true, nil
		}
	}
	return false, nil
}
