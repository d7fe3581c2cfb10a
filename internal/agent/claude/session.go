package claude

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os/exec"
	"slices"
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

	n          *Normalizer
	answered   map[string]bool     // requests of the program whose answer it will echo
	asking     map[string]question // open questions for permission, by request
	decided    chan decision
	deciding   sync.WaitGroup
	context    func() context.Context // of the session, for decisions
	cancel     context.CancelFunc
	consulting map[string]context.CancelFunc // hooks are being asked, by request of the program
	heard      chan hearing
	stopped    bool    // a hook wants the agent to end
	inTurn     bool    // the agent works; false once the turn has its result
	over       bool    // the program's input is closed: it is to exit
	reason     string  // why it was ended, if it was
	halted     bool    // it was ended between two turns
	keeper     *keeper // of the session file; nil if nobody wants it

	mu      sync.Mutex
	process *process.Process // nil until the program runs
	outbox  *outbox
	sent    []sending       // messages that the normalizer hasn't been told of
	waiting map[string]bool // messages that the program hasn't echoed
	asked   []string        // messages to the parent that wait for an answer
	halting bool            // it is to end with the turn that is interrupted
	ended   bool            // takes no more messages
	closed  bool
}

type sending struct {
	uuid string
	Sent
}

// question is a question for permission that somebody is deciding.
type question struct {
	call   string
	input  wire.Raw
	cancel context.CancelFunc
}

// decision is the answer to one.
type decision struct {
	request string
	verdict agent.Verdict
}

func newSession(ctx context.Context, p Provider, r agent.Request, prompts []wire.Raw) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{
		provider: p, request: r, prompts: prompts,
		answered: make(map[string]bool), asking: make(map[string]question), decided: make(chan decision),
		consulting: make(map[string]context.CancelFunc), heard: make(chan hearing),
		context: func() context.Context { return ctx }, cancel: cancel,
		outbox: newOutbox(), waiting: make(map[string]bool), asked: slices.Clone(r.Asked),
	}
	return s
}

// Events runs the program and yields what it does; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.Close()           //nolint:errcheck // survivors were reported by finish
		before, err := s.recall() // the prompt may depend on it
		if !s.yield(yield, []*wire.Event{s.startEvent()}) {
			return
		}
		if !s.begin(yield) {
			return
		}
		defer s.keepRest() // the program is gone then
		var warnings []*wire.Event
		if err == nil {
			warnings, err = s.prepare(before)
		}
		if err != nil {
			s.yield(yield, []*wire.Event{s.startFailed(err)})
			return
		}
		if !s.yield(yield, warnings) {
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
	first := []any{initialize(s.request.Hooks)}
	for _, content := range s.prompts {
		uuid := agent.NewSessionID()
		s.sent = append(s.sent, sending{uuid, Sent{Source: "prompt"}})
		s.waiting[uuid] = true
		first = append(first, user(uuid, content))
	}
	s.outbox.begin(s.process.Stdin, first...)
	return s.process, nil
}

// prepare puts the file of the session that the request goes on with in place
// and begins to keep that of its own.
func (s *session) prepare(before record) (warnings []*wire.Event, err error) {
	r, ctx := &s.request, s.context()
	if len(before.content) > 0 {
		if !before.here {
			if err := before.files.put(base(*r), before.content); err != nil {
				return nil, fmt.Errorf("session file: %w", err)
			}
		}
		if r.ForkAt != "" {
			warnings = s.aim(before.content)
		}
	}
	if r.Transcript.Save != nil {
		s.keeper = newKeeper(before.files, r.SessionID, r.Transcript.Save, s.provider.Logger.With("run_id", r.RunID, "node_id", r.NodeID))
		if base(*r) == r.SessionID {
			s.keeper.keep(ctx) // before the program adds to it: from now on it is ours to keep
		}
		go s.keeper.run(ctx)
	}
	return warnings, nil
}

// aim makes the point to fork at the id of a line of the session's file. It
// warns if the fork won't be exact.
func (s *session) aim(content []byte) []*wire.Event {
	asked := s.request.ForkAt
	id, late := pointIn(content, asked)
	s.request.ForkAt = id
	message := ""
	switch {
	case id == "":
		message = fmt.Sprintf("the session's file has no message %s, since its end was lost or the message was joined with the next one: all of the file is kept", asked)
	case late > 0:
		message = fmt.Sprintf("%d results of calls that were made together come after %s and are kept too", late, asked)
	default:
		return nil
	}
	return []*wire.Event{{Timestamp: now(), SessionID: s.request.SessionID, Payload: &wire.AgentError{
		ErrorType: agent.ErrorForkInexact, Message: valid(message), Severity: wire.SeverityWarning, Phase: "lifecycle",
	}}}
}

// keepRest saves the rest of the session's file. The program must be gone.
func (s *session) keepRest() {
	if s.keeper != nil {
		s.keeper.finish(s.context())
	}
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
	if m.Interrupt {
		if err := s.outbox.put(interrupt()); err != nil {
			return err
		}
	}
	uuid := agent.NewSessionID()
	s.sent = append(s.sent, sending{uuid, Sent{Source: "command", CommandID: m.CommandID}})
	s.waiting[uuid] = true
	content := m.Content
	if m.Notice {
		content = system(content)
	} else {
		s.asked = slices.DeleteFunc(s.asked, func(id string) bool { return m.Answers == "" || id == m.Answers })
	}
	return s.outbox.put(user(uuid, textBlocks(content)))
}

// note notes what the agent asks its parent: it waits for the answer.
func (s *session) note(events []*wire.Event) {
	for _, e := range events {
		if p, ok := e.Payload.(*wire.CCMessage); ok && p.Priority != wire.PriorityInfo && e.Parent == "" {
			s.mu.Lock()
			s.asked = append(s.asked, e.CallID)
			s.mu.Unlock()
		}
	}
}

// asks reports whether the agent has asked its parent something and wasn't
// answered.
func (s *session) asks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked) > 0
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
	s.halting = true
	return s.outbox.put(interrupt())
}

// halt ends the program after an interruption if messages wait in its queue, since
// it would begin another turn with them, or if it waits for an answer. Those are still
// to be delivered. It reports whether it did.
func (s *session) halt() bool {
	s.mu.Lock()
	s.halted = s.halting && !s.ended && len(s.waiting)+len(s.asked) > 0
	s.ended = s.ended || s.halted
	s.mu.Unlock()
	if !s.halted {
		return false
	}
	s.over, s.reason = true, "it was interrupted with messages or answers to come"
	if err := s.process.End(s.provider.Grace); err != nil {
		s.provider.Logger.Warn("agent could not be ended", "why", s.reason,
			"run_id", s.request.RunID, "node_id", s.request.NodeID, "error", err)
	}
	return true
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

// finish closes the program's input if no message is on its way to it and it waits
// for no answer. It reports whether it did.
func (s *session) finish(force bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting)+len(s.asked) > 0 && !force {
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
