package runner_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// puppet is an agent whose every step a test decides.
type puppet struct {
	play     func(a *act)  // nil: it completes at once
	starting func(nth int) // called by Start, unless it is nil
	recover  func(agent.Request, agent.Calls) []*wire.Event
	agents   []agent.SubAgent // files of sub-agents that it keeps
	lingers  bool

	mu       sync.Mutex
	requests []agent.Request
}

func (p *puppet) Capabilities() agent.Capabilities {
	if p.recover == nil {
		return agent.Capabilities{Lingers: p.lingers}
	}
	return agent.Capabilities{
		Recover: func(_ context.Context, r agent.Request, c agent.Calls) ([]*wire.Event, error) {
			return p.recover(r, c), nil
		},
		SubAgents: func(agent.Options, string) ([]agent.SubAgent, error) { return p.agents, nil },
	}
}

func (p *puppet) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r)
	if p.starting != nil {
		p.starting(len(p.requests))
	}
	ctx, cancel := context.WithCancel(ctx)
	return &act{
		puppet: p, request: r, nth: len(p.requests), ctx: ctx, cancel: cancel,
		messages: make(chan agent.Message, 10), interrupted: make(chan struct{}),
	}, nil
}

// asked returns the requests so far.
func (p *puppet) asked() []agent.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// act is a session of a puppet.
type act struct {
	puppet  *puppet
	request agent.Request
	nth     int             // of the sessions of the puppet, from 1
	ctx     context.Context //nolint:containedctx // a session lives as long as its context
	cancel  context.CancelFunc

	messages    chan agent.Message
	once        sync.Once
	interrupted chan struct{}
	over        atomic.Bool // it takes no message any more
	yield       func(*wire.Event, error) bool
}

func (a *act) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		a.yield = yield
		if !a.say(&wire.AgentStart{Prompt: a.request.Prompt}, "") {
			return
		}
		if a.puppet.play != nil {
			a.puppet.play(a)
			return
		}
		a.turn()
		a.say(&wire.AgentComplete{Result: "done"}, "")
	}
}

// say yields an event about a call, or none. It reports false if no session listens.
func (a *act) say(p wire.Payload, call string) bool {
	return a.yield(&wire.Event{CallID: call, Payload: p}, nil)
}

func (a *act) turn() bool { return a.say(&wire.TurnStart{}, "") }

func (a *act) intend(call string) bool {
	return a.say(&wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString(call)}, call)
}

func (a *act) Send(_ context.Context, m agent.Message) error {
	if a.over.Load() {
		return agent.ErrEnded
	}
	a.messages <- m
	return nil
}

func (a *act) Interrupt(context.Context) error {
	a.once.Do(func() { close(a.interrupted) })
	return nil
}

func (a *act) Close() error {
	a.cancel()
	return nil
}

// pauseWhenTold ends the session as an agent does that is interrupted.
func (a *act) pauseWhenTold() {
	select {
	case <-a.interrupted:
		a.say(&wire.AgentPaused{Reason: "interrupted"}, "")
	case <-a.ctx.Done():
	}
}

// left is a run that its runner has left: node a, an execution of which has begun.
type left struct {
	b      *bench
	id     string
	first  *flow.Node // a
	owner  *eventlog.Writer
	worker *eventlog.Writer // nil if a has not begun
}

// leave makes the history of a run whose runner was named dead and is gone.
func (b *bench) leave(id, source, dead string) *left {
	b.t.Helper()
	l := b.schedule(id, source, dead)
	l.worker = b.claim(id, "a", dead)
	l.work(&wire.NodeStart{NodeType: string(l.first.Type), Attempt: 1, Input: l.first.Input})
	return l
}

// schedule is [bench.leave] for a run whose node a has not begun.
func (b *bench) schedule(id, source, dead string) *left {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(source))
	if err != nil {
		b.t.Fatal(err)
	}
	l := &left{b: b, id: id, owner: b.claim(id, wire.RunNode, dead), first: &def.Nodes[0]}
	request := wire.RunRequest{V: wire.Version, RunID: id, Definition: def.Raw(), Workspace: b.t.TempDir()}
	l.append(l.owner, flow.Start(def, request)...)
	l.append(l.owner, &wire.Event{ExecID: "a#1", Payload: &wire.NodeScheduled{Target: "a", Attempt: 1, Input: l.first.Input, Pool: "default"}})
	return l
}

