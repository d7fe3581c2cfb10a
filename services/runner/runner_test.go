package runner_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

func TestMain(m *testing.M) {
	natstest.Main(m)
}

// scripted is an agent that says what a test wants it to say.
type scripted struct {
	// play says everything itself, if it is set.
	play func(s *session, say func(wire.Payload) bool)
	// closing is called by Close.
	closing func()
	// say returns the answer to a prompt, or an error with which the agent fails.
	say func(ctx context.Context, r agent.Request) (string, error)

	mu    sync.Mutex
	calls []string // executions that were started
}

func (*scripted) Capabilities() agent.Capabilities { return agent.Capabilities{} }

func (s *scripted) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	s.mu.Lock()
	s.calls = append(s.calls, r.ExecID)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	return &session{provider: s, ctx: ctx, cancel: cancel, request: r, messages: make(chan agent.Message, 10)}, nil
}

func (s *scripted) started() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.calls))
}

type session struct {
	provider *scripted
	ctx      context.Context //nolint:containedctx // a session lives as long as its context
	cancel   context.CancelFunc
	request  agent.Request
	messages chan agent.Message
}

func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		start := &wire.Event{SessionID: s.request.SessionID, Payload: &wire.AgentStart{Prompt: s.request.Prompt}}
		if !yield(start, nil) {
			return
		}
		if s.provider.play != nil {
			s.provider.play(s, func(p wire.Payload) bool {
				e := &wire.Event{Payload: p}
				switch p.(type) {
				case *wire.ToolIntent, *wire.AgentTool:
					e.CallID = "call"
				}
				return yield(e, nil)
			})
			return
		}
		s.yieldAnswer(yield)
	}
}

func (s *session) yieldAnswer(yield func(*wire.Event, error) bool) {
	answer, err := s.provider.say(s.ctx, s.request)
	if s.ctx.Err() != nil {
		return
	}
	if err != nil {
		yield(&wire.Event{Payload: &wire.AgentError{ErrorType: wire.ErrorException, Message: err.Error(), Severity: wire.SeverityError}}, nil)
		return
	}
	_ = yield(&wire.Event{Payload: &wire.AgentTextDelta{Content: answer, Block: 1}}, nil) &&
		yield(&wire.Event{Payload: &wire.AgentComplete{Result: answer}}, nil)
}

func (s *session) Interrupt(context.Context) error { return nil }

func (s *session) Send(ctx context.Context, m agent.Message) error {
	if s.provider.play == nil {
		return agent.ErrEnded
	}
	select {
	case s.messages <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) Close() error {
	s.cancel()
	if s.provider.closing != nil {
		s.provider.closing()
	}
	return nil
}

// bench is a server with wake's streams, a log and a number of runners.
type bench struct {
	t      *testing.T
	server *natstest.Server
	nc     *nats.Conn
	log    *eventlog.Log
	tracer trace.Tracer // of the logs that are opened from then on; nil: none
	logs   slog.Handler // of the runners that are started from then on; nil: none
	// secrets are those of the processes that are started from then on; nil: none.
	secrets *redact.Set
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOn(t, natstest.New(t))
}

// newBenchOn is newBench on a server of the caller's.
func newBenchOn(t *testing.T, server *natstest.Server, options ...nats.Option) *bench {
	t.Helper()
	nc := server.Conn(t, append(options, nats.ReconnectBufSize(-1))...)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, server: server, nc: nc}
	b.log = b.open()
	return b
}

func (b *bench) logger() *slog.Logger {
	if b.logs != nil {
		return slog.New(b.logs)
	}
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(b.t.Output(), nil))
	}
	return slog.New(slog.DiscardHandler)
}

func (b *bench) open() *eventlog.Log {
	b.t.Helper()
	log, err := eventlog.Open(b.t.Context(), b.nc, eventlog.Options{Logger: b.logger(), Tracer: b.tracer})
	if err != nil {
		b.t.Fatal(err)
	}
	b.background(log.Run)
	return log
}

