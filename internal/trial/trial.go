// Package trial finds the events that end the process of a service when it handles them, and has them set aside: else the
// service would read them again at each start, for ever.
//
// What a process is handling stands in a file while it does. A process that finds such a note knows at what its
// predecessor ended: it handles those events one by one, each with a note of its own, and so the next one knows
// which it was. An event that has ended [Most] processes that handled nothing else is set aside by the next. A
// process that waits, for its disk or the server, handles nothing: killing it then counts for nothing.
package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/eventlog"
)

// Most is how many processes may end at an event alone.
const Most = 3

// Trial is what a service knows of its processes that ended. Of a nil one nothing is known, and nothing noted.
type Trial struct {
	incarnation string   // of the log
	file        *os.File // of the note, open as long as the process lives
	list        string   // file of what was set aside
	alone       *sync.Mutex

	suspects note // owned by the goroutine that handles events

	mu    sync.Mutex
	aside []uint64
}

// note is what is being handled, or was when a process ended.
type note struct {
	from, to uint64 // positions; 0: nothing
	deaths   int    // of processes that handled nothing but this one event
}

func (n note) hasPosition(pos uint64) bool { return n.from <= pos && pos <= n.to }

// size is that of a note in its file, which is replaced in one write.
const (
	form = "%-40.40s %20d %20d %10d\n"
	size = 40 + 1 + 20 + 1 + 20 + 1 + 10 + 1
)

// Open reads what an earlier process of a service has left in a folder that no other process has. Those of a process share a
// mutex: what is suspected is handled alone, so that no other service is taken for what ended it.
func Open(dir, service, incarnation string, alone *sync.Mutex) (*Trial, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trial: %w", err)
	}
	t := &Trial{incarnation: incarnation, list: filepath.Join(dir, service+".aside"), alone: alone}
	b, err := os.ReadFile(t.list)
	if err == nil {
		err = t.readAsides(b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("trial: %w", err)
	}
	if t.file, err = os.OpenFile(filepath.Join(dir, service), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("trial: %w", err)
	}
	t.readNote()
	return t, nil
}

// readNote reads at what the process before this one ended. A note that can't be read is none.
func (t *Trial) readNote() {
	b := make([]byte, size)
	if _, err := io.ReadFull(t.file, b); err != nil {
		return
	}
	var incarnation string
	var n note
	if _, err := fmt.Sscan(string(b), &incarnation, &n.from, &n.to, &n.deaths); err != nil || incarnation != t.incarnation {
		return
	}
	if n.from == n.to && n.from > 0 {
		n.deaths++
	}
	t.suspects = n
}

// writeNote notes what is being handled. A note that can't be written costs no more than a process that ends once more.
func (t *Trial) writeNote(n note) {
	_, _ = t.file.WriteAt(fmt.Appendf(nil, form, t.incarnation, n.from, n.to, n.deaths), 0)
}

// Handle has f handle entries, in pieces if some are suspected. One that is set aside has [eventlog.Entry.Err].
func (t *Trial) Handle(ctx context.Context, entries []eventlog.Entry, f func(context.Context, []eventlog.Entry) error) error {
	if t == nil {
		return f(ctx, entries)
	}
	for len(entries) > 0 {
		n := len(entries)
		if i := slices.IndexFunc(entries, func(e eventlog.Entry) bool { return t.suspects.hasPosition(e.Pos) }); i >= 0 {
			n = max(i, 1)
		}
		if err := t.handlePart(ctx, entries[:n:n], f); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// handlePart has f handle entries that go together: one, if it is suspected.
func (t *Trial) handlePart(ctx context.Context, entries []eventlog.Entry, f func(context.Context, []eventlog.Entry) error) error {
	n := note{from: entries[0].Pos, to: entries[len(entries)-1].Pos}
	if !t.suspects.hasPosition(n.from) {
		return t.handleNoted(ctx, n, entries, f)
	}
	t.alone.Lock()
	if t.suspects.from == t.suspects.to {
		n.deaths = t.suspects.deaths
	}
	err := t.handleNoted(ctx, n, entries, f)
	t.alone.Unlock() // not deferred: no other service may be tried while a panic of this one ends the process
	return err
}

func (t *Trial) handleNoted(ctx context.Context, n note, entries []eventlog.Entry, f func(context.Context, []eventlog.Entry) error) error {
	if n.deaths >= Most {
		if err := t.setAside(n.from); err != nil {
			return err
		}
	}
	for i := range entries {
		if e := &entries[i]; e.Err == nil && t.IsAside(e.Pos) {
			e.Err, e.Event = fmt.Errorf("handling it has ended the process %d times in a row", Most), nil
		}
	}
	t.writeNote(n)
	err := f(ctx, entries) // not deferred: a panic leaves the note
	t.writeNote(note{})
	return err
}

// Waits says that what is handled waits for something, so that an end of the process isn't its doing. Any goroutine of the
// service may call it.
func (t *Trial) Waits() {
	if t != nil {
		t.writeNote(note{})
	}
}

// asides is what was set aside, as it is stored.
type asides struct {
	Incarnation string   `json:"incarnation"`
	Positions   []uint64 `json:"positions"`
}

func (t *Trial) readAsides(b []byte) error {
	var a asides
	if err := json.Unmarshal(b, &a); err != nil {
		return fmt.Errorf("%s: %w", t.list, err)
	}
	if a.Incarnation == t.incarnation {
		t.aside = a.Positions
	}
	return nil
}

// IsAside reports whether the event at a position was set aside.
func (t *Trial) IsAside(pos uint64) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.aside, pos)
}

func (t *Trial) setAside(pos uint64) error {
	if t.IsAside(pos) {
		return nil
	}
	positions := append(slices.Clone(t.aside), pos)
	b, err := json.Marshal(asides{t.incarnation, positions})
	if err == nil {
		err = durable.Write(t.list, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("trial: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.aside = positions
	return nil
}
