package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// process is a runner with a connection and a log of its own, as a process has
// them.
type process struct {
	b    *bench
	nc   *nats.Conn
	gate *gate
	stop func() // as by SIGTERM
	end  func() // has what the process does end, without a word

	// Its agents watch the files of their folder: as long as they live, fake time stands still, and
	// with it what would notice the end of the connection.
	watching bool

	mu   sync.Mutex
	dead bool
}

func (b *bench) process(id string, p agent.Provider, edits ...func(*runner.Config)) *process {
	b.t.Helper()
	g := &gate{server: b.server}
	nc, err := nats.Connect("", nats.InProcessServer(g), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	log, err := eventlog.Open(b.t.Context(), nc, eventlog.Options{Logger: b.logger().With("process", id), Tracer: b.tracer, Redact: b.secrets})
	if err != nil {
		b.t.Fatal(err)
	}
	proc := &process{b: b, nc: nc, gate: g}
	b.background(proc.unlessDead(log.Run))
	cfg := runner.Config{ID: id, NodeTrials: 3, Workspaces: b.t.TempDir(), Providers: map[string]agent.Provider{"claude": p}}
	for _, edit := range edits {
		edit(&cfg)
	}
	r, err := runner.New(cfg, log, b.logger().With("process", id))
	if err != nil {
		b.t.Fatal(err)
	}
	live, end := context.WithCancel(context.WithoutCancel(b.t.Context()))
	proc.end = end
	proc.stop = b.background(proc.unlessDead(func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(live, cancel)()
		return r.Run(ctx)
	}))
	b.t.Cleanup(end)
	return proc
}

func (p *process) unlessDead(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.dead {
			return nil
		}
		return err
	}
}

// kill is the end of the process as everybody else sees it: from now on it
// writes nothing.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.nc.Close()
	if p.watching {
		p.end()
	}
}

// gate is the way to the server. It can be shut.
type gate struct {
	server *natstest.Server

	mu    sync.Mutex
	shut  bool
	conns []net.Conn
	text  string // what passes is looked through for it, unless it is empty
	first func() // called once before it passes

	hold     time.Duration // what has the text, and all behind it, passes so much later
	dropping bool          // what the server says doesn't get through
}

var errShut = errors.New("the gate is shut")

func (g *gate) InProcessConn() (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, errShut
	}
	c, err := g.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	g.conns = append(g.conns, c)
	return &passing{Conn: c, gate: g}, nil
}

// before has something happen just before the process sends a text.
func (g *gate) before(text string, first func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text, g.first = text, first
}

// passing is a connection through a gate.
type passing struct {
	net.Conn

	gate *gate

	mu      sync.Mutex
	held    []byte // written, and not passed on
	holding bool
}

func (p *passing) Write(data []byte) (int, error) {
	if first := p.gate.look(data); first != nil {
		first()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.gate.holds(data); d > 0 {
		p.holding = true
		time.AfterFunc(d, p.release)
	}
	if p.holding {
		p.held = append(p.held, data...)
		return len(data), nil
	}
	return p.Conn.Write(data)
}

func (p *passing) Read(data []byte) (n int, err error) {
	for n, err = p.Conn.Read(data); err == nil && p.gate.isDropping(); n, err = p.Conn.Read(data) {
	}
	return n, err
}

func (p *passing) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.Conn.Write(p.held)
	p.held, p.holding = nil, false
}

// delay holds back a text that the process sends, and what it sends within the
// time behind it: the process goes on, and has no answer.
func (g *gate) delay(text string, by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text, g.hold = text, by
}

// dropAnswers has nothing of what the server says get to the process.
func (g *gate) dropAnswers() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropping = true
}

func (g *gate) isDropping() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dropping
}

func (g *gate) holds(data []byte) (by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hold > 0 && bytes.Contains(data, []byte(g.text)) {
		by, g.text, g.hold = g.hold, "", 0
	}
	return by
}

