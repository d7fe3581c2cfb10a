//go:build torture

package torture_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
	"code.wake.dev/wake/test/oracle"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "which faults and which load; 0: another one each time")
	durationFlag = flag.Duration("duration", 20*time.Minute, "how long there are faults")
	pairsFlag    = flag.Bool("pairs", false, "two snapshotters and two alerters")
	keepFlag     = flag.Bool("keep", false, "keep the folder of a test that passed")
)

// bin is the folder of the programs.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(lab.Main(m, &bin))
}

// build builds the programs, once.
var build = sync.OnceValues(func() (lab.Programs, error) { return lab.Build(bin) })

func config(t *testing.T, limit time.Duration) lab.Config {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return lab.Config{Programs: p, TTL: 3 * time.Second, Limit: limit, Seed: *seedFlag, Keep: *keepFlag}
}

// bound is how long everything may take to come to an end once nothing is broken
// any more.
const bound = 3 * time.Minute

// TestTorture breaks everything for a while. Afterwards every promise has been kept.
func TestTorture(t *testing.T) {
	torture(t, harm{processFaults(), 700 * time.Millisecond, 3}, harm{processFaults(), 700 * time.Millisecond, 5}, harm{serverFaults(), 2 * time.Second, 4})
}

// TestServers kills nothing but servers, one every 1 to 3 s, most of the time before it has caught up.
func TestServers(t *testing.T) {
	torture(t, harm{[]fault{{kind: "kill -9 server, for a moment", weight: 1, do: func(n *nemesis, r *rand.Rand) error {
		pick(r, n.s.nodes()).kill(between(r, 0, time.Second))
		return nil
	}}}, 750 * time.Millisecond, 6})
}

// torture does harm to an installation for a while. Afterwards no process of wake has ended by itself, and every promise has been kept.
func torture(t *testing.T, all ...harm) {
	s := newSite(t, config(t, 2**durationFlag+15*time.Minute), "always")
	s.services()
	s.Logf("seed %d, %s", s.Seed, *durationFlag)
	l := newLoad(s)
	n := &nemesis{s: s, load: l, events: make(map[string]int)}
	s.suffer(n, l, *durationFlag, all)
	s.settle(n, l)
	s.exits()
	s.report(s.judge(), n, l)
}

// harm is what is done one after the other, with how much calm in between at least, and a stream of random numbers of its own.
type harm struct {
	faults []fault
	calm   time.Duration
	stream uint64
}

// suffer runs load and faults for a while.
func (s *site) suffer(n *nemesis, l *load, d time.Duration, all []harm) {
	faults, work := make(chan struct{}), make(chan struct{})
	var wg, load sync.WaitGroup
	load.Go(func() { l.run(work) })
	for _, h := range all {
		wg.Go(func() { n.run(faults, h.faults, h.calm, rand.New(rand.NewPCG(s.Seed, h.stream))) })
	}
	<-time.After(d)
	close(faults)
	wg.Wait()
	close(work)
	load.Wait()
}

// settle waits until everything has come back and all runs have ended.
func (s *site) settle(n *nemesis, l *load) {
	s.Helper()
	s.Tell("no more faults")
	began := time.Now()
	for _, link := range s.links {
		link.mend()
	}
	if err := n.healthy(); err != nil {
		s.Errorf("the servers: %v", err)
	}
	for len(l.open()) > 0 && time.Since(began) < bound {
		<-time.After(300 * time.Millisecond)
		l.look()
	}
	for _, id := range l.open() {
		st := s.peek(id)
		if st == nil {
			s.Errorf("run %s hasn't begun within %s", id, bound)
			continue
		}
		s.Errorf("run %s is %s (%s) after %s", id, st.Status, st.Reason, bound)
	}
	s.Tell("all runs have ended after %s", time.Since(began).Round(time.Millisecond))
	s.orphans()
	for _, name := range runners() { // those that go give their leases back
		u := s.unit(name)
		u.mu.Lock()
		u.held = true
		u.killed = true
		u.mu.Unlock()
		if err := u.signal(syscall.SIGTERM); err != nil {
			s.Errorf("%v", err)
		}
	}
	s.Until("the runners have ended", time.Minute, func() bool {
		return !slices.ContainsFunc(runners(), func(name string) bool {
			u := s.unit(name)
			u.mu.Lock()
			defer u.mu.Unlock()
			return u.proc != nil
		})
	})
}

