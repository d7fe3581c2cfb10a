package claude

import (
	"context"
	"fmt"
	"iter"
	"os/exec"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is one run of the program. The goroutine that consumes Events owns
// all that isn't under Mu.
type session struct {
	*pipe.Program

	provider Provider
	request  agent.Request
	prompts  []wire.Raw

	n          *Normalizer
	replaying  bool                          // what the program says, and was told, is from its journal
	begun      bool                          // the handshake was written
	prompted   int                           // prompts that were
	open       []wire.Raw                    // requests of the journal without an answer, in order
	lines      int                           // of the program
	broken     int                           // of them that are none of Claude Code
	rested     time.Time                     // when the host was last told of a resting point
	rests      uint64                        // where that was
	answered   map[string]bool               // requests of the program: it will echo the answer
	answers    []string                      // their ids, the last ones
	asking     map[string]permissionQuestion // open questions for permission, by request
	decided    chan decision
	consulting map[string]context.CancelFunc // hooks are being asked, by request of the program
	heard      chan hearing
	stopped    bool       // a hook wants the agent to end
	inTurn     bool       // the agent works; false once the turn has its result
	over       bool       // the program's input is closed: it is to exit
	overAt     time.Time  // when that was seen
	reason     string     // why it was ended, if it was
	halted     bool       // it was ended between two turns
	saver      *fileSaver // of the session file; nil if it isn't kept

	// Under Mu. Halting: it is to end with the turn that is interrupted.
	sent    []sentMessage   // messages that the normalizer hasn't been told of
	waiting map[string]bool // messages that the program hasn't echoed
	told    map[string]bool // commands whose messages the program was given, by a former runner
	live    bool            // it is known what the program was given
	held    []agent.Message // that came before that
	asked   []string        // messages to the parent that wait for an answer
}

type sentMessage struct {
	UUID string `json:"uuid"`

	Sent
}

// permissionQuestion is a question for permission that is being decided.
type permissionQuestion struct {
	call   string
	input  wire.Raw
	cancel context.CancelFunc
}

// decision is the answer to one.
type decision struct {
	request string
	call    string // that was asked about
	verdict agent.Verdict
}

func newSession(ctx context.Context, p Provider, r agent.Request, prompts []wire.Raw) *session {
	return &session{
		Program: pipe.NewProgram(ctx, r, p.Grace, p.Logger, pipe.NewOutbox()), provider: p, request: r, prompts: prompts,
		answered: make(map[string]bool), asking: make(map[string]permissionQuestion), decided: make(chan decision),
		consulting: make(map[string]context.CancelFunc), heard: make(chan hearing),
		replaying: true, inTurn: true, waiting: make(map[string]bool), told: make(map[string]bool), asked: slices.Clone(r.Asked),
	}
}

// Events runs the program and yields what it does; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.Close() //nolint:errcheck // survivors were reported by finish
		if s.request.Host.Has(programName) {
			s.attachProgram(yield)
			return
		}
		before, err := s.recallRecord() // the prompt may depend on it
		if !s.Yield(yield, s.startEvent()) {
			return
		}
		if !s.askStartHooks(yield) {
			return
		}
		defer s.keepRest() // the program is gone then
		var warnings []*wire.Event
		if err == nil {
			warnings, err = s.prepareFile(before)
		}
		if err != nil {
			s.Yield(yield, s.startFailed(err))
			return
		}
		if !s.Yield(yield, warnings...) {
			return
		}
		p, err := s.launchProgram()
		if err != nil {
			s.Yield(yield, s.startFailed(err))
			return
		}
		s.driveProgram(p, yield)
	}
}

func (s *session) startEvent() *wire.Event {
	o := s.request.Options
	return &wire.Event{
		Timestamp: nowMillis(), SessionID: s.request.SessionID,
		Payload: &wire.AgentStart{
			Model: o.Model, Prompt: s.request.Prompt, Provider: "claude", Cwd: o.Cwd,
			Resumed: s.request.Resume || s.request.ForkOf != "",
		},
	}
}