func (g *gate) look(data []byte) (first func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.text != "" && g.hold == 0 && bytes.Contains(data, []byte(g.text)) {
		g.text, first = "", g.first
	}
	return first
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// soon is how long a takeover may take.
const soon = lease10s + 2*time.Second

const lease10s = 10 * time.Second // the default TTL

// shared makes a flow's nodes run anywhere.
func shared(source string) string {
	return strings.Replace(source, "\nnodes:", "\nworkspace: shared\nnodes:", 1)
}

// owner returns the runner that claimed a run last.
func (b *bench) owner(id string) string {
	b.t.Helper()
	return b.fold(id, b.read(id)).Nodes[wire.RunNode].Runner
}

// awaits looks each 100 ms until condition holds, for [waitLimit] at most, and
// returns how long that took.
func (b *bench) awaits(what string, condition func() bool) time.Duration {
	b.t.Helper()
	start := time.Now()
	for !condition() {
		if time.Since(start) > waitLimit() {
			b.t.Fatalf("%s did not come true:\n%s", what, story(b.read("run1")))
		}
		<-time.After(max(100*time.Millisecond, time.Since(start)/50)) // each look reads runs
	}
	return time.Since(start)
}

// gated is an agent that answers when it is allowed to.
func gated(release <-chan struct{}) *scripted {
	return &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
		select {
		case <-release:
			return echo(ctx, r)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}}
}

// The death of an owner moves the scheduling of its run, and its agent on another
// runner goes on undisturbed (RULES 7).
func TestOwnerDies(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		worker := gated(release)
		r1 := b.process("r1", &scripted{}, func(c *runner.Config) { c.Pools = []string{"none"} })
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeNodeScheduled)
		b.process("r2", worker)
		b.until("run1", wire.TypeAgentStart)
		if owner := b.owner("run1"); owner != "r1" {
			t.Fatalf("the owner is %s", owner)
		}
		r1.kill()
		took := b.awaits("a takeover", func() bool { return b.owner("run1") == "r2" })
		if took > soon {
			t.Errorf("the takeover took %s", took)
		}
		close(release)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowResumed) != 1 || count(entries, wire.TypeAgentResumed) != 0 ||
			count(entries, wire.TypeAgentStart) != 2 || len(worker.started()) != 2 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
		for _, e := range entries {
			if p, ok := e.Event.Payload.(*wire.FlowResumed); ok && p.Strategy != "crash" {
				t.Errorf("resumed with strategy %q", p.Strategy)
			}
		}
	})
}

// The death of the only runner ends nothing: the next start picks up what there
// was, at once if it is the same runner and else when the leases are free (RULES
// 7).
func TestNoRunnerLeft(t *testing.T) {
	for _, next := range []string{"r1", "r2"} {
		t.Run(next, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				r1 := b.process("r1", gated(nil))
				b.submit("run1", shared(chain))
				b.until("run1", wire.TypeAgentStart)
				r1.kill()
				<-time.After(time.Hour)
				start := time.Now()
				p := &scripted{say: echo}
				b.process(next, p)
				state, entries := b.ended("run1")
				if took := time.Since(start); state.Result != wire.FlowStatusComplete || took > soon {
					t.Errorf("run ended as %s after %s:\n%s", state.Result, took, story(entries))
				}
				if count(entries, wire.TypeNodeStart) != 2 || count(entries, wire.TypeAgentResumed) != 1 || count(entries, wire.TypeFlowResumed) != 1 {
					t.Errorf("story:\n%s", story(entries))
				}
			})
		})
	}
}

// F17: a kill right after node:complete is stored, before another process has seen it,
// runs the node no second time.
func TestF17NodeCompleteIsNotRunAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var r1 *process
		ended := make(chan struct{})
		p := &scripted{say: echo}
		p.closing = func() {} // the agent has ended, the node hasn't
		r1 = b.process("r1", p)
		go func() {
			defer close(ended)
			b.until("run1", wire.TypeNodeComplete)
			r1.kill()
		}()
		b.submit("run1", shared(chain))
		<-ended
		second := &scripted{say: echo}
		b.process("r2", second)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || state.Nodes["a"].Execs != 1 || slices.Contains(second.started(), "a#1") {
			t.Errorf("run ended as %s, r2 started %v:\n%s", state.Result, second.started(), story(entries))
		}
	})
}

// F18: a kill in item 2 of 3 runs items 0 and 1 no second time (RULES 9).
func TestF18KillInForEach(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		first := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			if r.NodeID == "work/2" {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return echo(ctx, r)
		}}
		r1 := b.process("r1", first)
		b.submit("run1", each, withInput(t, map[string]any{"list": []string{"a", "b", "c"}}))
		b.awaits("two items", func() bool { return count(b.read("run1"), wire.TypeNodeComplete) >= 3 }) // set, and two items
		r1.kill()
		second := &scripted{say: echo}
		b.process("r2", second)
		state, entries := b.ended("run1")
		if got := second.started(); !slices.Equal(got, []string{"sum#1", "work/2#1"}) || state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s, r2 started %v:\n%s", state.Result, got, story(entries))
		}
	})
}

