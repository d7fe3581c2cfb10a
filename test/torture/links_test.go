//go:build torture

package torture_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// The ways through a link.
const (
	forth = iota // from the end that dials to the one that listens
	back
)

// link is a way from a process to a server, through which all its connections go.
// What is held up goes on when the link is mended, as packets do that are sent
// again.
type link struct {
	from, to string
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	cond  *sync.Cond
	cut   [2]bool
	delay time.Duration
	conns map[net.Conn]bool
	done  bool
}

// newLink listens for what goes to target.
func newLink(from, to, target string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{from: from, to: to, target: target, listener: listener, conns: make(map[net.Conn]bool)}
	l.cond = sync.NewCond(&l.mu)
	l.wg.Go(l.accept)
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(c) })
	}
}

// serve connects a connection. While the way forth is cut, nothing is heard of it.
func (l *link) serve(c net.Conn) {
	defer c.Close()
	if !l.keep(c) {
		return
	}
	defer l.drop(c)
	if !l.pass(forth) {
		return
	}
	s, err := net.DialTimeout("tcp", l.target, time.Second)
	if err != nil {
		return
	}
	defer s.Close()
	if !l.keep(s) {
		return
	}
	defer l.drop(s)
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(s, c, forth) })
	pumps.Go(func() { l.pump(c, s, back) })
	pumps.Wait()
}

func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// pass waits until a way is open. It returns false once the link is closed.
func (l *link) pass(way int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.cut[way] && !l.done {
		l.cond.Wait()
	}
	return !l.done
}

// pump copies until either end is closed, and closes both then.
func (l *link) pump(to, from net.Conn, way int) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !l.pass(way) {
			return
		}
		l.mu.Lock()
		delay := l.delay
		l.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
	}
}

// set cuts ways and slows the link down; with reset, connections end at once. It
// returns true.
func (l *link) set(noForth, noBack bool, delay time.Duration, reset bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = [2]bool{noForth, noBack}
	l.delay = delay
	if reset {
		for c := range l.conns {
			_ = c.Close() // it is over anyway
		}
	}
	l.cond.Broadcast()
	return true
}

func (l *link) close() {
	_ = l.listener.Close() // it is over anyway
	l.mu.Lock()
	l.done = true
	for c := range l.conns {
		_ = c.Close() // as above
	}
	l.cond.Broadcast()
	l.mu.Unlock()
	l.wg.Wait()
}

// freePorts returns ports that nobody listens on, below those that the system gives to
// connections: a server that is down must find its port free.
func freePorts(n int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && tries > 100 {
			return nil, fmt.Errorf("find a port: %w", err)
		}
		if err != nil {
			continue
		}
		defer l.Close() // not before all are found, so that they differ
		ports = append(ports, port)
	}
	return ports, nil
}

// mend undoes all changes.
func (l *link) mend() { l.set(false, false, 0, false) }