func (s *session) startFailed(err error) *wire.Event {
	return &wire.Event{
		Timestamp: nowMillis(), SessionID: s.request.SessionID,
		Payload: &wire.AgentError{
			ErrorType: wire.ErrorStartFailed, Message: "the agent didn't start: " + toValidUTF8(notFound(s.provider.Binary, err)),
			Severity: wire.SeverityError, Phase: "lifecycle",
		},
	}
}

// programName is that of the program among those of its host.
const programName = "agent"

// launchProgram starts the program, or attaches to the one that is there. It returns nil if
// the session has been closed.
func (s *session) launchProgram() (*process.Process, error) {
	argv := s.provider.commandLine(s.request)
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	argv[0] = path
	return s.Launch(s.request.Host, process.Config{
		Name: programName, Argv: argv, Dir: s.request.Options.Cwd, Journal: true, KeepStderr: true,
		Env: agent.Environment(s.provider.Environ, s.request.Options.Env),
	})
}

// greetProgram begins to write to the program: first what it hasn't been given of the handshake and the prompt.
func (s *session) greetProgram(p *process.Process) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var first []any
	if !s.begun {
		first = append(first, initializeRequest(s.request.Hooks))
	}
	for _, content := range s.prompts[min(s.prompted, len(s.prompts)):] {
		uuid := agent.NewSessionID()
		s.sent = append(s.sent, sentMessage{uuid, Sent{Source: "prompt"}})
		s.waiting[uuid] = true
		first = append(first, newUserLine(uuid, content, nil))
	}
	s.begun, s.prompted = true, len(s.prompts)
	s.Outbox.Start(p.Stdin, first...)
}

// prepareFile puts the file of the session that the request goes on with in place
// and begins to keep that of its own.
func (s *session) prepareFile(before sessionRecord) (warnings []*wire.Event, err error) {
	r, ctx := &s.request, s.Context()
	if len(before.content) > 0 {
		cut, err := s.cutSession(before)
		if err == nil && !cut && !before.here {
			err = before.files.putSession(baseSession(*r), before.content)
		}
		if err != nil {
			return nil, fmt.Errorf("session file: %w", err)
		}
		if !cut && r.ForkAt != "" {
			warnings = s.aimFork(before.content)
		}
	}
	if s.keepFile(before.files); s.saver != nil {
		if baseSession(*r) == r.SessionID {
			s.saver.trySave(ctx) // before the program adds to it: from now on it is ours to keep
		} else {
			s.saver.claimSession(ctx)
		}
		go s.saver.run(ctx)
	}
	return warnings, nil
}

// keepFile readies the saver of the session's file, if the request saves it.
func (s *session) keepFile(f sessionFiles) {
	if r := s.request; r.Transcript.Save != nil {
		s.saver = newFileSaver(f, r.SessionID, r.Transcript.Save, s.provider.Logger)
	}
}

// aimFork makes the point to fork at the id of a line of the session's file. It
// warns if the fork won't be exact.
func (s *session) aimFork(content []byte) []*wire.Event {
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
	return []*wire.Event{{Timestamp: nowMillis(), SessionID: s.request.SessionID, Payload: &wire.AgentError{
		ErrorType: agent.ErrorForkInexact, Message: toValidUTF8(message), Severity: wire.SeverityWarning, Phase: "lifecycle",
	}}}
}

// keepRest saves the rest of the session's file. The program must be gone.
func (s *session) keepRest() {
	if s.saver != nil {
		s.saver.finish(s.Context())
	}
}

// Send gives the agent a message; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("claude: send: %w", err)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	switch {
	case s.Ended || s.Closed:
		return agent.ErrEnded
	case !s.live:
		s.held = append(s.held, m)
		return nil
	}
	return s.putMessage(m)
}

// passHeld gives the program what came while the session took in what it had been given before.
func (s *session) passHeld() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.live = true
	for _, m := range s.held {
		if err := s.putMessage(m); err != nil {
			s.provider.Logger.Debug("message not sent", "error", err)
		}
	}
	s.held = nil
}

