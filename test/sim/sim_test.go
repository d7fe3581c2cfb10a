//go:build linux

// The simulation: each seed is a world of its own in which runs, commands and faults
// follow from the seed, on fake time; package oracle judges what is left of it. The
// order in which goroutines run isn't the seed's, so a failing one may need a few
// tries to fail again.
//
//	go test ./test/sim                      some dozens of seeds
//	go test ./test/sim -v -args -seed 7     one of them, with its history
//	make sim SEEDS=10000                    many
package sim_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	programs "code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/test/oracle"
)

var (
	oneSeed = flag.Uint64("seed", 0, "play this `seed` only, and print its history")
	again   = flag.Int("again", 1, "play each seed so `many` times")
	seeds   = flag.Uint64("seeds", 0, "play so `many` seeds: 16, or 6 with -short")
	from    = flag.Uint64("from", 1, "the first `seed`")
	procs   = flag.Int("procs", 1, "processors to use: with more of them, goroutines meet in more ways")
	workers = flag.Int("workers", 1, "play in so `many` processes, and print every ten seconds how far they are")
	kept    = flag.Bool("keepers", false, "have worlds be about keepers, as in TestKeepers")
	tooLong = flag.Duration("still", 20*time.Second, "give a seed up that takes so `long`, of real time: its time has stopped, or the machine does much else")
	tallied = flag.Bool("tallied", false, "be one of these processes: print the tally as JSON")
)

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(*procs)
	// The server and SQLite sync their files, which nothing here needs: no machine dies.
	if info, err := os.Stat(memoryDisk); err == nil && info.IsDir() && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", memoryDisk) // else it is slower
	}
	// Deadlines are of the bubbles' time.
	programs.SetClock(func() time.Duration { return time.Duration(time.Now().UnixNano()) })
	natstest.Main(m)
}

// memoryDisk is a folder that no disk is behind, on Linux.
const memoryDisk = "/dev/shm"

func TestSim(t *testing.T) {
	first, count, verbose := *from, *seeds, false
	switch {
	case *oneSeed != 0:
		first, count, verbose = *oneSeed, 1, true
	case count == 0 && testing.Short():
		count = 4
	case count == 0:
		count = 16
	}
	if !*tallied && !verbose {
		farm(t, first, count)
		return
	}
	total := tally{Faults: map[string]int{}, began: time.Now()}
	for seed := first; seed < first+count; seed++ {
		for range *again {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { total.play(t, seed, verbose) })
		}
		if *tallied { // now, since the next one may end the process
			total.print()
		}
	}
	if *tallied {
		return
	}
	t.Log(total.String())
}

// TestKeepers plays worlds that are about keepers. They are few, and yet enough to notice that a rule of them is
// switched off: see test/mutants. The race detector, for which that is none, has two of them.
func TestKeepers(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 69, 69, 69, 69} // of 69, three plays of four notice a mark of another journal
	if testing.Short() {
		seeds = []uint64{1, 69}
	}
	for _, seed := range seeds {
		if t.Failed() {
			return
		}
		natstest.Bubble(t, func(t *testing.T) {
			w := newWorld(t, seed, false)
			w.keepers = true
			report := w.play()
			for _, v := range report.Violations {
				t.Errorf("seed %d: %.500s", seed, v)
			}
		})
	}
}

// tally adds up what was played.
type tally struct {
	Seeds, Failed, Frozen int
	Parked, Woken         int
	Still                 []uint64 // those that stood still
	Fake                  time.Duration
	Faults                map[string]int
	Sum                   oracle.Report

	began time.Time
}

// exitFrozen is the exit code of a process whose last seed stood still.
const exitFrozen = 3

// frozen gives a seed up whose time has stopped: a goroutine of the client or the
// server waits for a lock whose holder waits for time to pass, which it doesn't as
// long as a goroutine waits for a lock. Outside of a bubble nothing stands still then.
func (s *tally) frozen(seed uint64) {
	if !*tallied {
		panic(fmt.Sprintf("seed %d stands still", seed))
	}
	s.Frozen++
	s.Still = append(s.Still, seed)
	s.print()
	os.Exit(exitFrozen)
}