func (b *bench) claim(id, node, by string) *eventlog.Writer {
	b.t.Helper()
	w, err := b.log.Claim(b.t.Context(), id, node, eventlog.Claim{Runner: by, Process: by})
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

func (l *left) append(w *eventlog.Writer, events ...*wire.Event) {
	l.b.t.Helper()
	if _, err := w.Append(l.b.t.Context(), events...); err != nil {
		l.b.t.Fatal(err)
	}
}

// work stores events of the execution.
func (l *left) work(payloads ...wire.Payload) {
	l.b.t.Helper()
	for _, p := range payloads {
		l.append(l.worker, &wire.Event{ExecID: "a#1", SessionID: "s1", Payload: p})
	}
}

// call stores events of a call.
func (l *left) call(id string, payloads ...wire.Payload) {
	l.b.t.Helper()
	l.append(l.worker, &wire.Event{ExecID: "a#1", SessionID: "s1", CallID: id, Payload: &wire.ToolIntent{ToolName: "Tool-" + id, ToolInput: wire.RawString("in " + id)}})
	for _, p := range payloads {
		l.append(l.worker, &wire.Event{ExecID: "a#1", SessionID: "s1", CallID: id, Payload: p})
	}
}

// decide stores decisions of the owner.
func (l *left) decide(payloads ...wire.Payload) {
	l.b.t.Helper()
	for _, p := range payloads {
		l.append(l.owner, &wire.Event{Payload: p})
	}
}

// offer offers the execution and returns what follows in the log until an event
// of a type.
func (l *left) offer(until wire.Type) []eventlog.Entry {
	l.b.t.Helper()
	before := len(l.b.read(l.id))
	l.b.publish(subjects.Default.QueueNode("default"), wire.NodeOffer{V: 1, RunID: l.id, NodeID: "a", ExecID: "a#1"})
	return l.b.after(l.id, before, until)
}

// after returns the events of a run behind the first n, up to one of a type.
func (b *bench) after(id string, n int, until wire.Type) []eventlog.Entry {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Hour)
	defer cancel()
	var entries []eventlog.Entry
	for e, err := range b.log.Follow(ctx, eventlog.Query{Run: id}) {
		if err != nil {
			b.t.Fatal(err)
		}
		if entries = append(entries, e); len(entries) > n && e.Event.Type() == until {
			return entries[n:]
		}
	}
	b.t.Fatalf("%s did not come:\n%s", until, story(entries))
	return nil
}

// calls lists what entries say of calls: call and type.
func calls(entries []eventlog.Entry) string {
	var s strings.Builder
	for _, e := range entries {
		if e.Event.CallID != "" {
			fmt.Fprintf(&s, "%s %s\n", e.Event.CallID, e.Event.Type())
		}
	}
	return s.String()
}

func first[P wire.Payload](t *testing.T, entries []eventlog.Entry) P {
	t.Helper()
	for _, e := range entries {
		if p, ok := e.Event.Payload.(P); ok {
			return p
		}
	}
	var none P
	t.Fatalf("there is no %T:\n%s", none, story(entries))
	return none
}

func promptOf(r agent.Request) string {
	text, _ := r.Prompt.Text()
	return text
}

const single = `
name: one
workspace: shared
nodes:
  - {id: a, type: agent, input: {prompt: "do it"}}
`

// S1, S2, S3: a call whose result is stored stays as it is; every open call is
// sealed according to its state, and the agent goes on with its session and is told.
func TestOpenCallsAreSealed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.call("done", &wire.AgentTool{ToolName: "Tool-done", ToolInput: wire.Null, ToolOutput: wire.RawString("out")})
		l.call("pending")
		l.call("waiting", &wire.PermissionRequired{ToolName: "Tool-waiting"})
		l.call("approved", &wire.PermissionRequired{ToolName: "Tool-approved"}, &wire.PermissionDecided{Decision: wire.DecisionAllow})
		l.call("running", &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
		p := &puppet{}
		b.runner("r1", p)
		entries := l.offer(wire.TypeNodeComplete)
		want := `a node:claimed
a tool:sealed
a agent:tool
a tool:sealed
a agent:tool
a tool:sealed
a agent:tool
a tool:sealed
a agent:tool
a agent_resumed
a agent:start
a turn:start
a agent:complete
a node:complete
`
		if diff := cmp.Diff(want, story(entries)); diff != "" {
			t.Error(diff)
		}
		from := map[string]wire.ToolCallState{}
		for _, e := range entries {
			switch p := e.Event.Payload.(type) {
			case *wire.ToolSealed:
				from[e.Event.CallID] = p.From
				if p.Message == "" || len(p.Recommendations) == 0 {
					t.Errorf("%s was sealed without words: %+v", e.Event.CallID, p)
				}
			case *wire.AgentTool:
				if input, _ := p.ToolInput.Text(); p.Error == "" || input != "in "+e.Event.CallID || p.ToolName != "Tool-"+e.Event.CallID {
					t.Errorf("the result of %s is %+v", e.Event.CallID, p)
				}
			}
		}
		states := map[string]wire.ToolCallState{
			"pending": wire.ToolPending, "waiting": wire.ToolApprovalRequired, "approved": wire.ToolApproved, "running": wire.ToolExecuting,
		}
		if diff := cmp.Diff(states, from); diff != "" {
			t.Error(diff)
		}
		resumed := first[*wire.AgentResumed](t, entries)
		if diff := cmp.Diff([]string{"approved", "pending", "running", "waiting"}, slices.Sorted(slices.Values(resumed.Sealed))); diff != "" || resumed.Strategy != "crash" {
			t.Errorf("%s: %s", resumed.Strategy, diff)
		}
		r := p.asked()[0]
		if !r.Resume || r.SessionID != "s1" || r.ForkOf != "" {
			t.Errorf("it was asked for %+v", r)
		}
		prompt := promptOf(r)
		if !strings.HasPrefix(prompt, "continue\n\n") {
			t.Errorf("prompt %q", prompt)
		}
		for call := range states {
			if !strings.Contains(prompt, "Tool-"+call) || !strings.Contains(prompt, "in "+call) {
				t.Errorf("the prompt doesn't tell of %s:\n%s", call, prompt)
			}
		}
		if strings.Contains(prompt, "Tool-done") {
			t.Errorf("the prompt tells of a call that was done:\n%s", prompt)
		}
		if s := b.fold("run1", b.read("run1")); len(s.Tools) != 0 || s.NodeStatus["a"] != wire.NodeDone {
			t.Errorf("open calls %v, a is %s", s.Tools, s.NodeStatus["a"])
		}
	})
}

