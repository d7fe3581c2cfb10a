package keeper

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/keeper/journal"
	"code.wake.dev/wake/internal/process"
)

// program is a program of a keeper.
type program struct {
	server  *server
	id      uint32
	name    string
	mark    string
	journal *journal.Journal
	stdin   *programInput
	started chan guard.Report
	copying sync.WaitGroup
	ending  sync.Mutex
	endings chan string // what the guard says of ending it
	kills   int         // by the bound of the tree's memory, before it began

	mu    sync.Mutex
	pid   int
	exit  *exitMessage  // nil while it runs
	gone  chan struct{} // closed once exit is set
	over  chan struct{} // closed once its journal is, too
	words []byte        // the end of its stderr
	rest  journal.Rest
}

// wordsKept bounds how much of the end of stderr is kept.
const wordsKept = 16 << 10

// programFolder returns the folder of a program's journal.
func programFolder(dir, name string, id uint32) string {
	if name == "" {
		return filepath.Join(dir, fmt.Sprintf("unnamed-%d", id))
	}
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(dir, "program-"+hex.EncodeToString(sum[:8]))
}

// findProgram returns the program of a name, or starts it.
func (s *server) findProgram(m start) (p *program, attached bool, err error) {
	s.mu.Lock()
	if p := s.named[m.Name]; p != nil && m.Name != "" {
		s.mu.Unlock()
		return p, true, nil
	}
	if m.Argv == nil {
		s.mu.Unlock()
		return nil, false, errMissing
	}
	s.count++
	p = &program{
		server: s, id: s.count, name: m.Name, mark: process.NewMark(s.Home), started: make(chan guard.Report, 1),
		gone: make(chan struct{}), over: make(chan struct{}), endings: make(chan string, 1), kills: s.group.CountKills(),
	}
	s.programs[p.id] = p
	if p.name != "" {
		s.named[p.name] = p
	}
	s.mu.Unlock()
	if err := p.startWithJournal(m); err != nil {
		s.mu.Lock()
		delete(s.programs, p.id)
		if s.named[p.name] == p {
			delete(s.named, p.name)
		}
		s.mu.Unlock()
		return nil, false, err
	}
	return p, false, nil
}

var errMissing = errors.New("there is no such program")

func (p *program) startWithJournal(m start) error {
	dir := programFolder(p.server.Dir, p.name, p.id)
	var err error
	if p.journal, err = journal.Create(dir, journal.Options{Key: p.server.Key, Limit: p.server.Limit}); err != nil {
		return err
	}
	failed := func(err error) error {
		return errors.Join(err, p.journal.Close(), os.RemoveAll(dir))
	}
	if p.name != "" {
		if err := os.WriteFile(filepath.Join(dir, "name"), []byte(p.name), 0o600); err != nil {
			return failed(err)
		}
	}
	pipes, err := p.server.guard.StartProgram(p.id, p.mark, guard.Program{Argv: m.Argv, Dir: m.Dir, Env: p.server.User.Environ(m.Env), User: p.server.User})
	if err != nil {
		return failed(err)
	}
	select {
	case r := <-p.started:
		if p.pid = r.Pid; r.Error != "" {
			err = errors.New(r.Error)
		}
	case <-p.server.guard.TreeGone():
		err = errors.New("the guard is gone")
	}
	if err != nil {
		return failed(errors.Join(err, pipes.Stdin.Close(), pipes.Stdout.Close(), pipes.Stderr.Close()))
	}
	p.stdin = newInput(pipes.Stdin, func(data []byte) { p.appendToJournal(journal.In, data) })
	p.copying.Go(func() { p.copyToJournal(journal.Out, pipes.Stdout) })
	p.copying.Go(func() { p.copyToJournal(journal.Err, pipes.Stderr) })
	go func() {
		p.copying.Wait()
		<-p.gone
		p.stdin.queueInput(nil)
		p.keepExit() // once more, behind the last word: the first one may have been given up
		_ = p.journal.Close()
		close(p.over)
	}()
	return nil
}