// orphans looks for agents and commands that nobody waits for any more.
func (s *site) orphans() {
	s.Helper()
	ours := make(map[int]bool)
	find := func() (found []string) {
		for _, u := range s.units {
			u.mu.Lock()
			if u.proc != nil {
				ours[u.proc.Cmd.Process.Pid] = true
			}
			u.mu.Unlock()
		}
		for _, pid := range s.Marked() {
			if !ours[pid] {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may be gone
				found = append(found, fmt.Sprintf("%d %s", pid, strings.ReplaceAll(string(b), "\x00", " ")))
			}
		}
		return found
	}
	deadline := time.Now().Add(15 * time.Second)
	for len(find()) > 0 && time.Now().Before(deadline) {
		<-time.After(200 * time.Millisecond)
	}
	if found := find(); len(found) > 0 {
		s.Errorf("%d processes are left: %s", len(found), strings.Join(found, "; "))
	}
	s.Tell("nothing is left of the runs")
}

// exits counts processes of wake that ended although nobody had killed them, or told them to.
func (s *site) exits() {
	s.Helper()
	for _, u := range s.units[servers:] {
		u.mu.Lock()
		for _, exit := range u.exits {
			s.Errorf("%s ended by itself: %s", u.name, exit)
		}
		u.mu.Unlock()
	}
}

// verdict is what the checker says, with the history that it judged.
type verdict struct {
	oracle.Report

	history *oracle.History
}

// judge has everything checked. Services may still be catching up, so what is
// wrong may become right for a while.
func (s *site) judge() verdict {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, 10*time.Minute)
	defer cancel()
	log, err := eventlog.Open(ctx, s.NC, eventlog.Options{Names: subjects.Default, Logger: slog.New(slog.DiscardHandler)})
	s.Must(err)
	s.hear(ctx, log)
	o := oracle.Options{Recorder: filepath.Join(s.Dir, "recorder", "recorder.db")}
	var v verdict
	for range 4 {
		h, err := oracle.Load(ctx, log, o)
		s.Must(err)
		if v = (verdict{oracle.Judge(h, s.ledger, o), h}); len(v.Violations) == 0 {
			break
		}
		<-time.After(10 * time.Second)
	}
	for _, x := range v.Violations {
		s.Errorf("%s", x)
	}
	s.commands(v.history)
	return v
}

// hear adds what agents and terminals have seen to the ledger.
func (s *site) hear(ctx context.Context, log *eventlog.Log) {
	s.Helper()
	intents := make(map[string]*wire.Event)
	for e, err := range log.Read(ctx, eventlog.Query{}) {
		s.Must(err)
		if e.Event != nil && e.Event.Type() == wire.TypeToolIntent {
			intents[e.Event.CallID] = e.Event
		}
	}
	lines, _ := s.Ledger("tools")
	for _, x := range lines {
		if x.What != "begin" {
			continue
		}
		w := oracle.Work{Call: x.ID, At: x.At}
		if e := intents[x.ID]; e != nil {
			w.Run, w.Node, w.Exec = e.RunID, e.NodeID, e.ExecID
		}
		s.ledger.Worked(w)
	}
	for _, name := range services() {
		if !strings.HasPrefix(name, "alerter") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(s.Dir, "log", name))
		s.Must(err)
		for text := range strings.Lines(string(b)) {
			if strings.HasPrefix(text, "[subagent:") {
				s.ledger.Shown(name, strings.TrimSuffix(text, "\n"))
			}
		}
	}
}

