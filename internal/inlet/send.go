package inlet

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const (
	alive    = away / 6         // how often a sender that has nothing to send says so
	patience = 10 * time.Second // with a runner that doesn't answer
)

// Send has a runner make runs of an input, and sets result to what it says of them, also
// where it fails. If ctx ends, what was read by then is kept.
//
// What reads the input may wait for it for longer than Send does.
func Send(ctx context.Context, nc *nats.Conn, names subjects.Names, q wire.IngestRequest, in io.Reader, result any) error {
	begun, err := api.Call[wire.IngestResponse](ctx, nc, names, wire.VerbIngest, q)
	if err != nil {
		return err
	}
	s := sender{nc: nc, names: names, to: begun}
	p, err := s.sendInput(ctx, in)
	if err != nil {
		return err
	}
	if err := wire.Unmarshal(p.Result, result); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case p.Problem != nil:
		return p.Problem
	}
	return nil
}

// sender sends an input.
type sender struct {
	nc    *nats.Conn
	names subjects.Names
	to    wire.IngestResponse
	sent  int64
}

// readChunk is what a reader gave.
type readChunk struct {
	data []byte
	err  error
}

// sendInput sends the input to its end, or to that of ctx.
func (s *sender) sendInput(ctx context.Context, in io.Reader) (wire.IngestProgress, error) {
	chunks, over := make(chan readChunk), make(chan struct{})
	defer close(over)
	go func() { // reading can't be cancelled
		for {
			data := make([]byte, maxPiece)
			n, err := in.Read(data)
			select {
			case chunks <- readChunk{data[:n], err}:
			case <-over:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		var p wire.IngestProgress
		var err error
		select {
		case c := <-chunks:
			if c.err != nil && !errors.Is(c.err, io.EOF) {
				_, _ = s.sendPiece(ctx, wire.IngestPiece{Data: c.data, Abort: true}) // why it ends is the error
				return p, c.err
			}
			p, err = s.sendPiece(ctx, wire.IngestPiece{Data: c.data, End: c.err != nil})
		case <-time.After(alive):
			p, err = s.sendPiece(ctx, wire.IngestPiece{})
		case <-ctx.Done():
			p, err = s.sendPiece(context.WithoutCancel(ctx), wire.IngestPiece{Abort: true})
		}
		if err != nil || p.Done {
			return p, err
		}
	}
}

// sendPiece sends a piece until it has been taken; of the last one, until the input was read.
func (s *sender) sendPiece(ctx context.Context, q wire.IngestPiece) (wire.IngestProgress, error) {
	q.Session, q.Offset = s.to.Session, s.sent
	end := q.Offset + int64(len(q.Data))
	var failing time.Time
	for {
		p, err := api.CallAt[wire.IngestProgress](context.WithoutCancel(ctx), s.nc, s.names, s.to.Subject, wire.VerbIngest, q)
		switch e, _ := errors.AsType[*wire.APIError](err); {
		case err == nil && (p.Done || p.Received >= end && !q.End && !q.Abort):
			s.sent = end
			return p, nil
		case err == nil && ctx.Err() != nil && !q.Abort:
			s.sent = p.Received
			return p, nil // the next one ends it
		case err == nil:
			failing = time.Time{}
		case e == nil || e.Code != wire.CodeUnreachable && e.Code != wire.CodeTimeout && e.Code != wire.CodeBusy:
			return p, err
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > patience:
			return p, &wire.APIError{Code: wire.CodeUnreachable, Message: "the runner that takes the input is gone: " + e.Message, Hint: "what it has is kept; send the input again, with another --run"}
		}
		if err != nil {
			pull.Sleep(ctx, 250*time.Millisecond)
		}
	}
}
