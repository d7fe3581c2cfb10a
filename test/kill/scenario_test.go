//go:build kill

package kill_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// twoAgents is a flow of two agents at once, of calls calls each, and a command
// afterwards.
func twoAgents(workspace string, calls int) string {
	agent := func(id string) string {
		return fmt.Sprintf(`
  - id: %s
    type: agent
    input: {provider: claude, prompt: "Do it. calls=%d ms=400 ledger={{ state.ledger }}"}`, id, calls)
	}
	return "name: two\nworkspace: " + workspace + "\nnodes:" + agent("left") + agent("right") + fmt.Sprintf(command, "report", work, "0") + `
edges:
  - {from: left, to: report}
  - {from: right, to: report}
`
}

// pair is a run of twoAgents whose agents are at work on two runners. A third
// one, which came later, has nothing to do yet.
type pair struct {
	*bench
	run          string
	owner, other *lab.Runner // the owner of the run is one of the two
	spare        *lab.Runner
	held         map[string]string
}

// pair starts a run whose agents have begun, one on each of two runners.
func (l *bench) pair(id, workspace string, calls int, own bool, flags ...string) pair {
	l.Helper()
	flags = append([]string{"--max-agents", "1"}, flags...)
	one, two := l.Runner("r1", own, flags...), l.Runner("r2", own, flags...)
	l.Flow(id, twoAgents(workspace, calls))
	for _, node := range []string{"left", "right"} {
		l.Await(id, 0, 15*time.Second, node+" begins to work", lab.OfType(wire.TypeToolIntent, node))
	}
	spare := l.Runner("r3", own)
	l.Until("the third runner is there", 10*time.Second, func() bool { return l.Logged(spare.Proc, `"msg":"running"`) })
	held := l.Holders(id)
	l.Tell("leases: %v", held)
	p := pair{bench: l, run: id, owner: one, other: two, spare: spare, held: held}
	if held[wire.RunNode] == two.ID {
		p.owner, p.other = two, one
	}
	return p
}

