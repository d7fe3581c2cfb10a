// Package process runs programs that start programs of their own, and really
// ends them.
//
// An agent's tools run in sessions and process groups of their own, so that
// killing the agent's group doesn't reach them, and once their parent is dead nothing in the
// process table says whose they were. Every process started here therefore
// carries a mark in its environment, which its descendants inherit: the tree
// of a process is whoever descends from it, shares a process group or session with such a
// one, or bears the mark. [Process.End] asks all of them to end, kills what stays, and
// looks again until nothing is left. [EndOrphans] does the same for the trees
// of programs that died without doing so.
//
// A process that empties its environment, leaves its session and survives its
// parent escapes; against that, only a container or a cgroup helps. Being a
// subreaper (PR_SET_CHILD_SUBREAPER) isn't used: it holds for the whole program, with
// every other child it has, and tells not whose an orphan is. Orphans that
// end up with this program all the same, since it is process 1 of a container, are
// reaped when they are killed.
//
// What the program that starts others knows is its own: see [Conceal].
//
// The tree is known on Linux; on other systems it is the process group.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Mark is the environment variable that a process and its descendants carry:
// <pid of the program>-<its start time>-<number>.
const Mark = "WAKE_PROCESS"

// stderrKept bounds how much of the end of stderr is kept.
const stderrKept = 16 << 10

// ErrSurvivors is returned if processes could not be ended.
var ErrSurvivors = errors.New("process: some processes could not be ended")

// Config says what to run.
type Config struct {
	Argv []string
	Dir  string
	Env  []string // the whole environment, as key=value; nothing is inherited
	// KeepStderr keeps the last 16 KiB of stderr for [Process.Stderr] instead of
	// giving it to the caller as a reader.
	KeepStderr bool
}

// Process is a running program and all that it started.
type Process struct {
	// Stdin, Stdout and Stderr are the caller's ends of the pipes. The caller
	// reads Stdout and Stderr to their end, which comes at the latest when
	// [Process.End] returns. Stderr is nil if the configuration keeps it.
	Stdin          io.WriteCloser
	Stdout, Stderr io.ReadCloser

	cmd    *exec.Cmd
	mark   string
	exited chan struct{} // closed once exit is set
	exit   Exit
	tail   *tail
	end    sync.Mutex // one End at a time
}

// Exit is how a program ended.
type Exit struct {
	Code   int    // -1 if a signal ended it
	Signal string // such as KILL; "" if it exited
}

// running are the programs that this program started and has not waited for.
var running programs //nolint:gochecknoglobals // children belong to the whole program

// programs numbers the programs that were started, and tells which of this
// program's children are such, so that others can be reaped.
type programs struct {
	mu      sync.Mutex
	started uint64
	pids    map[int]bool
}

func (p *programs) number() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started++
	return p.started
}

// add runs start under the lock, so that no program is seen before it is known.
func (p *programs) add(start func() (pid int, err error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := start()
	if err != nil {
		return err
	}
	if p.pids == nil {
		p.pids = make(map[int]bool)
	}
	p.pids[pid] = true
	return nil
}

func (p *programs) remove(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pids, pid)
}

func (p *programs) has(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pids[pid]
}

// Start runs a program in its own process group, on Linux in its own session. The caller must call
// [Process.End] when it is done with it, even if the program has ended by
// itself.
func Start(c Config) (*Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("process: no program to start")
	}
	p := &Process{mark: newMark(), exited: make(chan struct{})}
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...) //nolint:noctx // the tree is ended by End, which knows more than the context's kill
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(without(c.Env, Mark), Mark+"="+p.mark)
	p.cmd.SysProcAttr = attributes()
	if err := p.start(c); err != nil {
		return nil, fmt.Errorf("process: start %s: %w", c.Argv[0], err)
	}
	return p, nil
}

