//go:build linux

package sim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/natstest"
)

// link is the way from one process to the server. What goes over it is whole
// messages of the protocol, so that it may end between any two of them.
type link struct {
	server *natstest.Server
	// stored is told of every event that the server has acknowledged to the process.
	stored func(position uint64, subject string, data []byte)
	// fatal is called once, when the process dies of the publish that it was to die of.
	fatal func(subject string)

	mu        sync.Mutex
	conns     []*conn
	dead      bool                     // for good
	down      bool                     // the server is about to end, or has
	cut       bool                     // no connection gets through
	deaf      bool                     // what comes in is lost
	stalled   bool                     // nothing moves, nothing is lost
	delay     time.Duration            // of what comes in
	bug       bug                      // what a defective client would do
	countdown int                      // publishes until the process dies; 0: it doesn't
	before    bool                     // it dies before that one goes out, else behind it
	pending   map[string][]publication // by reply subject
	batches   map[string][]publication
}

// publication is an event on its way.
type publication struct {
	subject string
	data    []byte
}

var errNoWay = errors.New("sim: no way to the server")

// InProcessConn connects to the server.
func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead || l.down || l.cut || l.stalled || l.deaf {
		return nil, errNoWay
	}
	inner, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, link: l, out: newPipe(), in: newPipe(), done: make(chan struct{})}
	l.conns = append(l.conns, c)
	go c.send()
	go c.receive()
	return c, nil
}

// kill ends the link for good.
func (l *link) kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.hangUp()
}

// hangUp closes the connections that there are.
func (l *link) hangUp() {
	l.mu.Lock()
	conns := l.conns
	l.conns, l.pending, l.batches = nil, nil, nil
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// set changes the link under its lock and lets what waits look again.
func (l *link) set(change func(*link)) {
	l.mu.Lock()
	change(l)
	conns := append([]*conn(nil), l.conns...)
	l.mu.Unlock()
	for _, c := range conns {
		c.out.wake()
		c.in.wake()
	}
}

func (l *link) isStalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stalled
}

// conn is one connection of a link.
type conn struct {
	net.Conn

	link               *link
	out, in            *pipe
	outgoing, incoming parser // by the one goroutine that writes, or receives

	once  sync.Once
	done  chan struct{}
	ready bool // the handshake is over; guarded by link.mu
}

// Write implements [net.Conn]. It never waits: the client holds its lock.
func (c *conn) Write(b []byte) (int, error) {
	for _, m := range c.outgoing.take(b, true) {
		if err := c.publish(m); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// publish hands on one message to the server, unless the process dies of it.
func (c *conn) publish(m message) error {
	l := c.link
	l.mu.Lock()
	if l.dead || l.down || l.cut {
		l.mu.Unlock()
		return errNoWay
	}
	dies := false
	if m.subject != "" && l.countdown > 0 {
		l.countdown--
		dies = l.countdown == 0
	}
	if dies {
		l.dead = true
	}
	if !dies || !l.before {
		l.pass(c, m)
	}
	fatal := l.fatal
	l.mu.Unlock()
	if dies {
		fatal(m.subject)
		return errNoWay
	}
	return nil
}

// pass lets a message go to the server.
func (l *link) pass(c *conn, m message) {
	sent := []message{m}
	if l.bug != nil && m.subject != "" {
		sent = l.bug(c, m)
	}
	for _, m := range sent {
		l.expect(m)
		c.out.push(m.raw, time.Time{})
	}
}

// expect notes an event that will be acknowledged.
func (l *link) expect(m message) {
	if !strings.HasPrefix(m.subject, "wake.events.") {
		return
	}
	if l.pending == nil {
		l.pending, l.batches = map[string][]publication{}, map[string][]publication{}
	}
	p := publication{m.subject, bytes.Clone(m.data)}
	batch := m.header("Nats-Batch-Id")
	switch {
	case batch == "":
		l.pending[m.reply] = []publication{p}
	case m.header("Nats-Batch-Commit") == "":
		l.batches[batch] = append(l.batches[batch], p)
	default:
		l.pending[m.reply] = append(l.batches[batch], p)
		delete(l.batches, batch)
	}
}

// acknowledged notes the answer to a publish.
func (l *link) acknowledged(m message) {
	l.mu.Lock()
	events := l.pending[m.subject]
	delete(l.pending, m.subject)
	l.mu.Unlock()
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if len(events) == 0 || json.Unmarshal(m.data, &ack) != nil || ack.Seq == 0 {
		return
	}
	for i, e := range events {
		l.stored(ack.Seq-uint64(len(events)-1-i), e.subject, e.data)
	}
}

// send carries to the server what was written.
func (c *conn) send() {
	for {
		b, ok := c.out.pop(c.link.isStalled)
		if !ok {
			return
		}
		if _, err := c.Conn.Write(b); err != nil {
			_ = c.Close()
			return
		}
	}
}

// receive takes what the server sends.
func (c *conn) receive() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Conn.Read(buf)
		for _, m := range c.incoming.take(buf[:n], false) {
			c.arrive(m)
		}
		if err != nil {
			_ = c.Close()
			return
		}
	}
}

