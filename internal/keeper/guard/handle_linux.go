package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Handle is a keeper's hold on its guard.
type Handle struct {
	fence Fence
	pid   int
	conn  int // file descriptor
	cmd   *exec.Cmd
	gone  chan struct{} // closed when the guard, and with it a namespace, is gone

	mu     sync.Mutex
	frozen chan Report // answers to freeze
}

// Pid returns the guard's process id.
func (g *Handle) Pid() int { return g.pid }

// Pipes are a keeper's ends of a program's.
type Pipes struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.ReadCloser
}

// guardWait bounds how long a guard may take to begin.
const guardWait = 10 * time.Second

// Start starts a guard of a tree, in its control group. The guard's reports of programs go to take.
func Start(fence Fence, t *Group, take func(Report)) (*Handle, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "keeper")
	defer func() { _ = theirs.Close() }()
	g := &Handle{fence: fence, conn: pair[0], gone: make(chan struct{}), frozen: make(chan Report, 1)}
	g.cmd = SelfCommand(append([]string{guardVerb, string(fence)}, t.toArguments()...)...)
	g.cmd.ExtraFiles = []*os.File{theirs}
	g.cmd.Stderr = os.Stderr
	g.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if fence != Watchdogs {
		g.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		g.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	if fence == UserNamespace {
		g.cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		g.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		g.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		g.cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	if err := g.cmd.Start(); err != nil {
		_ = unix.Close(pair[0])
		return nil, fmt.Errorf("guard: start the guard: %w", err)
	}
	g.pid = g.cmd.Process.Pid
	go func() {
		_ = g.cmd.Wait()
		close(g.gone)
	}()
	ready := make(chan Report, 1)
	go g.readReports(ready, take)
	select {
	case r := <-ready:
		if r.Error != "" {
			g.KillTree()
			return nil, errors.New("guard: guard: " + r.Error)
		}
		return g, nil
	case <-g.gone:
		return nil, errors.New("guard: the guard has ended")
	case <-time.After(guardWait):
		g.KillTree()
		return nil, errors.New("guard: the guard doesn't begin")
	}
}

// readReports takes reports until the guard is gone.
func (g *Handle) readReports(ready chan<- Report, take func(Report)) {
	buf := make([]byte, maxPacket)
	for {
		n, _, err := unix.Recvfrom(g.conn, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		var r Report
		if json.Unmarshal(buf[:n], &r) != nil {
			continue
		}
		switch r.Op {
		case "ready":
			ready <- r
		case "frozen":
			g.frozen <- r
		case "thawed":
		default:
			take(r)
		}
	}
}

func (g *Handle) sendOrder(o order, files ...int) {
	b, err := json.Marshal(o)
	if err != nil {
		return
	}
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		err := unix.Sendmsg(g.conn, b, oob, nil, 0)
		if !errors.Is(err, unix.EINTR) {
			return // a guard that is gone is told by gone
		}
	}
}

// StartProgram has the guard start a program.
func (g *Handle) StartProgram(id uint32, mark string, s Program) (p Pipes, err error) {
	var ours, theirs [3]*os.File
	defer func() { _ = closeFiles(theirs[:]) }()
	defer func() {
		if err != nil {
			_ = closeFiles(ours[:])
		}
	}()
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return p, fmt.Errorf("guard: %w", err)
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	if err := g.passProgram(id, mark, s, theirs); err != nil {
		return p, err
	}
	return Pipes{Stdin: ours[0], Stdout: ours[1], Stderr: ours[2]}, nil
}

func closeFiles(files []*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// passProgram gives the guard a program and its files.
func (g *Handle) passProgram(id uint32, mark string, s Program, files [3]*os.File) error {
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	file := os.NewFile(uintptr(fd), "program")
	defer func() { _ = file.Close() }()
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	if _, err := file.WriteAt(b, 0); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	g.sendOrder(order{Op: "start", Program: id, Mark: mark},
		fd, int(files[0].Fd()), int(files[1].Fd()), int(files[2].Fd()))
	return nil
}

// EndProgram has the guard end the tree of a program: gently within grace, then by force.
func (g *Handle) EndProgram(id uint32, mark string, grace time.Duration) {
	g.sendOrder(order{Op: "end", Program: id, Mark: mark, Grace: grace})
}

// FreezeTree stops the tree and reports why something of it still runs.
func (g *Handle) FreezeTree(patience time.Duration) error {
	g.sendOrder(order{Op: "freeze", Grace: patience})
	select {
	case r := <-g.frozen:
		if r.Error != "" {
			return errors.New(r.Error)
		}
		return nil
	case <-g.gone:
		return nil
	case <-time.After(patience):
		return errors.New("the guard doesn't answer")
	}
}

// ThawTree lets what was stopped go on.
func (g *Handle) ThawTree() { g.sendOrder(order{Op: "thaw"}) }

// ExtendDeadline moves the time of [process.Uptime], in ns, at which the guard ends unless it is moved on; 0 is never.
func (g *Handle) ExtendDeadline(kill int64) { g.sendOrder(order{Op: "extend", Kill: kill}) }

// TreeGone is closed when the guard, and with it a namespace, is gone.
func (g *Handle) TreeGone() <-chan struct{} { return g.gone }

// guardEnd bounds how long a guard may take to end its tree.
const guardEnd = time.Second

// KillTree ends the guard, and a namespace with it. A guard without one ends its tree first, also if this process dies over it.
func (g *Handle) KillTree() {
	if g.fence == Watchdogs {
		_ = unix.Shutdown(g.conn, unix.SHUT_RDWR) // a guard that has hung up ends, too
		select {
		case <-g.gone:
			return
		case <-time.After(guardEnd):
		}
	}
	_ = g.cmd.Process.Kill()
	<-g.gone
}