// background runs f until the test ends or the returned function is called.
func (b *bench) background(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

// runner starts a runner whose agents are p.
func (b *bench) runner(id string, p agent.Provider, edits ...func(*runner.Config)) (stop func()) {
	b.t.Helper()
	cfg := runner.Config{
		NodeTrials: 3,
		ID:         id, Workspaces: b.t.TempDir(),
		Providers: map[string]agent.Provider{"claude": p},
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	r, err := runner.New(cfg, b.log, b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	return b.background(r.Run)
}

// submit asks for a run of a flow.
func (b *bench) submit(id, source string, edits ...func(*wire.RunRequest)) {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(source))
	if err != nil {
		b.t.Fatal(err)
	}
	request := wire.RunRequest{V: wire.Version, RunID: id, Definition: def.Raw()}
	for _, edit := range edits {
		edit(&request)
	}
	b.publish(subjects.Default.QueueRun(), request)
}

func (b *bench) publish(subject string, v any) {
	b.t.Helper()
	value, err := wire.Marshal(v)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.log.JetStream().Publish(b.t.Context(), subject, value); err != nil {
		b.t.Fatal(err)
	}
}

// until follows a run until an event of a type has been stored, and returns all
// events up to it.
func (b *bench) until(id string, types ...wire.Type) []eventlog.Entry {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit())
	defer cancel()
	var entries []eventlog.Entry
	for e, err := range b.log.Follow(ctx, eventlog.Query{Run: id}) {
		if err != nil {
			b.t.Fatal(err)
		}
		entries = append(entries, e)
		if slices.Contains(types, e.Event.Type()) {
			return entries
		}
	}
	b.t.Fatalf("%v did not come:\n%s", types, story(entries))
	return nil
}

// waitLimit is how long a test waits for what doesn't come: an hour in a bubble, where time begins in 2000.
func waitLimit() time.Duration {
	if time.Now().Year() == 2000 {
		return time.Hour
	}
	return 2 * time.Minute
}

// ended waits for the end of a run and returns its state.
func (b *bench) ended(id string) (*wire.State, []eventlog.Entry) {
	b.t.Helper()
	entries := b.until(id, wire.TypeFlowComplete, wire.TypeFlowAborted)
	b.checkDurations(entries)
	return b.fold(id, entries), entries
}

// checkDurations checks that each execution says of itself that it took as long as it was from its beginning to its end.
func (b *bench) checkDurations(entries []eventlog.Entry) {
	b.t.Helper()
	begun := map[string]int64{}
	for _, e := range entries {
		told := int64(-1)
		switch p := e.Event.Payload.(type) {
		case *wire.NodeStart:
			begun[e.Event.ExecID] = e.Event.Timestamp
		case *wire.NodeComplete:
			told = p.DurationMs
		case *wire.NodeError:
			told = p.DurationMs
		}
		from, here := begun[e.Event.ExecID]
		if took := e.Event.Timestamp - from; here && e.NodeID != wire.RunNode && told >= 0 && told != took {
			b.t.Errorf("%s of run %s took %d ms and says %d", e.Event.ExecID, e.RunID, took, told)
		}
	}
}

// read returns the events of a run that are stored.
func (b *bench) read(id string) []eventlog.Entry {
	b.t.Helper()
	var entries []eventlog.Entry
	for e, err := range b.log.Read(b.t.Context(), eventlog.Query{Run: id}) {
		if err != nil {
			b.t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

// waiting returns how many messages are in the queue.
func (b *bench) waiting() uint64 {
	b.t.Helper()
	s, err := b.log.JetStream().Stream(b.t.Context(), subjects.Default.QueueStream())
	if err != nil {
		b.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func (b *bench) fold(id string, entries []eventlog.Entry) *wire.State {
	b.t.Helper()
	s := run.New(id)
	for _, e := range entries {
		if err := snapshot.Apply(b.t.Context(), b.log, s, e); err != nil {
			b.t.Errorf("fold: %v", err)
		}
	}
	return s
}

// story lists events, one per line: node and type.
func story(entries []eventlog.Entry) string {
	var s strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&s, "%s %s", e.Event.Node(), e.Event.Type())
		if p, ok := e.Event.Payload.(*wire.NodeError); ok {
			fmt.Fprintf(&s, ": %s", p.Error)
		}
		s.WriteByte('\n')
	}
	return s.String()
}

func echo(_ context.Context, r agent.Request) (string, error) {
	prompt, _ := r.Prompt.Text()
	return "<" + prompt + ">", nil
}

const chain = `
name: chain
nodes:
  - {id: a, type: agent, input: {provider: claude, prompt: "hello {{ input.who }}"}}
  - {id: b, type: agent, input: {provider: claude, prompt: "{{ a.text }} again"}}
edges:
  - {from: a, to: b}
`

func TestChain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", chain, func(r *wire.RunRequest) {
			r.Input = wire.Raw("\x81\xa3who\xa5world")
			r.Labels = map[string]string{"name": "greeter"}
		})
		state, entries := b.ended("run1")
		if text := state.Outputs["b"].TextAt("text"); text != "<<hello world> again>" {
			t.Errorf("output of b: %q", text)
		}
		if state.Status != wire.RunComplete || state.Result != wire.FlowStatusComplete {
			t.Errorf("run is %s, %s", state.Status, state.Result)
		}
		want := `_run run:claimed
_run flow:start
a node:scheduled
a node:claimed
a node:start
a agent:start
a agent:text:delta
a agent:complete
a node:complete
_run edge:fire
b node:scheduled
b node:claimed
b node:start
b agent:start
b agent:text:delta
b agent:complete
b node:complete
_run flow:complete
`
		if diff := cmp.Diff(want, story(entries)); diff != "" {
			t.Error(diff)
		}
		for _, e := range entries {
			if e.Event.Type() == wire.TypeAgentStart && state.AgentSessions[e.NodeID] != e.Event.SessionID {
				t.Errorf("session of %s is %q, the agent was started with %q", e.NodeID, state.AgentSessions[e.NodeID], e.Event.SessionID)
			}
		}
	})
}

