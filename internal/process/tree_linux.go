package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// look is how long to wait before looking again whether processes are gone.
const look = 10 * time.Millisecond

// stubborn is how long to go on killing.
const stubborn = 5 * time.Second

// startAttributes gives a program a session of its own: a tree is told by its
// sessions too, and the session of this program isn't one of them.
func startAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func exitOf(state *os.ProcessState, err error) Exit {
	if state == nil {
		return Exit{Code: -1, Signal: fmt.Sprint(err)}
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Exit{Code: -1, Signal: strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")}
	}
	return Exit{Code: state.ExitCode()}
}

// processEntry is a row of the process table. A process is told by its pid and the
// time it started: pids are reused.
type processEntry struct {
	id
	parent, group, session int
	zombie                 bool
	state                  byte
}

type id struct {
	pid   int
	start uint64 // clock ticks since boot
}

func readTable() ([]processEntry, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var entries []processEntry
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if e, ok := readEntry(pid); ok {
				entries = append(entries, e)
			}
		}
	}
	return entries, nil
}

// readEntry reads /proc/<pid>/stat: "pid (name) state parent group session …", and
// the start time as field 22. The name may hold anything.
func readEntry(pid int) (processEntry, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processEntry{}, false
	}
	_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
	f := strings.Fields(string(rest))
	if !ok || len(f) < 20 {
		return processEntry{}, false
	}
	e := processEntry{id: id{pid: pid}, zombie: f[0] == "Z" || f[0] == "X", state: f[0][0]}
	e.parent, _ = strconv.Atoi(f[1])
	e.group, _ = strconv.Atoi(f[2])
	e.session, _ = strconv.Atoi(f[3])
	e.start, err = strconv.ParseUint(f[19], 10, 64)
	return e, err == nil
}

func startTime(pid int) uint64 {
	e, _ := readEntry(pid)
	return e.start
}

// pidNamespace returns the number of the PID namespace, 0 if it can't be told.
func pidNamespace() uint64 {
	link, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return 0
	}
	number, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// markOf returns the mark that a process bears, or "".
func markOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	return markIn(strings.Split(string(b), "\x00"))
}

func markIn(environ []string) string {
	for _, kv := range environ {
		if mark, ok := strings.CutPrefix(kv, Mark+"="); ok {
			return mark
		}
	}
	return ""
}

// Entry is a row of the process table.
type Entry struct {
	Pid, Parent int
	State       byte // as /proc/<pid>/stat tells it: R, S, D, T, t, Z, X …
}

// Table reads the process table.
func Table() ([]Entry, error) {
	entries, err := readTable()
	if err != nil {
		return nil, fmt.Errorf("process: read the process table: %w", err)
	}
	out := make([]Entry, len(entries))
	for i, e := range entries {
		out[i] = Entry{Pid: e.pid, Parent: e.parent, State: e.state}
	}
	return out, nil
}

// Descendants returns the processes of a table that descend from one, which isn't among
// them.
func Descendants(entries []Entry, pid int) []Entry {
	in := map[int]bool{pid: true}
	var out []Entry
	for grown := true; grown; {
		grown = false
		for _, e := range entries {
			if in[e.Parent] && !in[e.Pid] {
				in[e.Pid], grown = true, true
				out = append(out, e)
			}
		}
	}
	return out
}

// EndTree ends the tree of a program that this process or another has started with
// that mark, as [Backend.End] does. pid is 0 if the program itself has been waited
// for. It waits for no child of this process.
func EndTree(pid int, mark string, grace time.Duration) error {
	t := newTree(func(m string) bool { return m == mark })
	if e, ok := readEntry(pid); ok && pid > 0 {
		t.members[e.id] = true
	}
	t.leaves = true
	return t.endAll(grace)
}

// tree is a set of processes that belong together. Once a member, always a
// member: a process is still known after its parent died.
type tree struct {
	marks   func(string) bool
	members map[id]bool
	self    processEntry
	leaves  bool // leaves dead children of this program to the goroutines that wait for them
}

func treeOf(pid int, mark string) *tree {
	t := newTree(func(m string) bool { return m == mark })
	if e, ok := readEntry(pid); ok {
		t.members[e.id] = true
	}
	return t
}

func newTree(marks func(string) bool) *tree {
	self, _ := readEntry(os.Getpid())
	return &tree{marks: marks, members: make(map[id]bool), self: self}
}