func (p *Process) start(c Config) error {
	var pipes pipes
	defer pipes.closeTheirs()
	stdin, err := pipes.toChild()
	if err != nil {
		return err
	}
	stdout, err := pipes.fromChild()
	if err != nil {
		return errors.Join(err, pipes.closeOurs())
	}
	stderr, err := pipes.fromChild()
	if err != nil {
		return errors.Join(err, pipes.closeOurs())
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = pipes.theirs[0], pipes.theirs[1], pipes.theirs[2]
	err = running.add(func() (int, error) {
		if err := p.cmd.Start(); err != nil {
			return 0, err
		}
		return p.cmd.Process.Pid, nil
	})
	if err != nil {
		return errors.Join(err, pipes.closeOurs())
	}
	p.Stdin, p.Stdout, p.Stderr = stdin, stdout, stderr
	if c.KeepStderr {
		p.Stderr = nil
		p.tail = keepTail(stderr, stderrKept)
	}
	go p.wait()
	return nil
}

// pipes are the pipes of a program that is being started.
type pipes struct{ ours, theirs []*os.File }

func (p *pipes) toChild() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours, p.theirs = append(p.ours, w), append(p.theirs, r)
	return w, nil
}

func (p *pipes) fromChild() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours, p.theirs = append(p.ours, r), append(p.theirs, w)
	return r, nil
}

func (p *pipes) closeTheirs() { _ = closeAll(p.theirs) }

func (p *pipes) closeOurs() error { return closeAll(p.ours) }

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// wait ends with the program, which [Process.End] sees to.
func (p *Process) wait() {
	err := p.cmd.Wait()
	p.exit = exitOf(p.cmd.ProcessState, err)
	running.remove(p.Pid())
	close(p.exited)
}

// Pid returns the process id of the program.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the program itself has ended. What it started may live on.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits for the program itself to end.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.exited:
		return p.exit, nil
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("process: wait: %w", ctx.Err())
	}
}

// Words returns the last words of the program on stderr, if the configuration
// keeps them.
func (p *Process) Words() string {
	if p.tail == nil {
		return ""
	}
	return p.tail.String()
}

// End ends the program and all that it started: SIGTERM, after the grace
// SIGKILL, and a look whether they are gone. It returns when they are and the
// program's exit is known; with [ErrSurvivors] if some can't be killed. It may
// be called again and from anywhere.
func (p *Process) End(grace time.Duration) error {
	p.end.Lock()
	defer p.end.Unlock()
	err := treeOf(p.Pid(), p.mark).end(grace)
	if err == nil {
		<-p.exited
	}
	_ = p.Stdin.Close()
	if p.tail != nil {
		p.tail.wait()
	}
	return err
}

// Close closes the caller's ends of the pipes. It is called after [Process.End].
func (p *Process) Close() error {
	errs := []error{ignoreClosed(p.Stdin.Close()), ignoreClosed(p.Stdout.Close())}
	if p.Stderr != nil {
		errs = append(errs, ignoreClosed(p.Stderr.Close()))
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// newMark names this program by its pid, its start and its PID namespace: the
// processes of containers are seen from outside of them, where their pids are others'.
func newMark() string {
	pid := os.Getpid()
	return fmt.Sprintf("%d-%d-%d-%d", pid, startTime(pid), running.number(), namespace())
}

// owner returns who set a mark, unless that can't be told here.
func owner(mark string) (pid int, start uint64, ok bool) {
	fields := strings.Split(mark, "-")
	if len(fields) != 4 || fields[3] != strconv.FormatUint(namespace(), 10) {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 0 {
		return 0, 0, false
	}
	start, err = strconv.ParseUint(fields[1], 10, 64)
	return pid, start, err == nil
}

func without(env []string, key string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, key+"=") {
			out = append(out, kv)
		}
	}
	return out
}

// tail keeps the end of what a reader gives.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	done chan struct{}
}

// keepTail reads r to its end, which comes with the end of the tree.
func keepTail(r io.ReadCloser, limit int) *tail {
	t := &tail{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer func() { _ = r.Close() }()
		piece := make([]byte, 4<<10)
		for {
			n, err := r.Read(piece)
			t.add(piece[:n], limit)
			if err != nil {
				return
			}
		}
	}()
	return t
}

func (t *tail) add(piece []byte, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, piece...)
	if over := len(t.buf) - limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
}

func (t *tail) wait() { <-t.done }

// String returns what was kept, as text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}
