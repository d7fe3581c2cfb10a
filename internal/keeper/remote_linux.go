package keeper

import (
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/process"
)

// remote is a program of a keeper, from the runner's side.
type remote struct {
	keeper  *Keeper
	id      uint32
	config  process.Config
	started chan startedMessage
	endings chan endedMessage
	ending  sync.Mutex
	frames  chan process.Frame
	closed  chan struct{} // closed when the reading has ended
	readers []io.Closer   // of what isn't read as frames
	once    sync.Once
	exited  chan struct{} // closed once exit is set
	pid     int

	mu     sync.Mutex
	exit   exitMessage
	done   bool
	queue  []process.Frame
	more   chan struct{} // holds one token when there is something in the queue
	words  string        // the end of stderr
	pumped chan struct{} // closed when the pump is gone
}

func newRemote(k *Keeper, c process.Config) *remote {
	return &remote{
		keeper: k, config: c, started: make(chan startedMessage, 1), endings: make(chan endedMessage, 1),
		frames: make(chan process.Frame), closed: make(chan struct{}), exited: make(chan struct{}),
		more: make(chan struct{}, 1), pumped: make(chan struct{}),
	}
}

// toProcess returns what the caller gets of the program.
func (r *remote) toProcess(s startedMessage) *process.Process {
	r.pid = outsidePid(r.keeper.pid, s.Pid)
	p := &process.Process{
		Backend: r, Stdin: stdin{r}, Attached: s.Attached,
		Last: process.Rest{Offset: s.Offset, State: s.State},
	}
	sinks := map[process.Direction]io.WriteCloser{}
	if r.config.Journal {
		p.Frames = r.frames
	} else {
		p.Stdout, sinks[process.Out] = newPipe()
		if !r.config.KeepStderr {
			p.Stderr, sinks[process.Err] = newPipe()
			r.readers = append(r.readers, p.Stderr)
		}
		r.readers = append(r.readers, p.Stdout)
	}
	go r.pumpFrames(sinks)
	return p
}

func newPipe() (io.ReadCloser, io.WriteCloser) { return io.Pipe() }

// queueFrame queues a frame; one without direction is the last.
func (r *remote) queueFrame(f process.Frame) {
	r.mu.Lock()
	r.queue = append(r.queue, f)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// pumpFrames gives the reader what was queued, and the keeper credit for it.
func (r *remote) pumpFrames(sinks map[process.Direction]io.WriteCloser) {
	defer close(r.pumped)
	defer close(r.frames)
	defer func() {
		for _, w := range sinks {
			_ = w.Close()
		}
	}()
	for range r.more {
		r.mu.Lock()
		queue := r.queue
		r.queue = nil
		r.mu.Unlock()
		for _, f := range queue {
			if f.Direction == 0 {
				return
			}
			r.passFrame(f, sinks)
			if len(f.Data) > 0 {
				_ = r.keeper.sendJSON(msgCredit, credit{Program: r.id, Bytes: len(f.Data)})
			}
		}
	}
}

func (r *remote) passFrame(f process.Frame, sinks map[process.Direction]io.WriteCloser) {
	switch {
	case f.Direction == process.Err && r.config.KeepStderr:
		return // the exit has its end
	case !r.config.Journal:
		if w := sinks[f.Direction]; w != nil {
			_, _ = w.Write(f.Data) // a reader that is gone wants no more
		}
		return
	}
	select {
	case r.frames <- f:
	case <-r.closed:
	}
}

// noteExit notes how the program has ended.
func (r *remote) noteExit(m exitMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return
	}
	r.exit, r.words, r.done = m, cmp.Or(r.words, m.Words), true
	close(r.exited)
}

// Pid returns the process id of the program; 0 if it isn't known.
func (r *remote) Pid() int { return r.pid }

// Exited is closed when the program has ended, or its keeper.
func (r *remote) Exited() <-chan struct{} { return r.exited }

// Exit says how it ended.
func (r *remote) Exit() process.Exit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exit.toExit()
}

// Words returns the end of stderr: all of it after End.
func (r *remote) Words() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.words
}

// End ends the program's tree; see [process.Backend].
func (r *remote) End(grace time.Duration) error {
	r.ending.Lock()
	defer r.ending.Unlock()
	if err := r.keeper.sendJSON(msgEnd, end{Program: r.id, Grace: grace}); err == nil {
		select {
		case m := <-r.endings:
			r.mu.Lock()
			r.words = m.Words
			r.mu.Unlock()
			if m.Error != "" {
				return errors.Join(process.ErrSurvivors, errors.New(m.Error))
			}
		case <-r.keeper.gone:
		}
	} else {
		<-r.keeper.gone
	}
	select {
	case <-r.exited:
	case <-r.keeper.gone: // it was left
	}
	return nil
}

// Rested gives up the journal before a resting point.
func (r *remote) Rested(p process.Rest) {
	_ = r.keeper.sendJSON(msgRest, restMessage{Program: r.id, Offset: p.Offset, State: p.State})
}

// Leave gives the whole keeper up: the programs of an execution stay together.
func (r *remote) Leave() bool {
	r.keeper.Leave()
	return true
}

// Close ends the reading.
func (r *remote) Close() error {
	r.once.Do(func() {
		close(r.closed)
		for _, c := range r.readers {
			_ = c.Close()
		}
	})
	return nil
}

// stdin is the stdin of a program.
type stdin struct{ *remote }

// Write gives the keeper all of it at once, as long as that fits into a message: a runner that dies in the middle leaves no
// piece of a line to the next one.
func (s stdin) Write(p []byte) (int, error) {
	written := 0
	for piece := range slices.Chunk(p, maxInput) {
		if err := s.keeper.writeMessage(msgInput, inputHeader(s.id), piece); err != nil {
			return written, err
		}
		written += len(piece)
	}
	return written, nil
}

// maxInput is how much is written to a program at once.
const maxInput = maxMessage - 16

// Close closes the program's stdin behind what was written.
func (s stdin) Close() error {
	select {
	case <-s.keeper.gone:
		return os.ErrClosed
	default:
		return s.keeper.writeMessage(msgInput, inputHeader(s.id))
	}
}