// F16, S4: the prompt is exactly the message, or "continue"; with strategy manual
// nothing is sealed.
func TestResumePrompt(t *testing.T) {
	tests := []struct {
		name    string
		resumed *wire.FlowResumed
		open    bool
		prompt  string
		sealed  int
	}{
		{"nobody said anything", nil, false, "continue", 0},
		{"no message", &wire.FlowResumed{}, false, "continue", 0},
		{"message", &wire.FlowResumed{Message: "use tabs", Strategy: "crash"}, false, "use tabs", 0},
		{"manual", &wire.FlowResumed{Strategy: "manual"}, true, "continue", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", single, "r1")
				l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
				if tt.open {
					l.call("c1")
				}
				strategy := "crash"
				if tt.resumed != nil {
					l.decide(tt.resumed)
					strategy = first[*wire.FlowResumed](t, b.read("run1")).Strategy
				}
				p := &puppet{}
				b.runner("r1", p)
				entries := l.offer(wire.TypeNodeComplete)
				if got := promptOf(p.asked()[0]); got != tt.prompt {
					t.Errorf("prompt %q, want %q", got, tt.prompt)
				}
				resumed := first[*wire.AgentResumed](t, entries)
				if strategy == "manual" && resumed.Strategy != "manual" || len(resumed.Sealed) != tt.sealed || count(entries, wire.TypeToolSealed) != tt.sealed {
					t.Errorf("resumed by %s, sealed %v:\n%s", resumed.Strategy, resumed.Sealed, story(entries))
				}
				if n := count(entries, wire.TypeAgentResumed); n != 1 {
					t.Errorf("agent_resumed was recorded %d times", n)
				}
			})
		})
	}
}

// S5, and crashes in the midst of a resumption: nothing is sealed twice, nothing
// that the agent hasn't been told is forgotten, and nothing is told twice.
func TestResumeAgain(t *testing.T) {
	seal := func(l *left) {
		l.append(l.worker,
			&wire.Event{ExecID: "a#1", SessionID: "s1", CallID: "c1", Payload: &wire.ToolSealed{ToolName: "Tool-c1", From: wire.ToolPending, Message: "It was interrupted.", Recommendations: []string{"Look."}}},
			&wire.Event{ExecID: "a#1", SessionID: "s1", CallID: "c1", Payload: sealedResult("c1")})
	}
	resumed := func(l *left) { l.work(&wire.AgentResumed{Strategy: "crash", Sealed: []string{"c1"}}) }
	start := func(l *left) {
		l.work(&wire.AgentStart{Prompt: wire.RawString("use tabs\n\nTool-c1 was interrupted"), Resumed: true})
	}
	tests := []struct {
		name   string
		before []func(*left)
		sealed []string
		prompt string // what it begins with
		told   bool
	}{
		{"before the seals", nil, []string{"c1"}, "continue\n\n", true},
		{"after the seals", []func(*left){seal}, []string{"c1"}, "continue\n\n", true},
		{"after agent_resumed", []func(*left){seal, resumed}, nil, "continue\n\n", true},
		{"after agent:start", []func(*left){seal, resumed, start}, nil, "use tabs\n\nTool-c1 was interrupted", true},
		{"after the next turn", []func(*left){seal, resumed, start, func(l *left) { l.work(&wire.TurnStart{}) }}, nil, "continue", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", single, "r1")
				l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
				l.call("c1")
				for _, f := range tt.before {
					f(l)
				}
				p := &puppet{}
				b.runner("r1", p)
				entries := l.offer(wire.TypeNodeComplete)
				if diff := cmp.Diff(tt.sealed, first[*wire.AgentResumed](t, entries).Sealed); diff != "" {
					t.Error(diff)
				}
				if n := count(b.read("run1"), wire.TypeToolSealed); n != 1 {
					t.Errorf("the call was sealed %d times", n)
				}
				prompt := promptOf(p.asked()[0])
				if !strings.HasPrefix(prompt, tt.prompt) || strings.Count(prompt, "Tool-c1") > 1 || strings.Contains(prompt, "Tool-c1") != tt.told {
					t.Errorf("prompt %q", prompt)
				}
			})
		})
	}
}

