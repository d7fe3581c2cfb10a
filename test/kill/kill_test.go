//go:build kill

package kill_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// command is an exec node that leaves a line when it begins and when it ends, a
// fraction of a second later.
const command = `
  - id: %[1]s
    type: exec
    idempotent: true
    input:
      command: [sh, -c, '%[2]s', %[1]s, "%[3]s", "{{ state.ledger }}"]`

// steps are the commands' scripts: $0 is the node, $1 the iteration, $2 the ledger.
const (
	work = `echo "begin $0 $1 $$ $(date +%s%N)" >> "$2/exec"; sleep 0.$(($$ % 8 + 2)); echo "end $0 $1 $$ $(date +%s%N)" >> "$2/exec"`
	test = work + `; [ -e "$2/enough" ] && echo enough || echo again`
)

// tenNodes is a flow of ten nodes: agents, commands, a forEach, a branch, and a loop around most of it, which
// goes round until there is a file "enough".
func tenNodes(workspace string) string {
	agent := func(id, more string) string {
		return fmt.Sprintf(`
  - id: %s
    type: agent
    input: {provider: claude, prompt: "Do it%s. calls=3 ms=240 ledger={{ state.ledger }}"}`, id, more)
	}
	loop := func(id, script string) string { return fmt.Sprintf(command, id, script, "{{ $iteration }}") }
	once := func(id string) string { return fmt.Sprintf(command, id, work, "0") }
	return "name: ten\nworkspace: " + workspace + "\nstate: {items: [a, b, c]}\nnodes:" +
		agent("plan", "") + loop("prepare", work) + loop("lint", work) + agent("item", " for {{ it }}") + loop("collect", work) + loop("test", test) +
		once("good") + once("bad") + agent("review", "") + once("report") + `
edges:
  - {from: plan, to: prepare}
  - {from: plan, to: lint}
  - {from: prepare, to: item, forEach: {in: state.items, as: it}}
  - {from: item, to: collect}
  - {from: lint, to: collect}
  - {from: collect, to: test}
  - {from: test, to: plan, when: '$contains(test.stdout, "again")', maxIterations: 100}
  - {from: test, to: good, when: '$contains(test.stdout, "enough")'}
  - {from: test, to: bad, when: '$contains(test.stdout, "broken")'}
  - {from: good, to: review, gate: any}
  - {from: bad, to: review, gate: any}
  - {from: review, to: report}
`
}

// tally is what a test with many kills counts.
type tally struct {
	kills []killed
	downs int      // times that no runner was up
	idle  int      // kills of a runner that held nothing
	lost  []string // nodes whose session was lost, and which were executed again
}

// killed is one kill.
type killed struct {
	at     time.Time
	runner string
	why    string
	held   []string // nodes whose leases the runner held
}

// triggers are the events at which a runner is killed that publishes them: before
// they are stored, between batch and ack, or right after.
var triggers = []wire.Type{
	wire.TypeNodeComplete, wire.TypeNodeClaimed, wire.TypeRunClaimed, wire.TypeNodeScheduled, wire.TypeNodeStart,
	wire.TypeToolIntent, wire.TypeAgentTool, wire.TypeAgentStart, wire.TypeExecStart, wire.TypeFlowResumed,
	wire.TypeAgentResumed, wire.TypeLoopIterate, wire.TypeToolSealed, wire.TypeAgentTextDelta, wire.TypeTurnEnd,
}

// storm kills runners of a run again and again, and starts them again after a
// while.
type storm struct {
	*bench
	run     string
	runners []*lab.Runner
	events  <-chan lab.Seen
	tally   tally
}

// wait waits for d, or for an event of a type, which it returns, and starts
// again what has been down for long enough.
func (s *storm) wait(d time.Duration, want wire.Type) (lab.Seen, bool) {
	s.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case x := <-s.events:
			if want != "" && x.E.Type() == want && x.Writer != "" {
				return x, true
			}
		case now := <-tick.C:
			s.revive(now)
		case <-deadline:
			return lab.Seen{}, false
		case <-s.Ctx.Done():
			s.Fatal("the time of the test is over")
		}
	}
}

// revive starts the runners again whose time has come.
func (s *storm) revive(now time.Time) {
	s.Helper()
	for _, r := range s.runners {
		switch {
		case !r.Back.IsZero() && now.After(r.Back):
			s.Restart(r)
		case r.Back.IsZero() && !r.Alive():
			s.Errorf("%s ended by itself: %s", r.ID, r.Cmd.ProcessState)
			s.Restart(r)
		}
	}
}

