package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrGone is returned by the Start of a host that is gone, and all its programs with it.
var ErrGone = errors.New("process: the host is gone")

// IsFull reports whether the disk of a host had no room for what a program takes, or a quota was used up.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Host is where the programs of one execution of a node run: this program itself
// ([Direct]), or a keeper that outlives it.
type Host interface {
	// Start starts a program. If the host already has one of that name, whether it
	// still runs or has ended, it gives the existing one instead; see [Process.Attached].
	Start(c Config) (*Process, error)
	// Has reports whether Start would give a program that is already there.
	Has(name string) bool
	// Forget tells the host that no caller will ask for what a program of that name has said: it has ended, and the log has
	// what it came to.
	Forget(name string)
}

// Direction says where the bytes of a frame went.
type Direction uint8

// The directions.
const (
	In  Direction = 1 + iota // to the program's stdin
	Out                      // from its stdout
	Err                      // from its stderr; not of a program with a stderr that is kept
	// Live is no frame of the journal: it is sent once, without data, when all frames
	// that were there at the Start have been given, and what follows has just come.
	// A frame of direction In comes only before it: later ones are the caller's own.
	Live
)

// Frame is a piece of what a program and its caller said to each other, in the order
// in which it was said.
type Frame struct {
	// Offset counts the bytes of all directions that were journalled before this
	// frame, from the beginning of the program.
	Offset    uint64
	Direction Direction
	At        int64 // when it passed, Unix ms
	Data      []byte
}

// Rest is a point of a journal behind which it isn't needed: everything up to Offset has
// been dealt with for good.
type Rest struct {
	Offset uint64
	State  []byte // what a reader that goes on from here has to know; opaque to the host
}

// Backend is what a host does for one of its programs.
type Backend interface {
	// Pid returns the process id of the program, as this program sees it; 0 if it isn't known.
	Pid() int
	// Exited is closed when the program itself has ended, or was lost or left. What it started may live on.
	Exited() <-chan struct{}
	// Exit says how, once Exited is closed.
	Exit() Exit
	// Words returns the last words of the program on stderr, if the configuration
	// keeps them.
	Words() string
	// End ends the program and all that it started: SIGTERM, after the grace
	// SIGKILL, and a look whether they are gone. It returns when they are and the
	// program's exit is known; with [ErrSurvivors] if some can't be killed. It may
	// be called again and from anywhere.
	End(grace time.Duration) error
	// Rested tells the host that the journal isn't needed before r. It is called
	// after the log has what came before, and doesn't wait.
	Rested(r Rest)
	// Leave gives the program up without ending it, for the process that attaches to it
	// later, and reports whether it lives on; a host that can't do that does nothing.
	// The streams end.
	Leave() bool
	// Close closes the caller's ends of the pipes. It is called after End or Leave.
	Close() error
}

// Process is a running program and all that it started.
type Process struct {
	Backend

	// Stdin, Stdout and Stderr are the caller's ends of the pipes. The caller
	// reads Stdout and Stderr to their end, which comes at the latest when
	// End returns. Stderr is nil if the configuration keeps it, and both
	// are if the program is journalled.
	Stdin          io.WriteCloser
	Stdout, Stderr io.ReadCloser

	// Frames is what a journalled program says, and, before [Live], what it was told.
	// It is closed after the last frame: when the program and all that holds its output are
	// gone, or it was left. It is read to its end.
	Frames <-chan Frame
	// Attached says that the program was there before the Start; Last is the last
	// point at which its journal was given up, from which Frames begins.
	Attached bool
	Last     Rest
}

// Wait waits for the program itself to end.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.Exited():
		return p.Exit(), nil
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("process: wait: %w", ctx.Err())
	}
}

// frameMaker makes frames of what passes through the pipes of a program.
type frameMaker struct {
	mu     sync.Mutex
	offset uint64
	frames chan Frame
	gone   chan struct{} // closed when no reader takes frames any more
	once   sync.Once
}

// passFrame gives a piece of output to the reader of the frames.
func (s *frameMaker) passFrame(d Direction, data []byte) {
	s.mu.Lock()
	f := Frame{Offset: s.offset, Direction: d, At: time.Now().UnixMilli(), Data: data}
	s.offset += uint64(len(data))
	defer s.mu.Unlock() // the order of the channel is that of the offsets
	select {
	case s.frames <- f:
	case <-s.gone:
	}
}

// countBytes counts bytes that the caller itself has written.
func (s *frameMaker) countBytes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += uint64(n)
}

// copyStream reads a stream to its end.
func (s *frameMaker) copyStream(d Direction, r io.ReadCloser) {
	defer func() { _ = r.Close() }()
	for {
		buf := make([]byte, 32<<10)
		n, err := r.Read(buf)
		if n > 0 {
			s.passFrame(d, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// startFrames begins to make frames of the program's streams.
func (s *frameMaker) startFrames(streams map[Direction]io.ReadCloser) {
	go func() {
		defer close(s.frames)
		s.passFrame(Live, nil)
		var copying sync.WaitGroup
		for d, r := range streams {
			copying.Go(func() { s.copyStream(d, r) })
		}
		copying.Wait()
	}()
}

func (s *frameMaker) stopFrames() { s.once.Do(func() { close(s.gone) }) }

// countedStdin is the stdin of a journalled program.
type countedStdin struct {
	*os.File
	spoken *frameMaker
}

func (c countedStdin) Write(p []byte) (int, error) {
	n, err := c.File.Write(p)
	c.spoken.countBytes(n)
	return n, err
}

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

// Exit is how a program ended.
type Exit struct {
	Code   int    // -1 if a signal ended it
	Signal string // such as KILL; "" if it exited
	// Lost says that the program's host is gone, has ended it for want of a runner, or was left: how the
	// program ended, if it has, isn't known.
	Lost bool
	// Memory is the bound, in bytes, of what its tree may use, if the kernel has killed something of it for that; 0 if it hasn't.
	Memory int64
	// At is when it ended, in Unix ms, if a keeper tells; else 0.
	At int64
}

// ErrSurvivors is returned if processes could not be ended.
var ErrSurvivors = errors.New("process: some processes could not be ended")

// clock replaces the machine's clock, unless it is nil.
var clock func() time.Duration // a machine has one

// SetClock has [Uptime] tell the time of another clock: that of a simulation, which has a time of its own. It is called
// before anything else is.
func SetClock(c func() time.Duration) { clock = c }

// livePrograms are the programs that this program started and has not waited for.
var livePrograms programs // children belong to the whole program

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