func sealedResult(call string) *wire.AgentTool {
	output, err := wire.Marshal(map[string]any{
		"ok": false, "error": "It was interrupted.", "recommendations": []any{"Look."}, "data": map[string]any{"status": "SEALED"},
	})
	if err != nil {
		panic(err)
	}
	return &wire.AgentTool{ToolName: "Tool-" + call, ToolInput: wire.Null, ToolOutput: output, Error: "It was interrupted."}
}

// A resumption that only holds deals with open calls, and starts no agent; the next
// one tells the agent of them.
func TestHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.call("c1")
		l.decide(&wire.FlowPaused{Reason: "operator"}, &wire.FlowResumed{Hold: true})
		p := &puppet{}
		b.runner("r1", p)
		l.offer(wire.TypeAgentResumed)
		l.b.publish(subjects.Default.QueueNode("default"), wire.NodeOffer{V: 1, RunID: l.id, NodeID: "a", ExecID: "a#1"})
		<-time.After(time.Minute)
		s := b.fold("run1", b.read("run1"))
		if len(p.asked()) != 0 || len(s.Tools) != 0 || s.Status != wire.RunPaused || s.NodeStatus["a"] != wire.NodeRunning || count(b.read("run1"), wire.TypeAgentResumed) != 1 {
			t.Errorf("%d agents were started, the run is %s, a is %s:\n%s", len(p.asked()), s.Status, s.NodeStatus["a"], story(b.read("run1")))
		}
		l.decide(&wire.FlowResumed{Message: "go"})
		entries := l.offer(wire.TypeNodeComplete)
		if prompt := promptOf(p.asked()[0]); !strings.HasPrefix(prompt, "go\n\n") || !strings.Contains(prompt, "Tool-c1") {
			t.Errorf("prompt %q", prompt)
		}
		if n := count(entries, wire.TypeToolSealed); n != 0 {
			t.Errorf("sealed %d calls again", n)
		}
	})
}

// What a resumption says that only holds is said when the agent goes on, once.
func TestMessageOfHold(t *testing.T) {
	for message, want := range map[string]string{"": "use tabs", "go": "go"} {
		t.Run(want, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{play: func(a *act) {
					a.turn()
					a.pauseWhenTold()
				}}
				b.runner("r1", p)
				b.submit("run1", one)
				b.until("run1", wire.TypeTurnStart)
				tell := func(c wire.Command, until wire.Type) {
					t.Helper()
					before := len(b.read("run1"))
					c.RunID = "run1"
					if r := b.tell(c); code(r) != "accepted" {
						t.Fatalf("%s: %+v", c.Type, r)
					}
					b.after("run1", before, until)
				}
				tell(wire.Command{Type: "pause"}, wire.TypeAgentPaused)
				tell(wire.Command{Type: "resume", AutoRun: new(false), Message: "use tabs"}, wire.TypeAgentResumed)
				<-time.After(time.Minute)
				if n := len(p.asked()); n != 1 || count(b.read("run1"), wire.TypeAgentResumed) != 1 {
					t.Fatalf("%d sessions:\n%s", n, story(b.read("run1")))
				}
				tell(wire.Command{Type: "resume", Message: message}, wire.TypeTurnStart)
				tell(wire.Command{Type: "pause"}, wire.TypeAgentPaused)
				tell(wire.Command{Type: "resume"}, wire.TypeTurnStart)
				asked := p.asked()
				if len(asked) != 3 || promptOf(asked[1]) != want || promptOf(asked[2]) != "continue" {
					t.Errorf("asked %d times, %q at last", len(asked), promptOf(asked[len(asked)-1]))
					for _, r := range asked {
						t.Logf("%q", promptOf(r))
					}
				}
			})
		})
	}
}

