//go:build linux

package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"unicode/utf8"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/keeper"
	programs "code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is one execution of an agent as its runner has it: it makes events of what the
// program says, and answers it.
type session struct {
	*provider

	request agent.Request
	script  script
	name    string          // of the runner that speaks to the program
	ctx     context.Context //nolint:containedctx // a session lives as long as its context
	cancel  context.CancelFunc
	yield   func(*wire.Event, error) bool

	// Of the one goroutine that takes in what the program says.
	offset, rests uint64 // of the journal: behind the last line, of the last resting point
	open          []line // what it asks, in the journal
	asking        int    // what a person decides at the moment
	decided       chan line
	deciding      sync.WaitGroup
	own           *keeper.Keeper // of a runner without keepers

	mu           sync.Mutex
	process      *programs.Process
	live         bool
	closed, left bool
	given        map[string]bool // ids of commands whose messages the program has been given
	due          []line          // to be said to the program when it is live
}

// programName is what the runner calls an agent's program.
const programName = "agent"

// Events implements [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		s.yield = yield
		defer s.deciding.Wait()
		defer s.cancel()
		s.run()
	}
}

// say yields an event in its place of the journal; 0 is none. What a call does is in the folder when its result is said.
func (s *session) say(p wire.Payload, call string, offset uint64, index int) bool {
	if _, isResult := p.(*wire.AgentTool); isResult {
		s.makeFile(call)
	}
	e := &wire.Event{SessionID: s.request.SessionID, CallID: call, Payload: p, JournalOffset: offset, JournalIndex: index}
	return s.yield(e, nil)
}

func (s *session) run() {
	r := s.request
	attaches := r.Host.Has(programName)
	if !attaches && !s.say(&wire.AgentStart{Prompt: r.Prompt}, "", 0, 0) || s.ctx.Err() != nil {
		return
	}
	p, err := s.begin()
	switch {
	case errors.Is(err, programs.ErrGone):
		s.yield(nil, agent.ErrLost)
		return
	case err == nil && attaches && !p.Attached:
		err = errors.New("the program isn't there any more")
		fallthrough
	case err != nil:
		s.yield(nil, err)
		return
	}
	defer s.leave(p)
	if len(p.Last.State) > 0 {
		if err := json.Unmarshal(p.Last.State, &s.given); err != nil {
			s.yield(nil, err)
			return
		}
	}
	s.offset, s.rests = p.Last.Offset, p.Last.Offset
	s.follow(p)
}

// begin starts the program, or attaches to it.
func (s *session) begin() (*programs.Process, error) {
	r := s.request
	o := orders{
		Run: r.RunID, Node: r.NodeID, Exec: r.ExecID, Session: r.SessionID, Resume: r.Resume, ForkOf: r.ForkOf, ForkAt: r.ForkAt,
		Asks: r.Options.Decide != nil, Runner: s.life.p.name,
	}
	argv, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	host := r.Host
	if _, direct := host.(programs.Direct); direct {
		if s.own, err = s.life.own(s.ctx); err != nil {
			return nil, err
		}
		host = s.own
	}
	p, err := host.Start(programs.Config{Name: programName, Argv: []string{string(argv)}, Journal: true, KeepStderr: true})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.process = p
	closed := s.closed
	s.mu.Unlock()
	if closed {
		_ = p.End(0)
	}
	return p, nil
}

// leave ends the program, unless it was left, and what it still says.
func (s *session) leave(p *programs.Process) {
	s.mu.Lock()
	left := s.left
	s.mu.Unlock()
	if !left {
		_ = p.End(0)
	}
	for range p.Frames {
		// nobody wants them any more
	}
	_ = p.Close()
	if s.own != nil {
		_ = s.own.Quit(0)
	}
}

// follow takes in what the program says until that ends.
func (s *session) follow(p *programs.Process) {
	var said, heard assembly
	for {
		select {
		case f, more := <-p.Frames:
			switch {
			case !more:
				s.conclude(p)
				return
			case f.Direction == programs.Live:
				s.goLive()
			case f.Direction == programs.In:
				for l := range heard.take(f) {
					s.recite(l)
				}
			case f.Direction == programs.Out:
				for l, offset := range said.take(f) {
					s.offset = offset
					if !s.take(l) {
						return
					}
				}
			}
		case d := <-s.decided:
			if !s.settle(d) {
				return
			}
		}
		s.rest(p)
	}
}

// assembly makes lines of frames of one direction.
type assembly struct{ rest []byte }

// take yields the lines that a frame completes, and the offsets behind them.
func (a *assembly) take(f programs.Frame) iter.Seq2[line, uint64] {
	return func(yield func(line, uint64) bool) {
		at, data := f.Offset, f.Data
		for {
			piece, rest, ended := bytes.Cut(data, []byte{'\n'})
			a.rest = append(a.rest, piece...)
			if !ended {
				return
			}
			at += uint64(len(piece) + 1)
			data = rest
			var l line
			_ = json.Unmarshal(a.rest, &l)
			a.rest = nil
			if !yield(l, at) {
				return
			}
		}
	}
}

