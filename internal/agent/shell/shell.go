// Package shell runs the commands of exec nodes: builds, tests, scripts.
//
// A command runs in its own process group with everything it starts, and
// everything ends with it: a server that it leaves in the background as well. Its output
// is events while it comes; [Outcome] makes the node's output of them.
package shell

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"wake/internal/process"
	"wake/pkg/wire"
)

// Command is what to run.
type Command struct {
	ExecID  string
	Command string        // for sh -c; or
	Argv    []string      // a program and its arguments
	Cwd     string        // "": that of this program
	Env     []string      // the whole environment, see agent.Environment
	Timeout time.Duration // 0: no limit
	Grace   time.Duration // between SIGTERM and SIGKILL; default 5 s
}

func (c Command) argv() []string {
	if len(c.Argv) > 0 {
		return c.Argv
	}
	return []string{"/bin/sh", "-c", c.Command}
}

// text is how the command is recorded.
func (c Command) text() string {
	if len(c.Argv) > 0 {
		return valid(fmt.Sprintf("%q", c.Argv))
	}
	return valid(c.Command)
}

func (c Command) grace() time.Duration {
	if c.Grace == 0 {
		return 5 * time.Second
	}
	return c.Grace
}

// piece is output that was read.
type piece struct {
	stream string
	bytes  []byte
}

// Run runs the command and yields exec:start, exec:output and exec:exit. It
// yields an error, and nothing more, if the command can't be started or
// ended. If ctx ends, so does the command; exec:exit tells the signal then. Leaving the
// iteration early ends the command.
func (c Command) Run(ctx context.Context) iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		begin := time.Now()
		p, err := process.Start(process.Config{Argv: c.argv(), Dir: c.Cwd, Env: c.Env})
		if err != nil {
			yield(nil, fmt.Errorf("shell: %w", err))
			return
		}
		r := run{command: c, process: p, begin: begin, pieces: make(chan piece), done: make(chan struct{})}
		defer r.leave()
		if err := p.Stdin.Close(); err != nil { // commands read nothing
			yield(nil, fmt.Errorf("shell: %w", err))
			return
		}
		r.drive(ctx, yield)
	}
}

// run is a command that runs.
type run struct {
	command Command
	process *process.Process
	begin   time.Time
	pieces  chan piece    // closed when both streams have ended
	done    chan struct{} // closed when nobody reads pieces any more
	over    bool          // the time limit is
	ended   bool
}

func (r *run) drive(ctx context.Context, yield func(*wire.Event, error) bool) {
	start := &wire.ExecStart{Command: r.command.text(), Cwd: valid(r.command.Cwd), Pid: r.process.Pid()}
	go r.read()
	if !r.yield(yield, start) {
		return
	}
	limit := make(<-chan time.Time)
	if r.command.Timeout > 0 {
		timer := time.NewTimer(r.command.Timeout - time.Since(r.begin))
		defer timer.Stop()
		limit = timer.C
	}
	streams := map[string]*decoder{"stdout": {}, "stderr": {}}
	exited, cancelled := r.process.Exited(), ctx.Done()
	ending := make(chan error, 1)
	end := func() {
		if !r.ended {
			r.ended = true
			go func() { ending <- r.process.End(r.command.grace()) }()
		}
	}
	// A command may close its streams before it exits, and what it left behind may
	// keep them open after: it is over when both have come.
	var err error
	for pieces, gone := r.pieces, false; pieces != nil || !gone; {
		select {
		case p, more := <-pieces:
			if !more {
				pieces = nil
			} else if !r.output(yield, p.stream, streams[p.stream].decode(p.bytes)) {
				return
			}
		case err = <-ending:
			gone = true
		case <-limit:
			r.over, limit = true, nil
			end()
		case <-cancelled:
			cancelled = nil
			end()
		case <-exited:
			exited = nil
			end()
		}
	}
	r.exit(ctx, err, streams, yield)
}

// read reads both streams to their end.
func (r *run) read() {
	defer close(r.pieces)
	both := make(chan struct{})
	go func() {
		defer close(both)
		r.copy("stderr", r.process.Stderr.Read)
	}()
	r.copy("stdout", r.process.Stdout.Read)
	<-both
}

// copy passes a stream on. While nobody takes a piece, nothing is read: a
// command that prints too fast waits.
func (r *run) copy(stream string, read func([]byte) (int, error)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := read(buf)
		if n > 0 {
			select {
			case r.pieces <- piece{stream, append([]byte(nil), buf[:n]...)}:
			case <-r.done:
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *run) yield(yield func(*wire.Event, error) bool, p wire.Payload) bool {
	return yield(&wire.Event{ExecID: r.command.ExecID, Timestamp: time.Now().UnixMilli(), Payload: p}, nil)
}

func (r *run) output(yield func(*wire.Event, error) bool, stream, text string) bool {
	return text == "" || r.yield(yield, &wire.ExecOutput{Stream: stream, Content: text})
}

// exit yields what is left of the output, and the end.
func (r *run) exit(ctx context.Context, err error, streams map[string]*decoder, yield func(*wire.Event, error) bool) {
	for _, stream := range []string{"stdout", "stderr"} {
		if !r.output(yield, stream, streams[stream].rest()) {
			return
		}
	}
	if err != nil {
		yield(nil, fmt.Errorf("shell: %w", err))
		return
	}
	exit, err := r.process.Wait(context.WithoutCancel(ctx))
	if err != nil {
		yield(nil, fmt.Errorf("shell: %w", err))
		return
	}
	r.yield(yield, &wire.ExecExit{
		ExitCode: int64(exit.Code), Signal: exit.Signal, TimedOut: r.over, DurationMs: time.Since(r.begin).Milliseconds(),
	})
}

// leave ends the command, if it still runs, and its readers.
func (r *run) leave() {
	close(r.done)
	err := r.process.End(r.command.grace())
	for range r.pieces {
		// nobody wants them any more
	}
	_ = errors.Join(err, r.process.Close()) // survivors were reported by exit
}