// An agent is told what an interruption has cut off, however orderly that was: its own program
// may have told it that a person has refused the call.
func TestInterruptionIsTold(t *testing.T) {
	begin := func(a *act) {
		a.turn()
		a.intend("c1")
		a.say(&wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting}, "c1")
	}
	cut := func(a *act) { // as Claude Code does, see internal/agent/claude
		<-a.interrupted
		a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("c1"), ToolOutput: wire.RawString("The user doesn't want to proceed"), Error: wire.CallInterrupted}, "c1")
		a.say(&wire.UserMessage{Content: "[Request interrupted by user for tool use]", Source: "synthetic"}, "")
		a.say(&wire.TurnEnd{Subtype: "error_during_execution", IsError: true}, "")
		a.say(&wire.AgentPaused{Reason: "interrupted"}, "")
	}
	play := func(a *act) {
		if a.nth == 1 {
			begin(a)
			cut(a)
			return
		}
		a.turn()
		a.say(&wire.AgentComplete{Result: "done"}, "")
	}
	tests := []struct {
		name  string
		stop  *wire.Command // nil: its runner ends
		cause string
	}{
		{"pause", &wire.Command{Type: "pause"}, "has paused it"},
		{"resumable abort", &wire.Command{Type: "abort", Resumable: true}, "has paused it"},
		{"drain", nil, "shut down"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{play: play}
				stop := b.runner("r1", p)
				b.submit("run1", one)
				b.until("run1", wire.TypeToolState)
				message := "continue"
				if tt.stop == nil {
					stop()
					b.runner("r1", p)
				} else {
					message = "use tabs"
					tt.stop.RunID = "run1"
					before := len(b.read("run1"))
					if r := b.tell(*tt.stop); code(r) != "accepted" {
						t.Fatalf("%+v", r)
					}
					b.after("run1", before, wire.TypeAgentPaused)
					if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Message: message}); code(r) != "accepted" {
						t.Fatalf("%+v", r)
					}
				}
				b.ended("run1")
				prompt := promptOf(p.asked()[1])
				for _, want := range []string{message + "\n\nYou were interrupted. ", tt.cause, `- Bash "c1"`, "its outcome is unknown", "came from the interruption and not from the user"} {
					if !strings.Contains(prompt, want) {
						t.Errorf("the prompt doesn't say %q:\n%s", want, prompt)
					}
				}
				if strings.Count(prompt, `Bash "c1"`) != 1 {
					t.Errorf("the call is told of not once:\n%s", prompt)
				}
			})
		})
	}
}

// What the agent's own record has of calls and the log lacks is put on record before what is
// open is closed: a call that has ended isn't unknown, and one that was made unseen isn't unmade.
func TestCallsAreRecovered(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "dead")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		running := &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting}
		l.call("done", &wire.AgentTool{ToolName: "Tool-done", ToolInput: wire.Null, ToolOutput: wire.RawString("out")})
		l.work(&wire.Usage{MessageID: "msg_told", InputTokens: 3, OutputTokens: 4})
		l.call("ended", running)
		l.call("cut", running)
		l.call("waiting", &wire.PermissionRequired{ToolName: "Tool-waiting"})
		var known agent.Calls
		p := &puppet{recover: func(r agent.Request, c agent.Calls) []*wire.Event {
			if known = c; !r.Resume || r.SessionID != "s1" || r.Transcript.Load == nil {
				t.Errorf("it was asked for %+v", r)
			}
			made := func(id string) *wire.Event {
				return &wire.Event{CallID: id, SessionID: "s1", Payload: &wire.ToolIntent{ToolName: "Tool-" + id, ToolInput: wire.Null, Recovered: wire.RecoveredTranscript}}
			}
			ended := func(id string) *wire.Event {
				return &wire.Event{CallID: id, SessionID: "s1", Payload: &wire.AgentTool{
					ToolName: "Tool-" + id, ToolInput: wire.Null, ToolOutput: wire.RawString("out of " + id), Recovered: wire.RecoveredTranscript,
				}}
			}
			untold := &wire.Event{SessionID: "s1", Payload: &wire.Usage{MessageID: "msg_untold", InputTokens: 30, OutputTokens: 40}}
			question := &wire.Event{CallID: "unseen", SessionID: "s1", Payload: &wire.CCMessage{Text: "which?", Priority: wire.PriorityQuestion}}
			return []*wire.Event{ended("ended"), made("unseen"), question, ended("unseen"), untold, made("open")}
		}}
		b.runner("r1", p)
		entries := l.offer(wire.TypeNodeComplete)
		want := agent.Calls{Open: []string{"cut", "ended"}, Ended: []string{"done", "waiting"}, Counted: []string{"msg_told"}, Whole: true}
		if diff := cmp.Diff(want, known); diff != "" {
			t.Error(diff)
		}
		wanted := `ended agent:tool
unseen tool:intent
unseen cc_message
unseen agent:tool
open tool:intent
cut tool:sealed
cut agent:tool
waiting tool:sealed
waiting agent:tool
open tool:sealed
open agent:tool
`
		if diff := cmp.Diff(wanted, calls(entries)); diff != "" {
			t.Error(diff)
		}
		if asked := p.asked()[0].Asked; !slices.Equal(asked, []string{"unseen"}) {
			t.Errorf("it goes on without knowing what it has asked its parent: %q", asked)
		}
		prompt := promptOf(p.asked()[0])
		cut, ended, ok := strings.Cut(prompt, "came to their end")
		for _, id := range []string{"cut", "waiting", "open"} {
			if !strings.Contains(cut, "Tool-"+id) {
				t.Errorf("the prompt doesn't say that %s was cut off:\n%s", id, prompt)
			}
		}
		for _, id := range []string{"ended", "unseen"} {
			if !ok || !strings.Contains(ended, "Its result: out of "+id) || strings.Contains(cut, "Tool-"+id) {
				t.Errorf("the prompt doesn't say that %s has ended:\n%s", id, prompt)
			}
		}
		if n := strings.Count(cut, "outcome is unknown"); n != 2 {
			t.Errorf("the outcome of %d calls is unknown:\n%s", n, prompt)
		}
		s := b.fold("run1", b.read("run1"))
		if len(s.Tools) != 0 {
			t.Errorf("open calls %v", s.Tools)
		}
		if u := s.Usage; u.InputTokens != 33 || u.OutputTokens != 44 {
			t.Errorf("%d tokens in, %d out are counted", u.InputTokens, u.OutputTokens)
		}
	})
}

