package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/process"
)

// order is what a keeper tells its guard. It is one packet, as a [Report] is.
type order struct {
	Op      string        `json:"op"` // start, end, freeze, thaw, extend
	Program uint32        `json:"program,omitempty"`
	Mark    string        `json:"mark,omitempty"`
	Grace   time.Duration `json:"grace,omitempty"`
	Kill    int64         `json:"kill,omitempty"` // of extend: see [Alarm.MoveTo]
}

// Report is what a guard tells its keeper of a program.
type Report struct {
	Op      string `json:"op"` // ready, started, ended, frozen, thawed, exit
	Program uint32 `json:"program,omitempty"`
	Error   string `json:"error,omitempty"`
	Pid     int    `json:"pid,omitempty"` // in the guard's namespace
	Code    int    `json:"code,omitempty"`
	Signal  string `json:"signal,omitempty"`
}

// Program is a program to start, as the guard is told it in a file of its own.
type Program struct {
	Argv []string      `json:"argv"`
	Dir  string        `json:"dir"`
	Env  []string      `json:"env"`
	User *process.User `json:"user,omitempty"` // nil: this process's own
}

// maxPacket bounds a packet between keeper and guard.
const maxPacket = 64 << 10

// maxProgram bounds a program's description. It came in a message of the runner's, which is no longer.
const maxProgram = 64 << 20

// oomScore is added for what a guard starts: agents go before runners and keepers.
const oomScore = 300

// guard is the parent of the tree.
type guard struct {
	fence  Fence
	keeper int    // file descriptor
	group  *Group // of the tree; nil: it has none
	alarm  Alarm
	frozen bool // the group is
	halted bool // processes were stopped one by one

	mu   sync.Mutex
	pids map[int]uint32 // running programs
	said sync.Mutex
}

// guardMain is a guard, until its keeper is gone.
func guardMain(fence Fence, t *Group) int {
	runtime.LockOSThread() // what it starts dies with the thread that started it
	process.SwallowSignals(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	g := &guard{fence: fence, keeper: 3, group: t, pids: map[int]uint32{}}
	unix.CloseOnExec(g.keeper)
	if err := g.becomeReaper(); err != nil {
		g.sendReport(Report{Op: "ready", Error: err.Error()})
		return 1
	}
	_ = process.Conceal()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			g.reapChildren()
		}
	}()
	g.sendReport(Report{Op: "ready"})
	g.obeyOrders()
	g.endTree()
	return 0
}

// becomeReaper makes the guard the reaper of its tree.
func (g *guard) becomeReaper() error {
	if g.fence == Watchdogs {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("subreaper: %w", err)
		}
		return nil
	}
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	scatterPids()
	// What it starts, on this thread, has no privilege from the namespace.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	return nil
}

// scatterPids has the namespace number its processes from anywhere: programs name files in shared
// folders by their process id, and those of all namespaces would begin at the same one.
func scatterPids() {
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || most < 2*firstPid {
		return
	}
	last := firstPid + rand.IntN(most-firstPid)
	_ = os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(last)), 0) // where the kernel can
}

// firstPid is the least process id that a namespace begins with: lower ones look like the
// system's.
const firstPid = 300

// obeyOrders does what the keeper says until that is gone.
func (g *guard) obeyOrders() {
	for {
		buf, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*4))
		n, oobn, _, _, err := unix.Recvmsg(g.keeper, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		var o order
		if json.Unmarshal(buf[:n], &o) != nil {
			continue
		}
		switch o.Op {
		case "start":
			g.startProgram(o, attachedFiles(oob[:oobn]))
		case "end":
			go g.endProgram(o)
		case "freeze":
			g.sendReport(Report{Op: "frozen", Error: errorText(g.freezeTree(o.Grace))})
		case "thaw":
			g.thawTree()
			g.sendReport(Report{Op: "thawed"})
		case "extend":
			_ = g.alarm.MoveTo(o.Kill)
		}
	}
}

func attachedFiles(oob []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), ""))
		}
	}
	return files
}

func (g *guard) sendReport(r Report) {
	b, err := json.Marshal(r)
	if err != nil {
		return
	}
	g.said.Lock()
	defer g.said.Unlock()
	for {
		err := unix.Sendmsg(g.keeper, b, nil, nil, 0)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// startProgram starts a program on the files that the keeper has sent: its description, stdin, stdout,
// stderr.
func (g *guard) startProgram(o order, files []*os.File) {
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	pid, err := g.launchProgram(o, files)
	g.sendReport(Report{Op: "started", Program: o.Program, Pid: pid, Error: errorText(err)})
	g.reapChildren() // it may have ended before it was known
}

func (g *guard) launchProgram(o order, files []*os.File) (int, error) {
	if len(files) != 4 {
		return 0, fmt.Errorf("%d files came with the order", len(files))
	}
	b, err := io.ReadAll(io.NewSectionReader(files[0], 0, maxProgram))
	if err != nil {
		return 0, err
	}
	var s Program
	if err := json.Unmarshal(b, &s); err != nil {
		return 0, err
	}
	if len(s.Argv) == 0 {
		return 0, errors.New("no program to start")
	}
	path, err := lookPath(s.Argv[0], s.Dir, s.Env)
	if err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: userCredential(s.User)}
	leave, err := g.group.placeProgram(o.Program, attr)
	if err != nil {
		return 0, err
	}
	defer leave()
	pid, err := syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{
		Dir: s.Dir, Env: process.Marked(s.Env, o.Mark),
		Files: []uintptr{files[1].Fd(), files[2].Fd(), files[3].Fd()}, Sys: attr,
	})
	if err != nil {
		return 0, &os.PathError{Op: "start", Path: s.Argv[0], Err: err}
	}
	raiseScore(pid)
	g.pids[pid] = o.Program
	return pid, nil
}

