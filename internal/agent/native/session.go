package native

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is an execution of the agent. The goroutine that consumes Events owns all
// that isn't under Mu.
type session struct {
	provider Provider
	request  agent.Request
	log      *slog.Logger
	mode     string
	context  func() context.Context // of the session
	cancel   context.CancelFunc

	model   model
	name    string // of the model
	limits  limits
	tools   []*tool
	closers []func() error // of what it is connected to
	conv    *conversation
	turn    int // index of the turn that is under way
	system  string
	begun   time.Time
	turned  time.Time            // when the turn that is under way began here
	price   *agent.Price         // of the model; nil: not known
	asked   []string             // messages to the parent that wait for an answer
	atWork  map[string]time.Time // calls of an earlier session that the host has, with the times of their begin
	yield   func(*wire.Event, error) bool

	calls   sync.WaitGroup // under way
	mu      sync.Mutex
	inbox   []agent.Message
	news    chan struct{}           // has an item when inbox or halting changed
	abandon context.CancelCauseFunc // ends what the agent does at the moment
	halting bool                    // it is to come to a safe point
	ended   bool                    // it takes no more messages
	lost    bool                    // its host is gone
}

var (
	// errLeft says that the consumer wants no more events.
	errLeft = errors.New("native: left")
	// errOver says that the terminal event was emitted.
	errOver = errors.New("native: over")
	// errMessage says that a message has interrupted what the agent did.
	errMessage = errors.New("native: interrupted by a message")
	// errHalting says that the agent was to come to a safe point.
	errHalting = errors.New("native: halting")
)

func newSession(ctx context.Context, p Provider, r agent.Request, mode string) *session {
	ctx, cancel := context.WithCancel(ctx)
	return &session{
		provider: p, request: r, log: p.Logger.With("run_id", r.RunID, "node_id", r.NodeID, "session_id", r.SessionID),
		mode: mode, cancel: cancel, asked: slices.Clone(r.Asked), atWork: map[string]time.Time{},
		context: func() context.Context { return ctx },
		news:    make(chan struct{}, 1),
	}
}

// Events runs the agent and yields what it does; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.disconnectAll()
		defer s.cancel()
		s.yield, s.begun = yield, time.Now()
		s.turned = s.begun
		err := s.runToEnd()
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		if err != nil && !errors.Is(err, errLeft) && !errors.Is(err, errOver) && s.context().Err() == nil {
			s.log.Error("agent failed", "error", err)
			yield(nil, err)
		}
	}
}

// runToEnd folds what was said, begins, and takes turns until the end.
func (s *session) runToEnd() (err error) {
	if s.conv, err = foldEvents(s.request.RunID, s.request.ExecID, s.logHistory()); err != nil {
		return err
	}
	s.findWork()
	s.turn = s.conv.turns
	known := len(s.conv.first) > 0
	goesOn := s.request.Resume || s.request.ForkOf != ""
	prompt := s.request.Prompt
	if prompt == nil {
		prompt = wire.Null
	}
	o := s.request.Options
	if err := s.emit(&wire.Event{Payload: &wire.AgentStart{
		Model: o.Model, Prompt: prompt, Provider: wire.ProviderNative, Cwd: o.Cwd, Resumed: goesOn,
	}}); err != nil {
		return err
	}
	if goesOn && !known {
		return s.failRun(&wire.AgentError{
			ErrorType: wire.ErrorSessionNotFound, Phase: "lifecycle",
			Message: "the log doesn't hold what the agent has said so far: it is too old, or of another run",
		})
	}
	if err := s.findModelAndTools(); errors.Is(err, process.ErrGone) {
		return agent.ErrLost
	} else if err != nil {
		return s.failRun(&wire.AgentError{ErrorType: wire.ErrorStartFailed, Message: "the agent didn't start: " + err.Error(), Phase: "lifecycle"})
	}
	if err := s.emit(&wire.Event{Payload: s.initEvent()}); err != nil {
		return err
	}
	s.log.Info("session open", "agent_id", s.request.NodeID, "model", s.name, "provider", "native", "turns", s.conv.turns)
	if !s.conv.greeted {
		task, _ := s.request.Prompt.Text()
		if err := s.consultHooks(s.context(), hook.Event{Name: flow.HookAgentStart, Task: task, Resumed: goesOn}); err != nil {
			return err
		}
	}
	return s.takeTurns()
}

// logHistory yields what the log has of the execution: nothing for one that begins.
func (s *session) logHistory() iter.Seq2[*wire.Event, error] {
	if s.request.History == nil || !s.request.Resume && s.request.ForkOf == "" {
		return func(func(*wire.Event, error) bool) {}
	}
	return s.request.History
}