// A decision that came when the agent was gone is kept: a call that was denied isn't
// sealed, the agent of an approved one is told so, and the inbox is empty afterwards.
func TestDecisionsOfOpenCalls(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.call("yes", &wire.PermissionRequired{ToolName: "Tool-yes"})
		l.call("no", &wire.PermissionRequired{ToolName: "Tool-no"})
		l.call("late", &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
		for _, c := range []wire.Command{{Type: "approve", CallID: "yes", By: "ann"}, {Type: "deny", CallID: "no", Note: "not on a Friday"}, {Type: "approve", CallID: "late"}} {
			raw, err := wire.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			l.decide(&wire.CommandReceived{Command: raw, CommandID: c.CallID, Accepted: true})
		}
		p := &puppet{}
		b.runner("r1", p)
		entries := l.offer(wire.TypeNodeComplete)
		want := `yes permission:decided
yes tool:sealed
yes agent:tool
no permission:decided
no agent:tool
late tool:sealed
late agent:tool
late permission:decided
`
		sorted := func(s string) []string { return slices.Sorted(strings.Lines(s)) }
		if diff := cmp.Diff(sorted(want), sorted(calls(entries))); diff != "" {
			t.Error(diff)
		}
		for _, e := range entries {
			switch p := e.Event.Payload.(type) {
			case *wire.ToolSealed:
				if e.Event.CallID == "yes" && p.From != wire.ToolApproved {
					t.Errorf("the approved call was sealed from %s", p.From)
				}
			case *wire.AgentTool:
				if p.Denied != (e.Event.CallID == "no") {
					t.Errorf("%s: denied is %t", e.Event.CallID, p.Denied)
				}
			}
		}
		s := b.fold("run1", b.read("run1"))
		if len(s.Inbox) != 0 || len(s.Tools) != 0 {
			t.Errorf("left are the commands %v and the calls %v", s.Inbox, s.Tools)
		}
		if prompt := promptOf(p.asked()[0]); !strings.Contains(prompt, "not on a Friday") {
			t.Errorf("prompt %q", prompt)
		}
	})
}

// With policy rollback the session goes back to its last safe point; without one
// the seals say so. Also when the runner dies before the session has begun.
func TestRollback(t *testing.T) {
	const source = `
name: one
workspace: shared
nodes:
  - {id: a, type: agent, input: {prompt: "do it"}, policy: {interrupted: rollback}}
`
	for _, point := range []string{"m7", ""} {
		t.Run("point "+point, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", source, "r1")
				l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{}, &wire.UserMessage{Content: "do it", Source: "prompt", Point: point})
				at, _ := l.worker.Last()
				l.call("c1")
				p := &puppet{play: func(a *act) {
					if a.nth > 1 {
						a.turn()
						a.say(&wire.AgentComplete{Result: "done"}, "")
						return
					}
					<-a.ctx.Done()
				}}
				stop := b.runner("r1", p)
				entries := l.offer(wire.TypeAgentStart)
				r := p.asked()[0]
				if point == "" {
					if seal := first[*wire.ToolSealed](t, entries); !strings.Contains(seal.Message, "no safe point") || !r.Resume || r.ForkOf != "" {
						t.Errorf("seal %q, request %+v", seal.Message, r)
					}
					return
				}
				back := first[*wire.LogTruncated](t, entries)
				if back.AtSeq != at || r.Resume || r.ForkOf != "s1" || r.ForkAt != "m7" || r.SessionID == "s1" {
					t.Errorf("truncated at %d, want %d; request %+v", back.AtSeq, at, r)
				}
				stop()
				b.runner("r1", p)
				l.offer(wire.TypeNodeComplete)
				again := p.asked()[1]
				if again.ForkOf != "s1" || again.ForkAt != "m7" || count(b.read("run1"), wire.TypeLogTruncated) != 1 {
					t.Errorf("then it was asked for %+v", again)
				}
			})
		})
	}
}