// Agents that run side by side wait for each other, which they can't do one
// after the other.
func TestParallel(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var both sync.WaitGroup
		both.Add(2)
		b.runner("r1", &scripted{say: func(context.Context, agent.Request) (string, error) {
			both.Done()
			both.Wait()
			return "met", nil
		}})
		b.submit("run1", `
name: pair
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
`)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

func TestRetryThenFail(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: func(context.Context, agent.Request) (string, error) { return "", errors.New("no luck") }}
		b.runner("r1", p)
		start := time.Now()
		b.submit("run1", `
name: unlucky
nodes:
  - {id: a, type: agent, input: {prompt: "a"}, policy: {retry: {maxAttempts: 3, backoffMs: 60000}}}
`)
		state, _ := b.ended("run1")
		if state.Result != wire.FlowStatusFailed || !strings.Contains(state.Error, "no luck") {
			t.Errorf("run ended as %s: %q", state.Result, state.Error)
		}
		if diff := cmp.Diff([]string{"a#1", "a#2", "a#3"}, p.started()); diff != "" {
			t.Error(diff)
		}
		if waited := time.Since(start); waited < 2*time.Minute {
			t.Errorf("three tries with a minute between them took %s", waited)
		}
	})
}

// Waits grow by their factor up to their bound, and an error that is excepted ends the tries.
func TestRetriesGrow(t *testing.T) {
	for _, tt := range []struct {
		policy string
		tries  int
		waited time.Duration
	}{
		{"{maxAttempts: 5, backoffMs: 10000, backoffFactor: 3, maxBackoffMs: 60000}", 5, 160 * time.Second}, // 10, 30, 60, 60
		{"{maxAttempts: 3, backoffMs: 10000, backoffFactor: 1.5}", 3, 25 * time.Second},
		{"{maxAttempts: 5, backoffMs: 10000, except: [rate_limit]}", 5, 40 * time.Second},
		{"{maxAttempts: 5, backoffMs: 10000, except: [rate_limit, exception]}", 1, 0},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &scripted{say: func(context.Context, agent.Request) (string, error) { return "", errors.New("no luck") }}
				b.runner("r1", p)
				start := time.Now()
				b.submit("run1", "name: unlucky\nnodes:\n  - {id: a, type: agent, input: {prompt: a}, policy: {retry: "+tt.policy+"}}\n")
				state, entries := b.ended("run1")
				waited := time.Since(start)
				if len(p.started()) != tt.tries || waited < tt.waited || waited > tt.waited+5*time.Second {
					t.Errorf("%d tries in %s, want %d in %s; the error is of type %q", len(p.started()), waited, tt.tries, tt.waited, state.Nodes["a"].ErrorType)
					for _, e := range entries {
						t.Logf("%s %s %s", e.Time.UTC().Format("15:04:05.000"), e.Event.Node(), e.Event.Type())
					}
				}
			})
		})
	}
}

func TestTimeLimit(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		b.submit("run1", `
name: slow
nodes:
  - {id: a, type: agent, input: {prompt: "a"}, policy: {timeoutMs: 5000}}
`)
		state, _ := b.ended("run1")
		if state.Result != wire.FlowStatusFailed || state.Nodes["a"].ErrorType != wire.ErrorTimeout {
			t.Errorf("run ended as %s, node with %q", state.Result, state.Nodes["a"].ErrorType)
		}
	})
}