// commands compares what commands say they did with the log: each ran only while it
// was wanted, not more often than it was begun, and whole if it is complete.
func (s *site) commands(h *oracle.History) {
	s.Helper()
	type execution struct {
		claims, begins, ends int
		kind                 string
		complete             bool
		end                  time.Time
	}
	all := make(map[string]*execution)
	of := func(run, exec string) *execution {
		key := subjects.Escape(run) + "/" + subjects.Escape(exec)
		if all[key] == nil {
			all[key] = &execution{}
		}
		return all[key]
	}
	for _, e := range h.Events {
		if e.Event == nil || e.Event.ExecID == "" {
			continue
		}
		x := of(e.RunID, e.Event.ExecID)
		switch p := e.Event.Payload.(type) {
		case *wire.ExecStart:
			x.claims++
		case *wire.NodeStart:
			x.kind = p.NodeType
		case *wire.NodeComplete:
			x.complete, x.end = true, e.Time
		case *wire.NodeError:
			x.end = e.Time
		}
	}
	lines, _ := s.Ledger("exec")
	for _, line := range lines {
		x := all[line.ID]
		switch {
		case x == nil:
			s.Errorf("the command of %s ran, which nobody scheduled", line.ID)
		case line.What == "end":
			x.ends++
		default:
			if x.begins++; !x.end.IsZero() && line.At.After(x.end) {
				s.Errorf("the command of %s began again after its end was stored: at %s, stored at %s", line.ID, line.At, x.end)
			}
		}
	}
	for key, x := range all {
		if x.kind == "exec" && x.complete && (x.begins == 0 || x.ends == 0) {
			s.Errorf("the command of %s is complete, and began %d times and ended %d times", key, x.begins, x.ends)
		}
	}
}

