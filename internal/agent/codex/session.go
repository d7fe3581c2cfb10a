package codex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is a row of programs, one for each turn. The goroutine that consumes Events owns all that isn't under Mu.
type session struct {
	*pipe.Program

	provider Provider
	request  agent.Request
	prompt   string
	f        *sessionFold
	number   uint64 // of the program, from 0

	live     bool         // the program is heard as it speaks, no more from its journal
	rests    uint64       // the last resting point of the program
	rested   time.Time    // when the host was told of it
	prompted *atomic.Bool // the program has its prompt

	cut  bool // the turn is cut short, for a message; under Mu
	lost bool // the program was never asked anything; under Mu
}

// programName is that of the first program among those of its host. Those of messages have the command's id behind it, so that
// the next session finds them.
const programName = "agent"

// errNoPoint says that a fork isn't possible.
var errNoPoint = errors.New("a thread of Codex can be forked as a whole, and has no points to go back to")

// turn is what a program is started for.
type turn struct {
	name    string
	message agent.Message // without a content: the prompt of the request
	told    bool          // that the agent was given the message is in the log
	former  bool          // a former session has gone on to the next one
}

// Events runs the programs and yields what they do; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.Close() //nolint:errcheck // survivors were reported
		attaches := s.request.Host.Has(programName)
		if !attaches && !s.Yield(yield, s.startEvent()) {
			return
		}
		if err := s.recallPast(); err != nil {
			yield(nil, err)
			return
		}
		if lapse, err := s.provider.describeLapse(s.Context(), s.request); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.provider.Logger.Warn("record of the thread not compared with the log", "error", err)
		} else if lapse != "" {
			s.prompt += "\n\n" + lapse
		}
		todo := []turn{{name: programName}}
		if attaches {
			s.f.onRecord = s.formerQuestions()
			todo = append(todo, s.formerTurns()...)
			for i := range len(todo) - 1 {
				todo[i].former = true
			}
		}
		for {
			if len(todo) == 0 {
				m, ok := s.awaitMessage()
				if !ok {
					break
				}
				todo = append(todo, turn{name: programName + "/" + m.CommandID, message: m})
			}
			next := todo[0]
			todo = todo[1:]
			if goesOn := s.runTurn(next, yield); !goesOn {
				return
			}
		}
		switch {
		case s.IsHalting(): // while it waited for an answer
			s.f.pauseAgent(nowMillis())
		case len(s.f.asked) > 0: // it still waits for one: it has been closed or left, which is no end of its work
			return
		default:
			s.f.completeTurn(nowMillis())
		}
		s.Yield(yield, s.Place(s.f.takeEvents())...)
	}
}

// recallPast finds in the log what the thread has used before.
func (s *session) recallPast() error {
	if s.request.History == nil {
		return nil
	}
	var before, since tokens // the last session of the agent
	for e, err := range s.request.History {
		if err != nil {
			return err
		}
		switch p := e.Payload.(type) {
		case *wire.AgentStart:
			before, since = before.plus(since), tokens{}
		case *wire.Usage:
			read, written := wire.ValueOf(p.CacheReadInputTokens), wire.ValueOf(p.CacheCreationInputTokens)
			since = since.plus(tokens{p.InputTokens + read + written, read, written, p.OutputTokens})
		}
	}
	if s.f.Total = before; !s.request.Host.Has(programName) { // else that session goes on
		s.f.Total = before.plus(since)
	}
	return nil
}

// formerTurns are those of messages that a former session has begun, as the log has them.
func (s *session) formerTurns() (turns []turn) {
	if s.request.History == nil {
		return nil
	}
	for e, err := range s.request.History {
		if err != nil {
			return turns
		}
		p, ok := e.Payload.(*wire.UserMessage)
		if name := programName + "/"; ok && p.CommandID != "" && s.request.Host.Has(name+p.CommandID) {
			turns = append(turns, turn{name: name + p.CommandID, message: agent.Message{CommandID: p.CommandID, Content: p.Content}, told: true})
		}
	}
	return turns
}

// formerQuestions are those to the parent that the log has, answered ones too: the request says which aren't.
func (s *session) formerQuestions() map[string]bool {
	asked := map[string]bool{}
	if s.request.History == nil {
		return asked
	}
	for e, err := range s.request.History {
		if err != nil {
			return asked
		}
		if _, ok := e.Payload.(*wire.CCMessage); ok {
			asked[e.CallID] = true
		}
	}
	return asked
}

