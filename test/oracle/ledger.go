package oracle

import (
	"bytes"
	"sync"
	"time"
)

// Ledger is what happened outside of the log, as its actors saw it. It may be used by many goroutines. Times are the server's.
type Ledger struct {
	mu           sync.Mutex
	acknowledged []acknowledged
	worked       []Work
	began        []Beginning
	ran          []Command
	shown        map[string][]string
	taken        map[string][]taken
	commands     []command
	requested    []string
	acted        []acted
	said         []Saying
	heard        []heard
	left         []string
}

// acted is an agent's program that did something for a node.
type acted struct {
	run, node string
	agent     int
}

// Saying is what an agent's program said.
type Saying struct {
	Run, Exec string
	Agent     int    // the program
	Mark      string // by which the log shows it
}

// heard is a runner that spoke to an agent's program.
type heard struct {
	agent int
	from  string
}

type acknowledged struct {
	position uint64
	subject  string
	data     []byte
}

// Work is a tool call that was made.
type Work struct {
	Run, Node, Exec, Call string
	Safe                  bool // it changes nothing: made before its intent is stored
	At                    time.Time
}

// Beginning is an agent that began, or went on, with an execution.
type Beginning struct {
	Run, Node, Exec, Runner string
}

// Command is the program of an exec node that was started.
type Command struct {
	Run, Node, Exec string
	Idempotent      bool
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
func NewLedger() *Ledger {
	return &Ledger{shown: map[string][]string{}, taken: map[string][]taken{}}
}

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

// Ran notes a command that was started.
func (l *Ledger) Ran(c Command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran = append(l.ran, c)
}

// Acted notes that an agent's program did something for a node.
func (l *Ledger) Acted(run, node string, agent int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := acted{run, node, agent}
	if n := len(l.acted); n == 0 || l.acted[n-1] != a {
		l.acted = append(l.acted, a)
	}
}

// Said notes what an agent's program is about to say.
func (l *Ledger) Said(s Saying) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, s)
}

// Heard notes that a runner spoke to an agent's program.
func (l *Ledger) Heard(agent int, from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, heard{agent, from})
}

// Left notes the keepers that are there when all runs have ended.
func (l *Ledger) Left(keepers []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = append(l.left, keepers...)
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

// LostQueue notes that the stream of requests was made anew: which of them were stored so far isn't known any more.
func (l *Ledger) LostQueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requested = nil
}