func (s *session) findModelAndTools() (err error) {
	o := s.request.Options
	if s.model, s.name, err = s.provider.reachModel(o.Model); err != nil {
		return err
	}
	s.price = priceOf(o, cmp.Or(o.Model, s.provider.Model))
	env := agent.CommandEnvironment(s.provider.Environ, o.Env)
	w := workspace{workdir.Folder{Dir: o.Cwd, User: s.provider.User}}
	s.tools = append(w.fileTools(), w.searchTools()...)
	s.tools = append(s.tools, s.bashTool(env), notifyParent(), askPerson())
	delegates, err := s.delegateTools()
	if err != nil {
		return err
	}
	s.tools = append(s.tools, delegates...)
	served, err := s.connectServers(s.context(), env)
	if err != nil {
		return err
	}
	s.tools = append(s.tools, served...)
	s.limits = s.limitsOf(s.context())
	return nil
}

// limitsOf returns the limits of the model: what its API says, else the options.
func (s *session) limitsOf(ctx context.Context) limits {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := s.model.modelLimits(ctx, s.name)
	if err != nil {
		s.log.Debug("limits of the model not known", "model", s.name, "error", err)
	}
	if s.request.Options.ContextWindow > 0 {
		l.context = s.request.Options.ContextWindow
	}
	return l
}

// initEvent is what the agent says of itself.
func (s *session) initEvent() *wire.AgentInit {
	p := &wire.AgentInit{Model: s.name, Cwd: s.request.Options.Cwd, PermissionMode: s.mode}
	for _, t := range s.tools {
		p.Tools = append(p.Tools, t.name)
	}
	return p
}

// emit hands an event to the consumer and takes it into the conversation.
func (s *session) emit(e *wire.Event) error {
	if s.context().Err() != nil {
		return errLeft
	}
	if p, ok := e.Payload.(*wire.Checkpoint); ok {
		p.PrefixHash = s.conv.prefixHash()
	}
	e.ExecID, e.SessionID, e.Turn = s.request.ExecID, s.request.SessionID, s.turn
	e.Timestamp = time.Now().UnixMilli()
	if !s.yield(e, nil) {
		return errLeft
	}
	s.conv.applyEvent(e)
	if p, ok := e.Payload.(*wire.CCMessage); ok && p.Priority != wire.PriorityInfo {
		s.asked = append(s.asked, e.CallID)
	}
	return nil
}

// failRun ends the execution with an error.
func (s *session) failRun(p *wire.AgentError) error {
	p.Message, p.Severity = toValidUTF8(p.Message), wire.SeverityError
	if err := s.emit(&wire.Event{Payload: p}); err != nil {
		return err
	}
	return errOver
}

// workContext returns the context of what the agent does next, which an interruption ends.
func (s *session) workContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(s.context())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandon = cancel
	if s.halting {
		cancel(errHalting)
	}
	return ctx, func() { cancel(nil) }
}

// Send gives the agent a message: before its next model call, or at once if the
// message interrupts it; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.halting || s.context().Err() != nil {
		return agent.ErrEnded
	}
	s.inbox = append(s.inbox, m)
	if m.Interrupt && s.abandon != nil {
		s.abandon(errMessage)
	}
	s.signalNews()
	return nil
}

func (s *session) signalNews() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Interrupt has the agent come to a safe point; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.context().Err() != nil {
		return agent.ErrEnded
	}
	s.halting = true
	if s.abandon != nil {
		s.abandon(errHalting)
	}
	s.signalNews()
	return nil
}

// isHalting reports whether the agent is to come to a safe point.
func (s *session) isHalting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halting
}

// loseHost ends the session: its host is gone, and with it what was at work.
func (s *session) loseHost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	s.abandon(agent.ErrLost)
}

// isLost reports whether the host of the session is gone.
func (s *session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// takeMessages takes those that wait.
func (s *session) takeMessages() []agent.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := s.inbox
	s.inbox = nil
	return messages
}

// closeInbox closes the inbox, unless a message waits in it.
func (s *session) closeInbox() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = len(s.inbox) == 0
	return s.ended
}

// enterCall notes a call that begins. It reports false if the session was closed.
func (s *session) enterCall() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.context().Err() != nil {
		return false
	}
	s.calls.Add(1)
	return true
}

// Leave ends the session after its host was left with what is at work there; see [agent.Leaver].
func (s *session) Leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
	return true
}

// Close ends the agent and the calls that it has under way, and waits until they have ended;
// see [agent.Session]. MCP servers end with Events, which is over then.
func (s *session) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.calls.Wait()
	return nil
}
