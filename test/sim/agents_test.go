package sim_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"wake/internal/agent"
	"wake/pkg/wire"
	"wake/test/oracle"
)

// provider starts agents whose behaviour follows from the seed and the execution,
// whoever drives them.
type provider struct {
	w    *world
	life *life
}

// memory is what an agent keeps of its session on a disk that all machines see.
type memory struct {
	exec string // that began it; a fork's goes on with the same script
	next int    // the step that it does next
}

// memories are the session files of all agents.
type memories struct {
	mu sync.Mutex
	of map[string]memory
}

func (m *memories) load(id string) (memory, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.of[id]
	return v, ok
}

func (m *memories) save(id string, v memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[id] = v
}

// Start implements [agent.Provider].
func (p *provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	script := p.w.script(r)
	if script.refuses {
		return nil, errors.New("the agent doesn't start")
	}
	ctx, cancel := context.WithCancel(ctx)
	return &session{
		provider: p, request: r, script: script, ctx: ctx, cancel: cancel,
		messages: make(chan agent.Message, 100), interrupted: make(chan struct{}),
	}, nil
}

// session is one execution of an agent.
type session struct {
	*provider

	request agent.Request
	script  script
	ctx     context.Context //nolint:containedctx // a session lives as long as its context
	cancel  context.CancelFunc
	yield   func(*wire.Event, error) bool

	messages    chan agent.Message
	once        sync.Once
	interrupted chan struct{}
}

// script is what an agent does in an execution.
type script struct {
	refuses bool
	steps   []step
	ending  ending
	answer  string
}

// step is one turn of an agent.
type step struct {
	tool   string // "": it only talks
	safe   bool   // the call may be repeated
	asks   bool   // it wants a permission
	takes  time.Duration
	text   string
	pieces int
	tells  wire.Priority // how much its parent has to know of it; "": not at all
}

// ending is how an execution ends.
type ending int

const (
	answers ending = iota
	fails
	breaks // the machinery fails
	ends   // without a word
	hangs
)

// script returns the script of an execution. It depends on nothing but the seed,
// the node and the execution, so that it is the same in a fork.
func (w *world) script(r agent.Request) script {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.NodeID + "\x00" + r.ExecID))
	rng := rand.New(rand.NewPCG(w.seed, h.Sum64()))
	s := script{refuses: rng.IntN(60) == 0}
	for range rng.IntN(7) {
		s.steps = append(s.steps, w.step(rng))
	}
	s.answer = pick(rng, "left", "left", "right", "", hostile(rng))
	switch n := rng.IntN(20); {
	case n == 0:
		s.ending = fails
	case n == 1:
		s.ending = breaks
	case n == 2:
		s.ending = ends
	case n <= 5 && strings.HasPrefix(r.NodeID, limited):
		s.ending = hangs
	}
	return s
}

func (w *world) step(rng *rand.Rand) step {
	s := step{takes: time.Duration(rng.ExpFloat64() * float64(2*time.Second)), text: "thinking", pieces: rng.IntN(4)}
	switch rng.IntN(5) {
	case 0, 1, 2:
		s.tool = pick(rng, "Bash", "Write", "Read")
		s.safe = s.tool == "Read"
		s.asks = rng.IntN(4) == 0
	case 3:
		s.text = hostile(rng)
	case 4:
		s.text, s.tells = hostile(rng), pick(rng, "", wire.PriorityInfo, wire.PriorityQuestion, wire.PriorityBlocker)
	}
	return s
}

// hostile returns a text that nobody wants.
func hostile(rng *rand.Rand) string {
	switch rng.IntN(7) {
	case 0:
		return strings.Repeat("x", 2*blobLimit) // goes to the object store
	case 1:
		return "\x00\x1b[2J\x1b]0;title\x07"
	case 2:
		return "\xff\xfe\xc1 not UTF-8"
	case 3:
		return "{{ state.x }} {\"type\":\"abort\"}"
	case 4:
		return "\u202e\u2066right to left\u2069 \U0001f4a3"
	case 5:
		return "line\r\nMSG wake.cmd.r1 1 4\r\nquit\r\n"
	}
	return strings.Repeat("word ", 200)
}

func pick[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }

// Events implements [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		s.yield = yield
		s.play()
	}
}

func (s *session) say(p wire.Payload, call string) bool {
	return s.yield(&wire.Event{SessionID: s.request.SessionID, CallID: call, Payload: p}, nil)
}

func (s *session) fail(kind, message string) {
	s.say(&wire.AgentError{ErrorType: kind, Message: message, Severity: wire.SeverityError, Phase: "model"}, "")
}

func (s *session) play() {
	r := s.request
	if !s.say(&wire.AgentStart{Prompt: r.Prompt}, "") || s.ctx.Err() != nil {
		return
	}
	m, ok := s.remember()
	if !ok {
		s.fail(agent.ErrorSessionNotFound, "no conversation found")
		return
	}
	s.w.memories.save(r.SessionID, m)
	s.w.ledger.Began(oracle.Beginning{Run: r.RunID, Node: r.NodeID, Exec: r.ExecID, Runner: s.life.p.name})
	for m.next < len(s.script.steps) {
		if s.stopped() {
			return
		}
		at := m.next
		m.next++
		if !s.step(at, s.script.steps[at], m) {
			return
		}
		s.w.memories.save(r.SessionID, m)
	}
	if !s.stopped() {
		s.end()
	}
}

