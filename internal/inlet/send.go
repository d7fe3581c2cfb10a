package inlet

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const (
	alive    = away / 6         // how often a sender that has nothing to send says so
	patience = 10 * time.Second // with a runner that doesn't answer
)

// Input is what a runner makes runs of.
type Input struct {
	io.Reader

	Waits func() // called once if the runner has had something for ten seconds and hasn't taken it, or not stored it; may be nil
}

// ErrUnstored says that a runner couldn't store yet what it was given of an input when that was ended. It does when it can.
var ErrUnstored = errors.New("the runner hasn't stored yet what it was given")

// Send has a runner make runs of an input, and sets result to what it says of them, also
// where it fails. If ctx ends, what was read by then is kept; if the runner can't store it within ten seconds, Send fails
// with [ErrUnstored].
//
// What reads the input may wait for it for longer than Send does.
func Send(ctx context.Context, nc *nats.Conn, names subjects.Names, q wire.IngestRequest, in Input, result any) error {
	begun, err := api.Call[wire.IngestResponse](ctx, nc, names, wire.VerbIngest, q)
	if err != nil {
		return err
	}
	s := sender{nc: nc, names: names, to: begun, again: q.Format == string(Exported) || q.Format == string(ingest.Kahn), moved: time.Now(), waits: in.Waits}
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
	again bool // the input may be sent again, and nothing of it is there twice

	taken int64     // bytes
	moved time.Time // when it took the last of them
	waits func()    // nil: it was called
}

// noteProgress notes whether the runner gets on.
func (s *sender) noteProgress(p wire.IngestProgress) {
	if p.Received > s.taken {
		s.taken, s.moved = p.Received, time.Now()
	}
	if s.waits != nil && time.Since(s.moved) > patience {
		s.waits()
		s.waits = nil
	}
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
			s.moved = time.Now() // it has nothing to do
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
	begun := time.Now()
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
		case err == nil && q.Abort && time.Since(begun) > patience:
			return p, ErrUnstored
		case err == nil:
			failing = time.Time{}
			s.noteProgress(p)
		case e == nil || e.Code != wire.CodeUnreachable && e.Code != wire.CodeTimeout && e.Code != wire.CodeBusy:
			return p, err
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > patience:
			hint := "what it has stored is kept; send the input again, with another --run"
			if s.again {
				hint = "send the input again: what is there isn't added twice"
			}
			return p, &wire.APIError{Code: wire.CodeUnreachable, Message: "the runner that takes the input is gone, or its server", Hint: hint}
		}
		if err != nil {
			pull.Sleep(ctx, 250*time.Millisecond)
		}
	}
}