// A worker that dies between its claim and its first event has begun nothing; the
// node moves in time.
func TestDiesAfterClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}, func(c *runner.Config) { c.Pools = []string{"none"} })
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeNodeScheduled)
		die := b.session("dead")
		if _, err := b.log.Claim(t.Context(), "run1", "a", eventlog.Claim{Runner: "dead", Process: "dead", ExecID: "a#1"}); err != nil {
			t.Fatal(err)
		}
		die()
		start := time.Now()
		b.process("r2", &scripted{say: echo})
		state, entries := b.ended("run1")
		if took := time.Since(start); took > soon+lease10s || state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeStart) != 1 {
			t.Errorf("run ended as %s after %s:\n%s", state.Result, took, story(entries))
		}
	})
}

// A process that comes too late to claim a run leaves the registration of the run as it is: by that the run is found if its
// owner dies.
func TestLosersLeaveTheRegistration(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.park("run1", "dead", time.Now().Add(time.Hour), func(reg map[string]any) {
			delete(reg, "parked")
			delete(reg, "released")
		})
		before, _ := b.registered("run1")
		b.session("winner")
		r2 := b.process("r2", &scripted{say: echo})
		late := make(chan struct{})
		r2.gate.before("run:claimed", func() {
			b.claim("run1", wire.RunNode, "winner")
			close(late)
		})
		<-late
		<-time.After(time.Minute)
		if after, _ := b.registered("run1"); string(after) != string(before) {
			t.Errorf("the registration was\n%s, and is\n%s", before, after)
		}
		if s := b.fold("run1", b.read("run1")); s.Nodes[wire.RunNode].Holder != "winner" {
			t.Errorf("it is %q's", s.Nodes[wire.RunNode].Holder)
		}
	})
}

// A run that is over and registered once more, by a process that came too late for it, is left by the runner that finds it, though its last
// owner lives.
func TestLeftAtItsEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.session("winner")
		l := b.sleeps("run1", "winner", time.Now().Add(time.Hour))
		l.append(l.owner, &wire.Event{Payload: &wire.FlowAborted{Reason: "enough"}})
		late, err := wire.Marshal(map[string]any{"run": "run1", "runner": "late", "process": "late", "since": 1, "incarnation": b.log.Incarnation()})
		if err == nil {
			_, err = b.states().Put(t.Context(), subjects.Default.StateKey("runner", "run1"), late)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.process("r2", &scripted{say: echo})
		b.awaits("the run is registered no more", func() bool {
			_, found := b.registered("run1")
			return !found
		})
	})
}

// session begins the session of a process of that name, which never says that it is over.
func (b *bench) session(id string) (die func()) {
	b.t.Helper()
	k, err := lease.NewHolder(b.t.Context(), b.log.JetStream(), subjects.Default.LeasesBucket(), lease.Identity{Runner: id, Home: id, Process: id}, b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	die = b.background(k.Run)
	if _, err := k.Acquire(b.t.Context(), lease.Key{Run: "held", Node: id}, lease.Claimant{}); err != nil {
		b.t.Fatal(err)
	}
	return die
}

// giveBack says for a process that it doesn't act for a node any more.
func (b *bench) giveBack(w *eventlog.Writer, id string) {
	b.t.Helper()
	if _, err := w.Anchor(b.t.Context(), id, ""); err != nil {
		b.t.Fatal(err)
	}
}

// holderOf returns the process that acts for a node, by the log; "": none.
func (b *bench) holderOf(run, node string) string {
	b.t.Helper()
	return b.fold(run, b.read(run)).Nodes[node].Holder
}

// What is cancelled just before a worker's claim is stored isn't begun: what
// counts is the state at the claim, not that at the offer (RULES 8).
func TestCancelledBeforeTheClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.schedule("run1", single, "dead")
		p := &puppet{}
		r1 := b.process("r1", p)
		r1.gate.before("node:claimed", func() {
			if _, err := l.owner.Append(t.Context(), &wire.Event{Payload: &wire.FlowAborted{Reason: "enough"}}); err != nil {
				t.Error(err)
			}
		})
		l.offer(wire.TypeNodeClaimed)
		<-time.After(time.Minute)
		if entries := b.read("run1"); len(p.asked()) > 0 || entries[len(entries)-1].Event.Type() != wire.TypeNodeClaimed {
			t.Errorf("%d agents were started:\n%s", len(p.asked()), story(entries))
		}
	})
}