// take records what the program says, and answers it.
func (s *session) take(l line) bool {
	if l.Kind == saysGarbage {
		s.yield(nil, errors.New("the agent's output is garbage"))
		return false
	}
	for i, p := range s.events(l) {
		if !s.say(p, l.Call, s.offset, i) {
			return false
		}
	}
	switch l.Kind {
	case saysIntent, saysAsk:
		s.open = append(s.open, l)
		if s.isLive() {
			s.respond()
		}
	case saysUnknown, saysComplete, saysFailed, saysPaused:
		return false
	}
	return true
}

func (s *session) isLive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// recite takes in what the program has been told.
func (s *session) recite(l line) {
	switch l.Kind {
	case hearsGo, hearsDecided:
		for i, o := range s.open {
			if o.Call == l.Call && (o.Kind == saysIntent) == (l.Kind == hearsGo) {
				s.open = append(s.open[:i:i], s.open[i+1:]...)
				return
			}
		}
	case hearsMessage:
		if l.ID != "" {
			s.mu.Lock()
			s.given[l.ID] = true
			s.mu.Unlock()
		}
	}
}

// goLive tells the program what it is due.
func (s *session) goLive() {
	s.mu.Lock()
	s.live = true
	due := s.due
	s.due = nil
	s.mu.Unlock()
	for _, l := range due {
		s.tell(l)
	}
	s.respond()
}

// respond answers what is open.
func (s *session) respond() {
	open := s.open
	s.open = nil
	for _, l := range open {
		if l.Kind == saysIntent {
			s.tell(line{Kind: hearsGo, Call: l.Call})
			continue
		}
		if d := s.request.Decided[l.Call]; d != nil { // the log has it
			s.tell(line{Kind: hearsDecided, Call: l.Call, Allow: d.Decision == wire.DecisionAllow})
			continue
		}
		s.asking++
		step := s.script.steps[l.Step]
		s.deciding.Go(func() {
			v := s.request.Options.Decide(s.ctx, agent.Permission{CallID: l.Call, ToolName: step.tool, Input: wire.RawString(step.text)})
			select {
			case s.decided <- line{Kind: hearsDecided, Call: l.Call, Allow: v.Allow, By: v.By, Text: []byte(v.Note)}:
			case <-s.ctx.Done():
			}
		})
	}
}

// settle records a decision and passes it on.
func (s *session) settle(l line) bool {
	s.asking--
	d := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: l.By, Note: string(l.Text)}
	if l.Allow {
		d.Decision = wire.DecisionAllow
	}
	if s.ctx.Err() != nil || !s.say(d, l.Call, 0, 0) || s.ctx.Err() != nil {
		return false
	}
	s.tell(l)
	return true
}

// tell says something to the program, once that is live.
func (s *session) tell(l line) {
	l.From = s.name
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		s.due = append(s.due, l)
		return
	}
	if l.Kind == hearsMessage && l.ID != "" {
		if s.given[l.ID] {
			return
		}
		s.given[l.ID] = true
	}
	b, err := json.Marshal(l)
	if err == nil {
		_, _ = s.process.Stdin.Write(append(b, '\n')) // a program that is gone is told nothing
	}
}

// rest gives up the journal up to here, if nothing is open and the log has all that came of it.
func (s *session) rest(p *programs.Process) {
	if !s.isLive() || s.offset == s.rests || len(s.open)+s.asking > 0 || !s.request.Stored() {
		return
	}
	s.mu.Lock()
	state, err := json.Marshal(s.given)
	s.mu.Unlock()
	if err != nil {
		return
	}
	s.rests = s.offset
	p.Rested(programs.Rest{Offset: s.offset, State: state})
}

// conclude ends the session when the program's output has ended.
func (s *session) conclude(p *programs.Process) {
	s.mu.Lock()
	over := s.closed || s.left
	s.mu.Unlock()
	if over {
		return
	}
	_ = p.End(0)
	if exit, err := p.Wait(context.WithoutCancel(s.ctx)); err != nil || exit.Lost {
		s.yield(nil, agent.ErrLost)
	}
}

// Send implements [agent.Session].
func (s *session) Send(_ context.Context, m agent.Message) error {
	if s.ctx.Err() != nil {
		return agent.ErrEnded
	}
	s.tell(line{Kind: hearsMessage, ID: m.CommandID, Text: []byte(m.Content)})
	return nil
}

// Interrupt implements [agent.Session].
func (s *session) Interrupt(context.Context) error {
	s.tell(line{Kind: hearsInterrupt})
	return nil
}

// Close implements [agent.Session].
func (s *session) Close() error {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	p, left := s.process, s.left
	s.mu.Unlock()
	if p != nil && !left {
		return p.End(0)
	}
	return nil
}

// Leave implements [agent.Leaver].
func (s *session) Leave() bool {
	s.mu.Lock()
	s.left = true
	p := s.process
	s.mu.Unlock()
	return p != nil && p.Leave()
}

// markOf returns how the log shows a text that has a mark: not at all if it can't be stored.
func markOf(mark, text string) string {
	if !utf8.ValidString(text) {
		return ""
	}
	return mark
}