// nodes lists what of the run a runner holds.
func (p pair) nodes(r *lab.Runner) (nodes []string) {
	for node, who := range p.held {
		if who == r.ID {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// takeover waits until others have claimed what a runner held, and returns how
// long that took.
func (p pair) takeover(r *lab.Runner, from time.Time, pos uint64, within time.Duration) map[string]time.Duration {
	p.Helper()
	took := make(map[string]time.Duration)
	for _, node := range p.nodes(r) {
		x := p.Await(p.run, pos, within+5*time.Second, "somebody takes "+node+" over", func(x lab.Entry) bool {
			who := lab.Claimant(x.E)
			return x.E.NodeID == node && who != "" && who != r.ID
		})
		took[node] = x.At.Sub(from)
		p.Tell("%s was taken over after %s", node, took[node].Round(time.Millisecond))
		if took[node] > within {
			p.Errorf("%s was taken over after %s, want at most %s", node, took[node], within)
		}
	}
	return took
}

// undisturbed checks that nobody claimed what a runner holds since a position.
func (p pair) undisturbed(r *lab.Runner, pos uint64) {
	p.Helper()
	for _, x := range p.Stored(p.run) {
		if x.Pos > pos && lab.Claimant(x.E) != "" && p.held[x.E.NodeID] == r.ID {
			p.Errorf("%s was claimed though its runner lives: %s", x.E.NodeID, x)
		}
	}
}

func (p pair) complete(within time.Duration) *lab.Audit {
	p.Helper()
	p.Reach(p.run, within, wire.RunComplete)
	a := p.Check(p.run)
	a.Completed("complete")
	if failures := a.Failures(); len(failures) > 0 {
		p.Errorf("ended badly:\n%s", strings.Join(failures, "\n"))
	}
	return a
}

// With leases of 10 s, the death of an owner and of a worker is made good
// within 12 s, and what runs elsewhere goes on undisturbed.
func TestDefaultTTL(t *testing.T) {
	const ttl = 10 * time.Second
	l := newLab(t, ttl, 3*time.Minute)
	p := l.pair("two", "shared", 18, false)
	pos := l.Last()
	at := l.Kill(p.owner.Proc)
	l.Tell("KILL %s, which holds %v", p.owner.ID, p.nodes(p.owner))
	took := p.takeover(p.owner, at, pos, ttl+2*time.Second)
	p.undisturbed(p.other, pos)
	l.Restart(p.owner)
	a := p.complete(90 * time.Second)
	t.Logf("lease TTL %s: %d nodes taken over: %v; %d events, %d sealed, %d agents resumed", ttl, len(took), took, len(a.Entries), a.Sealed, a.Resumed)
}

// A runner that is stopped for longer than its leases live adds nothing once it
// goes on: neither to the log nor to the world.
func TestStall(t *testing.T) {
	l := newLab(t, 2*time.Second, 2*time.Minute)
	p := l.pair("two", "shared", 8, false)
	pos := l.Last()
	at := time.Now()
	l.Signal(p.owner.Proc, syscall.SIGSTOP)
	took := p.takeover(p.owner, at, pos, 4*time.Second)
	<-time.After(time.Second)
	l.Signal(p.owner.Proc, syscall.SIGCONT)
	l.Until("the runner says that it has lost its leases", 10*time.Second, func() bool {
		return l.Logged(p.owner.Proc, "lost") || l.Logged(p.owner.Proc, "fenced") || l.Logged(p.owner.Proc, "taken over")
	})
	a := p.complete(60 * time.Second)
	if !p.owner.Alive() {
		t.Errorf("the runner has ended: %s", p.owner.Cmd.ProcessState)
	}
	b, err := os.ReadFile(p.owner.Log)
	l.Must(err)
	t.Logf("taken over %v; %d events, %d sealed; its log:\n%s", took, len(a.Entries), a.Sealed, b)
}

// A runner that is asked to end and doesn't come back hands its work over: agents are interrupted and
// go on elsewhere, without waiting for a lease to expire.
func TestDrain(t *testing.T) {
	l := newLab(t, 10*time.Second, 2*time.Minute)
	p := l.pair("two", "shared", 8, false, "--leave-agents=false")
	pos := l.Last()
	at := time.Now()
	l.Signal(p.owner.Proc, syscall.SIGTERM)
	l.Gone(p.owner.Proc, 30*time.Second)
	ended := time.Since(at)
	if code := p.owner.Cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	kv, err := l.JS.KeyValue(l.Ctx, subjects.Default.StateBucket())
	l.Must(err)
	if _, err := kv.Get(l.Ctx, subjects.Default.StateKey("drain", p.owner.ID)); err != nil {
		t.Errorf("the list of what was running: %v", err)
	}
	took := p.takeover(p.owner, at, pos, ended+4*time.Second)
	p.undisturbed(p.other, pos)
	a := p.complete(60 * time.Second)
	paused := 0
	for _, x := range a.Entries {
		if e, ok := x.E.Payload.(*wire.AgentPaused); ok && e.Reason == "shutdown" {
			paused++
		}
	}
	if want := len(p.nodes(p.owner)) - 1; paused != want {
		t.Errorf("%d agents paused, want %d", paused, want)
	}
	t.Logf("ended after %s, taken over %v; %d events, %d sealed", ended.Round(time.Millisecond), took, len(a.Entries), a.Sealed)
}

// Nobody is left; the next start picks everything up, elsewhere than before.
func TestAllKilled(t *testing.T) {
	for name, own := range map[string]bool{"OneMachine": false, "OtherMachine": true} {
		t.Run(name, func(t *testing.T) { allKilled(t, own) })
	}
}

func allKilled(t *testing.T, own bool) {
	l := newLab(t, 2*time.Second, 2*time.Minute)
	p := l.pair("two", "node", 9, own)
	if own {
		<-time.After(3 * time.Second) // sessions are kept with some delay
	}
	for _, r := range []*lab.Runner{p.owner, p.other, p.spare} {
		l.Kill(r.Proc)
	}
	l.Tell("KILL all")
	<-time.After(3 * time.Second)
	at := time.Now()
	pos := l.Last()
	fourth := l.Runner("r4", own)
	for _, r := range []*lab.Runner{p.owner, p.other} {
		p.takeover(r, at, pos, 6*time.Second)
	}
	a := p.complete(60 * time.Second)
	t.Logf("%s did it: %d events, %d sealed, %d agents resumed", fourth.ID, len(a.Entries), a.Sealed, a.Resumed)
}

// A command that must not run twice, and that no keeper holds, was killed with its runner: a person decides.
func TestInterruptedCommand(t *testing.T) {
	l := newLab(t, 2*time.Second, 2*time.Minute)
	r := l.Runner("r1", false, "--fence", "none")
	src := "name: once\nworkspace: shared\nnodes:" + strings.Replace(fmt.Sprintf(command, "slow", strings.Replace(work, "sleep 0.", "sleep 3.", 1), "0"), "idempotent: true", "idempotent: false", 1) + "\n"
	for _, choice := range []string{"--rerun", "--fail"} {
		run := "once" + choice[1:]
		l.Flow(run, src)
		l.Await(run, 0, 10*time.Second, "the command runs", lab.OfType(wire.TypeExecStart, "slow"))
		<-time.After(300 * time.Millisecond)
		l.Kill(r.Proc)
		l.Tell("KILL %s", r.ID)
		l.Restart(r)
		if s := l.Reach(run, 20*time.Second, wire.RunPaused); s.Reason != wire.PauseRequiresAction {
			t.Errorf("paused because of %q", s.Reason)
		}
		l.Until("an alert says so", 10*time.Second, func() bool { return strings.Contains(l.Wake("alerts", run, "--json"), "slow") })
		l.Wake("resume", run, choice, "slow")
		s := l.Reach(run, 20*time.Second, wire.RunComplete)
		l.Tell("result %s", s.Result)
		want := wire.FlowStatusComplete
		if choice == "--fail" {
			want = wire.FlowStatusFailed
		}
		if s.Result != want {
			t.Errorf("%s: result %s, want %s", choice, s.Result, want)
		}
	}
	begins, _ := l.Ledger("exec")
	n := len(slices.DeleteFunc(begins, func(x lab.Line) bool { return x.What != "begin" }))
	if n != 3 {
		t.Errorf("the command began %d times in two runs, want 3", n)
	}
}
