package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"code.wake.dev/wake/internal/keeper/journal"
	"code.wake.dev/wake/internal/process"
)

// Tail is what a keeper that is gone has left. It is a [process.Host] of programs that
// have ended: a Start reads the journal of one of them.
type Tail struct {
	config Config
	names  map[string]string // folders
}

// OpenTail reads what the keeper of a folder has left. It must be gone.
func OpenTail(c Config) (*Tail, error) {
	folders, err := fs.Glob(os.DirFS(c.Dir), "program-*")
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	t := &Tail{config: c, names: map[string]string{}}
	for _, folder := range folders {
		f := filepath.Join(c.Dir, folder)
		if name, err := os.ReadFile(filepath.Join(f, "name")); err == nil {
			t.names[string(name)] = f
		}
	}
	return t, nil
}

// Has reports whether there is something of a program.
func (t *Tail) Has(name string) bool { return t.names[name] != "" }

// Forget does nothing: all of it is removed as one.
func (t *Tail) Forget(string) {}

// Ended reports whether a program ended before its keeper, so that its exit is known.
func (t *Tail) Ended(name string) bool {
	dir := t.names[name]
	if dir == "" {
		return false
	}
	cursor, _, err := journal.Open(dir, journal.Options{Key: t.config.Key})
	if err != nil {
		return false
	}
	defer func() { _ = cursor.Close() }()
	for {
		record, _, err := cursor.Next()
		if err != nil {
			return false
		}
		var m exitMessage
		if record.Kind == journal.Exit && json.Unmarshal(record.Data, &m) == nil {
			return !m.Lost
		}
	}
}

// Start gives what is left of a journalled program: its frames, and then its end. How it ended
// isn't known if the keeper went first: its exit is then [process.Exit.Lost].
func (t *Tail) Start(c process.Config) (*process.Process, error) {
	dir := t.names[c.Name]
	if dir == "" || !c.Journal {
		return nil, errMissing
	}
	cursor, rest, err := journal.Open(dir, journal.Options{Key: t.config.Key})
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	r := &relic{exited: make(chan struct{}), closed: make(chan struct{}), exit: process.Exit{Code: -1, Lost: true}}
	frames := make(chan process.Frame)
	go r.readJournal(cursor, frames, c.KeepStderr)
	return &process.Process{
		Backend: r, Stdin: nowhere{}, Frames: frames, Attached: true,
		Last: process.Rest{Offset: rest.Offset, State: rest.State},
	}, nil
}

// relic is a program that is gone with its keeper.
type relic struct {
	exit   process.Exit
	words  string
	exited chan struct{} // closed when the journal has been read
	closed chan struct{} // closed when the reading has ended
	once   sync.Once
}

// readJournal gives the journal to its end. A journal that is cut off ends there.
func (r *relic) readJournal(cursor *journal.Cursor, frames chan<- process.Frame, words bool) {
	defer close(frames)
	defer close(r.exited)
	defer func() { _ = cursor.Close() }()
	give := func(f process.Frame) bool {
		select {
		case frames <- f:
			return true
		case <-r.closed:
			return false
		}
	}
	for {
		record, _, err := cursor.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.words = err.Error()
			}
			give(process.Frame{Direction: process.Live, Offset: cursor.Offset()})
			return
		}
		switch {
		case record.Kind == journal.Exit:
			var m exitMessage
			if json.Unmarshal(record.Data, &m) == nil {
				r.words, r.exit = m.Words, m.toExit()
			}
			continue
		case record.Kind == journal.Err && words:
			continue
		}
		f := process.Frame{Direction: process.Direction(record.Kind), At: record.At, Offset: record.Offset, Data: record.Data}
		if !give(f) {
			return
		}
	}
}

// Pid returns 0: the program is gone.
func (r *relic) Pid() int { return 0 }

// Exited is closed when the journal has been read.
func (r *relic) Exited() <-chan struct{} { return r.exited }

// Exit says how the program ended, as far as it is known.
func (r *relic) Exit() process.Exit { return r.exit }

// Words returns the end of stderr, if the program ended before its keeper.
func (r *relic) Words() string { return r.words }

// nowhere takes what is written to a program that is gone.
type nowhere struct{}

// Write fails.
func (nowhere) Write([]byte) (int, error) { return 0, os.ErrClosed }

// Close does nothing.
func (nowhere) Close() error { return nil }

// End does nothing: it is gone.
func (r *relic) End(time.Duration) error { return nil }

// Rested does nothing: no keeper writes the journal any more.
func (r *relic) Rested(process.Rest) {}

// Leave does nothing.
func (r *relic) Leave() bool { return false }

// Close ends the reading. It may be called twice.
func (r *relic) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}
