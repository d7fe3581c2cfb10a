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
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
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
	// Limit is how many bytes of its output are recorded of the beginning, and again of the end, which
	// comes when the command has ended; what lies between is left out. 0: everything is recorded.
	Limit int64
	// Host is where it runs, under Name; nil: [process.Direct]. If the host has it
	// already, whether it still runs or has ended, it goes on being recorded.
	Host process.Host
	Name string
	// Begin is when a command that the host has already was started, by its exec:start in the log. Zero: the
	// log has none.
	Begin time.Time
	// Stored reports whether the log has all events that were yielded so far; nil: it does.
	Stored func() bool
	// Cut is called with a stream of which something is left out, the first time: what was yielded of it isn't gone on
	// with. It may be nil.
	Cut func(stream string)
}

func (c Command) commandLine() []string {
	if len(c.Argv) > 0 {
		return c.Argv
	}
	return []string{"/bin/sh", "-c", c.Command}
}

// logText is how the command is recorded.
func (c Command) logText() string {
	if len(c.Argv) > 0 {
		return toValidUTF8(fmt.Sprintf("%q", c.Argv))
	}
	return toValidUTF8(c.Command)
}

func (c Command) graceOrDefault() time.Duration {
	if c.Grace == 0 {
		return 5 * time.Second
	}
	return c.Grace
}

// Run runs the command and yields exec:start, exec:output and exec:exit. It
// yields an error, and nothing more, if the command can't be started or
// ended, [agent.ErrLost] if its host is gone, or it was left to that. If ctx ends, so does the command; exec:exit tells the signal then. Leaving the
// iteration early ends the command.
//
// Of a command that the host has already there is no exec:start if the log has one, and the output since the last resting
// point of its journal comes again, in the same events.
func (c Command) Run(ctx context.Context) iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		begin := time.Now()
		host := c.Host
		if host == nil {
			host = process.Direct{}
		}
		p, err := host.Start(process.Config{Name: c.Name, Argv: c.commandLine(), Dir: c.Cwd, Env: c.Env, Journal: true})
		if errors.Is(err, process.ErrGone) {
			err = fmt.Errorf("%w: %w", agent.ErrLost, err)
		}
		if err != nil {
			yield(nil, fmt.Errorf("shell: %w", err))
			return
		}
		if p.Attached && !c.Begin.IsZero() {
			begin = c.Begin
		}
		r := run{command: c, process: p, begin: begin, replaying: true, excerpt: excerpt{limit: c.Limit}}
		defer r.endCommand()
		if err := r.restoreRest(); err != nil {
			yield(nil, fmt.Errorf("shell: %w", err))
			return
		}
		_ = p.Stdin.Close() // commands read nothing; that the host is gone is found out below
		r.driveProcess(ctx, yield)
	}
}

// run is a command that runs.
type run struct {
	command   Command
	process   *process.Process
	begin     time.Time // of the command
	replaying bool      // its output is from the journal
	offset    uint64    // of the journal, behind what was read last
	rested    time.Time // when the host was last told of a resting point
	last      uint64    // its offset
	excerpt   excerpt
	cut       []string // streams of which the host knows that something was left out
	over      bool     // the time limit is
	ended     bool
}