func (s *storm) up() (up []*lab.Runner) {
	for _, r := range s.runners {
		if r.Back.IsZero() {
			up = append(up, r)
		}
	}
	return up
}

// strike kills one runner at a random point.
func (s *storm) strike() {
	s.Helper()
	for s.drop(); len(s.up()) == 0; {
		s.wait(50*time.Millisecond, "")
	}
	victim, why := s.choose()
	if victim == nil {
		return
	}
	var held []string
	for node, who := range s.Holders(s.run) {
		if who == victim.ID {
			held = append(held, node)
		}
	}
	k := killed{at: s.Kill(victim.Proc), runner: victim.ID, why: why, held: held}
	s.tally.kills = append(s.tally.kills, k)
	if len(held) == 0 {
		s.tally.idle++
	}
	down := time.Duration(s.Rand.Int64N(int64(3 * s.TTL / 2)))
	if s.Rand.IntN(3) == 0 {
		down = time.Duration(s.Rand.Int64N(int64(100 * time.Millisecond))) // as a supervisor would
	}
	victim.Back = k.at.Add(down)
	slices.Sort(held)
	s.Tell("KILL %s %s; it held %v; back in %s", victim.ID, why, held, down.Round(time.Millisecond))
	if len(s.up()) == 0 {
		s.tally.downs++
	}
}

// drop forgets the events so far.
func (s *storm) drop() {
	for {
		select {
		case <-s.events:
		default:
			return
		}
	}
}

// choose waits for the point and says whom to kill, and why.
func (s *storm) choose() (*lab.Runner, string) {
	s.Helper()
	s.wait(time.Duration(300+s.Rand.IntN(1700))*time.Millisecond, "")
	s.drop()
	if s.Rand.IntN(5) < 3 {
		want := triggers[s.Rand.IntN(len(triggers))]
		if x, ok := s.wait(3*s.TTL, want); ok {
			delay := time.Duration(s.Rand.IntN(3)*s.Rand.IntN(15)) * time.Millisecond
			<-time.After(delay)
			return s.find(x.Writer), fmt.Sprintf("%s after %s of %s", delay, x.E.Type(), x.E.Node())
		}
	}
	held := s.Holders(s.run)
	if s.Rand.IntN(2) == 0 {
		if who, ok := held[wire.RunNode]; ok {
			return s.find(who), "the owner"
		}
	}
	nodes := slices.Sorted(maps.Keys(held))
	for _, i := range s.Rand.Perm(len(nodes)) {
		if r := s.find(held[nodes[i]]); r != nil && nodes[i] != wire.RunNode {
			return r, "the worker of " + nodes[i]
		}
	}
	up := s.up()
	return up[s.Rand.IntN(len(up))], "anybody"
}