// The same request twice, and offers that are out of date, change nothing and
// leave the queue; a run that has ended isn't looked for any more (RULES 7).
func TestRepeatedMessages(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		b.runner("r1", p)
		b.submit("run1", chain)
		_, before := b.ended("run1")
		b.submit("run1", chain)
		for _, exec := range []string{"a#1", "a#2", "b#1"} {
			b.publish(subjects.Default.QueueNode("at-r1"), wire.NodeOffer{V: 1, RunID: "run1", NodeID: exec[:1], ExecID: exec})
		}
		// Everything has been taken from the queue when this run has ended.
		b.submit("run2", chain)
		b.ended("run2")
		b.submit("run1", chain)
		<-time.After(time.Minute) // of the bubble: whatever was going to happen has happened
		synctest.Wait()
		if diff := cmp.Diff([]string{"a#1", "a#1", "b#1", "b#1"}, p.started()); diff != "" {
			t.Error(diff)
		}
		var after []eventlog.Entry
		for e, err := range b.log.Read(t.Context(), eventlog.Query{Run: "run1"}) {
			if err != nil {
				t.Fatal(err)
			}
			after = append(after, e)
		}
		if len(after) != len(before) {
			t.Errorf("the run has %d events, it had %d when it ended:\n%s", len(after), len(before), story(after[len(before):]))
		}
		if n := b.waiting(); n != 0 {
			t.Errorf("%d messages are in the queue", n)
		}
		kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Get(t.Context(), subjects.Default.StateKey("runner", "run1")); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Errorf("the run is still registered: %v", err)
		}
	})
}

func TestPoison(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		letters, err := b.nc.SubscribeSync(subjects.Default.DeadLetter("runner"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.log.JetStream().Publish(t.Context(), subjects.Default.QueueRun(), []byte("\xc1 nonsense")); err != nil {
			t.Fatal(err)
		}
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "bad", Definition: wire.RawString("not a flow")})
		for range 2 {
			m, err := letters.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var p wire.Poison
			if err := wire.Unmarshal(m.Data, &p); err != nil || p.Reason == "" || len(p.Data) == 0 {
				t.Errorf("dead letter %+v: %v", p, err)
			}
		}
		b.submit("good", chain)
		if state, _ := b.ended("good"); state.Result != wire.FlowStatusComplete {
			t.Errorf("the run after the poison ended as %s", state.Result)
		}
	})
}

