//go:build linux

package sim_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/oracle"
)

// orders are what an agent's program is started with.
type orders struct {
	Run, Node, Exec string
	Session         string
	Resume          bool
	ForkOf, ForkAt  string
	Asks            bool // a person is there to decide
	Runner          string
}

// line is what an agent's program and its session say to each other, one per line.
type line struct {
	Kind string `json:"k"`
	Line int    `json:"n,omitempty"`  // of what this program says, from 1 on
	Step int    `json:"at,omitempty"` // of the script
	Call string `json:"call,omitempty"`
	ID   string `json:"id,omitempty"` // of a message's command
	Text []byte `json:"text,omitempty"`
	From string `json:"from,omitempty"` // the runner that speaks to the program
	// Of a decision.
	Allow bool   `json:"allow,omitempty"`
	By    string `json:"by,omitempty"`
}

// What a program says.
const (
	saysUnknown  = "unknown" // it doesn't know the session
	saysTurn     = "turn"
	saysPiece    = "piece" // of a text
	saysText     = "text"
	saysParent   = "tells" // its parent
	saysIntent   = "intent"
	saysAsk      = "ask"
	saysRefused  = "refused"
	saysResult   = "result"
	saysUsage    = "usage"
	saysTold     = "told"
	saysComplete = "complete"
	saysFailed   = "failed"
	saysGarbage  = "garbage"
	saysPaused   = "paused"
)

// What it is told.
const (
	hearsGo        = "go"
	hearsDecided   = "decided"
	hearsMessage   = "message"
	hearsInterrupt = "interrupt"
)

// program is an agent's program at work.
type program struct {
	*keeper.Task
	orders

	w      *world
	script script
	lines  int
	fenced bool // a keeper ends it, or its runner does, before another one acts for its node

	mu    sync.Mutex
	heard []line
	news  chan struct{} // holds one token when it has heard something
}

// program is what programs of the world's machines do.
func (w *world) program(t *keeper.Task) int {
	p := &program{Task: t, w: w, news: make(chan struct{}, 1)}
	switch {
	case len(t.Argv) == 0: // an intruder's, at the keeper of a command
		return 2
	case t.Argv[0] == commandName:
		return p.playCommand()
	}
	if err := json.Unmarshal([]byte(t.Argv[0]), &p.orders); err != nil {
		return 2
	}
	p.script, p.fenced = w.script(p.Node, p.Exec), w.hasKeepers(p.Runner)
	var listening sync.WaitGroup
	listening.Go(p.listen)
	defer listening.Wait()
	defer func() { _ = t.Stdin.(io.Closer).Close() }()
	return p.play()
}