// scanMembers adds new members and returns those that live.
func (t *tree) scanMembers() ([]processEntry, error) {
	entries, err := readTable()
	if err != nil {
		return nil, fmt.Errorf("process: read the process table: %w", err)
	}
	for _, e := range entries {
		if !t.members[e.id] && e.id != t.self.id && t.marks(markOf(e.pid)) {
			t.members[e.id] = true
		}
	}
	for t.growMembers(entries) {
		// until no new member brings another
	}
	var alive []processEntry
	for _, e := range entries {
		switch {
		case !t.members[e.id]:
		case !e.zombie:
			alive = append(alive, e)
		case e.parent == t.self.pid && !t.leaves && !livePrograms.has(e.pid):
			_, _ = syscall.Wait4(e.pid, nil, syscall.WNOHANG, nil)
		}
	}
	return alive, nil
}

// growMembers adds the children of members, and processes that share their group or session.
// It reports whether there were any.
func (t *tree) growMembers(entries []processEntry) bool {
	pids, groups := make(map[int]bool), make(map[int]bool)
	for _, e := range entries {
		if t.members[e.id] {
			pids[e.pid] = true
			groups[e.group], groups[e.session] = true, true
		}
	}
	for _, ours := range []int{0, 1, t.self.group, t.self.session} {
		delete(groups, ours)
	}
	grown := false
	for _, e := range entries {
		if t.members[e.id] || e.id == t.self.id {
			continue
		}
		if pids[e.parent] || groups[e.group] || groups[e.session] {
			t.members[e.id], grown = true, true
		}
	}
	return grown
}

// endAll asks the members to end, kills those that are left after the grace, and
// returns when all are gone. One that begins meanwhile, as what a program cleans up
// with, is left to its parent as long as that lives.
func (t *tree) endAll(grace time.Duration) error {
	alive, err := t.scanMembers()
	if err != nil {
		return err
	}
	sig := unix.SIGTERM
	asked := make(map[id]bool)
	deadline := time.Now().Add(grace)
	for stop := deadline.Add(stubborn); len(alive) > 0; {
		if now := time.Now(); now.After(stop) {
			return fmt.Errorf("%w: %s", ErrSurvivors, pidsOf(alive))
		} else if !now.Before(deadline) {
			sig = unix.SIGKILL
		}
		first, living := len(asked) == 0, make(map[int]bool, len(alive))
		for _, e := range alive {
			living[e.pid] = true
		}
		for _, e := range alive {
			if sig == unix.SIGKILL || !asked[e.id] && (first || !living[e.parent]) {
				asked[e.id] = true
				e.sendSignal(sig)
			}
		}
		<-time.After(look)
		if alive, err = t.scanMembers(); err != nil {
			return err
		}
	}
	return nil
}

// sendSignal sends a signal to the process if it still is the same one.
func (e processEntry) sendSignal(sig syscall.Signal) {
	p, err := os.FindProcess(e.pid) // holds on to the process, not the number
	if err != nil {
		return
	}
	defer func() { _ = p.Release() }()
	if now, ok := readEntry(e.pid); ok && now.id == e.id {
		_ = p.Signal(sig)
	}
}

func pidsOf(entries []processEntry) string {
	var pids []string
	for _, e := range entries {
		pids = append(pids, strconv.Itoa(e.pid))
	}
	return "pids " + strings.Join(pids, ", ")
}

// EndOrphans ends the trees of programs of a home that are gone: after a crash it leaves
// no agent of the program that crashed. It returns how many processes it
// found. Trees of living programs are left alone.
func EndOrphans(ctx context.Context, home string, grace time.Duration) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	own := markIn(os.Environ()) // if this program is itself part of such a tree
	t := newTree(func(mark string) bool { return mark != own && isOrphaned(mark, home) })
	alive, err := t.scanMembers()
	if err != nil || len(alive) == 0 {
		return 0, err
	}
	return len(alive), t.endAll(grace)
}

// isOrphaned reports whether a mark was set by a program that is gone.
func isOrphaned(mark, home string) bool {
	pid, start, ok := markOwner(mark, home)
	if !ok {
		return false
	}
	e, alive := readEntry(pid)
	return !alive || e.zombie || e.start != start
}

// EndDescendants kills what descends from this process until nothing is left.
func EndDescendants(reap func()) {
	for range 5000 {
		entries, err := Table()
		if err != nil {
			return
		}
		left := 0
		for _, e := range Descendants(entries, os.Getpid()) {
			if e.State != 'Z' && e.State != 'X' {
				left++
				_ = syscall.Kill(e.Pid, syscall.SIGKILL)
			}
		}
		reap()
		if left == 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
}

// SwallowSignals takes signals and does nothing. Ignored ones would be ignored by what this process
// starts, too; those that are ignored already, as SIGHUP is under nohup, stay so for the same reason.
func SwallowSignals(signals ...os.Signal) {
	signals = slices.DeleteFunc(signals, signal.Ignored)
	if len(signals) > 0 { // Notify takes none for all
		signal.Notify(make(chan os.Signal, 1), signals...)
	}
}