// What the former owner records just before the next one's claim is stored counts
// for the next one: it decides nothing before it has folded its own claim
// (RULES 8).
func TestPausedBeforeTheClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.schedule("run1", single, "dead")
		p := &puppet{}
		r1 := b.process("r1", p)
		r1.gate.before("run:claimed", func() {
			if _, err := l.owner.Append(t.Context(), &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}}); err != nil {
				t.Error(err)
			}
		})
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
		b.after("run1", len(b.read("run1")), wire.TypeRunClaimed)
		<-time.After(time.Minute)
		if entries := b.read("run1"); len(p.asked()) > 0 || entries[len(entries)-1].Event.Type() != wire.TypeRunClaimed {
			t.Errorf("%d agents were started:\n%s", len(p.asked()), story(entries))
		}
	})
}

// A server that was away for longer than leases live has forgotten them all. Who
// is back first, and is asked to, takes neither the run nor the node of a runner
// that is alive (RULES 6).
func TestOutageMovesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		r1 := b.process("r1", gated(release))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		second := &scripted{say: echo}
		b.process("r2", second)
		<-time.After(time.Minute)
		before := len(b.read("run1"))
		b.server.Stop() // each claims again what it has, once the server is back
		<-time.After(time.Minute)
		r1.gate.close()
		b.server.Start(t)
		b.awaits("a connection", b.nc.IsConnected)
		for range 3 {
			b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: 1, RunID: "run1"})
			b.publish(subjects.Default.QueueNode("default"), wire.NodeOffer{V: 1, RunID: "run1", NodeID: "a", ExecID: "a#1"})
		}
		<-time.After(lease10s / 2)
		r1.gate.open()
		<-time.After(time.Minute)
		entries := b.read("run1")
		for _, e := range entries[before:] {
			if e.Event.Epoch != 1 || e.Event.Type() != wire.TypeRunClaimed && e.Event.Type() != wire.TypeNodeClaimed {
				t.Errorf("%s of epoch %d", e.Event.Type(), e.Event.Epoch)
			}
		}
		if len(second.started()) > 0 {
			t.Errorf("r2 started %v:\n%s", second.started(), story(entries))
		}
		close(release)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// An owner whose lease can't be renewed decides nothing, though the log takes
// what its workers say: another owner may be about to (RULES 5, 6).
func TestNoDecisionWithoutLease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.process("r1", gated(release))
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		js := b.log.JetStream()
		s, err := js.Stream(t.Context(), "KV_"+subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		limit := func(size int32) {
			cfg.MaxMsgSize = size
			if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}
		size := cfg.MaxMsgSize
		limit(1)
		<-time.After(time.Minute)
		close(release)
		entries := b.until("run1", wire.TypeNodeComplete)
		<-time.After(time.Minute)
		if now := b.read("run1"); len(now) != len(entries) {
			t.Errorf("decided:\n%s", story(now[len(entries):]))
		}
		limit(size)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || state.Nodes[wire.RunNode].Epoch != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// An owner and a worker that were cut off for longer than their leases live add
// nothing when they are back.
func TestStalledRunnerAddsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		stalled := b.process("r1", gated(release))
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		second := gated(release)
		b.process("r2", second)
		stalled.gate.close()
		if took := b.awaits("a takeover", func() bool { return len(second.started()) == 1 }); took > soon {
			t.Errorf("the takeover took %s", took)
		}
		before := len(b.read("run1"))
		stalled.gate.open()
		<-time.After(time.Minute)
		if entries := b.read("run1"); len(entries) != before {
			t.Errorf("added:\n%s", story(entries[before:]))
		}
		close(release)
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || state.VoidEvents != 0 || count(entries, wire.TypeNodeComplete) != 2 {
			t.Errorf("run ended as %s with %d void events:\n%s", state.Result, state.VoidEvents, story(entries))
		}
	})
}

// A registration of another incarnation of the log stands for no run of this one:
// it is taken out, and nothing is claimed (RULES 15).
func TestRegistrationOfAnotherLog(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		value, err := wire.Marshal(map[string]any{"run": "old", "runner": "r0", "since": time.Now().UnixMilli(), "incarnation": "another"})
		if err != nil {
			t.Fatal(err)
		}
		key := subjects.Default.StateKey("runner", "old")
		if _, err := kv.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
		b.process("r1", &scripted{say: echo})
		<-time.After(time.Minute)
		if _, err := kv.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Errorf("it is still there: %v", err)
		}
		if entries := b.read("old"); len(entries) > 0 {
			t.Errorf("written:\n%s", story(entries))
		}
	})
}

