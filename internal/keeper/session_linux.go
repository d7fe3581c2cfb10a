package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"code.wake.dev/wake/internal/keeper/journal"
	"code.wake.dev/wake/internal/process"
)

// runnerSession is a runner that is attached, from the keeper's side.
type runnerSession struct {
	*link
	server *server
	gone   chan struct{} // closed when the runner is gone
	feeds  sync.WaitGroup

	mu       sync.Mutex
	programs map[uint32]*program // as the runner numbers them
	credits  map[uint32]*allowance
	left     bool // the runner is gone, and with it its programs without a name
}

// allowance is how much the runner still takes of a program.
type allowance struct {
	mu    sync.Mutex
	bytes int
	more  chan struct{} // holds one token when there may be more
}

func (a *allowance) addCredit(n int) {
	a.mu.Lock()
	a.bytes += n
	a.mu.Unlock()
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// awaitCredit waits until there is an allowance and takes n from it, which may be more than
// there is.
func (a *allowance) awaitCredit(n int, gone <-chan struct{}) bool {
	for {
		a.mu.Lock()
		if a.bytes > 0 {
			a.bytes -= n
			a.mu.Unlock()
			return true
		}
		a.mu.Unlock()
		select {
		case <-a.more:
		case <-gone:
			return false
		}
	}
}

// serveRunner obeys the runner until it is gone.
func (c *runnerSession) serveRunner(r *bufio.Reader) {
	defer func() {
		close(c.gone)
		c.server.detachSession(c)
		_ = c.conn.Close()
	}()
	for {
		k, body, err := readMessage(r)
		if err != nil {
			return
		}
		c.obeyMessage(k, body)
	}
}

func (c *runnerSession) obeyMessage(k kind, body []byte) {
	switch k {
	case msgStart:
		var m start
		if json.Unmarshal(body, &m) == nil {
			go c.startProgram(m) // the guard answers in its time
		}
	case msgInput:
		if id, data, ok := parseInput(body); ok {
			if p := c.programByID(id); p != nil {
				p.stdin.queueInput(data)
			}
		}
	case msgRest:
		var m restMessage
		if json.Unmarshal(body, &m) == nil {
			if p := c.programByID(m.Program); p != nil {
				p.giveUp(journal.Rest{Offset: m.Offset, State: m.State})
			}
		}
	case msgExtend:
		var m extend
		if json.Unmarshal(body, &m) == nil {
			c.server.moveDeadline(m)
		}
	case msgCredit:
		var m credit
		if json.Unmarshal(body, &m) == nil {
			c.mu.Lock()
			a := c.credits[m.Program]
			c.mu.Unlock()
			if a != nil {
				a.addCredit(m.Bytes)
			}
		}
	case msgEnd:
		var m end
		if json.Unmarshal(body, &m) == nil {
			if p := c.programByID(m.Program); p != nil {
				go c.endProgram(p, m)
			}
		}
	case msgQuit:
		var m end
		_ = json.Unmarshal(body, &m)
		c.server.terminated.Store(true)
		go func() {
			c.server.endAll(m.Grace)
			c.server.stop()
		}()
	case msgForget:
		var m forget
		if json.Unmarshal(body, &m) == nil {
			c.server.forgetProgram(m.Name)
		}
	case msgHello, msgWelcome, msgStarted, msgFrame, msgExit, msgEnded, msgState: // none of a runner's, here
	}
}

func (c *runnerSession) programByID(id uint32) *program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.programs[id]
}

// startProgram starts a program, or attaches the runner to one that is there.
func (c *runnerSession) startProgram(m start) {
	p, attached, err := c.server.findProgram(m)
	if err != nil {
		_ = c.sendJSON(msgStarted, startedMessage{ // a runner that is gone needs no answer
			Program: m.Program, Error: err.Error(), Missing: errors.Is(err, errMissing), Gone: c.server.isTreeGone(), Errno: errorNumber(err),
		})
		return
	}
	a := &allowance{bytes: window, more: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.credits == nil {
		c.credits = map[uint32]*allowance{}
	}
	c.programs[m.Program], c.credits[m.Program] = p, a
	left := c.left
	c.mu.Unlock()
	if left && p.name == "" {
		_ = p.endTree(0)
		return
	}
	p.mu.Lock()
	answer := startedMessage{Program: m.Program, Pid: p.pid, Attached: attached, Offset: p.rest.Offset, State: p.rest.State}
	p.mu.Unlock()
	if c.sendJSON(msgStarted, answer) != nil {
		return
	}
	c.feeds.Add(2)
	go c.feedJournal(p, m.Program, answer.Offset, a)
	go c.watchExit(p, m.Program)
}

// isTreeGone reports whether the guard, and with it the tree, is gone.
func (s *server) isTreeGone() bool {
	select {
	case <-s.guard.TreeGone():
		return true
	default:
		return false
	}
}

// errorNumber returns the system's number of an error; 0: it has none.
func errorNumber(err error) int {
	n, _ := errors.AsType[syscall.Errno](err)
	return int(n)
}

// watchExit tells the runner how the program ends.
func (c *runnerSession) watchExit(p *program, id uint32) {
	defer c.feeds.Done()
	select {
	case <-p.gone:
		exit := *p.exit
		exit.Program = id
		_ = c.sendJSON(msgExit, exit)
	case <-c.gone:
	}
}

// feedJournal gives the runner the journal from an offset on, and what comes.
func (c *runnerSession) feedJournal(p *program, id uint32, from uint64, a *allowance) {
	defer c.feeds.Done()
	cursor := p.journal.Cursor(from)
	defer func() { _ = cursor.Close() }()
	live := false
	goLive := func() error {
		if live {
			return nil
		}
		live = true
		return c.writeMessage(msgFrame, frameHeader(id, process.Frame{Direction: process.Live, Offset: cursor.Offset()}))
	}
	for {
		r, more, err := cursor.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_, _ = os.Stderr.WriteString("keeper: " + err.Error() + "\n")
			}
			if goLive() == nil {
				_ = c.writeMessage(msgFrame, frameHeader(id, process.Frame{Offset: cursor.Offset()}))
			}
			return
		}
		if r == nil {
			if goLive() != nil {
				return
			}
			select {
			case <-more:
			case <-c.gone:
				return
			}
			continue
		}
		if r.Kind == journal.Exit || live && r.Kind == journal.In {
			continue
		}
		if !a.awaitCredit(len(r.Data), c.gone) {
			return
		}
		f := process.Frame{Direction: process.Direction(r.Kind), At: r.At, Offset: r.Offset}
		if c.writeMessage(msgFrame, frameHeader(id, f), r.Data) != nil {
			return
		}
		if p.name == "" { // no runner attaches to it
			p.giveUp(journal.Rest{Offset: cursor.Offset()})
		}
	}
}

// endProgram ends the tree of a program.
func (c *runnerSession) endProgram(p *program, m end) {
	c.server.mu.Lock()
	if c.server.frozen {
		m.Grace = 0
	}
	c.server.mu.Unlock()
	fault := p.endTree(m.Grace)
	_ = c.sendJSON(msgEnded, endedMessage{Program: m.Program, Error: fault, Words: p.lastWords()})
}

// drainFeeds waits until the runner has been given what its programs have said, if it takes it.
func (c *runnerSession) drainFeeds() {
	done := make(chan struct{})
	go func() {
		c.feeds.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-c.gone:
	}
}