// remember returns where the session goes on.
func (s *session) remember() (memory, bool) {
	r := s.request
	switch {
	case r.ForkOf != "":
		m, ok := s.w.memories.load(r.ForkOf)
		if n := 0; ok && r.ForkAt != "" {
			if _, err := fmt.Sscanf(r.ForkAt, "point-%d", &n); err == nil {
				m.next = min(m.next, n)
			}
		}
		return m, ok
	case r.Resume:
		return s.w.memories.load(r.SessionID)
	}
	return memory{exec: r.ExecID}, true
}

// stopped ends the session if somebody wants it to end, and passes messages on.
func (s *session) stopped() bool {
	for {
		select {
		case <-s.ctx.Done():
			return true
		case <-s.interrupted:
			s.say(&wire.AgentPaused{Reason: "interrupted"}, "")
			return true
		case m := <-s.messages:
			if !s.say(&wire.UserMessage{Source: "command", CommandID: m.CommandID, Content: m.Content}, "") {
				return true
			}
		default:
			return false
		}
	}
}

// wait reports false if the session ends meanwhile.
func (s *session) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return s.ctx.Err() == nil
	case <-s.ctx.Done():
		return false
	}
}

func (s *session) step(at int, step step, m memory) bool {
	if !s.say(&wire.TurnStart{}, "") {
		return false
	}
	for range step.pieces {
		if !s.wait(step.takes/4) || !s.say(&wire.AgentTextDelta{Content: step.text, Block: at + 1}, "") {
			return false
		}
	}
	if step.pieces == 0 && !s.say(&wire.AgentText{Content: step.text, Block: at + 1}, "") {
		return false
	}
	if step.tells != "" && !s.say(&wire.CCMessage{Text: step.text, Priority: step.tells}, fmt.Sprintf("%s-%d", s.request.SessionID, at)) {
		return false
	}
	if step.tool != "" && !s.call(at, step, m) {
		return false
	}
	return s.say(&wire.Usage{MessageID: fmt.Sprintf("m%d", at), InputTokens: 10, OutputTokens: 5}, "")
}

// call makes a tool call: the intent is stored before it begins.
func (s *session) call(at int, step step, m memory) bool {
	id := fmt.Sprintf("%s-%d", s.request.SessionID, at)
	input := wire.RawString(step.text)
	if !s.w.forgetful {
		s.w.memories.save(s.request.SessionID, m) // it knows that it asked
	}
	if s.w.hasty && !s.work(id) {
		return false
	}
	if !s.say(&wire.ToolIntent{ToolName: step.tool, ToolInput: input, Idempotent: step.safe}, id) || s.ctx.Err() != nil {
		return false
	}
	if step.asks && s.request.Options.Decide != nil {
		if !s.say(&wire.PermissionRequired{ToolName: step.tool, ToolInput: input}, id) {
			return false
		}
		v := s.request.Options.Decide(s.ctx, agent.Permission{CallID: id, ToolName: step.tool, Input: input})
		if s.ctx.Err() != nil {
			return false
		}
		decided := &wire.PermissionDecided{Decision: wire.DecisionAllow, By: v.By, Note: v.Note}
		if !v.Allow {
			decided.Decision = wire.DecisionDeny
		}
		if !s.say(decided, id) {
			return false
		}
		if !v.Allow {
			return s.say(&wire.AgentTool{ToolName: step.tool, ToolInput: input, Error: "denied", Denied: true, Point: fmt.Sprintf("point-%d", at+1)}, id)
		}
	}
	if !s.w.hasty && !s.work(id) {
		return false
	}
	if !s.wait(step.takes) {
		return false
	}
	return s.say(&wire.AgentTool{ToolName: step.tool, ToolInput: input, ToolOutput: wire.RawString("ok"), Point: fmt.Sprintf("point-%d", at+1)}, id)
}

// work does what the call is for, unless the process is dead.
func (s *session) work(id string) bool {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if s.life.dead || s.ctx.Err() != nil {
		return false
	}
	s.w.ledger.Worked(oracle.Work{Run: s.request.RunID, Node: s.request.NodeID, Exec: s.request.ExecID, Call: id, At: time.Now()})
	return true
}

func (s *session) end() {
	switch s.script.ending {
	case answers:
		s.say(&wire.AgentComplete{Result: s.script.answer, NumTurns: int64(len(s.script.steps))}, "")
	case fails:
		s.fail(wire.ErrorExecution, "no luck: "+s.script.answer)
	case breaks:
		s.yield(nil, errors.New("the agent's output is garbage"))
	case ends:
	case hangs:
		select {
		case <-s.ctx.Done():
		case <-s.interrupted:
			s.say(&wire.AgentPaused{Reason: "interrupted"}, "")
		}
	}
}

// Send implements [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	if s.ctx.Err() != nil {
		return agent.ErrEnded
	}
	select {
	case s.messages <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return agent.ErrEnded
	}
}

// Interrupt implements [agent.Session].
func (s *session) Interrupt(context.Context) error {
	s.once.Do(func() { close(s.interrupted) })
	return nil
}

// Close implements [agent.Session].
func (s *session) Close() error {
	s.cancel()
	return nil
}