// listen takes what the program is told.
func (p *program) listen() {
	r := bufio.NewReader(p.Stdin)
	for {
		b, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var l line
		if json.Unmarshal(b, &l) != nil {
			continue
		}
		p.w.ledger.Heard(p.ID, l.From)
		p.mu.Lock()
		p.heard = append(p.heard, l)
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// take returns the first thing that it has heard and wants.
func (p *program) take(wanted func(line) bool) (line, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.heard {
		if wanted(l) {
			p.heard = append(p.heard[:i:i], p.heard[i+1:]...)
			return l, true
		}
	}
	return line{}, false
}

// await waits until it hears something that it wants.
func (p *program) await(wanted func(line) bool) (line, bool) {
	for {
		if l, ok := p.take(wanted); ok {
			return l, p.Do(p.acts)
		}
		select {
		case <-p.news:
		case <-p.Done():
			return line{}, false
		}
	}
}

// acts notes that the program does something. Where its runner has no keepers nothing stops a program when the server
// is out of reach, so it may go on beside another one.
func (p *program) acts() {
	if p.fenced {
		p.w.ledger.Acted(p.Run, p.Node, p.ID)
	}
}

// say says a line; mark is how the log shows it, "" if it doesn't.
func (p *program) say(l line, mark string) bool {
	p.lines++
	l.Line = p.lines
	b, err := json.Marshal(l)
	if err != nil {
		return false
	}
	said := p.Do(func() {
		p.acts()
		if mark != "" {
			p.w.said.Add(1)
			p.w.ledger.Said(oracle.Saying{Run: p.Run, Exec: p.Exec, Agent: p.ID, Mark: mark})
		}
	})
	return said && p.Say(append(b, '\n'))
}

// wait reports whether the program goes on after that time. It acts all the while.
func (p *program) wait(d time.Duration) bool {
	const beat = time.Second
	for ; d > beat; d -= beat {
		if !p.Sleep(beat) || !p.Do(p.acts) {
			return false
		}
	}
	return p.Sleep(d) && p.Do(p.acts)
}

func (p *program) play() (code int) {
	m, ok := p.remember()
	if !ok {
		p.say(line{Kind: saysUnknown}, "")
		return 1
	}
	if !p.Do(func() {
		p.w.memories.save(p.Session, m)
		p.w.ledger.Began(oracle.Beginning{Run: p.Run, Node: p.Node, Exec: p.Exec, Runner: p.Runner})
	}) {
		return 1
	}
	for m.next < len(p.script.steps) {
		if p.stopped() {
			return 0
		}
		at := m.next
		m.next++
		if !p.step(at, p.script.steps[at], m) {
			return 1
		}
		p.w.memories.save(p.Session, m)
	}
	if !p.stopped() {
		p.end()
	}
	return 0
}

// remember returns where the session goes on.
func (p *program) remember() (memory, bool) {
	switch {
	case p.ForkOf != "":
		m, ok := p.w.memories.load(p.ForkOf)
		if n := 0; ok && p.ForkAt != "" {
			if _, err := fmt.Sscanf(p.ForkAt, "point-%d", &n); err == nil {
				m.next = min(m.next, n)
			}
		}
		return m, ok
	case p.Resume:
		return p.w.memories.load(p.Session)
	}
	return memory{exec: p.Exec}, true
}

// stopped says that it is interrupted, if it is, and what messages it has taken.
func (p *program) stopped() bool {
	for {
		l, ok := p.take(func(l line) bool { return l.Kind == hearsMessage || l.Kind == hearsInterrupt })
		switch {
		case !ok:
			return !p.Do(func() {})
		case l.Kind == hearsInterrupt:
			p.say(line{Kind: saysPaused}, "")
			return true
		case !p.say(line{Kind: saysTold, ID: l.ID, Text: l.Text}, ""):
			return true
		}
	}
}

// mark marks a text with the line that it is.
func (p *program) mark() string { return fmt.Sprintf("§%d-%d§", p.ID, p.lines+1) }

// text says a text, whose bytes are as they come.
func (p *program) text(kind string, at int, text string) bool {
	mark := p.mark()
	return p.say(line{Kind: kind, Step: at, Text: []byte(mark + text)}, markOf(mark, text))
}

func (p *program) step(at int, step step, m memory) bool {
	if !p.say(line{Kind: saysTurn, Step: at}, "") {
		return false
	}
	for range step.pieces {
		if !p.wait(step.takes/4) || !p.text(saysPiece, at, step.text) {
			return false
		}
	}
	if step.pieces == 0 && !p.text(saysText, at, step.text) {
		return false
	}
	if step.tells != "" && !p.say(line{Kind: saysParent, Step: at, Call: fmt.Sprintf("%s-%d", p.Session, at)}, "") {
		return false
	}
	if step.tool != "" && !p.call(at, step, m) {
		return false
	}
	id := fmt.Sprintf("m%d-%d", p.ID, at)
	return p.say(line{Kind: saysUsage, Step: at, ID: id}, "usage "+id)
}

// call makes a tool call: the intent is stored before it begins.
func (p *program) call(at int, step step, m memory) bool {
	id := fmt.Sprintf("%s-%d", p.Session, at)
	if !p.w.forgetful {
		p.w.memories.save(p.Session, m) // it knows that it asked
	}
	if p.w.hasty && !p.work(id, step.safe) {
		return false
	}
	if !p.say(line{Kind: saysIntent, Step: at, Call: id}, "intent "+id) {
		return false
	}
	if _, ok := p.await(func(l line) bool { return l.Kind == hearsGo && l.Call == id }); !ok {
		return false
	}
	if step.asks && p.Asks {
		if !p.say(line{Kind: saysAsk, Step: at, Call: id}, "ask "+id) {
			return false
		}
		v, ok := p.await(func(l line) bool { return l.Kind == hearsDecided && l.Call == id })
		if !ok {
			return false
		}
		if !v.Allow {
			return p.say(line{Kind: saysRefused, Step: at, Call: id}, "result "+id)
		}
	}
	if !p.w.hasty && !p.work(id, step.safe) {
		return false
	}
	return p.wait(step.takes) && p.say(line{Kind: saysResult, Step: at, Call: id}, "result "+id)
}

// work does what the call is for.
func (p *program) work(id string, safe bool) bool {
	return p.Do(func() {
		p.acts()
		p.w.ledger.Worked(oracle.Work{Run: p.Run, Node: p.Node, Exec: p.Exec, Call: id, Safe: safe, At: time.Now()})
	})
}

func (p *program) end() {
	switch p.script.ending {
	case answers:
		p.say(line{Kind: saysComplete}, "")
	case fails:
		p.say(line{Kind: saysFailed}, "")
	case breaks:
		p.say(line{Kind: saysGarbage}, "")
	case ends:
	case hangs:
		if _, ok := p.await(func(l line) bool { return l.Kind == hearsInterrupt }); ok {
			p.say(line{Kind: saysPaused}, "")
		}
	}
}

// events returns what a session makes of a line.
func (s *session) events(l line) []wire.Payload {
	var step step
	if l.Step < len(s.script.steps) {
		step = s.script.steps[l.Step]
	}
	input := wire.RawString(step.text)
	point := fmt.Sprintf("point-%d", l.Step+1)
	switch l.Kind {
	case saysUnknown:
		return failure(wire.ErrorSessionNotFound, "no conversation found")
	case saysTurn:
		return []wire.Payload{&wire.TurnStart{}}
	case saysPiece:
		return []wire.Payload{&wire.AgentTextDelta{Content: string(l.Text), Block: l.Step + 1}}
	case saysText:
		return []wire.Payload{&wire.AgentText{Content: string(l.Text), Block: l.Step + 1}}
	case saysParent:
		return []wire.Payload{&wire.CCMessage{Text: step.text, Priority: step.tells}}
	case saysIntent:
		return []wire.Payload{&wire.ToolIntent{ToolName: step.tool, ToolInput: input, Idempotent: step.safe}}
	case saysAsk:
		return []wire.Payload{&wire.PermissionRequired{ToolName: step.tool, ToolInput: input}}
	case saysRefused:
		return []wire.Payload{&wire.AgentTool{ToolName: step.tool, ToolInput: input, Error: "denied", Denied: true, Point: point}}
	case saysResult:
		return []wire.Payload{&wire.AgentTool{ToolName: step.tool, ToolInput: input, ToolOutput: wire.RawString("ok"), Point: point}}
	case saysUsage:
		return []wire.Payload{&wire.Usage{MessageID: l.ID, InputTokens: 10, OutputTokens: 5}}
	case saysTold:
		return []wire.Payload{&wire.UserMessage{Source: "command", CommandID: l.ID, Content: string(l.Text)}}
	case saysComplete:
		return []wire.Payload{&wire.AgentComplete{Result: s.script.answer, NumTurns: int64(len(s.script.steps))}}
	case saysFailed:
		return failure(wire.ErrorExecution, "no luck: "+s.script.answer)
	case saysPaused:
		return []wire.Payload{&wire.AgentPaused{Reason: "interrupted"}}
	}
	return nil
}

func failure(kind, message string) []wire.Payload {
	return []wire.Payload{&wire.AgentError{ErrorType: kind, Message: message, Severity: wire.SeverityError, Phase: "model"}}
}