// An agent that had nothing begun begins; an agent whose session is unknown
// begins afresh if it had no turn, and has failed otherwise (RULES 12).
func TestUnknownSession(t *testing.T) {
	tests := []struct {
		name   string
		before []wire.Payload
		starts []bool // whether each start resumes
		end    wire.Type
	}{
		{"nothing begun", nil, []bool{false}, wire.TypeNodeComplete},
		{"no turn", []wire.Payload{&wire.AgentStart{Prompt: wire.RawString("do it")}}, []bool{true, false}, wire.TypeNodeComplete},
		{"a turn", []wire.Payload{&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{}}, []bool{true}, wire.TypeNodeError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", single, "r1")
				l.work(tt.before...)
				p := &puppet{play: func(a *act) {
					if a.request.Resume {
						a.say(&wire.AgentError{ErrorType: wire.ErrorSessionNotFound, Message: "No conversation found", Severity: wire.SeverityError}, "")
						return
					}
					a.say(&wire.AgentComplete{Result: "done"}, "")
				}}
				b.runner("r1", p)
				entries := l.offer(tt.end)
				var starts []bool
				for _, r := range p.asked() {
					starts = append(starts, r.Resume)
					if want := p.asked()[0].SessionID; r.SessionID != want {
						t.Errorf("it began afresh with session %q, not %q", r.SessionID, want)
					}
					if !r.Resume && promptOf(r) != "do it" {
						t.Errorf("it began afresh with %q", promptOf(r))
					}
				}
				if diff := cmp.Diff(tt.starts, starts); diff != "" {
					t.Error(diff)
				}
				if n := count(entries, wire.TypeNodeStart); n != 0 {
					t.Errorf("%d more node:start", n)
				}
				if tt.end == wire.TypeNodeError {
					if p := first[*wire.NodeError](t, entries); p.ErrorType != wire.ErrorSessionNotFound {
						t.Errorf("the node failed with %q", p.ErrorType)
					}
				}
			})
		})
	}
}

// An agent gets its prompt once its session is stored. If that takes too long it is
// ended, nothing says that the node has failed, and another one follows when storage
// is back (RULES 12).
func TestSessionIsStoredFirst(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var prompted []int
		p := &puppet{
			starting: func(nth int) {
				if nth == 1 {
					b.server.Stop()
				}
			},
			play: func(a *act) {
				prompted = append(prompted, a.nth)
				a.say(&wire.AgentComplete{Result: "done"}, "")
			},
		}
		b.runner("r1", p, func(c *runner.Config) { c.PersistTimeout = 5 * time.Second })
		b.submit("run1", single)
		<-time.After(time.Minute)
		b.server.Start(t)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeError) != 0 || count(entries, wire.TypeNodeStart) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
		if !slices.Equal(prompted, []int{2}) || len(p.asked()) != 2 {
			t.Errorf("of %d agents, these got their prompt: %v", len(p.asked()), prompted)
		}
	})
}

