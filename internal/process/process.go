// Package process runs programs that start programs of their own, and really
// ends them.
//
// An agent's tools run in sessions and process groups of their own, so that
// killing the agent's group doesn't reach them, and once their parent is dead nothing in the
// process table says which agent they belong to. Every process started here therefore
// carries a mark in its environment, which its descendants inherit: the tree
// of a process is all that descend from it, share a process group or session with a
// descendant, or bear the mark. [Process.End] asks all of them to end, kills what stays, and
// looks again until nothing is left. [EndOrphans] does the same for the trees
// of programs that died without doing so.
//
// A process that empties its environment, leaves its session and survives its
// parent escapes; against that, only a container or a cgroup helps. Being a
// subreaper (PR_SET_CHILD_SUBREAPER) isn't used: it holds for the whole program, with
// every other child it has, and doesn't tell which tree an orphan is of. Orphans that
// end up with this program all the same, since it is process 1 of a container, are
// reaped when they are killed.
//
// What the program that starts others knows is its own: see [Conceal].
//
// The tree is known on Linux; on other systems it is the process group.
package process

import (
	"crypto/sha256"
	"encoding/hex"
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
// <pid of the program>-<its start time>-<number>-<PID namespace>-<home, hashed>.
const Mark = "WAKE_PROCESS"

// stderrKept bounds how much of the end of stderr is kept.
const stderrKept = 16 << 10

// ErrSurvivors is returned if processes could not be ended.
var ErrSurvivors = errors.New("process: some processes could not be ended")

// Config says what to run.
type Config struct {
	// Name tells the program from others of the same execution; "" is a name of its own
	// for each Start.
	Name string
	// Home is the owner of the program, such as the id of a data directory: after a crash the
	// next process of that home ends it, see [EndOrphans]. "": no process does.
	Home string
	Argv []string
	Dir  string
	Env  []string // the whole environment, as key=value; nothing is inherited
	// Journal has the host keep what the program and its caller say to each other, and
	// give it as frames instead of Stdout and Stderr.
	Journal bool
	// KeepStderr keeps the last 16 KiB of stderr for [Process.Stderr] instead of
	// giving it to the caller as a reader.
	KeepStderr bool
}

// child is a program that this one has started itself.
type child struct {
	cmd    *exec.Cmd
	mark   string
	stdin  io.WriteCloser
	close  func() error
	exited chan struct{} // closed once exit is set
	exit   Exit
	tail   *tail
	spoken *frameMaker // nil unless the program is journalled
	end    sync.Mutex  // one End at a time
}

// Exit is how a program ended.
type Exit struct {
	Code   int    // -1 if a signal ended it
	Signal string // such as KILL; "" if it exited
	// Lost says that the program's host is gone, has ended it for want of a runner, or was left: how the
	// program ended, if it has, isn't known.
	Lost bool
	// Memory is the bound, in bytes, of what its tree may use, if the kernel has killed something of it for that; 0 if it hasn't.
	Memory int64
}

// BoundText says that a bound of memory, in bytes, was reached; "" if it is 0.
func BoundText(bound int64) string {
	if bound == 0 {
		return ""
	}
	return fmt.Sprintf("it reached the %.4g MiB of memory that its node may use (policy.memory)", float64(bound)/(1<<20))
}

// livePrograms are the programs that this program started and has not waited for.
var livePrograms programs //nolint:gochecknoglobals // children belong to the whole program

// programs numbers the programs that were started, and tells which of this
// program's children are such, so that others can be reaped.
type programs struct {
	mu      sync.Mutex
	started uint64
	pids    map[int]bool
}

func (p *programs) nextNumber() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started++
	return p.started
}

// startLocked runs start under the lock, so that no program is seen before it is known.
func (p *programs) startLocked(start func() (pid int, err error)) error {
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
	p := &child{mark: NewMark(c.Home), exited: make(chan struct{})}
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...) //nolint:noctx // the tree is ended by End, which knows more than the context's kill
	p.cmd.Dir = c.Dir
	p.cmd.Env = Marked(c.Env, p.mark)
	p.cmd.SysProcAttr = attributes()
	started, err := p.startWithPipes(c)
	if err != nil {
		return nil, fmt.Errorf("process: start %s: %w", c.Argv[0], err)
	}
	return started, nil
}