// A runner that is told to end hands its runs and nodes over, keeps a list of what
// was running and clears it when it starts again (S13).
func TestS13Drain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		r1.stop()
		kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		key := subjects.Default.StateKey("drain", "r1")
		e, err := kv.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Runs  []string `json:"runs"`
			Nodes []string `json:"nodes"`
		}
		if err := wire.Unmarshal(e.Value(), &list); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(list.Runs, list.Nodes); got != "[run1] [run1/a#1]" {
			t.Errorf("was running: %s", got)
		}
		start := time.Now()
		b.process("r2", &scripted{say: echo})
		state, entries := b.ended("run1")
		if took := time.Since(start); took > 2*time.Second || state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowResumed) != 1 {
			t.Errorf("run ended as %s after %s:\n%s", state.Result, took, story(entries))
		}
		b.process("r1", &scripted{say: echo})
		b.awaits("a cleared list", func() bool { _, err := kv.Get(t.Context(), key); return err != nil })
	})
}

// What was given back needs no waiting, however long ago that was: no process can
// still act for the run (RULES 6).
func TestGivenBackLongAgo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		r1.stop()
		<-time.After(time.Hour) // the server has forgotten the lease
		start := time.Now()
		b.process("r2", &scripted{say: echo})
		b.until("run1", wire.TypeFlowResumed)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the takeover took %s", took)
		}
		b.ended("run1")
	})
}

// Twenty parallel nodes of one run spread over three runners, none of which takes
// more than it has room for.
func TestTwentyNodesOverThreeRunners(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var flow strings.Builder
		flow.WriteString("name: wide\nworkspace: node\nnodes:\n")
		for i := range 20 {
			fmt.Fprintf(&flow, "  - {id: n%d, type: agent, input: {prompt: \"n%d\"}}\n", i, i)
		}
		var all []*scripted
		for i := range 3 {
			running := make(chan struct{}, 7)
			p := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
				select {
				case running <- struct{}{}:
				default:
					t.Error("more agents run than there is room for")
				}
				<-time.After(time.Minute)
				<-running
				return echo(ctx, r)
			}}
			all = append(all, p)
			b.process(fmt.Sprintf("r%d", i), p, func(c *runner.Config) { c.MaxAgents = 7 })
		}
		start := time.Now()
		b.submit("run1", flow.String())
		state, entries := b.ended("run1")
		if took := time.Since(start); took > 90*time.Second || state.Result != wire.FlowStatusComplete || count(entries, wire.TypeNodeStart) != 20 {
			t.Errorf("run ended as %s after %s:\n%s", state.Result, took, story(entries))
		}
		for i, p := range all {
			if n := len(p.started()); n == 0 || n > 7 {
				t.Errorf("runner %d has worked on %d nodes", i, n)
			}
		}
	})
}

// An owner that has lost its run, and that no process acts for any more, is its next one.
func TestOwnerReturns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		var said journal
		r, err := runner.New(runner.Config{
			ID: "r1", Workspaces: t.TempDir(), Providers: map[string]agent.Provider{"claude": gated(release)},
		}, b.log, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		b.background(r.Run)
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		b.giveBack(b.claim("run1", wire.RunNode, "thief"), "thief")
		b.awaits("the loss", func() bool { return said.count("run has lost its owner") == 1 })
		b.awaits("the owner's second claim", func() bool { return count(b.read("run1"), wire.TypeRunClaimed) == 4 })
		close(release)
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowResumed) != 1 {
			t.Errorf("run ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// A runner that begins as another has just died takes that one's nodes over when it has been there for one time to live.
func TestNewRunnerTakesOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.process("r1", gated(release))
		gpu := func(c *runner.Config) { c.Pools = []string{"gpu"} }
		r2 := b.process("r2", gated(release), gpu)
		b.submit("run1", "name: far\nworkspace: shared\nnodes:\n  - {id: a, type: agent, pool: gpu, input: {prompt: a}}\n")
		b.until("run1", wire.TypeAgentStart)
		<-time.After(lease10s)
		r2.kill()
		<-time.After(lease10s / 3)
		b.process("r3", gated(release), gpu)
		if took := b.awaits("r3 has the node", func() bool { return b.fold("run1", b.read("run1")).Nodes["a"].Runner == "r3" }); took > soon {
			t.Errorf("it took %v", took)
		}
		close(release)
		b.ended("run1")
	})
}
