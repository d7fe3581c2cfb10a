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

	"wake/pkg/subjects"
	"wake/pkg/wire"
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
	*lab
	run          string
	owner, other *runner // the owner of the run is one of the two
	spare        *runner
	held         map[string]string
}

// pair starts a run whose agents have begun, one on each of two runners.
func (l *lab) pair(id, workspace string, calls int, own bool) pair {
	l.Helper()
	one := l.runner("r1", own, "--max-agents", "1")
	two := l.runner("r2", own, "--max-agents", "1")
	l.flow(id, twoAgents(workspace, calls))
	for _, node := range []string{"left", "right"} {
		l.await(id, 0, 15*time.Second, node+" begins to work", ofType(wire.TypeToolIntent, node))
	}
	spare := l.runner("r3", own)
	l.until("the third runner is there", 10*time.Second, func() bool { return l.logged(spare.proc, `"msg":"running"`) })
	held := l.leases(id)
	l.tell("leases: %v", held)
	p := pair{lab: l, run: id, owner: one, other: two, spare: spare, held: held}
	if held[wire.RunNode] == two.id {
		p.owner, p.other = two, one
	}
	return p
}

// nodes lists what of the run a runner holds.
func (p pair) nodes(r *runner) (nodes []string) {
	for node, who := range p.held {
		if who == r.id {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// takeover waits until others have claimed what a runner held, and returns how
// long that took.
func (p pair) takeover(r *runner, from time.Time, pos uint64, within time.Duration) map[string]time.Duration {
	p.Helper()
	took := make(map[string]time.Duration)
	for _, node := range p.nodes(r) {
		x := p.await(p.run, pos, within+5*time.Second, "somebody takes "+node+" over", func(x entry) bool {
			who := claimant(x.e)
			return x.e.NodeID == node && who != "" && who != r.id
		})
		took[node] = x.at.Sub(from)
		p.tell("%s was taken over after %s", node, took[node].Round(time.Millisecond))
		if took[node] > within {
			p.Errorf("%s was taken over after %s, want at most %s", node, took[node], within)
		}
	}
	return took
}

// undisturbed checks that nobody claimed what a runner holds since a position.
func (p pair) undisturbed(r *runner, pos uint64) {
	p.Helper()
	for _, x := range p.stored(p.run) {
		if x.pos > pos && claimant(x.e) != "" && p.held[x.e.NodeID] == r.id {
			p.Errorf("%s was claimed though its runner lives: %s", x.e.NodeID, x)
		}
	}
}

func (p pair) complete(within time.Duration) *audit {
	p.Helper()
	p.reach(p.run, within, wire.RunComplete)
	a := p.check(p.run)
	a.ended("complete")
	if failures := a.failures(); len(failures) > 0 {
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
	pos := l.last()
	at := l.kill(p.owner)
	l.tell("KILL %s, which holds %v", p.owner.id, p.nodes(p.owner))
	took := p.takeover(p.owner, at, pos, ttl+2*time.Second)
	p.undisturbed(p.other, pos)
	l.restart(p.owner)
	a := p.complete(90 * time.Second)
	t.Logf("lease TTL %s: %d nodes taken over: %v; %d events, %d sealed, %d agents resumed", ttl, len(took), took, len(a.entries), a.sealed, a.resumed)
}

// A runner that is stopped for longer than its leases live adds nothing once it
// goes on: neither to the log nor to the world.
func TestStall(t *testing.T) {
	l := newLab(t, 2*time.Second, 2*time.Minute)
	p := l.pair("two", "shared", 8, false)
	pos := l.last()
	at := time.Now()
	l.signal(p.owner.proc, syscall.SIGSTOP)
	took := p.takeover(p.owner, at, pos, 4*time.Second)
	<-time.After(time.Second)
	l.signal(p.owner.proc, syscall.SIGCONT)
	l.until("the runner says that it has lost its leases", 10*time.Second, func() bool {
		return l.logged(p.owner.proc, "lost") || l.logged(p.owner.proc, "fenced") || l.logged(p.owner.proc, "taken over")
	})
	a := p.complete(60 * time.Second)
	if !p.owner.alive() {
		t.Errorf("the runner has ended: %s", p.owner.cmd.ProcessState)
	}
	b, err := os.ReadFile(p.owner.log)
	l.must(err)
	t.Logf("taken over %v; %d events, %d sealed; its log:\n%s", took, len(a.entries), a.sealed, b)
}

// A runner that is asked to end hands its work over: agents are interrupted and
// go on elsewhere, without waiting for a lease to expire.
func TestDrain(t *testing.T) {
	l := newLab(t, 10*time.Second, 2*time.Minute)
	p := l.pair("two", "shared", 8, false)
	pos := l.last()
	at := time.Now()
	l.signal(p.owner.proc, syscall.SIGTERM)
	l.gone(p.owner.proc, 30*time.Second)
	ended := time.Since(at)
	if code := p.owner.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	kv, err := l.js.KeyValue(l.ctx, subjects.Default.StateBucket())
	l.must(err)
	if _, err := kv.Get(l.ctx, subjects.Default.StateKey("drain", p.owner.id)); err != nil {
		t.Errorf("the list of what was running: %v", err)
	}
	took := p.takeover(p.owner, at, pos, ended+4*time.Second)
	p.undisturbed(p.other, pos)
	a := p.complete(60 * time.Second)
	paused := 0
	for _, x := range a.entries {
		if e, ok := x.e.Payload.(*wire.AgentPaused); ok && e.Reason == "shutdown" {
			paused++
		}
	}
	if want := len(p.nodes(p.owner)) - 1; paused != want {
		t.Errorf("%d agents paused, want %d", paused, want)
	}
	t.Logf("ended after %s, taken over %v; %d events, %d sealed", ended.Round(time.Millisecond), took, len(a.entries), a.sealed)
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
	for _, r := range []*runner{p.owner, p.other, p.spare} {
		l.kill(r)
	}
	l.tell("KILL all")
	<-time.After(3 * time.Second)
	at := time.Now()
	pos := l.last()
	fourth := l.runner("r4", own)
	for _, r := range []*runner{p.owner, p.other} {
		p.takeover(r, at, pos, 6*time.Second)
	}
	a := p.complete(60 * time.Second)
	t.Logf("%s did it: %d events, %d sealed, %d agents resumed", fourth.id, len(a.entries), a.sealed, a.resumed)
}

// A command that must not run twice was killed: somebody decides.
func TestInterruptedCommand(t *testing.T) {
	l := newLab(t, 2*time.Second, 2*time.Minute)
	r := l.runner("r1", false)
	src := "name: once\nworkspace: shared\nnodes:" + strings.Replace(fmt.Sprintf(command, "slow", strings.Replace(work, "sleep 0.", "sleep 3.", 1), "0"), "idempotent: true", "idempotent: false", 1) + "\n"
	for _, choice := range []string{"--rerun", "--fail"} {
		run := "once" + choice[1:]
		l.flow(run, src)
		l.await(run, 0, 10*time.Second, "the command runs", ofType(wire.TypeExecStart, "slow"))
		<-time.After(300 * time.Millisecond)
		l.kill(r)
		l.tell("KILL %s", r.id)
		l.restart(r)
		if s := l.reach(run, 20*time.Second, wire.RunPaused); s.Reason != wire.PauseRequiresAction {
			t.Errorf("paused because of %q", s.Reason)
		}
		l.until("an alert says so", 10*time.Second, func() bool { return strings.Contains(l.wake("alerts", run, "--json"), "slow") })
		l.wake("resume", run, choice, "slow")
		s := l.reach(run, 20*time.Second, wire.RunComplete)
		l.tell("result %s", s.Result)
		want := wire.FlowStatusComplete
		if choice == "--fail" {
			want = wire.FlowStatusFailed
		}
		if s.Result != want {
			t.Errorf("%s: result %s, want %s", choice, s.Result, want)
		}
	}
	begins, _ := l.ledger("exec")
	n := len(slices.DeleteFunc(begins, func(x line) bool { return x.what != "begin" }))
	if n != 3 {
		t.Errorf("the command began %d times in two runs, want 3", n)
	}
}
