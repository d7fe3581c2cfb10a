package claude

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os/exec"
	"sync"
	"time"

	"wake/internal/agent"
	"wake/internal/process"
	"wake/pkg/wire"
)

// session is one run of the program. The goroutine that consumes Events owns
// all that isn't under mu.
type session struct {
	provider Provider
	request  agent.Request
	prompts  []wire.Raw

	n        *Normalizer
	answered map[string]bool               // requests of the program whose answer it will echo
	asking   map[string]context.CancelFunc // open questions for permission, by request
	decided  chan decision
	deciding sync.WaitGroup
	context  func() context.Context // of the session, for decisions
	cancel   context.CancelFunc
	inTurn   bool   // the agent works; false once the turn has its result
	over     bool   // the program's input is closed: it is to exit
	reason   string // why it was ended, if it was

	mu      sync.Mutex
	process *process.Process // nil until the program runs
	outbox  *outbox
	sent    []sending       // messages that the normalizer hasn't been told of
	waiting map[string]bool // messages that the program hasn't echoed
	ended   bool            // takes no more messages
	closed  bool
}

type sending struct {
	uuid string
	Sent
}

// decision is an answer to a question for permission.
type decision struct {
	request string
	call    string
	input   wire.Raw
	verdict agent.Verdict
}

func newSession(ctx context.Context, p Provider, r agent.Request, prompts []wire.Raw) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{
		provider: p, request: r, prompts: prompts,
		n: NewNormalizer(NormalizerOptions{
			Blocks: r.Options.Blocks, SessionID: r.SessionID, Started: true, Prompt: r.Prompt,
		}),
		answered: make(map[string]bool), asking: make(map[string]context.CancelFunc), decided: make(chan decision),
		context: func() context.Context { return ctx }, cancel: cancel,
		outbox: newOutbox(), waiting: make(map[string]bool),
	}
	return s
}

// Events runs the program and yields what it does; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.Close() //nolint:errcheck // survivors were reported by finish
		if !s.yield(yield, []*wire.Event{s.startEvent()}) {
			return
		}
		p, err := s.launch()
		if err != nil {
			s.yield(yield, []*wire.Event{s.startFailed(err)})
			return
		}
		if p == nil { // closed before it began
			return
		}
		stop := context.AfterFunc(s.context(), func() { _ = s.end() }) // Close reports it
		defer stop()
		s.drive(p, yield)
	}
}

// yield hands events to the consumer. It reports false if that wants no more.
func (s *session) yield(yield func(*wire.Event, error) bool, events []*wire.Event) bool {
	for _, e := range events {
		e.ExecID = s.request.ExecID
		if !yield(e, nil) {
			return false
		}
	}
	return true
}

func (s *session) startEvent() *wire.Event {
	o := s.request.Options
	return &wire.Event{
		Timestamp: now(), SessionID: s.request.SessionID,
		Payload: &wire.AgentStart{
			Model: o.Model, Prompt: s.request.Prompt, Provider: "claude", Cwd: o.Cwd,
			Resumed: s.request.Resume || s.request.ForkOf != "",
		},
	}
}

func (s *session) startFailed(err error) *wire.Event {
	return &wire.Event{
		Timestamp: now(), SessionID: s.request.SessionID,
		Payload: &wire.AgentError{
			ErrorType: wire.ErrorStartFailed, Message: "the agent didn't start: " + valid(notFound(s.provider.Binary, err)),
			Severity: wire.SeverityError, Phase: "lifecycle",
		},
	}
}

// launch starts the program and gives it its prompt. It returns nil if the
// session has been closed.
func (s *session) launch() (*process.Process, error) {
	argv := s.provider.argv(s.request)
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	argv[0] = path
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.context().Err() != nil {
		return nil, nil
	}
	s.process, err = process.Start(process.Config{
		Argv: argv, Dir: s.request.Options.Cwd, KeepStderr: true,
		Env: agent.Environment(s.provider.Environ, s.request.Options.Env),
	})
	if err != nil {
		return nil, err
	}
	first := []any{initialize()}
	for _, content := range s.prompts {
		uuid := agent.NewSessionID()
		s.sent = append(s.sent, sending{uuid, Sent{Source: "prompt"}})
		s.waiting[uuid] = true
		first = append(first, user(uuid, content))
	}
	s.outbox.begin(s.process.Stdin, first...)
	return s.process, nil
}

// Send gives the agent a message; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("claude: send: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closed {
		return agent.ErrEnded
	}
	uuid := agent.NewSessionID()
	s.sent = append(s.sent, sending{uuid, Sent{Source: "command", CommandID: m.CommandID}})
	s.waiting[uuid] = true
	return s.outbox.put(user(uuid, textBlocks(m.Content)))
}

// Interrupt asks the agent to stop; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("claude: interrupt: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closed {
		return agent.ErrEnded
	}
	return s.outbox.put(interrupt())
}

// Close ends the program and all that it started; see [agent.Session].
func (s *session) Close() error {
	s.cancel()
	err := s.end()
	s.deciding.Wait()
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	s.outbox.end()
	if p != nil {
		err = errors.Join(err, p.Close())
	}
	return err
}

// end ends the program's tree.
func (s *session) end() error {
	s.mu.Lock()
	s.closed, s.ended = true, true
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.End(s.provider.Grace)
}

// finish closes the program's input if no message is on its way to it. It
// reports whether it did.
func (s *session) finish(force bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 && !force {
		return false
	}
	s.ended = true
	s.outbox.close()
	return true
}

// echoed notes that the program has taken a message.
func (s *session) echoed(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, uuid)
}

// tell tells the normalizer of the messages that were sent.
func (s *session) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sent {
		s.n.Sent(m.uuid, m.Sent)
	}
	s.sent = nil
}

func now() int64 { return time.Now().UnixMilli() }
