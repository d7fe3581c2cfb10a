package runner_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/natstest"
	programs "code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// Keepers are processes, which live by the real clock: no bubbles here.

// leaseTTL is the time to live of leases where a test waits for their end: less than usual, and enough where much else runs.
const leaseTTL = 4 * time.Second

// home is where a runner finds its keepers again.
type home struct {
	id, workspaces string
	shelf          *keeper.Shelf
}

func (b *bench) home(id string) home {
	b.t.Helper()
	shelf, err := keeper.NewShelf(b.t.Context(), keeper.ShelfConfig{Dir: b.t.TempDir(), Fence: keeper.Watchdogs})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.quit(shelf) })
	return home{id, b.t.TempDir(), shelf}
}

// edit makes a runner one of the home, which leaves its agents at once when it ends.
func (h home) edit(c *runner.Config) {
	c.Home, c.Shelf, c.LeaveAgents, c.Workspaces = h.id, h.shelf, true, h.workspaces
	c.NodeTrials = 0 // the default: what ends these processes is not what they execute
	c.DrainTimeout = 100 * time.Millisecond
}

// isLeft reports whether no runner is attached to a keeper.
func (h home) isLeft(t *testing.T) bool {
	t.Helper()
	labels, err := h.shelf.List()
	if err != nil || len(labels) != 1 {
		t.Fatalf("%d keepers, %v", len(labels), err)
	}
	k, err := h.shelf.Attach(t.Context(), labels[0])
	if err == nil {
		k.Leave()
	}
	return err == nil
}

// attach attaches to the one keeper.
func (h home) attach(t *testing.T) *keeper.Keeper {
	t.Helper()
	labels, err := h.shelf.List()
	if err != nil || len(labels) != 1 {
		t.Fatalf("%d keepers, %v", len(labels), err)
	}
	k, err := h.shelf.Attach(t.Context(), labels[0])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// quit ends the keepers that a test has left.
func (b *bench) quit(shelf *keeper.Shelf) {
	labels, err := shelf.List()
	if err != nil {
		b.t.Error(err)
	}
	for _, l := range labels {
		if k, err := shelf.Attach(context.WithoutCancel(b.t.Context()), l); err == nil {
			_ = k.Quit(0) // it may end by itself
		}
	}
}

// shortLeases has leases live for [leaseTTL].
func (b *bench) shortLeases() {
	b.t.Helper()
	if _, err := topology.Init(b.t.Context(), b.log.JetStream(), topology.Config{LeaseTTL: leaseTTL}); err != nil {
		b.t.Fatal(err)
	}
}

// ticker is a command that says again and again when it runs, and as which process, until it is enough.
type ticker struct {
	b   *bench
	dir string
}

func (b *bench) ticker() ticker { return ticker{b, b.t.TempDir()} }

const tickerScript = `n=0; while [ ! -e enough ]; do n=$((n+1)); echo $n; echo $$ $(date +%s%N) >> ticks; sleep 0.02; done; echo $n > count`

// tickFlow is a flow of the command.
func (c ticker) tickFlow() string { return c.scriptFlow(tickerScript) }

// scriptFlow is a flow of another command.
func (c ticker) scriptFlow(script string) string {
	return "name: tick\nworkspace: shared\nnodes:\n" + fmt.Sprintf("  - {id: a, type: exec, idempotent: true, input: {cwd: %q, command: [sh, -c, %q]}}\n", c.dir, script)
}

// agentFlow is a flow of an agent that is the command; see [kept].
func (c ticker) agentFlow() string {
	return "name: tick\nworkspace: shared\nnodes:\n" + fmt.Sprintf("  - {id: a, type: agent, input: {cwd: %q, prompt: tick}}\n", c.dir)
}

// kept is an agent whose program is a script, [tickerScript] by default. It says nothing but that it has ended.
type kept struct{ script string }

func (kept) Capabilities() agent.Capabilities { return agent.Capabilities{} }

func (k kept) Start(_ context.Context, r agent.Request) (agent.Session, error) {
	p, err := r.Host.Start(programs.Config{
		Name: "agent", Journal: true, KeepStderr: true, Dir: r.Options.Cwd, Env: os.Environ(), Argv: []string{"sh", "-c", cmp.Or(k.script, tickerScript)},
	})
	return keptSession{p, r}, err
}

type keptSession struct {
	*programs.Process

	request agent.Request
}

func (s keptSession) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		start := &wire.Event{SessionID: s.request.SessionID, Payload: &wire.AgentStart{Prompt: s.request.Prompt}}
		if !s.Attached && !yield(start, nil) {
			return
		}
		for range s.Frames { // what it says isn't recorded
		}
		<-s.Exited() // or it was left
		if s.Exit().Lost {
			yield(nil, agent.ErrLost)
			return
		}
		yield(&wire.Event{Payload: &wire.AgentComplete{Result: "enough"}}, nil)
	}
}