func TestAskAndReply(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", `
name: ask
nodes:
  - {id: q, type: ask, input: {prompt: "Deploy?", choices: [yes, no]}}
  - {id: a, type: agent, input: {prompt: "{{ outputs.q.answer }}"}}
edges:
  - {from: q, to: a}
`)
		entries := b.until("run1", wire.TypeInputRequested)
		ask := entries[len(entries)-1].Event.Payload.(*wire.InputRequested)
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "reply", RunID: "run1", PromptID: "another", Content: wire.RawString("yes")})
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "reply", RunID: "run1", PromptID: ask.PromptID})
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "reply", ID: "c1", RunID: "run1", PromptID: ask.PromptID, Content: wire.RawString("yes")})
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "reply", ID: "c1", RunID: "run1", PromptID: ask.PromptID, Content: wire.RawString("no")})
		state, entries := b.ended("run1")
		if text := state.Outputs["a"].TextAt("text"); text != "<yes>" {
			t.Errorf("the agent was told %q:\n%s", text, story(entries))
		}
	})
}

func TestAbort(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "abort", RunID: "run1", Reason: "enough"})
		entries := b.until("run1", wire.TypeAgentAborted)
		state := b.fold("run1", entries)
		if state.Status != wire.RunAborted || state.Reason != "enough" {
			t.Errorf("run is %s (%s):\n%s", state.Status, state.Reason, story(entries))
		}
	})
}

// A run that only calculates obeys, and holds up no other run.
func TestAbortOfCalculation(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", `
name: busy
nodes:
  - {id: list, type: set, input: {output: "{{ [1..1000] }}"}}
  - {id: each, type: set, input: {output: "{{ $pad('x', 1000000000) }}"}, policy: {continueOnError: true}}
edges:
  - {from: list, to: each, forEach: {in: list, as: item}}
`)
		b.until("run1", wire.TypeNodeComplete)
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "abort", RunID: "run1", Reason: "enough"})
		b.submit("run2", chain)
		b.until("run1", wire.TypeFlowAborted)
		if state, _ := b.ended("run2"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run2 ended as %s", state.Result)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		p := &scripted{say: func(_ context.Context, r agent.Request) (string, error) {
			if r.NodeID == "a" {
				<-release
			}
			return "done", nil
		}}
		b.runner("r1", p)
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "pause", RunID: "run1"})
		b.until("run1", wire.TypeFlowPaused)
		close(release)
		b.until("run1", wire.TypeNodeComplete)
		<-time.After(10 * time.Minute) // of the bubble
		if diff := cmp.Diff([]string{"a#1"}, p.started()); diff != "" {
			t.Errorf("a paused run began something: %s", diff)
		}
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "resume", RunID: "run1"})
		if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s", state.Result)
		}
	})
}

const nested = `
name: parent
nodes:
  - id: sub
    type: flow
    input:
      input: {who: "{{ input.who }}"}
      flow:
        name: child
        nodes:
          - {id: c, type: agent, input: {prompt: "child of {{ input.who }}"}}
  - {id: after, type: agent, input: {prompt: "{{ sub.outputs.c.text }}"}}
edges:
  - {from: sub, to: after}
`

func TestChildRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		b.runner("r1", p)
		// The flow's own labels, and those of the node, come before the parent's.
		flow := strings.Replace(nested, "name: child\n", "name: child\n        labels: {team: child}\n", 1)
		flow = strings.Replace(flow, "      input: {who:", "      labels: {on: node}\n      input: {who:", 1)
		b.submit("run1", flow, func(r *wire.RunRequest) {
			r.Input, r.Labels = wire.Raw("\x81\xa3who\xa5world"), map[string]string{"team": "parent", "on": "parent", "for": "parent", "name": "parent"}
		})
		state, entries := b.ended("run1")
		if text := state.Outputs["after"].TextAt("text"); text != "<<child of world>>" {
			t.Errorf("after said %q:\n%s", text, story(entries))
		}
		child, _ := b.ended("run1.sub#1")
		if child.ParentRun != "run1" || child.ParentNode != "sub" {
			t.Errorf("the child's parent is %q, %q", child.ParentRun, child.ParentNode)
		}
		if diff := cmp.Diff(map[string]string{"team": "child", "on": "node", "for": "parent"}, child.Labels); diff != "" {
			t.Errorf("its labels (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"after#1", "c#1"}, p.started()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestChildRunFails(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(context.Context, agent.Request) (string, error) { return "", errors.New("no luck") }})
		b.submit("run1", nested, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
		state, _ := b.ended("run1")
		if state.Result != wire.FlowStatusFailed || !strings.Contains(state.Error, "no luck") {
			t.Errorf("run ended as %s: %q", state.Result, state.Error)
		}
	})
}

func TestAbortReachesChild(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		b.submit("run1", nested, func(r *wire.RunRequest) { r.Input = wire.Raw("\x81\xa3who\xa5world") })
		b.until("run1.sub#1", wire.TypeAgentStart)
		b.publish(subjects.Default.Command("run1"), wire.Command{Type: "abort", RunID: "run1"})
		if child, entries := b.ended("run1.sub#1"); child.Status != wire.RunAborted {
			t.Errorf("the child is %s:\n%s", child.Status, story(entries))
		}
	})
}

// A runner that stops while it is at work loses nothing that was recorded and
// gives its leases back.
func TestStopGivesBack(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}})
		b.submit("run1", chain)
		b.until("run1", wire.TypeAgentStart)
		stop()
		kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		keys, err := kv.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			e, err := kv.Get(t.Context(), key)
			var s lease.Session
			if err == nil {
				err = wire.Unmarshal(e.Value(), &s)
			}
			if err != nil || !s.Over {
				t.Errorf("a session isn't over: %+v, %v", s, err)
			}
		}
		var entries []eventlog.Entry
		for e, err := range b.log.Read(t.Context(), eventlog.Query{Run: "run1"}) {
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, e)
		}
		if state := b.fold("run1", entries); state.NodeStatus["a"] != wire.NodeRunning {
			t.Errorf("a is %s:\n%s", state.NodeStatus["a"], story(entries))
		}
	})
}

// A runner that is told to end before it has begun has nothing to complain of.
func TestEndsBeforeItBegins(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}).stop()
	})
}