func (r *run) driveProcess(ctx context.Context, yield func(*wire.Event, error) bool) {
	start := &wire.ExecStart{Command: r.command.logText(), Cwd: toValidUTF8(r.command.Cwd), Pid: r.process.Pid()}
	if (!r.process.Attached || r.command.Begin.IsZero()) && !r.yieldPayload(yield, r.begin, start) {
		return
	}
	limit := make(<-chan time.Time)
	if r.command.Timeout > 0 {
		left := r.command.Timeout - time.Since(r.begin)
		if r.process.Attached {
			left = max(left, lateEnd)
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		limit = timer.C
	}
	streams := map[string]*textDecoder{"stdout": {}, "stderr": {}}
	exited, cancelled := r.process.Exited(), ctx.Done()
	ending := make(chan error, 1)
	end := func() {
		if !r.ended {
			r.ended = true
			go func() { ending <- r.process.End(r.command.graceOrDefault()) }()
		}
	}
	resting := time.NewTicker(restEvery) // also of a command that waits for room in its journal
	defer resting.Stop()
	// A command may close its streams before it exits, and what it left behind may
	// keep them open after: it is over when both have come.
	var err error
	for frames, gone := r.process.Frames, false; frames != nil || !gone; {
		select {
		case f, more := <-frames:
			if !more {
				frames = nil
			} else if !r.takeFrame(f, streams, yield) {
				return
			}
		case <-resting.C:
			r.reportRest(streams)
		case err = <-ending:
			gone = true
		case <-limit:
			if r.process.Attached && r.replaying {
				limit = time.After(lateEnd)
				continue
			}
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
	r.yieldExit(ctx, err, streams, yield)
}

// lateEnd is how long a command that was there before may take to tell that it has ended, though its time is over.
const lateEnd = time.Second

// takeFrame takes in what the command has printed.
func (r *run) takeFrame(f process.Frame, streams map[string]*textDecoder, yield func(*wire.Event, error) bool) bool {
	stream := "stdout"
	switch f.Direction {
	case process.Live:
		r.replaying = false
		return true
	case process.In:
		return true
	case process.Err:
		stream = "stderr"
	case process.Out:
	}
	whole := heldBytes(streams) == 0
	r.offset = f.Offset + uint64(len(f.Data))
	text := streams[stream].decode(f.Data)
	switch {
	case text == "":
	case r.excerpt.passPiece(outputPiece{stream: stream, text: text, from: f.Offset, whole: whole}):
		if !r.yieldOutput(yield, f.At, 0, &wire.ExecOutput{Stream: stream, Content: text}) {
			return false
		}
	default:
		r.reportCuts()
	}
	r.reportRest(streams)
	return true
}

// reportCuts tells the host of each stream of which something was left out for the first time.
func (r *run) reportCuts() {
	for _, stream := range []string{"stdout", "stderr"} {
		if r.excerpt.left[stream] == 0 || slices.Contains(r.cut, stream) || r.command.Cut == nil {
			continue
		}
		r.cut = append(r.cut, stream)
		r.command.Cut(stream)
	}
}

// heldBytes returns how many bytes of characters that are cut are held.
func heldBytes(streams map[string]*textDecoder) int {
	return len(streams["stdout"].held) + len(streams["stderr"].held)
}

// restEvery is the least time between two resting points of which the host is told.
const restEvery = time.Second

// restState is what is needed to go on with a command from a resting point.
type restState struct {
	Begin  int64             `json:"begin"`            // of the command, Unix ms
	Passed int64             `json:"passed,omitempty"` // bytes of the output that were recorded, if that is limited
	Left   map[string]int64  `json:"left,omitempty"`   // and that were left out
	Tails  map[string]string `json:"tails,omitempty"`  // and of these what is kept
}

// reportRest tells the host that the journal isn't needed up to here, or up to the end of the output as far as it is
// kept, if no character is cut there and the log has all that came before.
func (r *run) reportRest(streams map[string]*textDecoder) {
	at, whole := r.offset, heldBytes(streams) == 0
	if len(r.excerpt.end) > 0 {
		at, whole = r.excerpt.end[0].from, r.excerpt.end[0].whole
	}
	if r.replaying || at == r.last || time.Since(r.rested) < restEvery || !whole || r.command.Stored != nil && !r.command.Stored() {
		return
	}
	now := restState{Begin: r.begin.UnixMilli()}
	if r.excerpt.limit > 0 {
		now.Passed, now.Left = r.excerpt.passed, r.excerpt.left
		for stream := range r.excerpt.left {
			if tail := r.excerpt.tailOf(stream); tail != "" {
				if now.Tails == nil {
					now.Tails = map[string]string{}
				}
				now.Tails[stream] = tail
			}
		}
	}
	data, err := wire.Marshal(now)
	if err != nil {
		return // it will come from the beginning again
	}
	r.rested, r.last = time.Now(), at
	r.process.Rested(process.Rest{Offset: at, State: data})
}

// restoreRest takes in what is known of a command that was there before.
func (r *run) restoreRest() error {
	r.offset, r.last = r.process.Last.Offset, r.process.Last.Offset
	if len(r.process.Last.State) == 0 {
		return nil
	}
	var x restState
	if err := wire.Unmarshal(r.process.Last.State, &x); err != nil {
		return err
	}
	r.begin = time.UnixMilli(x.Begin)
	r.excerpt.passed, r.excerpt.left, r.excerpt.tails = x.Passed, x.Left, map[string][]byte{}
	for stream, tail := range x.Tails {
		r.excerpt.tails[stream] = []byte(tail)
	}
	return nil
}

func (r *run) yieldPayload(yield func(*wire.Event, error) bool, at time.Time, p wire.Payload) bool {
	return yield(&wire.Event{ExecID: r.command.ExecID, Timestamp: at.UnixMilli(), Payload: p}, nil)
}

// yieldOutput yields a piece of output, in its place of the journal.
func (r *run) yieldOutput(yield func(*wire.Event, error) bool, at int64, index int, p *wire.ExecOutput) bool {
	return yield(&wire.Event{ExecID: r.command.ExecID, Timestamp: at, JournalOffset: r.offset, JournalIndex: index, Payload: p}, nil)
}

// yieldExit yields what is left of the output, and the end.
func (r *run) yieldExit(ctx context.Context, err error, streams map[string]*textDecoder, yield func(*wire.Event, error) bool) {
	last := r.excerpt.lastOutput()
	for _, stream := range []string{"stdout", "stderr"} {
		last = append(last, &wire.ExecOutput{Stream: stream, Content: streams[stream].takeRest()})
	}
	for i, p := range last {
		if p.Content == "" && p.Omitted == 0 {
			continue
		}
		if !r.yieldOutput(yield, time.Now().UnixMilli(), i+1, p) { // 0 is that of the last piece
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
	if exit.Lost && !r.over && ctx.Err() == nil {
		yield(nil, fmt.Errorf("shell: %w", agent.ErrLost))
		return
	}
	took := time.Since(r.begin).Milliseconds()
	if r.process.Attached && exit.At != 0 { // it may have ended while nobody was attached
		took = max(0, exit.At-r.begin.UnixMilli())
	}
	r.yieldPayload(yield, time.Now(), &wire.ExecExit{
		ExitCode: int64(exit.Code), Signal: exit.Signal, TimedOut: r.over, DurationMs: took, MemoryBytes: exit.Memory,
	})
}

// endCommand ends the command, if it still runs, and what reads its output.
func (r *run) endCommand() {
	err := r.process.End(r.command.graceOrDefault())
	for range r.process.Frames {
		// read to their end, unused
	}
	_ = errors.Join(err, r.process.Close()) // survivors were reported by exit
}