// userCredential is what a program of a user starts with.
func userCredential(u *process.User) *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// raiseScore has the kernel end a program before runners and keepers when memory is short.
func raiseScore(pid int) {
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err == nil {
		_ = os.WriteFile(name, []byte(strconv.Itoa(min(1000, score+oomScore))), 0) // where it may
	}
}

// lookPath finds a program as the shell does, in the PATH of its own environment.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range slices.Backward(env) {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			path := filepath.Join(d, name)
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
		break
	}
	return "", &os.PathError{Op: "start", Path: name, Err: errors.New("executable file not found in $PATH")}
}

// reapChildren waits for all children that have ended, orphans of the tree included.
func (g *guard) reapChildren() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		program, ours := g.pids[pid]
		if !ours {
			continue
		}
		delete(g.pids, pid)
		r := Report{Op: "exit", Program: program, Code: status.ExitStatus()}
		if status.Signaled() {
			r.Code, r.Signal = -1, strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")
		}
		g.sendReport(r)
	}
}

// endProgram ends the tree of one program.
func (g *guard) endProgram(o order) {
	pid := 0
	g.mu.Lock()
	for p, program := range g.pids {
		if program == o.Program {
			pid = p
		}
	}
	g.mu.Unlock()
	err := process.EndTree(pid, o.Mark, o.Grace)
	g.group.endProgram(o.Program) // what has escaped from the tree
	g.reapChildren()
	g.sendReport(Report{Op: "ended", Program: o.Program, Error: errorText(err)})
}

// freezeTree stops the whole tree: its group, and what isn't there again and again, until a look finds none running.
func (g *guard) freezeTree(patience time.Duration) error {
	until := time.Now().Add(patience)
	if g.frozen = g.group.freeze(patience / 2); g.frozen {
		if running, err := g.countRunning(); err != nil || running == 0 {
			return err
		}
	} else {
		g.group.Thaw() // what is held there can't be stopped otherwise
	}
	for g.halted = true; ; {
		g.signalAll(unix.SIGSTOP)
		running, err := g.countRunning()
		if err != nil {
			return err
		}
		if running == 0 {
			g.signalAll(unix.SIGSTOP)
			if running, err = g.countRunning(); err != nil || running == 0 {
				return err
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d processes don't stop", running)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// thawTree lets what was stopped go on.
func (g *guard) thawTree() {
	g.group.Thaw()
	if g.halted {
		g.signalAll(unix.SIGCONT)
	}
	g.frozen, g.halted = false, false
}

// treeMembers returns the tree, without the guard.
func (g *guard) treeMembers() ([]process.Entry, error) {
	entries, err := process.Table()
	if err != nil {
		return nil, err
	}
	if g.fence != Watchdogs { // it is the namespace
		return slices.DeleteFunc(entries, func(e process.Entry) bool { return e.Pid == os.Getpid() }), nil
	}
	return process.Descendants(entries, os.Getpid()), nil
}

// countRunning counts the processes that may still do something. One that the kernel holds (D) has
// its stop before it: the parent of a vfork, for one, waits for a child that is stopped.
func (g *guard) countRunning() (n int, err error) {
	members, err := g.treeMembers()
	for _, e := range members {
		if !strings.ContainsRune("TtZXD", rune(e.State)) && (!g.frozen || !g.group.hasProcess(e.Pid)) {
			n++
		}
	}
	return n, err
}

// signalAll sends a signal to the whole tree.
func (g *guard) signalAll(s syscall.Signal) {
	if g.fence != Watchdogs {
		_ = syscall.Kill(-1, s) // of process 1: the namespace but itself
		return
	}
	members, err := g.treeMembers()
	if err != nil {
		return
	}
	for _, e := range members {
		_ = syscall.Kill(e.Pid, s)
	}
}

// endTree ends the tree when the keeper is gone.
func (g *guard) endTree() {
	if g.fence != Watchdogs {
		return // it ends with its process 1
	}
	_ = g.alarm.MoveTo(0)
	g.group.KillAll()
	process.EndDescendants(func() { g.reapChildren() })
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Each program that can start guards is one itself, if it is started as one: it becomes
// a guard here, and ends. The libraries that a guard doesn't need aren't there by
// then: Go initialises packages in the order of their paths, as far as their
// imports allow, and the path of this module comes early in the alphabet. That is why
// this room has few imports: net alone would have it wait for most of the others.
func init() { //nolint:gochecknoinits // main is too late: a guard would pay for every library of the program
	if len(os.Args) == 5 && os.Args[1] == guardVerb {
		os.Exit(guardMain(Fence(os.Args[2]), groupOf(os.Args[3], os.Args[4])))
	}
}

// guardVerb is the argument with which the program is a guard.
const guardVerb = "keeper-guard"

// SelfCommand returns this program as a guard or, in package keeper, as a keeper.
func SelfCommand(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...) // it outlives this program
	c.Args[0], c.Dir = "wake", "/"
	c.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=single"}
	return c
}