func (s *session) startEvent() *wire.Event {
	r := s.request
	return &wire.Event{Timestamp: nowMillis(), SessionID: r.SessionID, Payload: &wire.AgentStart{
		Model: r.Options.Model, Prompt: r.Prompt, Provider: "codex", Cwd: r.Options.Cwd, Resumed: r.Resume || r.ForkOf != "",
	}}
}

// runTurn runs the program of a turn to its end. It reports whether the session goes on.
func (s *session) runTurn(t turn, yield func(*wire.Event, error) bool) bool {
	s.Offset, s.Index, s.live, s.rests, s.prompted = s.number<<40, 0, false, 0, new(atomic.Bool)
	s.f.beginProgram()
	p, err := s.launchProgram(t)
	switch {
	case errors.Is(err, process.ErrGone):
		yield(nil, agent.ErrLost)
		return false
	case err != nil:
		kind := wire.ErrorStartFailed
		if errors.Is(err, errNoPoint) {
			kind = agent.ErrorForkPointNotFound
		}
		s.f.fail(nowMillis(), kind, "the agent didn't start: "+startText(s.provider.Binary, err), nil)
		s.Yield(yield, s.f.takeEvents()...)
		return false
	case p == nil: // it has been closed
		return false
	}
	defer func() { _ = p.Close() }()
	if err := s.restoreRest(p.Last); err != nil {
		s.f.fail(nowMillis(), wire.ErrorJournalUnreadable, "what a former runner knew of the agent can't be read: "+toValidUTF8(err.Error()), nil)
		s.Yield(yield, s.Place(s.f.takeEvents())...)
		return false
	}
	if m := t.message; m.CommandID != "" && !t.told {
		s.f.at = nowMillis()
		s.f.emitEvent("", &wire.UserMessage{Content: m.Content, Source: "command", CommandID: m.CommandID})
		if !s.Yield(yield, s.f.takeEvents()...) {
			return false
		}
	}
	reason, goesOn := s.hear(s.feedProgram(p, t), yield)
	if !goesOn {
		return false
	}
	goesOn = s.concludeTurn(p, t, reason, yield)
	s.number++
	s.Offset += 1 << 40
	return goesOn
}

func startText(binary string, err error) string {
	if errors.Is(err, exec.ErrNotFound) {
		return binary + " isn't in the PATH of the runner: install Codex (npm install -g @openai/codex)"
	}
	return toValidUTF8(err.Error())
}

// launchProgram starts the program of a turn and gives it what it is to do, or attaches to the one that is there.
func (s *session) launchProgram(t turn) (*process.Process, error) {
	r := s.request
	thread, fork := s.f.Thread, false
	switch {
	case thread != "":
	case r.ForkOf != "" && (r.ForkAt != "" || r.ForkOf == r.SessionID):
		return nil, errNoPoint
	case r.ForkOf != "":
		thread, fork = r.ForkOf, true
	case r.Resume:
		thread = r.SessionID
	}
	argv := s.provider.commandLine(r.Options, thread, fork)
	path, err := exec.LookPath(argv[0])
	if err != nil && !r.Host.Has(t.name) {
		return nil, err
	}
	argv[0] = path
	return s.Launch(r.Host, process.Config{
		Name: t.name, Argv: argv, Dir: r.Options.Cwd, Journal: true, KeepStderr: true, Env: agent.Environment(s.provider.Environ, r.Options.Env),
	})
}

// feedProgram gives the program its prompt, unless a former session has. It returns the program as it is to be heard.
func (s *session) feedProgram(p *process.Process, t turn) *process.Process {
	heard, prompted := make(chan process.Frame), s.prompted
	s.Tasks.Go(func() {
		defer close(heard)
		given := len(p.Last.State) // by a former session, before what is heard again
		for f := range p.Frames {
			switch f.Direction {
			case process.In:
				given += len(f.Data)
				continue
			case process.Live:
				if p.Attached && given == 0 && t.name == programName {
					s.loseProgram(p) // its runner died before it was asked anything
				}
				s.Tasks.Go(func() {
					if given == 0 && !s.isLost() {
						_, _ = io.WriteString(p.Stdin, s.promptOf(t)) // a program that is gone says so by its end
					}
					_ = p.Stdin.Close()
					prompted.Store(true)
				})
			case process.Out, process.Err:
			}
			heard <- f
		}
	})
	fed := *p
	fed.Frames = heard
	return &fed
}

// loseProgram ends a program that has been asked nothing.
func (s *session) loseProgram(p *process.Process) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.lost = true
	s.Tasks.Go(func() { _ = p.End(s.provider.Grace) }) // what survives is reported by concludeTurn
}

