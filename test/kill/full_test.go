//go:build kill

package kill_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// TestLogIsFull fills the store of the log while agents are at work, up to a limit of the server: nobody can write, so
// leases can't be renewed. The agents are frozen, and when there is room again they go on, in the same processes.
func TestLogIsFull(t *testing.T) {
	const limit = 64 << 20
	l := newLabOf(t, lab.Config{TTL: 4 * time.Second, Limit: 6 * time.Minute, Store: fmt.Sprint(limit)})
	l.full(func() { l.load(limit) }, func() { l.Must(l.JS.DeleteStream(l.Ctx, ballast)) })
}

// fleet is how many agents are at work.
const fleet = 4

// full has agents work, fills the log's store, and makes room again. That costs the agents the time and nothing else.
func (l *bench) full(fill, free func()) {
	l.Helper()
	l.work("many", 12)
	before := l.agents()
	fill()
	full := time.Now()
	l.Tell("the store is full")
	l.Until("all agents are frozen", 3*l.TTL, func() bool {
		return !slices.ContainsFunc(before, func(pid int) bool { return !frozen(pid) })
	})
	<-time.After(3 * l.TTL)
	for _, pid := range before {
		if !frozen(pid) {
			l.Errorf("agent %d is not frozen, %s after the store was full", pid, time.Since(full))
		}
	}
	if now := l.agents(); !slices.Equal(now, before) {
		l.Errorf("the agents were %v, and are %v while the store is full", before, now)
	}
	room := time.Now()
	free()
	l.Tell("there is room again")
	l.Until("all agents go on", time.Minute, func() bool { return !slices.ContainsFunc(before, frozen) })
	thawed := time.Now()
	if now := l.agents(); !slices.Equal(now, before) {
		l.Errorf("the agents were %v, and are %v after there was room", before, now)
	}
	steps := l.unhurt("many", full.Add(l.TTL), room)
	l.Logf("%d agents, full for %s, went on %s after there was room; %d steps in all", len(before), room.Sub(full).Round(time.Millisecond),
		thawed.Sub(room).Round(time.Millisecond), steps)
}

// work starts a run of agents that each make so many calls, on a runner beside which another one could take them, and returns
// when all are at work.
func (l *bench) work(run string, calls int) {
	l.Helper()
	l.Runner("r1", false, "--max-agents", fmt.Sprint(fleet))
	var src strings.Builder
	src.WriteString("name: many\nworkspace: shared\nnodes:")
	for i := range fleet {
		fmt.Fprintf(&src, "\n  - id: agent%d\n    type: agent\n    input: {provider: claude, prompt: \"Do it. calls=%d ms=%d ledger={{ state.ledger }}\"}", i, calls, 700+80*i)
	}
	l.Flow(run, src.String()+"\n")
	for i := range fleet {
		node := fmt.Sprintf("agent%d", i)
		l.Await(run, 0, time.Minute, node+" works", lab.OfType(wire.TypeToolIntent, node))
	}
	l.Ready(l.Runner("r2", false, "--max-agents", fmt.Sprint(fleet)))
}

// unhurt checks that a run ends as if nothing had happened, and that its agents did nothing between two times. It returns
// how many calls were begun and ended.
func (l *bench) unhurt(run string, from, to time.Time) (steps int) {
	l.Helper()
	l.Reach(run, 4*time.Minute, wire.RunComplete)
	a := l.Check(run)
	a.Completed("complete")
	if a.Sealed+a.Resumed+a.Flows > 0 || a.Owners != 1 {
		l.Errorf("%d calls sealed, %d agents and %d times the run resumed, %d owners", a.Sealed, a.Resumed, a.Flows, a.Owners)
	}
	for _, e := range a.Execs {
		if e.Claims != 1 {
			l.Errorf("%s was claimed %d times, by %v", e.ID, e.Claims, e.Runners)
		}
	}
	lines, notes := l.Ledger("tools")
	if len(notes) > 0 {
		l.Errorf("tools: %v", notes)
	}
	for _, x := range lines {
		if x.At.After(from) && x.At.Before(to) {
			l.Errorf("%s of %s %d, %s after nobody could prove any more whose it is", x.What, x.Who, x.N, x.At.Sub(from))
		}
	}
	return len(lines)
}

// frozen reports whether a process stands still: it was stopped, or its group is frozen.
func frozen(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	if _, rest, _ := bytes.Cut(b, []byte(") ")); len(rest) > 0 && rest[0] == 'T' {
		return true
	}
	events, err := os.ReadFile(filepath.Join(unified(), group(pid), "cgroup.events"))
	return err == nil && bytes.Contains(events, []byte("frozen 1"))
}

// group is the group of cgroup v2 that a process is in. Where there is v1, too, its groups stand in other lines.
func group(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // of one that is gone: none
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}

// unified is where cgroup v2 is mounted: at its usual place, or beside v1.
func unified() string {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" { // device, folder, type
			return f[1]
		}
	}
	return ""
}

// ballast is a stream that takes the room of others.
const ballast = "BALLAST"

// load fills the server's store beyond its limit, so far that what ages out meanwhile makes no room.
func (l *bench) load(limit uint64) {
	l.Helper()
	_, err := l.JS.CreateStream(l.Ctx, jetstream.StreamConfig{Name: ballast, Subjects: []string{"ballast"}})
	l.Must(err)
	const piece = 512 << 10
	for {
		info, err := l.JS.AccountInfo(l.Ctx)
		l.Must(err)
		size := piece
		if info.Store+piece > limit {
			size = 900 << 10
		}
		_, err = l.JS.Publish(l.Ctx, "ballast", make([]byte, size))
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
			l.Tell("the server takes no more: %v", refused)
			return
		}
		l.Must(err)
	}
}
