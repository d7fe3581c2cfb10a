package keeper_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

// grouped opens a keeper whose tree has control groups, or skips the test where none can be had.
func grouped(t *testing.T, fence keeper.Fence, has func(keeper.Groups) bool, change ...func(*keeper.Config)) *bench {
	t.Helper()
	groups := keeper.ProbeGroups(t.Context(), fence)
	if !has(groups) {
		t.Skipf("control groups of this host: %+v", groups)
	}
	return open(t, fence, append(change, func(c *keeper.Config) { c.Groups = groups })...)
}

func hasTree(g keeper.Groups) bool   { return g.Tree != "" }
func hasMemory(g keeper.Groups) bool { return g.Memory != "" }

// TestGroupEnds shows that what has left its session, its parent and its environment ends with its program.
func TestGroupEnds(t *testing.T) {
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := grouped(t, fence, hasTree)
		p := b.start(process.Config{KeepStderr: true, Argv: []string{"/bin/sh", "-c", `
			env -i DIR="$DIR" setsid sh -c 'while :; do echo >> "$DIR/escaped"; sleep 0.01; done' >/dev/null 2>&1 &
			while ! [ -s "$DIR/escaped" ]; do sleep 0.01; done`}})
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.End(0); err != nil {
			t.Fatal(err)
		}
		if !b.rests("escaped") {
			t.Error("what has escaped goes on")
		}
		if left := leftGroups(t, b); len(left) != 1 { // the keeper's own
			t.Errorf("groups that are left: %v", left)
		}
		if err := b.keeper.Quit(0); err != nil {
			t.Fatal(err)
		}
		if left := leftGroups(t, b); len(left) != 0 {
			t.Errorf("groups that are left behind the keeper: %v", left)
		}
	})
}

// leftGroups returns the folders of the keeper's group.
func leftGroups(t *testing.T, b *bench) (found []string) {
	t.Helper()
	name, err := os.ReadFile(filepath.Join(b.config.Dir, "group"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{b.config.Groups.Tree, b.config.Groups.Memory} {
		own := filepath.Join(dir, string(name))
		all, err := filepath.Glob(own + "/program-*")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(own); err == nil && dir == b.config.Groups.Tree {
			all = append(all, own)
		}
		found = append(found, all...)
	}
	return found
}

// TestGroupFreezes shows that a tree is frozen without anybody in it being told: what it has stopped itself stays
// stopped when it goes on.
func TestGroupFreezes(t *testing.T) {
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := grouped(t, fence, hasTree)
		p := b.start(process.Config{KeepStderr: true, Argv: []string{"/bin/sh", "-c", `
			sh -c 'kill -STOP $$; echo >> "$DIR/continued"' &
			while :; do echo >> "$DIR/beat"; sleep 0.01; done`}})
		b.until("it is at work", func() bool { return b.mark("beat") != "" && stopped(t, p.Pid()) })
		now := process.Uptime()
		if err := b.keeper.Extend(now+10*time.Millisecond, now+time.Minute); err != nil {
			t.Fatal(err)
		}
		b.until("it is frozen", func() bool { return b.rests("beat") })
		if state := stateOf(t, p.Pid()); state == 'T' {
			t.Error("it was stopped by a signal")
		}
		if err := b.keeper.Extend(process.Uptime()+time.Minute, process.Uptime()+2*time.Minute); err != nil {
			t.Fatal(err)
		}
		before := b.mark("beat")
		b.until("it goes on", func() bool { return len(b.mark("beat")) > len(before)+5 })
		if b.mark("continued") != "" {
			t.Error("what the program had stopped itself goes on")
		}
	})
}

func stateOf(t *testing.T, pid int) byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return b[bytes.LastIndexByte(b, ')')+2]
}

// stopped reports whether a child of a process has been stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	entries, err := process.Table()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range process.Descendants(entries, pid) {
		if e.State == 'T' {
			return true
		}
	}
	return false
}

// TestGroupOutlivesKeeper shows that what has outlived a keeper whose watchdogs were both killed at once is
// ended by the next process.
func TestGroupOutlivesKeeper(t *testing.T) {
	t.Parallel()
	if groups := keeper.ProbeGroups(t.Context(), keeper.Watchdogs); !hasTree(groups) {
		t.Skipf("control groups of this host: %+v", groups)
	}
	shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: t.TempDir(), Fence: keeper.Watchdogs})
	if err != nil {
		t.Fatal(err)
	}
	now := process.Uptime()
	label := keeper.Label{Run: "r", Node: "n", Exec: "n#1"}
	k, err := shelf.Open(t.Context(), label, 0, now+time.Minute, now+2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, marks: t.TempDir(), keeper: k}
	// It isn't the guard's child, which would take it along.
	_ = b.start(process.Config{KeepStderr: true, Argv: []string{
		"/bin/sh", "-c", `setsid sh -c 'while :; do echo >> "$DIR/beat"; sleep 0.01; done' >/dev/null 2>&1 & wait`,
	}})
	b.until("it is at work", func() bool { return b.mark("beat") != "" })
	entries, err := process.Table()
	if err != nil {
		t.Fatal(err)
	}
	guard := 0
	for _, e := range entries {
		if e.Parent == k.Pid() {
			guard = e.Pid
		}
	}
	for _, pid := range []int{k.Pid(), guard} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{k.Pid(), guard} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	<-k.Gone()
	beaten := b.mark("beat")
	b.until("it has outlived its keeper", func() bool { return b.mark("beat") != beaten })
	if _, err := shelf.Tail(label); err != nil {
		t.Fatal(err)
	}
	if !b.rests("beat") {
		t.Error("what has outlived its keeper goes on beside what comes next")
	}
	if err := shelf.Remove(label); err != nil {
		t.Fatal(err)
	}
}

