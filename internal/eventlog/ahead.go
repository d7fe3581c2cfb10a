package eventlog

import (
	"context"
	"errors"
)

// Bounds of what is read ahead.
const (
	maxPull    = 4096    // messages that are asked for at once
	aheadBytes = 8 << 20 // of the entries that wait for handle
)

// gathered is what handle is called with.
type gathered struct {
	entries []Entry
	newest  pulled // last message
	last    uint64 // its position
	size    int    // bytes of all messages
}

// overlap reads while connected, as batch does, but gathers the next entries
// while those before are handled.
func (s *consumption) overlap(ctx, connected context.Context) error {
	reading, stop := context.WithCancelCause(connected)
	defer stop(nil)
	work, handled := make(chan *gathered), make(chan error, 1)
	go func() {
		var err error
		for g := range work {
			if err == nil {
				if err = s.finish(ctx, g); err != nil {
					stop(err)
				}
			}
		}
		handled <- err
	}()
	err := s.readAhead(reading, work)
	close(work)
	if failed := <-handled; failed != nil {
		return failed
	}
	return err
}

// finish handles what was gathered, and acknowledges it.
func (s *consumption) finish(ctx context.Context, g *gathered) error {
	if len(g.entries) > 0 {
		if err := s.handle(ctx, g.entries); err != nil {
			s.over = true
			return err
		}
	}
	s.pos = g.last
	return s.log.nc.Publish(g.newest.Reply, []byte("+ACK"))
}

// readAhead hands over entries as soon as there are enough, or have been waited
// for, and somebody has time for them.
func (s *consumption) readAhead(ctx context.Context, work chan<- *gathered) error {
	for {
		g := new(gathered)
		if err := s.take(ctx, g); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, s.c.Wait)
		err := s.gatherAhead(ctx, wait, g, work)
		cancel()
		if err != nil {
			return err
		}
	}
}

func (s *consumption) gatherAhead(ctx, wait context.Context, g *gathered, work chan<- *gathered) error {
	for {
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
		case len(s.in.in) > 0:
			err = s.take(ctx, g)
		default:
			err = s.take(wait, g)
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
}

// take waits for a message and adds it.
func (s *consumption) take(ctx context.Context, g *gathered) error {
	entries, m, err := s.next(ctx, g.entries)
	if err != nil {
		return err
	}
	g.entries, g.newest, g.last = entries, m, s.last
	g.size += len(m.Data)
	return nil
}