// report says what was done, and what came of it.
func (s *site) report(v verdict, n *nemesis, l *load) {
	s.Helper()
	kinds := make(map[string]int)
	total := 0
	for _, x := range n.done {
		if x.kind != "" {
			kinds[x.kind]++
			total++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s of faults, disks %t: %d faults, %d violations\n", s.Seed, *durationFlag, lab.Mountable(), total, s.Violations())
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(&b, "  %4d  %s\n", kinds[kind], kind)
	}
	fmt.Fprintf(&b, "streams that had lost their leader and were made anew: %d %v\n", len(n.remade), n.remade)
	fmt.Fprintf(&b, "runners were killed at: %s\n", tallied(n.events))
	events, commands := s.witness.counts()
	fmt.Fprintf(&b, "log: %d events (%d seen acknowledged), %d runs, %d forks, %d executions, %d tool calls, %d commands (%d seen acknowledged), %d alerts, %d bookmarks, %d dead letters\n",
		v.Events, events, v.Runs, v.Forks, v.Executions, v.Work, v.Commands, commands, v.Alerts, v.Bookmarks, v.DeadLetters)
	fmt.Fprintf(&b, "verbs: %s; failed: %s; decisions about interrupted nodes: %d\n", tallied(l.commands), tallied(l.failed), l.reruns)
	owners, workers := takeovers(v.history, n.done)
	fmt.Fprintf(&b, "takeover of a run %s\ntakeover of a node %s\n", spread(owners), spread(workers))
	for _, x := range append(owners, workers...) {
		if x.took > slow {
			fmt.Fprintf(&b, "  %s/%s lost its runner at %.1fs and had the next one %s later: %s\n", x.run, x.node, x.from.Sub(s.Began()).Seconds(), x.took.Round(time.Millisecond), strings.Join(n.during(x.from, x.from.Add(x.took)), ", "))
		}
	}
	fmt.Fprintf(&b, "events by minute: %v\n", s.byMinute(v.history))
	stall, at := longestStall(v.history)
	fmt.Fprintf(&b, "longest time without an event: %s, from %.1fs on: %s\n", stall.Round(time.Millisecond), at.Sub(s.Began()).Seconds(), strings.Join(n.during(at, at.Add(stall)), ", "))
	for _, u := range s.units {
		fmt.Fprintf(&b, "%s: started %d times%s\n", u.name, u.starts, cmp.Or(strings.Join(append([]string{""}, u.exits...), "\n    ended by itself: "), ""))
	}
	s.Log(b.String())
}

func tallied(counts map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d %s", counts[k], k))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// takeover is how long it took until another runner, or its next process, claimed
// what a runner held that was killed or stood still.
type takeover struct {
	run, node string
	from      time.Time
	took      time.Duration
}

// inFlight is how long events of a runner that was killed may still arrive. One
// that writes later than that without a claim has kept what it held.
const inFlight = 2 * time.Second

func takeovers(h *oracle.History, strikes []strike) (owners, workers []takeover) {
	for _, x := range strikes {
		if x.runner == "" {
			continue
		}
		held := make(map[[2]string]string) // run, node → runner
		for _, e := range h.Events {
			if e.Event == nil {
				continue
			}
			key, who := [2]string{e.RunID, e.NodeID}, lab.Claimant(e.Event)
			switch {
			case !e.Time.After(x.from):
				if who != "" {
					held[key] = who
				}
			case held[key] != x.runner:
			case who == "" && e.Time.After(x.from.Add(inFlight)):
				delete(held, key)
			case who != "":
				delete(held, key)
				t := takeover{e.RunID, e.NodeID, x.from, e.Time.Sub(x.from)}
				if e.NodeID == wire.RunNode {
					owners = append(owners, t)
				} else {
					workers = append(workers, t)
				}
			}
			over(held, e)
		}
	}
	return owners, workers
}

// over forgets the holders of what has ended or waits for a person.
func over(held map[[2]string]string, e eventlog.Entry) {
	switch e.Event.Payload.(type) {
	case *wire.NodeComplete, *wire.NodeError:
		delete(held, [2]string{e.RunID, e.Event.Node()})
	case *wire.FlowComplete, *wire.FlowAborted, *wire.FlowPaused:
		maps.DeleteFunc(held, func(key [2]string, _ string) bool { return key[0] == e.RunID })
	}
}

// slow is what a takeover takes that is told of by itself.
const slow = 25 * time.Second

// byMinute counts the events of each minute of the test.
func (s *site) byMinute(h *oracle.History) (counts []int) {
	for _, e := range h.Events {
		minute := int(e.Time.Sub(s.Began()).Minutes())
		for len(counts) <= minute {
			counts = append(counts, 0)
		}
		counts[minute]++
	}
	return counts
}

// longestStall returns the longest time between two events, and when it began.
func longestStall(h *oracle.History) (longest time.Duration, at time.Time) {
	for i := 1; i < len(h.Events); i++ {
		if d := h.Events[i].Time.Sub(h.Events[i-1].Time); d > longest {
			longest, at = d, h.Events[i-1].Time
		}
	}
	return longest, at
}

// during lists what went on at a time.
func (n *nemesis) during(from, to time.Time) (kinds []string) {
	for _, x := range n.done {
		if x.kind != "" && x.from.Before(to) && x.to.After(from) {
			kinds = append(kinds, x.kind)
		}
	}
	return kinds
}

// spread is min/median/p99/max.
func spread(all []takeover) string {
	if len(all) == 0 {
		return "–"
	}
	d := make([]time.Duration, len(all))
	for i, x := range all {
		d[i] = x.took
	}
	slices.Sort(d)
	at := func(q float64) time.Duration { return d[int(q*float64(len(d)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%s/%s/%s/%s (min/median/p99/max of %d)", at(0), at(0.5), at(0.99), at(1), len(d))
}