func (p *child) startWithPipes(c Config) (*Process, error) {
	var pipes pipes
	defer pipes.closeTheirs()
	stdin, err := pipes.toChild()
	if err != nil {
		return nil, err
	}
	stdout, err := pipes.fromChild()
	if err != nil {
		return nil, errors.Join(err, pipes.closeOurs())
	}
	stderr, err := pipes.fromChild()
	if err != nil {
		return nil, errors.Join(err, pipes.closeOurs())
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = pipes.theirs[0], pipes.theirs[1], pipes.theirs[2]
	err = livePrograms.startLocked(func() (int, error) {
		if err := p.cmd.Start(); err != nil {
			return 0, err
		}
		return p.cmd.Process.Pid, nil
	})
	if err != nil {
		return nil, errors.Join(err, pipes.closeOurs())
	}
	started := &Process{Backend: p, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	if c.KeepStderr {
		started.Stderr = nil
		p.tail = keepTail(stderr, stderrKept)
	}
	if c.Journal {
		p.makeFrames(started, stdin)
	}
	p.stdin = started.Stdin
	p.close = func() error { return closeStreams(started) }
	go p.awaitExit()
	return started, nil
}

// makeFrames makes frames of the program's output.
func (p *child) makeFrames(started *Process, stdin *os.File) {
	p.spoken = newFrameMaker()
	streams := map[Direction]io.ReadCloser{Out: started.Stdout}
	if started.Stderr != nil {
		streams[Err] = started.Stderr
	}
	started.Stdin, started.Stdout, started.Stderr = countedStdin{stdin, p.spoken}, nil, nil
	started.Frames = p.spoken.frames
	p.spoken.startFrames(streams)
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

// awaitExit ends with the program, which [Process.End] sees to.
func (p *child) awaitExit() {
	err := p.cmd.Wait()
	p.exit = exitOf(p.cmd.ProcessState, err)
	livePrograms.remove(p.Pid())
	close(p.exited)
}

// Pid returns the process id of the program.
func (p *child) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the program itself has ended. What it started may live on.
func (p *child) Exited() <-chan struct{} { return p.exited }

// Exit says how the program ended.
func (p *child) Exit() Exit { return p.exit }

// Words returns the last words of the program on stderr, if they are kept.
func (p *child) Words() string {
	if p.tail == nil {
		return ""
	}
	return p.tail.String()
}

// End ends the program and all that it started.
func (p *child) End(grace time.Duration) error {
	p.end.Lock()
	defer p.end.Unlock()
	err := treeOf(p.Pid(), p.mark).endAll(grace)
	if err == nil {
		<-p.exited
	}
	_ = p.stdin.Close()
	if p.tail != nil {
		p.tail.wait()
	}
	return err
}

// Rested does nothing: what was said isn't kept.
func (p *child) Rested(Rest) {}

// Leave does nothing: no process could attach to the program.
func (p *child) Leave() bool { return false }

// Close closes the caller's ends of the pipes.
func (p *child) Close() error {
	if p.spoken != nil {
		p.spoken.stopFrames()
	}
	return p.close()
}

func closeStreams(p *Process) error {
	errs := []error{ignoreClosed(p.Stdin.Close())}
	for _, r := range []io.ReadCloser{p.Stdout, p.Stderr} {
		if r != nil {
			errs = append(errs, ignoreClosed(r.Close()))
		}
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// NewMark returns a mark for a program of a home that this process starts, or has another one
// start. It names this process by its pid, its start and its PID namespace: the processes of
// containers are seen from outside of them, where their pids are others'.
func NewMark(home string) string {
	pid := os.Getpid()
	return fmt.Sprintf("%d-%d-%d-%d-%s", pid, startTime(pid), livePrograms.nextNumber(), pidNamespace(), hashOf(home))
}

// hashOf makes a home a part of a mark; "" if it isn't known.
func hashOf(home string) string {
	if home == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(home))
	return hex.EncodeToString(sum[:8])
}

// markOwner returns the process that set a mark, unless it is of another home or can't be told here.
func markOwner(mark, home string) (pid int, start uint64, ok bool) {
	fields := strings.Split(mark, "-")
	if home == "" || len(fields) != 5 || fields[3] != strconv.FormatUint(pidNamespace(), 10) || fields[4] != hashOf(home) {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 0 {
		return 0, 0, false
	}
	start, err = strconv.ParseUint(fields[1], 10, 64)
	return pid, start, err == nil
}

// Marked returns an environment with a mark.
func Marked(env []string, mark string) []string { return append(withoutVar(env, Mark), Mark+"="+mark) }

func withoutVar(env []string, key string) []string {
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
