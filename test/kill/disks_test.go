//go:build kill && disks

package kill_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/test/lab"
)

// diskLab is newLab with a folder on a disk of its own.
func diskLab(t *testing.T, name, size string) *bench {
	t.Helper()
	if !lab.Mountable() {
		t.Fatal("disks of their own need root")
	}
	return newLabOf(t, lab.Config{TTL: 4 * time.Second, Limit: 8 * time.Minute, Disks: map[string]string{name: size}})
}

// TestDiskOfLogIsFull is TestLogIsFull with a disk that has no room. A server whose disk was full doesn't go on by itself:
// it is started again when there is room.
func TestDiskOfLogIsFull(t *testing.T) {
	l := diskLab(t, "nats", "128M")
	l.full(func() { l.Must(l.Disks["nats"].Fill()) }, func() {
		l.Must(l.Disks["nats"].Free())
		l.RestartServer()
	})
}

// TestDiskOfRecorderIsFull fills the disk of the recorder's store, empties it and fills it again, while agents are at
// work: none is held up. Afterwards the recorder has all events.
func TestDiskOfRecorderIsFull(t *testing.T) {
	l := diskLab(t, "recorder", "32M")
	l.work("many", 40)
	before, disk := l.agents(), l.Disks["recorder"]
	for range 2 {
		l.Must(disk.Fill())
		l.Until("doctor says that the recorder's disk is full", 2*time.Minute, func() bool {
			out, _ := l.Try("doctor", "--json") // it fails as long as a part does
			return strings.Contains(out, "disk is full")
		})
		full := time.Now()
		l.Until("every agent has made three calls more", time.Minute, func() bool { return l.slowest(full) >= 3 })
		if now := l.agents(); !slices.Equal(now, before) || slices.ContainsFunc(now, frozen) {
			l.Errorf("the agents were %v, and are %v while the recorder's disk is full", before, now)
		}
		if v, ok := l.record(); ok && v.Position.Seq >= l.Last() {
			l.Error("the recorder has everything: its disk wasn't full")
		}
		l.Must(disk.Free())
		room := time.Now()
		l.Until("the recorder has what it has missed", time.Minute, func() bool {
			last := l.Last()
			v, ok := l.record()
			return ok && v.Position.Seq >= last && len(v.Damages) == 0
		})
		l.Logf("full for %s, %s later the recorder had everything", room.Sub(full).Round(time.Millisecond), time.Since(room).Round(time.Millisecond))
	}
	steps := l.unhurt("many", time.Now(), time.Time{})
	v, ok := l.record()
	if !ok || len(v.Damages) > 0 || v.Void+v.Gaps > 0 {
		l.Errorf("the record: %+v", v)
	}
	l.Logf("%d steps of %d agents, %d events", steps, len(before), v.Events)
}

// TestDiskOfRunnerIsFull fills the disk of a runner's journals just before nodes begin: they wait for room, and one that is
// cancelled meanwhile doesn't begin.
func TestDiskOfRunnerIsFull(t *testing.T) {
	l := diskLab(t, "r1", "48M")
	l.Ready(l.Runner("r1", false))
	l.Flow("warm", "name: warm\nnodes:\n  - {id: a, type: exec, input: {command: \"true\"}}\n")
	l.Reach("warm", time.Minute, wire.RunComplete)
	l.Must(l.Disks["r1"].Fill())
	mark := func(id string) string { return filepath.Join(l.Dir, "mark-"+id) }
	command := func(id string) string {
		return fmt.Sprintf("name: %[1]s\nnodes:\n  - {id: a, type: exec, input: {command: \"echo begun >> %[2]s\"}}\n", id, mark(id))
	}
	l.Flow("command", command("command"))
	l.Flow("agent", "name: agent\nnodes:\n  - id: a\n    type: agent\n    input: {provider: claude, prompt: \"Do it. calls=2 ms=10 ledger={{ state.ledger }}\"}\n")
	l.Flow("cancelled", command("cancelled"))
	for _, id := range l.Runs[1:] {
		l.Await(id, 0, time.Minute, "its node begins", lab.OfType(wire.TypeNodeStart, "a"))
	}
	l.Until("doctor says that a node waits", time.Minute, func() bool {
		out, _ := l.Try("doctor", "--json") // it fails as long as a part does
		return strings.Contains(out, "no space left")
	})
	l.Wake("abort", "cancelled")
	l.Reach("cancelled", time.Minute, wire.RunAborted)
	l.Must(l.Disks["r1"].Free())
	for id, want := range map[string]string{"command": "begun\n", "agent": "", "cancelled": ""} {
		if id != "cancelled" {
			l.Reach(id, time.Minute, wire.RunComplete)
		}
		if got, _ := os.ReadFile(mark(id)); string(got) != want {
			l.Errorf("%s: %q, not %q", id, got, want)
		}
	}
}

// slowest is how many calls the agent has begun since then that has begun the fewest.
func (l *bench) slowest(since time.Time) int {
	l.Helper()
	lines, _ := l.Ledger("tools")
	calls := make(map[string]int)
	for _, x := range lines {
		calls[x.Who] += 0
		if x.What == "begin" && x.At.After(since) {
			calls[x.Who]++
		}
	}
	least := -1
	for _, n := range calls {
		if least < 0 || n < least {
			least = n
		}
	}
	return least
}

// record is what the recorder's store says, compared with the stream, if it can be read.
func (l *bench) record() (v recorder.Verification, ok bool) {
	l.Helper()
	out, err := l.Try("verify", "--all", "--against-stream", "--json", "--store", filepath.Join(l.Dir, "recorder", "recorder.db"))
	return v, err == nil && json.Unmarshal([]byte(out), &v) == nil
}

// TestDiskOfFoldersIsFull fills the disk of the folders of runs before a fork: its folder isn't restored by half, the fork waits for room,
// and goes on in the folder as of its point when there is some.
func TestDiskOfFoldersIsFull(t *testing.T) {
	l := diskLab(t, "workspaces", "48M")
	l.Ready(l.Runner("r1", false))
	l.Flow("parent", `
name: large
nodes:
  - {id: a, type: exec, input: {command: "for i in 1 2 3 4 5 6; do head -c 2000000 /dev/urandom > f$i; done"}}
  - {id: b, type: exec, input: {command: "cat f* | sha256sum"}}
edges: [{from: a, to: b}]
`)
	sum := func(s *wire.State) string {
		text := s.Outputs["b"].TextAt("stdout")
		return text
	}
	want := sum(l.Reach("parent", time.Minute, wire.RunComplete))
	l.Must(l.Disks["workspaces"].Fill())
	l.Wake("fork", "parent", "--at", "a#1:end", "--id", "fork")
	l.Runs = append(l.Runs, "fork")
	l.Until("the fork has been tried twice", time.Minute, func() bool {
		claims := 0
		for _, e := range l.Stored("fork") {
			if e.E.Type() == wire.TypeRunClaimed {
				claims++
			}
		}
		return claims > 1
	})
	found, err := filepath.Glob(filepath.Join(l.Dir, "workspaces", "*fork*"))
	l.Must(err)
	if len(found) > 0 {
		l.Errorf("restored by half: %v", found)
	}
	l.Must(l.Disks["workspaces"].Free())
	if got := sum(l.Reach("fork", time.Minute, wire.RunComplete)); got != want || got == "" {
		l.Errorf("the fork has %q, its parent %q", got, want)
	}
	if left, err := filepath.Glob(filepath.Join(l.Dir, "workspaces", ".restore-*")); err != nil || len(left) > 0 {
		l.Errorf("left behind: %v, %v", left, err)
	}
}
