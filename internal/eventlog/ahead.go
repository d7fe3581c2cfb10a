package eventlog

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/pull"
)

// Bounds of what is read ahead.
const (
	maxPull    = 4096    // messages that are asked for at once
	aheadBytes = 8 << 20 // of the entries that wait for handle
)

// gatheredBatch is what handle is called with.
type gatheredBatch struct {
	entries []Entry
	last    uint64 // position of the last message
	behind  uint64 // messages behind it
	size    int    // bytes of all messages
}

// readWhileHandling reads while connected, as batch does, but gathers the next entries
// while those before are handled.
func (s *consumption) readWhileHandling(ctx, connected context.Context) error {
	reading, stop := context.WithCancelCause(connected)
	defer stop(nil)
	work, handled := make(chan *gatheredBatch), make(chan error, 1)
	go func() { handled <- s.handleAll(ctx, reading, stop, work) }()
	err := s.readAhead(reading, work)
	close(work)
	if failed := <-handled; failed != nil {
		return failed
	}
	return err
}

// handleAll handles what is gathered, and shows where the service is, until there
// is no more. If something fails it says stop.
func (s *consumption) handleAll(ctx, reading context.Context, stop context.CancelCauseFunc, work <-chan *gatheredBatch) (err error) {
	idle := time.NewTicker(s.log.o.ShowEvery)
	defer idle.Stop()
	for {
		select {
		case g, ok := <-work:
			if !ok {
				return err
			}
			if err != nil {
				continue
			}
			if err = s.handleGathered(ctx, g); err != nil {
				stop(err)
			}
		case <-idle.C:
			if err == nil && !s.sure {
				s.settlePosition(reading)
			}
		}
	}
}

// handleGathered handles what was gathered.
func (s *consumption) handleGathered(ctx context.Context, g *gatheredBatch) error {
	if len(g.entries) > 0 {
		if err := s.handle(ctx, g.entries); err != nil {
			s.over = true
			return err
		}
	}
	return s.noteHandled(g.last, g.behind)
}

// readAhead hands over entries as soon as there are enough, or have been waited
// for, and the handler has time for them.
func (s *consumption) readAhead(ctx context.Context, work chan<- *gatheredBatch) error {
	last := 0
	for {
		g := &gatheredBatch{entries: make([]Entry, 0, last)} // as many as the last time, probably
		if err := s.takeMessage(ctx, g); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, s.c.Wait)
		err := s.gatherAhead(ctx, wait, g, work)
		cancel()
		if err != nil {
			return err
		}
		last = len(g.entries)
	}
}

func (s *consumption) gatherAhead(ctx, wait context.Context, g *gatheredBatch, work chan<- *gatheredBatch) error {
	for ctx.Err() == nil {
		if len(g.entries) >= s.c.Batch {
			select {
			case work <- g:
				return nil
			default: // more of them, then
			}
		}
		err := error(nil)
		switch {
		case len(g.entries) >= s.c.Ahead || g.size >= aheadBytes:
			err = context.DeadlineExceeded
		default:
			err = s.takeMore(wait, g)
		}
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			select {
			case work <- g:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
	return context.Cause(ctx)
}

// takeMessage waits for a message and adds it.
func (s *consumption) takeMessage(ctx context.Context, g *gatheredBatch) error {
	m, err := s.in.Next(ctx)
	if err != nil {
		return err
	}
	return s.gatherMessage(m, g)
}

// takeMore takes a message that has come, or waits for one.
func (s *consumption) takeMore(ctx context.Context, g *gatheredBatch) error {
	m, ok, err := s.in.Come()
	switch {
	case err != nil:
		return err
	case !ok:
		return s.takeMessage(ctx, g)
	}
	return s.gatherMessage(m, g)
}

func (s *consumption) gatherMessage(m pull.Message, g *gatheredBatch) (err error) {
	if g.entries, err = s.addMessage(m, g.entries); err != nil {
		return err
	}
	g.last, g.behind = s.last, m.Pending
	g.size += len(m.Data)
	return nil
}
