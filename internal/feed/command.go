package feed

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// verdictWait is how long an answer waits for a command's record; less than [api.MaxWork].
const verdictWait = 4500 * time.Millisecond

// command stores a command in the caller's name, and says what has
// become of it. Users don't store commands themselves: what a user names as the reply of
// a question is sent on without a name, and the stream doesn't keep the publisher.
func (s *Server) command(ctx context.Context, q wire.CommandRequest, _ api.Form) (wire.CommandResponse, error) {
	q.ID = cmp.Or(q.ID, rand.Text())
	answer := wire.CommandResponse{CommandID: q.ID, RunID: q.RunID}
	run := cmp.Or(q.RunID, subjects.NoRun) // where it is rejected on record
	data, err := wire.Marshal(q.Command)
	if err != nil {
		return answer, badRequest("the command can't be encoded: %v", err)
	}
	_, last, err := s.log.Bounds(ctx)
	if err != nil {
		return answer, err
	}
	ack, err := s.log.SendBy(ctx, api.CallerOf(ctx).Name, s.log.Names().Command(run), data)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return answer, &wire.APIError{Code: wire.CodeTooLarge, Message: fmt.Sprintf("the command has %d bytes, the server takes %d", len(data), s.log.Conn().MaxPayload())}
	case err != nil:
		return answer, fmt.Errorf("store the command: %w", err)
	case q.Stored:
		return answer, nil
	}
	return s.awaitVerdict(ctx, answer, run, last+1, ack.Sequence)
}

// awaitVerdict waits for the record of the command at a position of the commands. If it isn't
// recorded in time, the command waits for a runner.
func (s *Server) awaitVerdict(ctx context.Context, answer wire.CommandResponse, run string, from, at uint64) (wire.CommandResponse, error) {
	n := s.log.Names()
	filter := []string{n.Event(run, wire.RunNode, string(wire.KindFlow)), n.Event(subjects.NoRun, wire.RunNode, string(wire.KindFlow))}
	wait, cancel := context.WithTimeout(ctx, verdictWait)
	defer cancel()
	for wait.Err() == nil {
		p, err := s.waitFor(wait, s.events, filter, from, maxPiece)
		if err != nil {
			break // it is stored
		}
		for _, m := range p.messages {
			if r, ok := eventlog.PayloadOf[*wire.CommandReceived](eventlog.EntryOf(m, n, s.log.Keys())); ok && r.AtPos == at {
				answer.Recorded, answer.Accepted, answer.Reason, answer.Position = true, r.Accepted, r.Reason, m.Pos
				return answer, nil
			}
		}
		from = p.next
	}
	return answer, nil
}

// startHeadroom is what the event that begins a run has in bytes beyond its request.
const startHeadroom = 4 << 10

// startRun stores a request for a run in the caller's name: where the server gives the
// name, the request's own doesn't count. The same request twice is stored once, for as long as
// the stream knows of it.
func (s *Server) startRun(ctx context.Context, q wire.RunRequest, _ api.Form) (wire.StartResponse, error) {
	answer := wire.StartResponse{RunID: q.RunID}
	if err := subjects.CheckID(q.RunID); err != nil {
		return answer, badRequest("runId: %v", err)
	}
	if (len(q.Definition) == 0 || string(q.Definition) == string(wire.Null)) && q.Fork == nil {
		return answer, badRequest("a run needs a definition, or a fork says of what it is a copy")
	}
	q.V, q.By = cmp.Or(q.V, wire.Version), cmp.Or(api.CallerOf(ctx).Name, q.By)
	data, err := wire.Marshal(q)
	if err != nil {
		return answer, badRequest("the request can't be encoded: %v", err)
	}
	if limit := s.log.Conn().MaxPayload(); int64(len(data)) > limit-startHeadroom {
		return answer, &wire.APIError{Code: wire.CodeTooLarge, Message: fmt.Sprintf("the request has %d bytes, the server takes %d", len(data), limit-startHeadroom)}
	}
	hash := sha256.Sum256(data)
	if _, err := s.log.Send(ctx, s.log.Names().QueueRun(), data, jetstream.WithMsgID(hex.EncodeToString(hash[:]))); err != nil {
		return answer, fmt.Errorf("store the request: %w", err)
	}
	return answer, nil
}