func (s *session) isLost() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.lost
}

// promptOf is what the program of a turn is told.
func (s *session) promptOf(t turn) string {
	if t.message.Content != "" {
		return t.message.Content
	}
	return s.prompt
}

// awaitMessage takes the next message, and waits for one as long as the agent has asked its parent something.
func (s *session) awaitMessage() (agent.Message, bool) {
	for {
		m, ok, waits := s.nextMessage()
		if !waits {
			return m, ok
		}
		select {
		case <-s.News:
		case <-s.Context().Done():
			return m, false
		}
	}
}

// nextMessage takes the next message. If there is none, the inbox is closed, unless the agent waits for an answer.
func (s *session) nextMessage() (m agent.Message, ok, waits bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.Inbox) > 0 && !s.Halting {
		m, s.Inbox, s.cut = s.Inbox[0], s.Inbox[1:], false
		if m.CommandID == "" {
			m.CommandID = agent.NewSessionID()
		}
		if !m.Notice {
			s.f.asked = slices.DeleteFunc(s.f.asked, func(id string) bool { return m.Answers == "" || id == m.Answers })
		}
		return m, true, false
	}
	if len(s.f.asked) > 0 && !s.Halting && !s.Closed && !s.Left {
		return m, false, true
	}
	s.Ended = true
	return m, false, false
}

// hear takes what the program says to its end. It returns why the program was ended, if it was.
func (s *session) hear(p *process.Process, yield func(*wire.Event, error) bool) (reason string, goesOn bool) {
	lines, stop := s.Listen(p)
	defer stop()
	silent := time.NewTimer(s.request.StartTimeout)
	defer silent.Stop()
	var over <-chan time.Time                                       // the program's turn is: it is to exit
	resting := time.NewTicker(max(restEvery, s.provider.restEvery)) // also of a program that waits for room in its journal
	defer resting.Stop()
	exited := p.Exited()
	for {
		select {
		case in, more := <-lines:
			if !more {
				return reason, true
			}
			if in.Direction == process.Out {
				silent.Stop()
			}
			if !s.takeLine(in, yield) {
				return reason, false
			}
			if s.f.Ended && over == nil {
				over = time.After(s.provider.Linger)
			}
			if s.f.isNoCodex() { // what it has printed besides isn't read: there may be no end of it
				_ = p.End(s.provider.Grace)
				return fmt.Sprintf("it has printed %d lines before the one that names its thread", s.f.Unnamed), true
			}
			s.reportRest(p)
		case <-resting.C:
			s.reportRest(p)
		case <-silent.C:
			reason = fmt.Sprintf("it printed nothing within %s, the node's policy.startTimeoutMs", s.request.StartTimeout)
			_ = p.End(s.provider.Grace)
		case <-over:
			reason = "it did not exit"
			_ = p.End(s.provider.Grace)
		case <-exited: // what it left behind keeps its output open
			exited = nil
			_ = p.End(s.provider.Grace)
		}
	}
}

// takeLine takes a line of the program.
func (s *session) takeLine(in pipe.Line, yield func(*wire.Event, error) bool) bool {
	switch {
	case in.Direction == process.Out && in.Long != nil:
		s.f.at = in.At
		s.f.Unnamed++
		s.f.emitEvent("", &wire.RawMessage{
			Source: source, Name: "malformed", Data: wire.RawString(toValidUTF8(string(in.Long.Head))), Reason: fmt.Sprintf("it has %d bytes", in.Long.Bytes),
		})
	case in.Direction == process.Out:
		s.f.takeLine(in.At, in.Data)
	default:
		s.live = s.live || in.Direction == process.Live
		return true
	}
	s.Offset, s.Index = s.number<<40|in.Offset, 0
	return s.Yield(yield, s.Place(s.f.takeEvents())...)
}

// reportRest tells the host that the program's journal isn't needed up to here, if the log has all that came of it.
func (s *session) reportRest(p *process.Process) {
	offset := s.Offset - s.number<<40
	if !s.live || !s.prompted.Load() || offset == s.rests || time.Since(s.rested) < s.provider.restEvery || s.request.Stored != nil && !s.request.Stored() {
		return
	}
	x := s.f.foldState
	x.Index = s.Index
	data, err := wire.Marshal(&x)
	if err != nil {
		s.provider.Logger.Warn("agent's state not kept", "error", err)
		return
	}
	s.rested, s.rests = time.Now(), offset
	p.Rested(process.Rest{Offset: offset, State: data})
}