// find returns a runner if it is up.
func (s *storm) find(id string) *lab.Runner {
	for _, r := range s.up() {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// TestKill kills owners and workers at random points of a run of ten nodes.
// The two runners share folders and their agents' home, as on one machine.
func TestKill(t *testing.T) {
	l := newLab(t, 2*time.Second, 12*time.Minute)
	l.storm("shared", *killsFlag, l.Runner("r1", false), l.Runner("r2", false))
}

// TestKillThree is the same with three runners and a fresh folder for each
// execution.
func TestKillThree(t *testing.T) {
	l := newLab(t, 2*time.Second, 12*time.Minute)
	l.storm("node", *killsFlag/2, l.Runner("r1", false), l.Runner("r2", false), l.Runner("r3", false))
}

// TestKillApart is the same with three runners that share nothing: sessions move
// through the server. One that was lost because it had only just begun needs a
// decision; nothing is done twice all the same.
func TestKillApart(t *testing.T) {
	l := newLab(t, 2*time.Second, 12*time.Minute)
	l.storm("node", *killsFlag/2, l.Runner("r1", true), l.Runner("r2", true), l.Runner("r3", true))
}

func (l *bench) storm(workspace string, kills int, runners ...*lab.Runner) {
	l.Helper()
	l.Logf("seed %d, %d kills", l.Seed, kills)
	s := &storm{bench: l, run: "ten", runners: runners, events: l.Follow("ten")}
	s.Flow("ten", tenNodes(workspace))
	for len(s.tally.kills) < kills {
		s.strike()
		if st := s.State("ten"); !s.decide(st) && st != nil && st.Status != wire.RunRunning && st.Status != wire.RunIdle {
			s.Errorf("after %d kills the run is %s: %s %s", len(s.tally.kills), st.Status, st.Reason, st.Error)
			break
		}
	}
	l.Must(os.WriteFile(filepath.Join(l.Dir, "ledger", "enough"), nil, 0o600))
	l.Tell("enough")
	s.calm(3 * time.Minute)
	a := l.Check("ten")
	if failures := a.Failures(); len(failures) != len(s.tally.lost) {
		l.Errorf("ended badly:\n%s", strings.Join(failures, "\n"))
	}
	a.Completed("complete")
	s.report(a)
}

// decide has the nodes executed again whose session is lost, as an operator
// would, where that may happen. It reports whether there were any.
func (s *storm) decide(st *wire.State) bool {
	s.Helper()
	if st == nil || st.Status != wire.RunPaused || s.runners[0].Home == s.runners[1].Home {
		return false
	}
	var lost []string
	for node, n := range st.Nodes {
		if run.Interrupted(st, node) && n.ErrorType == wire.ErrorSessionNotFound {
			lost = append(lost, node)
		}
	}
	if len(lost) == 0 {
		return false
	}
	s.Tell("lost sessions of %v", lost)
	s.tally.lost = append(s.tally.lost, lost...)
	args := []string{"resume", s.run}
	for _, node := range lost {
		args = append(args, "--rerun", node)
	}
	if _, err := s.Try(args...); err != nil { // nobody may be up; it is tried again
		s.Tell("%v", err)
		s.tally.lost = s.tally.lost[:len(s.tally.lost)-len(lost)]
		return true
	}
	s.Until("the run goes on", 20*time.Second, func() bool {
		s.revive(time.Now())
		st := s.State(s.run)
		return st != nil && st.Status == wire.RunRunning
	})
	return true
}

// calm waits for the end of the run and keeps runners running.
func (s *storm) calm(within time.Duration) {
	s.Helper()
	deadline := time.Now().Add(within)
	for {
		s.wait(200*time.Millisecond, "")
		switch st := s.State(s.run); {
		case s.decide(st):
		case st != nil && st.Status != wire.RunRunning:
			s.Tell("the run is %s", st.Status)
			return
		case time.Now().After(deadline):
			s.Errorf("the run hasn't ended within %s", within)
			return
		}
	}
}

// report says what the test did and saw.
func (s *storm) report(a *lab.Audit) {
	takeovers := 0
	for _, e := range a.Execs {
		takeovers += max(0, e.Claims-1)
	}
	next, owner, worker := s.latencies(a)
	_, notes := s.Ledger("tools")
	repeats := 0
	for _, n := range notes {
		if strings.HasPrefix(n, "repeat ") {
			repeats++
		}
	}
	s.Logf(`seed %d: %d kills (%d of runners without a lease, %d times nobody was up), %d events, %d executions
 takeovers of the owner %d, flow:resumed %d; of workers %d, agent_resumed %d, sealed calls %d, repeated work of calls that never began %d, events of fenced writers set aside %d, lost sessions %d
 from a kill to the run's next event %s
 from a kill to the next owner's claim %s
 from a kill to the next worker's claim %s`,
		s.Seed, len(s.tally.kills), s.tally.idle, s.tally.downs, len(a.Entries), len(a.Execs),
		a.Owners-1, a.Flows, takeovers, a.Resumed, a.Sealed, repeats, a.Fenced, len(s.tally.lost), spread(next), spread(owner), spread(worker))
}

// latencies returns how long it took from each kill to the next event, to the
// next claim of the run if the victim owned it, and to the next claims of the
// nodes that it worked on.
func (s *storm) latencies(a *lab.Audit) (next, owner, worker []time.Duration) {
	for _, k := range s.tally.kills {
		waiting := make(map[string]bool)
		for _, node := range k.held {
			waiting[node] = node == wire.RunNode || a.OpenAt(node, k.at)
		}
		first := true
		for _, x := range a.Entries {
			if !x.At.After(k.at) {
				continue
			}
			if first {
				next, first = append(next, x.At.Sub(k.at)), false
			}
			if lab.Ended(x.E) {
				delete(waiting, x.E.Node()) // it was on its way
			}
			switch node := x.E.NodeID; {
			case !waiting[node]:
			case lab.Claimant(x.E) == "": // it was on its way
			case node == wire.RunNode:
				owner = append(owner, x.At.Sub(k.at))
				delete(waiting, node)
			default:
				worker = append(worker, x.At.Sub(k.at))
				delete(waiting, node)
			}
		}
	}
	return next, owner, worker
}

// spread is min/median/max.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "–"
	}
	slices.Sort(d)
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s/%s/%s (min/median/max of %d)", ms(d[0]), ms(d[len(d)/2]), ms(d[len(d)-1]), len(d))
}
