package acp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is one run of the program. The goroutine that consumes Events owns all that isn't under mu.
type session struct {
	provider Provider
	request  agent.Request
	argv     []string
	prompt   []acp.ContentBlock
	folder   workdir.Folder

	f         *fold
	replaying bool      // what the program says, and was told, is from its journal
	open      []message // requests of the journal without an answer, in order
	asked     time.Time // when the program was last asked something
	over      time.Time // since when the program has nothing more to do; zero: it has
	offset    uint64    // of the journal, behind the current line
	index     int       // of the next event that is made of it
	rested    time.Time // when the host was last told of a resting point
	rests     uint64    // where that was
	reason    string    // why the program was ended, if it was
	deciding  map[string]context.CancelFunc
	decided   chan decision
	terminals map[string]*terminal
	tasks     sync.WaitGroup // decisions and terminals
	context   func() context.Context
	cancel    context.CancelFunc
	outbox    *pipe.Outbox

	mu       sync.Mutex
	process  *process.Process // nil until the program runs
	inbox    []agent.Message
	news     chan struct{} // has an item when inbox, halting or redirect changed
	redirect bool          // it is to do something else
	halting  bool          // it is to stop
	ended    bool          // it takes no more messages
	closed   bool
	left     bool // the program lives on without this session
}

// decision is the answer to a question for permission.
type decision struct {
	question message
	verdict  agent.Verdict
}

func newSession(ctx context.Context, p Provider, r agent.Request, argv []string, prompt []acp.ContentBlock) *session {
	ctx, cancel := context.WithCancel(ctx)
	return &session{
		provider: p, request: r, argv: argv, prompt: prompt, folder: workdir.Folder{Dir: r.Options.Cwd, User: p.User},
		f: newFold(r), replaying: true, deciding: map[string]context.CancelFunc{}, decided: make(chan decision), terminals: map[string]*terminal{},
		context: func() context.Context { return ctx }, cancel: cancel, outbox: pipe.NewOutbox(), news: make(chan struct{}, 1),
	}
}

// yieldEvents hands events to the consumer. It reports false if that wants no more.
func (s *session) yieldEvents(yield func(*wire.Event, error) bool, events []*wire.Event) bool {
	for _, e := range events {
		e.ExecID = s.request.ExecID
		if !yield(e, nil) {
			return false
		}
	}
	return true
}

// placeEvents gives events their place in the program's journal.
func (s *session) placeEvents(events []*wire.Event) []*wire.Event {
	for _, e := range events {
		e.JournalOffset, e.JournalIndex = s.offset, s.index
		s.index++
	}
	return events
}

func (s *session) put(m message) {
	if err := s.outbox.Put(m); err != nil {
		s.provider.Logger.Debug("line not sent", "method", m.Method, "error", err)
	}
}

// environ is the environment of the agent and its terminals.
func (s *session) environ() []string {
	return agent.Environment(s.provider.Environ, s.request.Options.Env)
}

// restoreRest puts the session where it was at a resting point. What another version of this program has left there can't
// be gone on with: the execution fails, and says why.
func (s *session) restoreRest(last process.Rest) {
	s.offset, s.rests = last.Offset, last.Offset
	if len(last.State) == 0 {
		return
	}
	var x state
	err := wire.Unmarshal(last.State, &x)
	if err == nil && x.Version != stateVersion {
		err = fmt.Errorf("it is of version %d; this program reads %d", x.Version, stateVersion)
	}
	if err != nil {
		s.f.fail(wire.ErrorJournalUnreadable, "what a former runner knew of the agent can't be read: "+err.Error(), nil)
		return
	}
	x.fillMaps()
	s.f.state = x
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halting, s.ended = x.Halting, s.ended || x.Over
}

// Send gives the agent a message, when its turn is over; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("acp: send: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closed {
		return agent.ErrEnded
	}
	s.inbox = append(s.inbox, m)
	s.redirect = s.redirect || m.Interrupt
	s.signalNews()
	return nil
}

// Interrupt asks the agent to stop; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("acp: interrupt: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closed {
		return agent.ErrEnded
	}
	s.halting = true
	s.signalNews()
	return nil
}

// signalNews says that there is news. It is called under mu.
func (s *session) signalNews() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *session) isHalting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halting
}

// takeNews does what a message or an interruption asks for.
func (s *session) takeNews() {
	s.mu.Lock()
	halting, redirect := s.halting, s.redirect
	s.redirect = false
	s.mu.Unlock()
	s.f.Halting = halting
	if s.f.Over || !halting && !redirect {
		return
	}
	if s.inTurn() {
		s.cutTurn()
	} else if halting {
		s.closeInput()
	}
}

// inTurn reports whether the agent has a prompt that it hasn't come to the end of.
func (s *session) inTurn() bool {
	for _, r := range s.f.Sent {
		if r.Method == acp.AgentMethodSessionPrompt {
			return true
		}
	}
	return false
}

// cutTurn has the agent cut its turn short. What it asks is answered by that.
func (s *session) cutTurn() {
	if s.replaying || s.f.Cancelled {
		return
	}
	s.f.Cancelled = true
	params, _ := wire.AppendJSON(nil, wire.RawOf(map[string]any{"sessionId": s.f.Session}))
	s.put(message{JSONRPC: "2.0", Method: acp.AgentMethodSessionCancel, Params: params})
	for _, cancel := range s.deciding {
		cancel()
	}
}

// nextMessage takes the next message. If there is none, the program's input is closed, and the inbox, unless the agent waits for an answer.
func (s *session) nextMessage() (m agent.Message, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox) > 0 {
		m, s.inbox = s.inbox[0], s.inbox[1:]
		return m, true
	}
	if len(s.f.Asked) > 0 {
		return m, false
	}
	s.ended, s.f.Over = true, true
	s.outbox.Close()
	return m, false
}

// closeInput ends the program's input: there is nothing more to do. Messages that wait are for the session that goes on.
func (s *session) closeInput() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.f.Over = true, true
	s.outbox.Close()
}

// hasMessages reports whether messages wait.
func (s *session) hasMessages() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inbox) > 0
}

// Close ends the program and all that it started; see [agent.Session].
func (s *session) Close() error {
	s.cancel()
	err := s.closeProgram()
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	s.tasks.Wait()
	s.outbox.CloseAndWait()
	if p != nil {
		err = errors.Join(err, p.Close())
	}
	return err
}

// closeProgram ends the program's tree.
func (s *session) closeProgram() error {
	s.mu.Lock()
	s.closed, s.ended = true, true
	p, left := s.process, s.left
	s.mu.Unlock()
	if p == nil || left {
		return nil
	}
	return p.End(s.provider.Grace)
}

// Leave gives the program up without ending it; see [agent.Leaver].
func (s *session) Leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || s.closed || s.left || !s.process.Leave() {
		return s.left
	}
	s.left, s.ended = true, true
	s.outbox.Drop()
	return true
}

func (s *session) isLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

func nowMillis() int64 { return time.Now().UnixMilli() }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