func (keptSession) Send(context.Context, agent.Message) error { return agent.ErrEnded }
func (keptSession) Interrupt(context.Context) error           { return nil }
func (s keptSession) Close() error                            { return errors.Join(s.End(0), s.Process.Close()) }

func (c ticker) enough() {
	c.b.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, "enough"), nil, 0o600); err != nil {
		c.b.t.Fatal(err)
	}
}

// ticks returns the times at which the command ran, by process, in their order.
func (c ticker) ticks() (pids []string, at map[string][]time.Time) {
	c.b.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, "ticks"))
	if err != nil && !os.IsNotExist(err) {
		c.b.t.Fatal(err)
	}
	at = map[string][]time.Time{}
	for line := range strings.Lines(string(data)) {
		pid, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		ns, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			continue // it is being written
		}
		if at[pid] == nil {
			pids = append(pids, pid)
		}
		at[pid] = append(at[pid], time.Unix(0, ns))
	}
	return pids, at
}

// awaitProcesses waits until so many processes have begun.
func (c ticker) awaitProcesses(n int) {
	c.b.t.Helper()
	c.b.awaits(fmt.Sprintf("%d processes", n), func() bool {
		pids, _ := c.ticks()
		return len(pids) >= n
	})
}

// output checks that the run is complete, and that it has the output of one process, whole and once.
func (c ticker) output(state *wire.State, entries []eventlog.Entry) {
	c.b.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, "count"))
	if err != nil {
		c.b.t.Fatal(err)
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		c.b.t.Fatal(err)
	}
	var want strings.Builder
	for n := range last {
		fmt.Fprintln(&want, n+1)
	}
	got := state.Outputs["a"].TextAt("stdout")
	if got != want.String() {
		c.b.t.Errorf("the output has %d lines, want %d, each once", strings.Count(got, "\n"), last)
	}
	if n := count(entries, wire.TypeExecStart); n != 1 || state.Result != wire.FlowStatusComplete {
		c.b.t.Errorf("it began %d times, and ended as %s: %s\n%s", n, state.Result, state.Error, story(entries))
	}
}

// A command whose runner can't renew its lease is frozen before another runner may take the lease. It is
// the runner's again afterwards, and goes on.
func TestFrozenInsideTheLease(t *testing.T) {
	b := newBench(t)
	b.shortLeases()
	p := b.process("r1", &scripted{say: echo}, b.home("h1").edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	c.awaitProcesses(1)
	p.gate.close()
	shut := time.Now()
	<-time.After(2 * leaseTTL)
	pids, at := c.ticks()
	times := at[pids[0]]
	if last := times[len(times)-1].Sub(shut); last > leaseTTL {
		t.Errorf("it was at work for %s after the last renewal was possible, the lease lives for %s", last, leaseTTL)
	}
	p.gate.open()
	b.awaits("the command goes on", func() bool {
		_, at := c.ticks()
		return len(at[pids[0]]) > len(times)
	})
	c.enough()
	state, entries := b.ended("run1")
	c.output(state, entries)
}

// heldBack is a logger that doesn't come back from saying that an agent is frozen.
type heldBack struct {
	slog.Handler

	until <-chan struct{}
}

func (h heldBack) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h heldBack) Enabled(context.Context, slog.Level) bool { return true }

func (h heldBack) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "is frozen") {
		<-h.until
	}
	return nil
}

