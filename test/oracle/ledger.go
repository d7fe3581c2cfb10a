package oracle

import (
	"bytes"
	"sync"
	"time"
)

// Ledger is what happened outside of the log, as those saw it who did it. It may be
// used by many goroutines. Times are of the clock by which the server stores.
type Ledger struct {
	mu           sync.Mutex
	acknowledged []acknowledged
	worked       []Work
	began        []Beginning
	shown        map[string][]string
	taken        map[string][]taken
	commands     []command
	requested    []string
}

type acknowledged struct {
	position uint64
	subject  string
	data     []byte
}

// Work is a tool call that was made.
type Work struct {
	Run, Node, Exec, Call string
	At                    time.Time
}

// Beginning is an agent that began, or went on, with an execution.
type Beginning struct {
	Run, Node, Exec, Runner string
}

// taken is a notification that a sink took.
type taken struct {
	id   string
	body []byte
}

type command struct {
	position uint64
	run, id  string
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{shown: map[string][]string{}, taken: map[string][]taken{}} }

// Acknowledged notes an event whose storing was acknowledged to its writer.
func (l *Ledger) Acknowledged(position uint64, subject string, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acknowledged = append(l.acknowledged, acknowledged{position, subject, bytes.Clone(data)})
}

// Worked notes a tool call that was made.
func (l *Ledger) Worked(w Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worked = append(l.worked, w)
}

// Began notes an agent that began an execution or went on with it.
func (l *Ledger) Began(b Beginning) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = append(l.began, b)
}

// Shown notes a line that a sink of alerts was given.
func (l *Ledger) Shown(sink, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown[sink] = append(l.shown[sink], line)
}

// Listens notes a sink that is to be sent all alerts.
func (l *Ledger) Listens(sink string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[sink] = append(l.taken[sink], nil...)
}

// Took notes a notification that a sink took.
func (l *Ledger) Took(sink, id string, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[sink] = append(l.taken[sink], taken{id, bytes.Clone(body)})
}

// Commanded notes a command that was stored at a position of WAKE_COMMANDS.
func (l *Ledger) Commanded(position uint64, run, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commands = append(l.commands, command{position, run, id})
}

// Requested notes a run whose request was stored.
func (l *Ledger) Requested(run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requested = append(l.requested, run)
}