// Settings that were given on the way replace those of the node.
func TestOverrides(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", `
name: one
workspace: shared
nodes:
  - {id: a, type: agent, input: {prompt: "do it", model: small, maxTurns: 3, env: {A: "1", B: "1"}}}
  - {id: b, type: agent, input: {prompt: "b"}}
`, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		given, err := wire.Marshal(map[string]any{
			"model": "large", "maxBudgetUsd": 2.5, "limits": map[string]any{"maxCostUsd": 1},
			"a": map[string]any{"maxTurns": 9, "env": map[string]any{"B": "2"}}, "b": map[string]any{"model": "huge"},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.decide(&wire.FlowResumed{Overrides: given})
		p := &puppet{}
		b.runner("r1", p)
		l.offer(wire.TypeNodeComplete)
		o := p.asked()[0].Options
		if o.Model != "large" || o.MaxTurns != 9 || o.MaxBudgetUsd != 2.5 {
			t.Errorf("options %+v", o)
		}
		if diff := cmp.Diff(map[string]string{"A": "1", "B": "2"}, o.Env); diff != "" {
			t.Error(diff)
		}
	})
}

// A fresh folder is told to the agent that goes on; the one it had is used again.
func TestFolderOfContinuation(t *testing.T) {
	for _, here := range []bool{false, true} {
		t.Run(fmt.Sprint("here ", here), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				l := b.leave("run1", strings.Replace(single, "shared", "node", 1), "r1")
				l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
				dir := t.TempDir()
				if here {
					makeFolder(t, dir, "run1", subjects.Escape("a#1"))
				}
				p := &puppet{}
				b.runner("r1", p, func(c *runner.Config) { c.Workspaces = dir })
				l.offer(wire.TypeNodeComplete)
				prompt := promptOf(p.asked()[0])
				if told := strings.Contains(prompt, "another folder"); told == here || here && prompt != "continue" {
					t.Errorf("prompt %q", prompt)
				}
			})
		})
	}
}

// A command that was running when its runner died has an unknown outcome.
func TestInterruptedCommand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", `
name: one
workspace: shared
nodes:
  - {id: a, type: exec, input: {command: "exit 3"}}
`, "r1")
		b.runner("r1", &puppet{})
		entries := l.offer(wire.TypeNodeError)
		if p := first[*wire.NodeError](t, entries); p.ErrorType != wire.ErrorInterrupted {
			t.Errorf("it ended with %q: %s", p.ErrorType, p.Error)
		}
		if count(entries, wire.TypeExecStart) != 0 || count(entries, wire.TypeNodeStart) != 0 {
			t.Errorf("it was begun again:\n%s", story(entries))
		}
	})
}

// One that is idempotent runs again, in the same execution.
func TestIdempotentCommand(t *testing.T) {
	b := newBench(t)
	l := b.leave("run1", `
name: one
workspace: shared
nodes:
  - {id: a, type: exec, idempotent: true, input: {command: "echo again"}}
`, "r1")
	b.runner("r1", &puppet{})
	entries := l.offer(wire.TypeNodeComplete)
	if count(entries, wire.TypeExecStart) != 1 || count(entries, wire.TypeNodeStart) != 0 {
		t.Errorf("it didn't go on:\n%s", story(entries))
	}
}

// The result of a sealed call repeats an input of any size.
func TestSealOfLargeInput(t *testing.T) {
	oneProcessor(t)
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		large := wire.RawString(strings.Repeat("x", 400<<10))
		l.append(l.worker, &wire.Event{ExecID: "a#1", SessionID: "s1", CallID: "c1", Payload: &wire.ToolIntent{ToolName: "Write", ToolInput: large}})
		p := &puppet{}
		b.runner("r1", p)
		l.offer(wire.TypeNodeComplete)
		sums := map[wire.Type]string{}
		for _, e := range b.read("run1") {
			for _, blob := range e.Event.Blobs {
				if blob.Field == "toolInput" {
					sums[e.Event.Type()] = blob.SHA256
				}
			}
		}
		if sums[wire.TypeAgentTool] == "" || sums[wire.TypeAgentTool] != sums[wire.TypeToolIntent] {
			t.Errorf("inputs in the object store: %v", sums)
		}
		if prompt := promptOf(p.asked()[0]); len(prompt) > 2000 || !strings.Contains(prompt, "Write") {
			t.Errorf("a prompt of %d bytes", len(prompt))
		}
	})
}

// S3: a session that goes on has to know what the log has of it, in case its record
// lacks the end: its results and messages, not those of sub-agents, nor what
// it was taken back behind, nor what an earlier session did. It has the ids of all
// calls that the log has.
func TestFacts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		done := func(id string) {
			l.call(id, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("in " + id), ToolOutput: wire.RawString("out")})
		}
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		done("earlier")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		done("c1")
		l.work(&wire.UserMessage{Content: "hurry", Source: "command", Point: "m1"}, &wire.UserMessage{Content: "a note", Source: "synthetic", Point: "m2"})
		l.append(l.worker, &wire.Event{ExecID: "a#1", CallID: "sub", Parent: "c1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}})
		last, _, err := b.log.Last(t.Context(), "run1", "a")
		if err != nil {
			t.Fatal(err)
		}
		done("undone")
		l.work(&wire.LogTruncated{AtSeq: last.Event.Seq, Reason: "rollback"}, &wire.AgentStart{Prompt: wire.RawString("go on"), Resumed: true}, &wire.TurnStart{})
		done("c2")
		l.call("open")
		p := &puppet{}
		b.runner("r1", p)
		l.offer(wire.TypeNodeComplete)
		want := []agent.Fact{
			{Mark: "c1", Text: "- Bash \"in c1\"\n  Its result: out"},
			{Mark: "m1", Text: "- A message to you\n  hurry"},
			{Mark: "c2", Text: "- Bash \"in c2\"\n  Its result: out"},
		}
		if d := cmp.Diff(want, p.asked()[0].Facts); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"earlier", "c1", "sub", "undone", "c2"}, p.asked()[0].Calls.Ended); d != "" {
			t.Errorf("calls that have ended: %s", d)
		}
		if d := cmp.Diff([]string{"open"}, p.asked()[0].Calls.Open); d != "" {
			t.Errorf("open calls: %s", d)
		}
	})
}