// What may be frozen goes on after the log has proven that no other process has claimed the node, also where
// the keeper's word that it is frozen is late.
func TestThawedAfterTheLog(t *testing.T) {
	b := newBench(t)
	b.shortLeases()
	told := make(chan struct{})
	b.logs = heldBack{slog.DiscardHandler, told}
	p := b.process("r1", &scripted{say: echo}, b.home("h1").edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	c.awaitProcesses(1)
	p.gate.close()
	pids, _ := c.ticks()
	frozen := 0
	b.awaits("it is frozen", func() bool {
		_, at := c.ticks()
		before := frozen
		frozen = len(at[pids[0]])
		return time.Since(at[pids[0]][frozen-1]) > leaseTTL/2 && frozen == before
	})
	p.gate.open()
	b.awaits("it goes on", func() bool {
		_, at := c.ticks()
		return len(at[pids[0]]) > frozen
	})
	if n := count(b.read("run1"), wire.TypeNodeClaimed); n != 2 {
		t.Errorf("it goes on after %d claims of its worker, want one more than the first", n)
	}
	close(told)
	c.enough()
	b.ended("run1")
}

// An agent in a keeper that only waits for an answer isn't interrupted by a pause, which would take
// its question back.
func TestPauseOfParked(t *testing.T) {
	b := newBench(t)
	input, err := wire.RawFromJSON([]byte(`{"questions":[{"question":"Which?","header":"W","options":[{"label":"A"},{"label":"B"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	interrupted := make(chan bool, 1)
	b.process("r1", &puppet{play: func(a *act) {
		a.turn()
		a.say(&wire.ToolIntent{ToolName: ask.Tool, ToolInput: input}, "t1")
		a.say(&wire.PermissionRequired{ToolName: ask.Tool, ToolInput: input}, "t1")
		select {
		case <-a.interrupted:
			interrupted <- true
		case <-a.ctx.Done():
			interrupted <- false
		}
	}}, b.home("h1").edit)
	b.submit("run1", single)
	b.until("run1", wire.TypePermissionRequired)
	b.command("run1", wire.Command{Type: "pause"})
	if <-interrupted {
		t.Error("it was interrupted")
	}
}

// A command that was left to its keeper is frozen before another runner begins; and is
// ended when its own comes back and finds the other's claim.
func TestLeftIsFenced(t *testing.T) {
	b := newBench(t)
	b.shortLeases()
	home := b.home("h1")
	first := b.process("r1", &scripted{say: echo}, home.edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	c.awaitProcesses(1)
	first.stop()
	if b.holderOf("run1", "a") == "" { // the keeper has until the lease expires to freeze the command
		t.Error("what was left is given back")
	}
	b.process("r2", &scripted{say: echo}, b.home("h2").edit)
	c.awaitProcesses(2)
	pids, at := c.ticks()
	one, two := at[pids[0]], at[pids[1]]
	if rest := two[0].Sub(one[len(one)-1]); rest <= 0 {
		t.Errorf("the first process was at work until %s after the second began", -rest)
	}
	b.process("r1", &scripted{say: echo}, home.edit)
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	b.awaits("the first process is ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	})
	c.enough()
	state, _ := b.ended("run1")
	if state.Result != wire.FlowStatusComplete || state.Nodes["a"].Runner != "r2" {
		t.Errorf("the run ended as %s, by %s", state.Result, state.Nodes["a"].Runner)
	}
}

// Once the log says how an execution ended, another worker may begin at its node: nothing of it is at work then. Its session
// ends its processes, and the worker its keeper.
func TestEndsBehindItsProcesses(t *testing.T) {
	b := newBench(t)
	r1 := b.process("r1", kept{"sleep 60 >/dev/null 2>&1 & echo $! > pid"}, b.home("h1").edit)
	dir := t.TempDir()
	var alive string
	r1.gate.before(string(wire.TypeNodeComplete), func() {
		pid, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil {
			t.Error(err)
		}
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", strings.TrimSpace(string(pid)))); err == nil {
			alive = string(state)
		}
	})
	b.submit("run1", fmt.Sprintf("name: x\nworkspace: shared\nnodes:\n  - {id: a, type: agent, input: {cwd: %q, prompt: leave something}}\n", dir))
	if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete || alive != "" {
		t.Errorf("run ended as %s, with %q at work:\n%s", state.Result, alive, story(entries))
	}
}

// A keeper that no execution needs any more, which the runner learns after its start, is ended within a lease's time:
// its execution ended while its runner was away, as others saw it.
func TestEndsWhatIsOver(t *testing.T) {
	b := newBench(t)
	b.shortLeases()
	home := b.home("h1")
	b.process("r1", &scripted{say: echo}, home.edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	c.awaitProcesses(1)
	c.enough()
	state, _ := b.ended("run1")
	label := keeper.Label{Run: "run1", Node: "a", Exec: state.Nodes["a"].Exec, Position: state.Position.Seq}
	b.awaits("its keeper is gone", func() bool {
		_, found := home.shelf.Find(label.Run, label.Node, label.Exec)
		return !found
	})
	var k *keeper.Keeper
	b.awaits("there is another one, once the folder of the first is removed", func() bool {
		now := programs.Uptime()
		var err error
		k, err = home.shelf.Open(t.Context(), label, 0, now+time.Minute, now+2*time.Minute)
		return err == nil
	})
	left := time.Now()
	k.Leave()
	b.awaits("what was left is ended", func() bool {
		_, found := home.shelf.Find(label.Run, label.Node, label.Exec)
		return !found
	})
	if took := time.Since(left); took > 5*leaseTTL {
		t.Errorf("it was ended after %s", took)
	}
}

// A run that another runner has aborted, while the runner of its node was away, needs that node's keeper no more,
// though the log has no end of the execution.
func TestEndsWhatWasAborted(t *testing.T) {
	b := newBench(t)
	home := b.home("h1")
	first := b.process("r1", kept{}, home.edit)
	c := b.ticker()
	b.submit("run1", c.agentFlow())
	c.awaitProcesses(1)
	b.until("run1", wire.TypeAgentStart)
	first.stop()
	b.process("r2", kept{})
	b.command("run1", wire.Command{Type: "abort"})
	if state, _ := b.ended("run1"); state.Status != wire.RunAborted || !state.Nodes["a"].Open() {
		t.Fatalf("the run is %s, its node %+v", state.Status, state.Nodes["a"])
	}
	if !home.isLeft(t) {
		t.Fatal("the keeper is gone before")
	}
	b.process("r1", kept{}, home.edit)
	b.awaits("its keeper is gone", func() bool {
		labels, err := home.shelf.List()
		return err == nil && len(labels) == 0
	})
	if entries := b.read("run1"); count(entries, wire.TypeAgentAborted) != 1 || b.fold("run1", entries).Nodes["a"].Holder != "" {
		t.Error(story(entries))
	}
}

// A run whose time is over while its runner is away ends when that is back, and the log has what its command has come to: nothing of it
// works on, beside what the run does when it goes on.
func TestTimeOverWhileAway(t *testing.T) {
	b := newBench(t)
	home := b.home("h1")
	first := b.process("r1", &scripted{say: echo}, home.edit)
	c := b.ticker()
	b.submit("run1", "timeoutMs: 4000\n"+strings.Replace(c.tickFlow(), "idempotent", "policy: {interrupted: rerun}, idempotent", 1))
	c.awaitProcesses(1)
	b.until("run1", wire.TypeExecStart)
	first.stop()
	<-time.After(4 * time.Second)
	b.process("r1", &scripted{say: echo}, home.edit)
	state, _ := b.ended("run1")
	if state.Result != wire.FlowStatusFailed {
		t.Errorf("it ended as %s", state.Result)
	}
	entries := b.until("run1", wire.TypeExecExit)
	b.awaits("its keeper is gone", func() bool {
		labels, err := home.shelf.List()
		return err == nil && len(labels) == 0
	})
	_, before := c.ticks()
	<-time.After(time.Second)
	pids, after := c.ticks()
	if len(pids) != 1 || len(after[pids[0]]) != len(before[pids[0]]) {
		t.Errorf("it works on:\n%s", story(entries))
	}
}

// A runner that is told to end before it has attached leaves what it has found as it was: nothing of it
// ends, and no other runner may have the node.
func TestEndsBeforeItAttaches(t *testing.T) {
	for name, test := range map[string]struct {
		flow func(ticker) string
		end  func(b *bench, h home, claims int)
	}{
		"Command, claiming": {ticker.tickFlow, (*bench).endClaiming},
		"Agent, claiming":   {ticker.agentFlow, (*bench).endClaiming},
		"Agent, attaching":  {ticker.agentFlow, (*bench).endAttaching},
		"Agent, refused":    {ticker.agentFlow, (*bench).endRefused},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			home := b.home("h1")
			first := b.process("r1", kept{}, home.edit)
			c := b.ticker()
			b.submit("run1", test.flow(c))
			c.awaitProcesses(1)
			b.until("run1", wire.TypeExecStart, wire.TypeAgentStart)
			first.stop()
			test.end(b, home, 2)
			if !home.isLeft(t) {
				t.Error("the keeper is gone")
			}
			if b.holderOf("run1", "a") == "" {
				t.Error("it is given back")
			}
			b.process("r1", kept{}, home.edit)
			b.claimed(3)
			c.enough()
			state, entries := b.ended("run1")
			if pids, _ := c.ticks(); len(pids) != 1 || state.Result != wire.FlowStatusComplete {
				t.Errorf("the run ended as %s after %d processes:\n%s", state.Result, len(pids), story(entries))
			}
		})
	}
}

// simulatedHome is a home whose keepers are on a simulated machine, which counts the programs that it begins.
type simulatedHome struct {
	b             *bench
	machine       keeper.Machine
	dir, folders  string
	programsBegun atomic.Int64
}

func (b *bench) simulatedHome() *simulatedHome {
	h := &simulatedHome{b: b, dir: b.t.TempDir(), folders: b.t.TempDir()}
	h.machine.Main = func(*keeper.Task) int { h.programsBegun.Add(1); return 0 }
	b.t.Cleanup(h.machine.Off)
	return h
}

// openShelf returns the keepers as a process of the machine has them, until it is killed.
func (h *simulatedHome) openShelf() (_ *keeper.Shelf, kill func()) {
	h.b.t.Helper()
	c, road := h.machine.Client(), filepath.Join(h.b.t.TempDir(), "keepers") // a dead process has no way to the folder
	shelf, err := keeper.NewShelf(h.b.t.Context(), keeper.ShelfConfig{Dir: road, Client: c})
	if err := errors.Join(err, os.Remove(road), os.Symlink(h.dir, road)); err != nil {
		h.b.t.Fatal(err)
	}
	return shelf, func() {
		if err := os.Remove(road); err != nil {
			h.b.t.Error(err)
		}
		c.Kill()
	}
}

// startRunner starts the runner of the home.
func (h *simulatedHome) startRunner() (p *process, kill func()) {
	h.b.t.Helper()
	shelf, cut := h.openShelf()
	p = h.b.process("r1", nil, home{"h1", h.folders, shelf}.edit)
	return p, func() { cut(); p.kill() }
}

const onceFlow = "name: once\nworkspace: shared\nnodes:\n  - {id: a, type: exec, input: {command: ./once}}\n"

// A runner is killed when the log says that a node begins, and before its command does. The command begins with the next runner of the
// home, since its keeper has no program.
func TestKilledBeforeTheCommand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		h := b.simulatedHome()
		first, kill := h.startRunner()
		first.gate.before(string(wire.TypeNodeStart), first.gate.dropAnswers)
		b.submit("run1", onceFlow)
		b.until("run1", wire.TypeNodeStart)
		kill()
		h.startRunner()
		state, entries := b.ended("run1")
		if n := h.programsBegun.Load(); state.Result != wire.FlowStatusComplete || n != 1 || count(entries, wire.TypeExecStart) != 1 {
			t.Errorf("it ended as %s: %s; %d commands were begun\n%s", state.Result, state.Error, n, story(entries))
		}
	})
}

// A command that has begun by the journal of its keeper isn't begun again where the log doesn't say that its node has begun, as one of an
// older backup.
func TestBegunByItsJournal(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		h := b.simulatedHome()
		b.schedule("run1", onceFlow, "r1")
		_, pos := b.claim("run1", "a", "r1").Last()
		shelf, kill := h.openShelf()
		far := programs.Uptime() + time.Hour
		k, err := shelf.Open(t.Context(), keeper.Label{Run: "run1", Node: "a", Exec: "a#1", Position: pos}, 0, far, far)
		if err != nil {
			t.Fatal(err)
		}
		p, err := k.Start(programs.Config{Name: "command", Journal: true})
		if err != nil {
			t.Fatal(err)
		}
		for range p.Frames { // until it has ended
		}
		kill()
		h.machine.Off() // the keeper has died, too
		h.startRunner()
		b.until("run1", wire.TypeNodeComplete, wire.TypeNodeError)
		if n := h.programsBegun.Load(); n != 1 {
			t.Errorf("it began %d times\n%s", n, story(b.read("run1")))
		}
	})
}

// What a node needs before it begins, such as its folder and its keeper, doesn't count as its time.
func TestTimeBeginsWithTheNode(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		h := b.simulatedHome()
		h.machine.Startup = 3 * time.Second
		h.machine.Main = func(*keeper.Task) int { <-time.After(time.Second); return 0 }
		h.startRunner()
		b.submit("run1", strings.Replace(onceFlow, "./once}", "./once}, policy: {timeoutMs: 2000}", 1))
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s: %s\n%s", state.Result, state.Error, story(entries))
		}
	})
}

// A command that fails is tried again with no wait in between: what the worker of an attempt has left to do when it has
// recorded its end, such as to remove its journal, holds the next one up for no longer than that takes.
func TestRetryComesAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		h := b.simulatedHome() // few tries: keepers go by the real clock, on which a session isn't renewed here
		h.machine.Main = func(*keeper.Task) int { return 1 }
		h.startRunner()
		b.submit("run1", strings.Replace(onceFlow, "./once}", "./once}, policy: {retry: {maxAttempts: 10}}", 1))
		_, entries := b.ended("run1")
		if took := entries[len(entries)-1].Event.Timestamp - entries[0].Event.Timestamp; count(entries, wire.TypeNodeError) != 10 || took > 500 {
			t.Errorf("%d tries took %d ms", count(entries, wire.TypeNodeError), took)
		}
	})
}

// A native agent without a call at work has nothing that could go on in its keeper: a runner that drains gives it back, and another goes
// on with it at once.
func TestDrainedNativeAgent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		h := b.simulatedHome()
		shelf, _ := h.openShelf()
		script := &apitest.Script{Replies: []apitest.Reply{{Hang: true}, apitest.Message(apitest.Text("Done."))}}
		agents := func(c *runner.Config) {
			c.Providers = map[string]agent.Provider{"native": &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: script.Client()}}
		}
		r1 := b.process("r1", nil, home{"h1", h.folders, shelf}.edit, agents)
		b.submit("run1", "name: n\nworkspace: shared\nnodes:\n  - {id: a, type: agent, input: {provider: native, model: m, prompt: x}}\n")
		b.awaits("the call of the model", func() bool { return len(script.Requests()) == 1 })
		b.process("r2", nil, agents)
		<-time.After(lease10s)
		r1.stop()
		if took := b.awaits("r2 goes on", func() bool { return len(script.Requests()) == 2 }); took > 2*time.Second {
			t.Errorf("r2 went on after %v:\n%s", took, story(b.read("run1")))
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s: %s\n%s", state.Result, state.Error, story(entries))
		}
	})
}

// endClaiming starts a runner of a home, which is told to end when it claims.
func (b *bench) endClaiming(h home, claims int) {
	p := b.process("r1", kept{}, h.edit)
	ended := make(chan struct{})
	p.gate.before(string(wire.TypeNodeClaimed), func() {
		go func() {
			defer close(ended)
			p.stop()
		}()
	})
	b.claimed(claims)
	<-ended
}

// endAttaching starts a runner of a home, which is told to end while it attaches.
func (b *bench) endAttaching(h home, claims int) {
	b.t.Helper()
	k := h.attach(b.t)
	p := b.process("r1", kept{}, h.edit)
	b.claimed(claims)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.stop()
	}()
	k.Leave()
	<-ended
}

// endRefused starts a runner of a home, which can't attach.
func (b *bench) endRefused(h home, claims int) {
	b.t.Helper()
	k := h.attach(b.t)
	defer k.Leave()
	p := b.process("r1", kept{}, h.edit)
	b.claimed(claims)
	p.stop()
}

// claimed waits until run1's node has been claimed so often, by another worker each time.
func (b *bench) claimed(times int) {
	b.t.Helper()
	b.awaits(fmt.Sprintf("%d claims", times), func() bool {
		var epochs []uint64
		for _, e := range b.read("run1") {
			if e.Event.Type() == wire.TypeNodeClaimed && !slices.Contains(epochs, e.Event.Epoch) {
				epochs = append(epochs, e.Event.Epoch)
			}
		}
		return len(epochs) >= times
	})
}

// A command whose journal has no room waits, and the runner's health says so until there is some.
func TestJournalFull(t *testing.T) {
	b := newBench(t)
	shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: t.TempDir(), Fence: keeper.Watchdogs, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.quit(shelf) })
	board := health.NewBoard(slog.New(slog.DiscardHandler))
	p := b.process("r1", &scripted{say: echo}, home{"h1", t.TempDir(), shelf}.edit, func(c *runner.Config) { c.Health = board })
	c := b.ticker()
	script := "touch ticks; while [ ! -e enough ]; do sleep 0.02; done; head -c 4000000 /dev/zero | tr '\\0' x"
	b.submit("run1", "name: tick\nworkspace: shared\nnodes:\n"+fmt.Sprintf("  - {id: a, type: exec, input: {cwd: %q, command: [sh, -c, %q]}}\n", c.dir, script))
	b.until("run1", wire.TypeExecStart)
	p.gate.close()
	c.enough()
	const part = "runner: journal of run1/a#1"
	b.awaits("the journal is full", func() bool { return troubleOf(board, part) != nil })
	if err := troubleOf(board, part); !strings.Contains(err.Error(), "a of run run1 waits, its journal has no room: ") {
		t.Error(err)
	}
	p.gate.open()
	if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete {
		t.Errorf("the run ended as %s: %s", state.Result, state.Error)
	}
	b.awaits("it has room", func() bool { return troubleOf(board, part) == nil })
}

// Of output that is left out the journal is given up, also where what is recorded before it may end in a secret's beginning.
func TestLongOutputNeedsNoRoom(t *testing.T) {
	b := newBench(t)
	var err error
	if b.secrets, err = redact.New(redact.Known, []string{"xxxxxxxxxxxxxxxx-xx"}); err != nil {
		t.Fatal(err)
	}
	shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: t.TempDir(), Fence: keeper.Watchdogs, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.quit(shelf) })
	b.process("r1", &scripted{say: echo}, home{"h1", t.TempDir(), shelf}.edit)
	b.submit("run1", `
name: long
nodes:
  - {id: a, type: exec, policy: {outputBytes: 100000}, input: {command: "head -c 4000000 /dev/zero | tr '\\0' x"}}
`)
	if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete {
		t.Errorf("the run ended as %s: %s", state.Result, state.Error)
	}
}

// A secret that lies across the end of what is recorded at once is taken out, if nothing between that and the end of the
// output was left out.
func TestSecretAcrossTheLimit(t *testing.T) {
	b := newBench(t)
	var err error
	if b.secrets, err = redact.New(redact.Known, []string{"correct.horse.battery.staple"}); err != nil {
		t.Fatal(err)
	}
	b.process("r1", &scripted{say: echo})
	b.submit("run1", `
name: long
nodes:
  - {id: a, type: exec, policy: {outputBytes: 20}, input: {command: "printf 'some words correct.hors'; sleep 0.3; printf 'e.battery.staple, more'"}}
`)
	state, events := b.ended("run1")
	if state.Result != wire.FlowStatusComplete {
		t.Fatalf("the run ended as %s: %s", state.Result, state.Error)
	}
	for _, e := range events {
		if p, ok := e.Event.Payload.(*wire.ExecOutput); ok && (strings.Contains(p.Content, "hors") || strings.Contains(p.Content, "staple")) {
			t.Errorf("%q was recorded", p.Content)
		}
	}
}

// What a command says while its runner can't store anything is in the journal until the log has it,
// also if that runner never could.
func TestJournalFillsTheLog(t *testing.T) {
	b := newBench(t)
	home := b.home("h1")
	p := b.process("r1", &scripted{say: echo}, home.edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	b.until("run1", wire.TypeExecOutput)
	c.awaitProcesses(1)
	p.gate.close()
	_, before := c.ticks()
	b.awaits("it has said more, for longer than its runner waits with a resting point", func() bool {
		pids, at := c.ticks()
		times := at[pids[0]]
		return times[len(times)-1].Sub(before[pids[0]][0]) > 3*time.Second
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.stop()
	}()
	b.awaits("it is left", func() bool { return home.isLeft(t) })
	p.kill() // while it waits for storage
	<-stopped
	b.process("r1", &scripted{say: echo}, home.edit)
	b.awaits("another worker has it", func() bool { return count(b.read("run1"), wire.TypeNodeClaimed) > 1 })
	c.enough()
	state, entries := b.ended("run1")
	c.output(state, entries)
	if pids, _ := c.ticks(); len(pids) != 1 {
		t.Errorf("there were %d processes", len(pids))
	}
}

// A keeper that takes the place of one that is gone begins its journals anew: how far the log had those of the one before says nothing
// of them to the next runner.
func TestNewKeeperNewJournal(t *testing.T) {
	b := newBench(t)
	home := b.home("h1")
	first := b.process("r1", &scripted{say: echo}, home.edit)
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	c.awaitProcesses(1)
	b.awaits("the log has some of the output", func() bool { return count(b.read("run1"), wire.TypeExecOutput) > 20 })
	first.stop()
	k := home.attach(t)
	pid := k.Pid()
	k.Leave()
	second := b.process("r1", &scripted{say: echo}, home.edit)
	b.claimed(2)
	b.awaits("it is attached", func() bool { return !home.isLeft(t) })
	second.gate.close() // what the first keeper tells last comes into the log late
	pids, before := c.ticks()
	b.awaits("it says more", func() bool {
		_, at := c.ticks()
		return len(at[pids[0]]) > len(before[pids[0]])+20
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(leaseTTL, second.gate.open)
	c.awaitProcesses(2)
	second.stop()
	b.process("r1", &scripted{say: echo}, home.edit)
	b.claimed(3)
	c.enough()
	state, entries := b.ended("run1")
	data, err := os.ReadFile(filepath.Join(c.dir, "count"))
	if err != nil {
		t.Fatalf("%v\n%s", err, story(entries))
	}
	got := state.Outputs["a"].TextAt("stdout")
	if lines := strings.Count(got, "\n"); fmt.Sprintln(lines) != string(data) || !strings.HasPrefix(got, "1\n") {
		t.Errorf("the output has %d lines, the command wrote %s: %.60q\n%s", lines, data, got, story(entries))
	}
}

// The intent of a call waits for storage for as long as the agent is stopped: it is not ended
// for that.
func TestIntentWaitsForStorage(t *testing.T) {
	b := newBench(t)
	b.shortLeases()
	var g *gate
	ready := make(chan struct{})
	agents := &scripted{play: func(s *session, say func(wire.Payload) bool) {
		if s.request.Resume {
			say(&wire.AgentComplete{Result: "again"})
			return
		}
		<-ready
		say(&wire.TurnStart{})
		g.close()
		time.AfterFunc(2*leaseTTL, g.open)
		_ = say(&wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Raw{0x80}, InputHash: strings.Repeat("0", 64)}) &&
			say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.Raw{0x80}, ToolOutput: wire.RawString("ok")}) &&
			say(&wire.AgentComplete{Result: "done"})
	}}
	p := b.process("r1", agents, b.home("h1").edit, func(c *runner.Config) { c.PersistTimeout = leaseTTL * 5 / 4 })
	g = p.gate
	close(ready)
	b.submit("run1", one)
	state, entries := b.ended("run1")
	if n := len(agents.started()); n != 1 || state.Result != wire.FlowStatusComplete || count(entries, wire.TypeStorageFailure) != 1 {
		t.Errorf("the agent was started %d times, the run ended as %s:\n%s", n, state.Result, story(entries))
	}
}

// A runner that comes back attaches to what it has left at once, also if the run's owner is
// another runner, which would first wait for the lease to expire.
func TestBackBeforeItIsAsked(t *testing.T) {
	b := newBench(t)
	b.process("owner", kept{}, func(c *runner.Config) { c.Pools = []string{"elsewhere"} })
	c := b.ticker()
	b.submit("run1", c.tickFlow())
	b.until("run1", wire.TypeNodeScheduled)
	home := b.home("h1")
	first := b.process("r1", kept{}, home.edit)
	c.awaitProcesses(1)
	b.until("run1", wire.TypeExecStart)
	first.stop()
	b.process("r1", kept{}, home.edit)
	back := time.Now()
	b.claimed(2)
	if took := time.Since(back); took > lease10s/2 {
		t.Errorf("it took %s, want less than a lease lives", took)
	}
	c.enough()
	c.output(b.ended("run1"))
	if pids, _ := c.ticks(); len(pids) != 1 || b.owner("run1") != "owner" {
		t.Errorf("%d processes, owned by %s", len(pids), b.owner("run1"))
	}
}

// A worker that comes back to a command counts the time in which the command worked on without a worker, and records a command that
// has ended in time as complete, also when the limit is over by then, with the time that the command itself has taken.
func TestTimeGoesOnWithoutWorker(t *testing.T) {
	const limit = 4 * time.Second
	for _, test := range []struct {
		script string
		away   time.Duration // since the command has begun
		result wire.FlowStatus
	}{
		{tickerScript, 0, wire.FlowStatusFailed},
		{"echo $$ $(date +%s%N) >> ticks; sleep 2; echo done", limit + time.Second, wire.FlowStatusComplete},
	} {
		t.Run(string(test.result), func(t *testing.T) {
			b := newBench(t)
			c := b.ticker()
			home := b.home("h1")
			first := b.process("r1", &scripted{say: echo}, home.edit)
			b.submit("run1", strings.Replace(c.scriptFlow(test.script), "idempotent", fmt.Sprintf("policy: {timeoutMs: %d}, idempotent", limit.Milliseconds()), 1))
			c.awaitProcesses(1)
			begun := time.Now()
			b.until("run1", wire.TypeExecStart)
			if test.away == 0 {
				<-time.After(limit * 3 / 4)
			}
			first.stop()
			<-time.After(test.away - time.Since(begun))
			b.process("r1", &scripted{say: echo}, home.edit)
			state, entries := b.ended("run1")
			if state.Result != test.result || test.result == wire.FlowStatusFailed && state.Nodes["a"].ErrorType != wire.ErrorTimeout {
				t.Errorf("it ended as %s, %s:\n%s", state.Result, state.Nodes["a"].ErrorType, story(entries))
			}
			if pids, at := c.ticks(); len(pids) != 1 || at[pids[0]][len(at[pids[0]])-1].Sub(at[pids[0]][0]) > limit*6/4 {
				t.Errorf("%d processes, which said when they ran: %v", len(pids), at)
			}
			for _, e := range entries {
				if p, exits := e.Event.Payload.(*wire.ExecExit); exits && test.away > 0 && (p.DurationMs < 2000 || p.DurationMs >= limit.Milliseconds()) {
					t.Errorf("the log has it that the command took %d ms", p.DurationMs)
				}
			}
		})
	}
}