// copyToJournal journals a stream. While the journal has no room nothing is read: the program
// waits.
func (p *program) copyToJournal(k journal.Kind, r io.ReadCloser) {
	defer func() { _ = r.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if k == journal.Err {
				p.noteWords(buf[:n])
			}
			p.appendToJournal(k, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (p *program) noteWords(words []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.words = append(p.words, words...)
	if over := len(p.words) - wordsKept; over > 0 {
		p.words = append(p.words[:0], p.words[over:]...)
	}
}

// fullAgain is how long a full journal waits before it tries again.
const fullAgain = 200 * time.Millisecond

// appendToJournal journals data, and waits until there is room for it.
func (p *program) appendToJournal(k journal.Kind, data []byte) {
	for waiting := false; ; waiting = true {
		_, err := p.journal.Append(k, time.Now().UnixMilli(), data)
		if err == nil || errors.Is(err, os.ErrClosed) {
			if waiting {
				p.server.noteFull("")
			}
			return
		}
		p.server.noteFull(err.Error())
		select {
		case <-time.After(fullAgain):
		case <-p.server.over:
			return
		}
	}
}

// noteFull notes why programs wait for room in their journals, "" if they don't.
func (s *server) noteFull(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full != why {
		s.full = why
		s.tellChange()
	}
}

// noteExit notes how the program has ended. Only the first word counts.
func (p *program) noteExit(code int, signal string, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil {
		return
	}
	p.exit = &exitMessage{
		Code: code, Signal: signal, Lost: lost, Words: strings.ToValidUTF8(string(p.words), "\uFFFD"), At: time.Now().UnixMilli(),
	}
	if p.server.blameMemory(p.kills, code != 0 || signal != "") {
		p.exit.Memory = p.server.Memory
	}
	p.keepExit()
	close(p.gone)
}

// blameMemory reports whether the kernel has killed something of a program that ends for the tree's bound. A program that
// seems to have succeeded, such as a pipeline by its last command, isn't blamed for a kill that another one's exit tells of.
func (s *server) blameMemory(before int, failed bool) bool {
	kills := s.group.CountKills()
	s.mu.Lock()
	defer s.mu.Unlock()
	if kills <= before || !failed && kills <= s.blamed {
		return false
	}
	s.blamed = kills
	return true
}

// keepExit journals how the program has ended.
func (p *program) keepExit() {
	if b, err := json.Marshal(p.exit); err == nil {
		_, _ = p.journal.Append(journal.Exit, p.exit.At, b)
	}
}

// endTree ends the program's tree and returns why it couldn't be.
func (p *program) endTree(grace time.Duration) string {
	p.ending.Lock() // one at a time, so that the answer is that to this order
	defer p.ending.Unlock()
	g := p.server.guard
	g.EndProgram(p.id, p.mark, grace)
	select {
	case fault := <-p.endings:
		return fault
	case <-g.TreeGone():
		return ""
	}
}

// lastWords waits a moment until all that the program has said is journalled, and returns the
// end of its stderr. Its tree must be gone.
func (p *program) lastWords() string {
	done := make(chan struct{})
	go func() {
		p.copying.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lastWait): // something outside of the tree holds its pipes, or the journal is full
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ToValidUTF8(string(p.words), "\uFFFD")
}

// lastWait bounds how long the last output of a tree may take.
const lastWait = time.Second

// giveUp gives up the journal before a resting point.
func (p *program) giveUp(r journal.Rest) {
	if p.journal.GiveUp(r) == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Offset >= p.rest.Offset {
			p.rest = r
		}
	}
}

// forgetProgram removes the journal of a program that has ended, and then its name.
func (s *server) forgetProgram(name string) {
	s.mu.Lock()
	p := s.named[name]
	s.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case <-p.gone:
	default:
		return
	}
	go func() {
		<-p.over
		s.mu.Lock() // an attaching runner sees both or neither
		defer s.mu.Unlock()
		if os.RemoveAll(programFolder(s.Dir, name, p.id)) == nil {
			delete(s.named, name)
		}
	}()
}

// programInput writes to a program's stdin what a runner has written, in order and once the journal has it, without making its callers wait:
// a runner that is waited for can't make room in the journal.
type programInput struct {
	file io.WriteCloser
	keep func([]byte)  // journals a piece
	more chan struct{} // holds one token when there is something to do

	mu     sync.Mutex
	pieces [][]byte
	closed bool
}

func newInput(file io.WriteCloser, keep func([]byte)) *programInput {
	i := &programInput{file: file, keep: keep, more: make(chan struct{}, 1)}
	go i.run()
	return i
}

// queueInput queues data; none closes the stdin behind what is queued.
func (i *programInput) queueInput(data []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	if len(data) == 0 {
		i.closed = true
	} else {
		i.pieces = append(i.pieces, data)
	}
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// run writes until the stdin is closed. What a program takes no more is journalled all the same.
func (i *programInput) run() {
	defer func() { _ = i.file.Close() }()
	var refused error
	for range i.more {
		i.mu.Lock()
		pieces, closed := i.pieces, i.closed
		i.pieces = nil
		i.mu.Unlock()
		for _, b := range pieces {
			for piece := range slices.Chunk(b, journal.MaxData) {
				i.keep(piece)
			}
			if refused == nil {
				_, refused = i.file.Write(b)
			}
		}
		if closed {
			return
		}
	}
}
