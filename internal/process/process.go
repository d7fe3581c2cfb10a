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
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// stderrKept bounds how much of the end of stderr is kept.
const stderrKept = 16 << 10

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

// Text says how a program ended, and when, why it was ended, and its last words, as far as these aren't "".
func (e Exit) Text(when, reason, words string) string {
	s := fmt.Sprintf("ended with exit code %d", e.Code)
	if e.Signal != "" {
		s = "was ended by signal " + e.Signal
	}
	s += when
	if reason != "" {
		s += " (" + reason + ")"
	}
	if e.Memory != 0 {
		s += " (" + BoundText(e.Memory) + ")"
	}
	if words = strings.TrimSpace(words); words != "" {
		s += ": " + words
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// BoundText says that a bound of memory, in bytes, was reached; "" if it is 0.
func BoundText(bound int64) string {
	if bound == 0 {
		return ""
	}
	return fmt.Sprintf("it reached the %.4g MiB of memory that its node may use (policy.memory)", float64(bound)/(1<<20))
}

// Start runs a program in its own process group, on Linux in its own session. The caller must call
// [Process.End] when it is done with it, even if the program has ended by
// itself.
func Start(c Config) (*Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("process: no program to start")
	}
	p := &child{mark: NewMark(c.Home), exited: make(chan struct{})}
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...) // the tree is ended by End, which knows more than the context's kill
	p.cmd.Dir = c.Dir
	p.cmd.Env = Marked(c.Env, p.mark)
	p.cmd.SysProcAttr = startAttributes()
	started, err := p.startWithPipes(c)
	if errors.Is(err, fs.ErrNotExist) && c.Dir != "" { // which of both isn't there, the system doesn't say
		if _, missing := os.Stat(c.Dir); missing != nil {
			return nil, fmt.Errorf("process: start %s in its folder: %w", c.Argv[0], missing)
		}
	}
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
	p.spoken = &frameMaker{frames: make(chan Frame, 16), gone: make(chan struct{})}
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

// Direct runs programs as children of this one. They end with [Process.End]
// only: nothing outlives this program in an orderly way, and names don't count.
type Direct struct {
	Home string // of programs that name none; see [Config]
}

// Start starts a program.
func (d Direct) Start(c Config) (*Process, error) {
	c.Home = cmp.Or(c.Home, d.Home)
	return Start(c)
}

// Has reports false: no program outlives this one.
func (Direct) Has(string) bool { return false }

// Forget does nothing: nothing is kept.
func (Direct) Forget(string) {}
