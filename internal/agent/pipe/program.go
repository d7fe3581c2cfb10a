package pipe

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// Program is the hold of a session on its agent's program; sessions embed it. The goroutine that consumes the session's events owns
// Offset and Index.
type Program struct {
	Context func() context.Context // of the session
	Cancel  context.CancelFunc
	Tasks   sync.WaitGroup // what [Program.Close] waits for
	Outbox  *Outbox        // of the program's input; nil if that doesn't stay open
	News    chan struct{}  // has an item when Inbox or Halting has changed
	Offset  uint64         // of the journal, behind the current line
	Index   int            // of the next event that is made of it

	exec  string
	grace time.Duration
	log   *slog.Logger

	Mu      sync.Mutex       // of what follows
	Process *process.Process // nil until it runs
	Inbox   []agent.Message
	Halting bool // the agent is to stop
	Ended   bool // the session takes no more messages
	Closed  bool
	Left    bool // the program lives on without the session
}

// NewProgram returns the hold of a session whose program hasn't begun. The program has grace to end.
func NewProgram(ctx context.Context, r agent.Request, grace time.Duration, log *slog.Logger, outbox *Outbox) *Program {
	ctx, cancel := context.WithCancel(ctx)
	return &Program{
		Context: func() context.Context { return ctx }, Cancel: cancel, Outbox: outbox, News: make(chan struct{}, 1), exec: r.ExecID, grace: grace, log: log,
	}
}

// Launch starts the program, or attaches to the one that is there. It returns nil if the session has been closed.
func (s *Program) Launch(host process.Host, c process.Config) (p *process.Process, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Closed || s.Context().Err() != nil {
		return nil, nil
	}
	if p, err = host.Start(c); err == nil {
		s.Process = p
	}
	return p, err
}

// Listen makes lines of what the program says, which ends with the session. stop ends what the program has left behind, unless it
// was left itself, and the lines.
func (s *Program) Listen(p *process.Process) (lines <-chan Line, stop func()) {
	done := make(chan struct{})
	lines = ReadLines(p, done)
	keep := context.AfterFunc(s.Context(), func() { _ = s.EndTree() }) // Close reports it
	return lines, func() {
		close(done)
		if !s.IsLeft() {
			s.Stop(p, LeftBehind)
		}
		for range lines {
			// read to their end, unused
		}
		keep()
	}
}

// LeftBehind is why a program is ended that has exited, while what it has started keeps its output open.
const LeftBehind = "agent left processes behind"

// Stop ends the program's tree.
func (s *Program) Stop(p *process.Process, why string) {
	if err := p.End(s.grace); err != nil {
		s.log.Warn("agent could not be ended", "why", why, "error", err)
	}
}

// Yield hands events to the consumer. It reports false if that wants no more.
func (s *Program) Yield(yield func(*wire.Event, error) bool, events ...*wire.Event) bool {
	for _, e := range events {
		e.ExecID = s.exec
		if !yield(e, nil) {
			return false
		}
	}
	return true
}

// Place gives events their place in the program's journal.
func (s *Program) Place(events []*wire.Event) []*wire.Event {
	for _, e := range events {
		e.JournalOffset, e.JournalIndex = s.Offset, s.Index
		s.Index++
	}
	return events
}

// Receive puts a message into the inbox; then is called under Mu.
func (s *Program) Receive(ctx context.Context, m agent.Message, then func()) error {
	return s.change(ctx, func() {
		s.Inbox = append(s.Inbox, m)
		then()
	})
}

// Halt has the agent stop; then is called under Mu.
func (s *Program) Halt(ctx context.Context, then func()) error {
	return s.change(ctx, func() {
		s.Halting = true
		then()
	})
}

func (s *Program) change(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || s.Closed {
		return agent.ErrEnded
	}
	f()
	select {
	case s.News <- struct{}{}:
	default:
	}
	return nil
}

// IsHalting reports whether the agent is to stop.
func (s *Program) IsHalting() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Halting
}

// HasMessages reports whether messages wait.
func (s *Program) HasMessages() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Inbox) > 0
}

// Close ends the program and all that it started; see [agent.Session].
func (s *Program) Close() error {
	s.Cancel()
	err := s.EndTree()
	s.Mu.Lock()
	p := s.Process
	s.Mu.Unlock()
	s.Tasks.Wait()
	s.Outbox.CloseAndWait()
	if p != nil {
		err = errors.Join(err, p.Close())
	}
	return err
}

// EndTree closes the session and ends the program's tree, unless it was left.
func (s *Program) EndTree() error {
	s.Mu.Lock()
	s.Closed, s.Ended = true, true
	p, left := s.Process, s.Left
	s.Mu.Unlock()
	if p == nil || left {
		return nil
	}
	return p.End(s.grace)
}

// Leave gives the program up without ending it; see [agent.Leaver].
func (s *Program) Leave() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Process == nil || s.Closed || s.Left || !s.Process.Leave() {
		return s.Left
	}
	s.Left, s.Ended = true, true
	if s.Outbox != nil {
		s.Outbox.Drop()
	}
	return true
}

// IsLeft reports whether the program lives on without the session.
func (s *Program) IsLeft() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Left
}

// Conclude ends what the program has left behind once its output has ended, unless it was left itself, and says how it ended.
func (s *Program) Conclude(p *process.Process) (how process.Exit, closed, left bool, err error) {
	s.Mu.Lock()
	closed, left = s.Closed, s.Left
	s.Ended = true
	s.Mu.Unlock()
	if left {
		return how, closed, left, nil
	}
	err = p.End(s.grace)
	how, waitErr := p.Wait(context.WithoutCancel(s.Context()))
	return how, closed, left, errors.Join(err, waitErr)
}