// TestGroupOfRemovedFolder shows that a keeper that lives on although its folder was removed freezes nothing of the keeper
// that is opened in a new folder of that path.
func TestGroupOfRemovedFolder(t *testing.T) {
	t.Parallel()
	if groups := keeper.ProbeGroups(t.Context(), keeper.Watchdogs); !hasTree(groups) {
		t.Skipf("control groups of this host: %+v", groups)
	}
	dir := filepath.Join(t.TempDir(), "shelf")
	label := keeper.Label{Run: "r", Node: "n", Exec: "n#1"}
	openKeeper := func() *bench {
		shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: dir, Fence: keeper.Watchdogs})
		if err != nil {
			t.Fatal(err)
		}
		now := process.Uptime()
		k, err := shelf.Open(t.Context(), label, 0, now+time.Minute, now+2*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Quit(0) })
		b := &bench{T: t, marks: t.TempDir(), keeper: k}
		_ = b.start(process.Config{KeepStderr: true, Argv: []string{"/bin/sh", "-c", `while :; do echo >> "$DIR/beat"; sleep 0.01; done`}})
		b.until("it is at work", func() bool { return b.mark("beat") != "" })
		return b
	}
	former := openKeeper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	next := openKeeper()
	now := process.Uptime()
	if err := former.keeper.Extend(now+time.Millisecond, now+time.Minute); err != nil {
		t.Fatal(err)
	}
	former.until("it is frozen", func() bool { return former.rests("beat") })
	if next.rests("beat") {
		t.Error("it has frozen the next keeper's programs")
	}
	if err := former.keeper.Quit(0); err != nil {
		t.Fatal(err)
	}
	if next.rests("beat") {
		t.Error("it has ended the next keeper's programs")
	}
}

// TestMemory shows that a program that wants more than its bound is ended, and its exit says why; others' exits don't.
func TestMemory(t *testing.T) {
	const bound = 48 << 20
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := grouped(t, fence, hasMemory, func(c *keeper.Config) { c.Memory = bound })
		run := func(command string) process.Exit {
			p := b.start(process.Config{KeepStderr: true, Argv: []string{"/bin/sh", "-c", command}})
			exit, err := p.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := p.End(0); err != nil {
				t.Fatal(err)
			}
			if age := time.Since(time.UnixMilli(exit.At)); age < 0 || age > time.Minute {
				t.Errorf("it ended at %d", exit.At)
			}
			exit.At = 0
			return exit
		}
		if diff := cmp.Diff(process.Exit{Code: 3}, run("exit 3")); diff != "" {
			t.Errorf("another exit (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(process.Exit{Code: 137, Memory: bound}, run("head -c 300000000 /dev/zero | tail -c 299999999 >/dev/null; exit 137")); diff != "" {
			t.Errorf("one that wants more (-want +got):\n%s", diff)
		}
		other := b.start(process.Config{KeepStderr: true, Argv: []string{"/bin/sh", "-c", `while ! [ -e "$DIR/over" ]; do sleep 0.01; done`}})
		if diff := cmp.Diff(process.Exit{Memory: bound}, run("head -c 300000000 /dev/zero | tail -c 299999999 | cat >/dev/null")); diff != "" {
			t.Errorf("one of which a part wants more (-want +got):\n%s", diff)
		}
		if err := os.WriteFile(filepath.Join(b.marks, "over"), nil, 0o600); err != nil { // not before: of two that end at once either may be blamed
			t.Fatal(err)
		}
		if exit, err := other.Wait(t.Context()); err != nil || exit != (process.Exit{At: exit.At}) {
			t.Errorf("one beside it: %+v, %v", exit, err)
		}
		if diff := cmp.Diff(process.Exit{Code: 4}, run("exit 4")); diff != "" {
			t.Errorf("one after it (-want +got):\n%s", diff)
		}
	})
}

// TestUnbounded shows that a keeper doesn't begin if a bound can't be kept.
func TestUnbounded(t *testing.T) {
	t.Parallel()
	now := process.Uptime()
	_, err := keeper.Open(t.Context(), keeper.Config{
		Dir: filepath.Join(t.TempDir(), "keeper"), Fence: keeper.Watchdogs, Memory: 1 << 30, Freeze: now + time.Minute, Kill: now + time.Minute,
	})
	if err == nil || !strings.Contains(err.Error(), keeper.ErrUnbounded.Error()) {
		t.Errorf("the error is %v", err)
	}
}