// putMessage gives the program a message, unless a former runner has given it and died before the echo was on record. It is called
// under Mu.
func (s *session) putMessage(m agent.Message) error {
	if m.CommandID != "" && s.told[m.CommandID] {
		return nil
	}
	if m.Interrupt {
		if err := s.Outbox.Put(interruptRequest(redirectID)); err != nil {
			return err
		}
	}
	uuid := agent.NewSessionID()
	s.sent = append(s.sent, sentMessage{uuid, Sent{Source: "command", CommandID: m.CommandID}})
	s.waiting[uuid] = true
	content := m.Content
	if m.Notice {
		content = systemReminder(content)
	} else {
		s.noteAnswer(m.Answers)
	}
	return s.Outbox.Put(newUserLine(uuid, textBlocks(content), &origin{CommandID: m.CommandID, Answers: m.Answers, Notice: m.Notice}))
}

// noteAnswer notes that a question to the parent is answered, or all if it is "". It is called under Mu.
func (s *session) noteAnswer(question string) {
	s.asked = slices.DeleteFunc(s.asked, func(id string) bool { return question == "" || id == question })
}

// noteQuestions notes what the agent asks its parent: it waits for the answer.
func (s *session) noteQuestions(events []*wire.Event) {
	for _, e := range events {
		if p, ok := e.Payload.(*wire.CCMessage); ok && p.Priority != wire.PriorityInfo && e.Parent == "" {
			s.Mu.Lock()
			if !slices.Contains(s.asked, e.CallID) {
				s.asked = append(s.asked, e.CallID)
			}
			s.Mu.Unlock()
		}
	}
}

// hasOpenQuestion reports whether the agent has asked its parent something and wasn't
// answered.
func (s *session) hasOpenQuestion() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.asked) > 0
}

// Interrupt asks the agent to stop; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("claude: interrupt: %w", err)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || s.Closed {
		return agent.ErrEnded
	}
	s.Halting = true
	return s.Outbox.Put(interruptRequest(interruptID))
}

// haltInterrupted ends the program after an interruption if messages wait in its queue, since
// it would begin another turn with them, or if it waits for an answer. Those are still
// to be delivered. It reports whether it did.
func (s *session) haltInterrupted() bool {
	s.Mu.Lock()
	s.halted = s.Halting && !s.Ended && len(s.waiting)+len(s.held)+len(s.asked) > 0
	s.Ended = s.Ended || s.halted
	s.Mu.Unlock()
	if !s.halted {
		return false
	}
	s.over, s.reason = true, "it was interrupted with messages or answers to come"
	s.Stop(s.Process, s.reason)
	return true
}

// closeInput closes the program's input if no message is on its way to it and it waits
// for no answer. It reports whether it did.
func (s *session) closeInput(force bool) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.waiting)+len(s.held)+len(s.asked) > 0 && !force {
		return false
	}
	s.Ended = true
	if !s.replaying { // else it is closed then
		s.Outbox.Close()
	}
	return true
}

// sendReply sends an answer and expects its echo.
func (s *session) sendReply(r controlResponse) {
	s.expectEcho(r.Response.RequestID)
	if err := s.Outbox.Put(r); err != nil {
		s.provider.Logger.Debug("answer not sent", "error", err)
	}
}

// noteEcho notes that the program has taken a message.
func (s *session) noteEcho(uuid string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	delete(s.waiting, uuid)
}

// tellNormalizer tells the normalizer of the messages that were sent.
func (s *session) tellNormalizer() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, m := range s.sent {
		s.n.Sent(m.UUID, m.Sent)
	}
	s.sent = nil
}

func nowMillis() int64 { return time.Now().UnixMilli() }

// makeNormalizer returns the one of the session's program.
func (s *session) makeNormalizer() *Normalizer {
	return NewNormalizer(NormalizerOptions{
		Blocks: s.request.Options.Blocks, SessionID: s.request.SessionID, Started: true, Prompt: s.request.Prompt, PriceOf: s.request.Options.Prices.Of,
	})
}