// play plays a seed in a world of its own.
func (s *tally) play(t *testing.T, seed uint64, verbose bool) {
	t.Helper()
	// Outside of the bubble: its time stops for ever if a goroutine sleeps under a lock.
	watch := time.AfterFunc(*tooLong, func() { s.frozen(seed) })
	defer watch.Stop()
	defer func() { // a bubble that fails doesn't come back
		if s.Seeds++; t.Failed() {
			s.Failed++
		}
	}()
	natstest.Bubble(t, func(t *testing.T) {
		w := newWorld(t, seed, verbose)
		w.keepers = *kept
		report := w.play()
		for _, v := range report.Violations {
			t.Errorf("%.2000s", v)
		}
		s.add(w, report)
		switch {
		case verbose:
			t.Logf("history:\n%s\n%+v", w.tail(1<<20), report)
		case t.Failed():
			t.Logf("faults: %v\nhistory:\n%s\nagain: go test ./test/sim -v -args -seed %d", w.faults, w.tail(100), seed)
		}
	})
}

func (s *tally) add(w *world, r oracle.Report) {
	r.Violations = nil // they are on record
	parked, woken := w.parked()
	s.merge(tally{Parked: parked, Woken: woken, Fake: time.Since(w.start), Faults: w.faults, Sum: r})
}

// merge adds another tally.
func (s *tally) merge(o tally) {
	s.Seeds, s.Failed, s.Frozen = s.Seeds+o.Seeds, s.Failed+o.Failed, s.Frozen+o.Frozen
	s.Still = append(s.Still, o.Still...)
	s.Parked, s.Woken = s.Parked+o.Parked, s.Woken+o.Woken
	s.Fake += o.Fake
	for kind, n := range o.Faults {
		s.Faults[kind] += n
	}
	sum, r := &s.Sum, o.Sum
	sum.Events += r.Events
	sum.Acknowledged += r.Acknowledged
	sum.Runs += r.Runs
	sum.Forks += r.Forks
	sum.Executions += r.Executions
	sum.Resumed += r.Resumed
	sum.Bookmarks += r.Bookmarks
	sum.Alerts += r.Alerts
	sum.Commands += r.Commands
	sum.DeadLetters += r.DeadLetters
	sum.Work += r.Work
	sum.Ran += r.Ran
	sum.Agents += r.Agents
	sum.Attached += r.Attached
	sum.Said += r.Said
	sum.Delivered += r.Delivered
	sum.Again += r.Again
	sum.GivenUp += r.GivenUp
	sum.Told += r.Told
	sum.Notices += r.Notices
	sum.Folders += r.Folders
	sum.Restored += r.Restored
	sum.Found += r.Found
}

// print writes the tally for the process that farms the seeds out.
func (s *tally) print() {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	fmt.Printf("\n%s%s\n", tallyMark, b)
}

// tallyMark begins the line of a tally.
const tallyMark = "tally: "

func (s *tally) line() string {
	return fmt.Sprintf("%d seeds, %d failed, %d stood still, %.1f seeds/s, %.1f h of fake time",
		s.Seeds, s.Failed, s.Frozen, float64(s.Seeds)/time.Since(s.began).Seconds(), s.Fake.Hours())
}

// String returns all that was added up.
func (s *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", s.line())
	if s.Failed == 0 {
		fmt.Fprintf(&b, "0 violations in %d seeds: p < %.2g at 95 %%\n", s.Seeds, 3/float64(max(s.Seeds, 1)))
	}
	if len(s.Still) > 0 {
		fmt.Fprintf(&b, "stood still: %v\n", s.Still)
	}
	kinds := make([]string, 0, len(s.Faults))
	total := 0
	for kind, n := range s.Faults {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, n))
		total += n
	}
	slices.Sort(kinds)
	fmt.Fprintf(&b, "%d faults: %s\n", total, strings.Join(kinds, ", "))
	fmt.Fprintf(&b, "runs were parked %d times, and %d times woken\n", s.Parked, s.Woken)
	r := s.Sum
	fmt.Fprintf(&b, "%d runs (%d forks), %d executions, %d of them went on elsewhere, %d agents (%d times somebody else attached; they said %d things), %d tool calls, %d commands run, %d events (%d acknowledged), %d commands, %d messages told (%d of them notices), %d bookmarks, %d alerts, %d notifications (%d of them came again, %d were given up), %d dead letters, %d snapshots of folders (%d were restored elsewhere, and %d restored ones compared as agents found them)",
		r.Runs, r.Forks, r.Executions, r.Resumed, r.Agents, r.Attached, r.Said, r.Work, r.Ran, r.Events, r.Acknowledged, r.Commands, r.Told, r.Notices, r.Bookmarks, r.Alerts, r.Delivered, r.Again, r.GivenUp, r.DeadLetters, r.Folders, r.Restored, r.Found)
	return b.String()
}