// arrive hands on a message from the server, now or later, or loses it.
func (c *conn) arrive(m message) {
	l := c.link
	l.mu.Lock()
	var due time.Time
	if c.ready && l.delay > 0 {
		due = time.Now().Add(l.delay)
	}
	if bytes.HasPrefix(m.raw, []byte("PONG")) {
		c.ready = true
	}
	lost := l.dead || c.ready && l.deaf && m.subject != ""
	l.mu.Unlock()
	if lost {
		return
	}
	if m.subject != "" {
		m.raw = bytes.Clone(m.raw)
		c.in.pushMessage(m, due)
		return
	}
	c.in.push(m.raw, due)
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, m, ok := c.in.read(b, func() bool { return c.settled() && c.link.isStalled() })
	if !ok {
		return 0, net.ErrClosed
	}
	if m != nil {
		c.link.acknowledged(*m)
	}
	return n, nil
}

func (c *conn) settled() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.ready
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		close(c.done)
		c.out.close()
		c.in.close()
		err = c.Conn.Close()
	})
	return err
}

// SetDeadline implements [net.Conn]. Nothing here waits long but reading, which
// ends with the connection.
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// pipe is a queue of pieces that become readable at some time.
type pipe struct {
	mu     sync.Mutex
	news   chan struct{} // closed when there is news
	items  []piece
	closed bool
}

type piece struct {
	b   []byte
	m   *message // which b is, if it is one with a subject
	due time.Time
}

func newPipe() *pipe { return &pipe{news: make(chan struct{})} }

func (p *pipe) push(b []byte, due time.Time) { p.add(piece{b: bytes.Clone(b), due: due}) }

func (p *pipe) pushMessage(m message, due time.Time) { p.add(piece{b: m.raw, m: &m, due: due}) }

func (p *pipe) add(i piece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = append(p.items, i)
	p.tell()
}

func (p *pipe) tell() {
	close(p.news)
	p.news = make(chan struct{})
}

func (p *pipe) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell()
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.tell()
}

// await waits until there is a piece that is due and nothing holds it up, and
// returns with the lock held; false if the pipe was closed.
func (p *pipe) await(held func() bool) bool {
	for {
		stop := held()
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return false
		}
		news := p.news
		var wait time.Duration
		if len(p.items) > 0 {
			wait = time.Until(p.items[0].due)
			if !stop && wait <= 0 {
				return true
			}
		}
		p.mu.Unlock()
		if stop || wait <= 0 {
			<-news
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-news:
		case <-t.C:
		}
		t.Stop()
	}
}

// pop takes all pieces.
func (p *pipe) pop(held func() bool) ([]byte, bool) {
	if !p.await(held) {
		return nil, false
	}
	defer p.mu.Unlock()
	b := p.items[0].b
	for _, i := range p.items[1:] {
		b = append(b, i.b...)
	}
	p.items = nil
	return b, true
}

// read takes a piece or the beginning of one; the message it is comes with its
// last byte.
func (p *pipe) read(b []byte, held func() bool) (int, *message, bool) {
	if !p.await(held) {
		return 0, nil, false
	}
	defer p.mu.Unlock()
	first := &p.items[0]
	n := copy(b, first.b)
	first.b = first.b[n:]
	if len(first.b) > 0 {
		return n, nil, true
	}
	m := first.m
	p.items = p.items[1:]
	return n, m, true
}

// message is one operation of the protocol.
type message struct {
	raw     []byte
	subject string // "" if it is none that carries data
	reply   string
	headers []byte
	data    []byte
}

func (m message) header(name string) string {
	for line := range strings.SplitSeq(string(m.headers), "\r\n") {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// parser cuts a stream of bytes into operations of the protocol.
type parser struct{ rest []byte }

// take returns the operations that b completes.
func (p *parser) take(b []byte, fromClient bool) []message {
	p.rest = append(p.rest, b...)
	var all []message
	at := 0
	for {
		m, n := parse(p.rest[at:], fromClient)
		if n == 0 {
			break
		}
		all = append(all, m)
		at += n
	}
	// What was returned refers to the bytes: they aren't written again.
	p.rest = append([]byte(nil), p.rest[at:]...)
	return all
}

var crlf = []byte("\r\n")

func parse(b []byte, fromClient bool) (message, int) {
	line, _, ok := bytes.Cut(b, crlf)
	if !ok {
		return message{}, 0
	}
	end := len(line) + len(crlf)
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return message{raw: b[:end]}, end
	}
	var m message
	headers := 0
	op := strings.ToUpper(fields[0])
	switch {
	case fromClient && (op == "PUB" || op == "HPUB"):
		fields = fields[1:]
	case !fromClient && (op == "MSG" || op == "HMSG"):
		fields = append(fields[1:2], fields[3:]...) // without the id of the subscription
	default:
		return message{raw: b[:end]}, end
	}
	m.subject = fields[0]
	size, _ := strconv.Atoi(fields[len(fields)-1])
	fields = fields[1 : len(fields)-1]
	if op[0] == 'H' {
		headers, _ = strconv.Atoi(fields[len(fields)-1])
		fields = fields[:len(fields)-1]
	}
	if len(fields) > 0 {
		m.reply = fields[0]
	}
	if len(b) < end+size+len(crlf) {
		return message{}, 0
	}
	m.headers, m.data = b[end:end+headers], b[end+headers:end+size]
	m.raw = b[:end+size+len(crlf)]
	return m, len(m.raw)
}
