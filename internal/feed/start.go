package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

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