// restoreRest takes what a former session has left at its last resting point of a program.
func (s *session) restoreRest(last process.Rest) error {
	s.rests = last.Offset
	s.Offset |= last.Offset
	if len(last.State) == 0 {
		return nil
	}
	var x foldState
	err := wire.Unmarshal(last.State, &x)
	if err == nil && x.Version != stateVersion {
		err = fmt.Errorf("it is of version %d; this program reads %d", x.Version, stateVersion)
	}
	if err != nil {
		return err
	}
	s.f.foldState, s.Index = x, x.Index
	return nil
}

// concludeTurn judges the end of a program. It reports whether the session goes on.
func (s *session) concludeTurn(p *process.Process, t turn, reason string, yield func(*wire.Event, error) bool) bool {
	s.Mu.Lock()
	closed, left, halting, cut := s.Closed, s.Left, s.Halting, s.cut || t.former
	s.Mu.Unlock()
	if left {
		return false
	}
	err := p.End(s.provider.Grace)
	how, waitErr := p.Wait(context.WithoutCancel(s.Context()))
	if err := errors.Join(err, waitErr); err != nil {
		yield(nil, err)
		return false
	}
	lost := how.Lost && !t.former
	if p.Attached && how.Signal == "TERM" && !cut && !halting && s.f.Failed == nil { // what for, the former session knew
		lost = true
	}
	if s.isLost() || lost && !closed && reason == "" && !s.f.Ended {
		yield(nil, agent.ErrLost)
		return false
	}
	words := strings.TrimSpace(p.Words())
	details := wire.RawOf(map[string]any{"exitCode": int64(how.Code), "signal": how.Signal, "reason": reason, "stderr": toValidUTF8(words)})
	f := s.f
	switch {
	case f.Failed != nil:
		f.fail(nowMillis(), "", "", nil)
	case halting && !f.Ended:
		f.pauseAgent(nowMillis())
	case f.Ended && halting && s.HasMessages():
		f.pauseAgent(nowMillis())
	case f.Ended, cut:
		if !f.Ended { // a message cuts it short
			f.at = nowMillis()
			f.closeCalls(wire.CallInterrupted)
			if f.InTurn {
				f.endTurn(&wire.TurnEnd{Subtype: "interrupted", StopReason: "cancelled"})
			}
		}
		return s.Yield(yield, s.Place(f.takeEvents())...)
	case !f.Named && lostThread(words) != "":
		f.fail(nowMillis(), wire.ErrorSessionNotFound, "Codex can't go on with its thread: "+lostThread(words), details)
	case f.Thread == "":
		f.fail(nowMillis(), wire.ErrorStartFailed, "the agent didn't start: it "+how.Text("", reason, words), details)
	default:
		f.fail(nowMillis(), wire.ErrorProcessDied, "the agent "+how.Text("", reason, words)+", before its result", details)
	}
	s.Mu.Lock()
	s.Ended = true
	s.Mu.Unlock()
	s.Yield(yield, s.Place(f.takeEvents())...)
	return false
}

// lostThread is what a program says of a thread that it can't go on with, or copy: there is no file of it, or one that a crash has cut off in its
// first line. "": it has said nothing of the kind. A file that can't be read for now isn't lost, nor is one that Codex has put into its archive.
func lostThread(words string) string {
	for _, request := range []string{"thread/resume", "thread/fork"} {
		if _, why, found := strings.Cut(words, request+" failed: "); found {
			why, _, _ = strings.Cut(why, "\n")
			damaged := strings.Contains(why, "failed to read session metadata") || strings.Contains(why, "failed to parse first rollout record")
			if strings.Contains(why, "no rollout found") || damaged && !strings.Contains(why, "(os error ") {
				return strings.TrimSpace(why)
			}
		}
	}
	return ""
}

// Send gives the agent a message, in a turn of its own; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	return s.Receive(ctx, m, func() {
		if m.Interrupt {
			s.cut = true
			s.endTurn()
		}
	})
}

// Interrupt ends the turn that is under way: Codex keeps the thread; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	return s.Halt(ctx, s.endTurn)
}

// endTurn ends the program that is at work. It is called under Mu.
func (s *session) endTurn() {
	if p := s.Process; p != nil && !s.Left {
		s.Tasks.Go(func() { _ = p.End(s.provider.Grace) }) // what survives is reported by concludeTurn
	}
}

// Close ends the program and all that it started; see [agent.Session].
func (s *session) Close() error {
	s.Cancel()
	err := s.EndTree()
	s.Tasks.Wait()
	return err
}

func nowMillis() int64 { return time.Now().UnixMilli() }
