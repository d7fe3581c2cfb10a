package keeper

import (
	"bufio"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/process"
)

// server is a keeper.
type server struct {
	settings
	ground ground
	guard  tree
	group  *guard.Group // of the tree; nil: it has none
	alarm  timer        // ends the keeper

	mu       sync.Mutex
	named    map[string]*program
	programs map[uint32]*program // as the guard is told of them
	count    uint32
	attached *runnerSession
	frozen   bool
	freezing bool
	since    time.Time     // when it froze
	stood    time.Duration // for how long it was frozen before that, in all
	deadline timer
	freezeAt int64         // what it is set to
	patience time.Duration // with a tree that doesn't stop
	full     string
	blamed   int           // kills for the bound of memory that exits of programs tell of
	changed  chan struct{} // closed when full or frozen changes
	over     chan struct{} // closed when the keeper is to end

	terminated atomic.Bool // it was told to end, by a signal or its runner
	once       sync.Once
}

// serveMain is a keeper, until it is told to end or is given up. Its first runner is
// the other end of file descriptor 3.
func serveMain() int {
	process.SwallowSignals(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	file := os.NewFile(3, "runner")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return 2
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	return newServer(local{}).runKeeper(conn, terminated)
}

func newServer(g ground) *server {
	return &server{
		ground: g, named: map[string]*program{}, programs: map[uint32]*program{},
		changed: make(chan struct{}), over: make(chan struct{}),
	}
}

// runKeeper is the keeper's work, from its first runner's settings on.
func (s *server) runKeeper(conn net.Conn, terminated <-chan os.Signal) int {
	first := &runnerSession{server: s, link: &link{conn: conn}, gone: make(chan struct{}), programs: map[uint32]*program{}}
	r := bufio.NewReader(conn)
	err := s.initGuard(r)
	if err == nil {
		if err = s.ground.acceptRunners(s); err != nil {
			s.guard.KillTree()
			_ = s.group.EndAll()
		}
	}
	if err != nil {
		_ = first.sendJSON(msgWelcome, welcome{Protocol: protocol, Error: err.Error()})
		return 1
	}
	s.attachSession(first)
	go first.serveRunner(r)
	select {
	case <-s.over:
		_ = s.alarm.MoveTo(0)
	case <-terminated:
		_ = s.alarm.MoveTo(0)
		s.terminated.Store(true)
		s.endAll(endGrace)
	case <-s.guard.TreeGone(): // the tree is gone, or is ended now
	}
	s.close()
	return 0
}

// initGuard reads the settings and starts the guard.
func (s *server) initGuard(r *bufio.Reader) error {
	_, body, err := readMessage(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &s.settings); err != nil {
		return err
	}
	if err := s.ground.prepareServer(s); err != nil {
		return err
	}
	s.moveDeadline(s.Extend)
	return s.ground.hideSecrets() // not before: the guard's namespace is made by way of /proc
}

// makeGroup makes the control group of the tree, which does without one unless its memory is to be bounded.
func (s *server) makeGroup() (err error) {
	if s.group, err = s.Groups.MakeGroup(s.Dir, s.Memory); err == nil || s.Memory != 0 {
		return err
	}
	_, _ = os.Stderr.WriteString(err.Error() + "\n")
	return nil
}

// socketName is the socket's name in the keeper's folder.
const socketName = "socket"

// greetWait bounds how long a peer may take to name itself.
const greetWait = 5 * time.Second

func (s *server) greetRunner(conn net.Conn) {
	c := &runnerSession{server: s, link: &link{conn: conn}, gone: make(chan struct{}), programs: map[uint32]*program{}}
	refuse := func(why string) {
		_ = c.sendJSON(msgWelcome, welcome{Protocol: protocol, Error: why})
		_ = conn.Close()
	}
	_ = conn.SetDeadline(time.Now().Add(greetWait))
	r := bufio.NewReader(conn)
	k, body, err := readMessage(r)
	var h hello
	if err != nil || k != msgHello || json.Unmarshal(body, &h) != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	switch {
	case s.ground.ofTree(s, conn):
		refuse("a process of the agent's own tree")
	case subtle.ConstantTimeCompare([]byte(h.Secret), []byte(s.Secret)) != 1:
		refuse("another secret")
	case h.Protocol != protocol:
		refuse(fmt.Sprintf("this keeper speaks protocol %d, the runner %d", protocol, h.Protocol))
	case h.Look:
		s.mu.Lock()
		w := s.makeWelcome()
		s.mu.Unlock()
		_ = c.sendJSON(msgWelcome, w)
		_ = conn.Close()
	case !s.attachSoon(c):
		refuse(errAttached.Error())
	default:
		c.serveRunner(r)
	}
}

// attachSession makes a session the one that is served. It reports false if there is one.
func (s *server) attachSession(c *runnerSession) bool {
	s.mu.Lock()
	if s.attached != nil {
		s.mu.Unlock()
		return false
	}
	s.attached = c
	w := s.makeWelcome()
	s.mu.Unlock()
	_ = c.sendJSON(msgWelcome, w)
	return true
}

// makeWelcome says how the keeper is. It is called under mu.
func (s *server) makeWelcome() welcome {
	w := welcome{Protocol: protocol, Fence: s.Fence, Pid: s.ground.keeperPid(), State: keeperState{Frozen: s.frozen, Full: s.full}, Stood: s.stoodFor()}
	for name := range s.named {
		w.Programs = append(w.Programs, name)
	}
	return w
}

// attachSoon attaches a runner as soon as the one before has been noticed to be gone.
func (s *server) attachSoon(c *runnerSession) bool {
	for until := time.Now().Add(attachWait); !s.attachSession(c); {
		if time.Now().After(until) {
			return false
		}
		<-time.After(attachWait / 100)
	}
	return true
}

// attachWait bounds how long a runner waits for another one to be gone.
const attachWait = time.Second

// detachSession ends what no runner can attach to again: programs without a name.
func (s *server) detachSession(c *runnerSession) {
	s.mu.Lock()
	if s.attached == c {
		s.attached = nil
	}
	s.mu.Unlock()
	var unnamed []*program
	c.mu.Lock()
	c.left = true
	for _, p := range c.programs {
		if p.name == "" {
			unnamed = append(unnamed, p)
		}
	}
	c.mu.Unlock()
	for _, p := range unnamed {
		go func() { _ = p.endTree(0) }()
	}
}

// moveDeadline moves the deadline, and thaws the tree if it lies ahead.
func (s *server) moveDeadline(x extend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freezeAt = x.Freeze
	if err := s.deadline.MoveTo(x.Freeze); err != nil {
		s.stop()
		return
	}
	if !s.isAhead() {
		return
	}
	// What can't be stopped within two thirds of the time is ended by the keeper, a keeper that
	// is stopped itself by its alarm a sixth later, and by the guard's if that is stopped too.
	window := max(0, x.Kill-x.Freeze)
	s.patience = time.Duration(window * 2 / 3)
	if err := s.alarm.MoveTo(x.Kill - window/6); err != nil {
		s.stop()
		return
	}
	s.guard.ExtendDeadline(x.Kill)
	if s.frozen {
		s.thawTree()
		s.stood, s.frozen = s.stoodFor(), false
		s.tellChange()
	}
}

// stoodFor returns how long the tree has been frozen, in all. It is called under mu.
func (s *server) stoodFor() time.Duration {
	if !s.frozen {
		return s.stood
	}
	return s.stood + time.Since(s.since)
}

// thawTree lets the tree go on: first its group, in which the guard may wait for the start of a program.
func (s *server) thawTree() {
	s.group.Thaw()
	s.guard.ThawTree()
}

// isAhead reports whether the deadline hasn't passed. It is called under mu.
func (s *server) isAhead() bool { return s.freezeAt > int64(process.Uptime()) }

// tellChange tells waiters and the runner that the state has changed. It is called under mu.
func (s *server) tellChange() {
	close(s.changed)
	s.changed = make(chan struct{})
	if s.attached != nil {
		go func(c *runnerSession, now keeperState) { _ = c.sendJSON(msgState, now) }(s.attached, keeperState{Frozen: s.frozen, Full: s.full})
	}
}

// freezeOverdue freezes the tree: its deadline has passed.
func (s *server) freezeOverdue() {
	s.mu.Lock()
	if s.frozen || s.freezing || s.isAhead() {
		s.mu.Unlock()
		return
	}
	s.freezing = true
	patience := s.patience
	s.mu.Unlock()
	err := s.guard.FreezeTree(patience)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freezing = false
	if s.isAhead() { // it was extended meanwhile
		s.thawTree()
		return
	}
	if err != nil {
		_, _ = os.Stderr.WriteString("keeper: the tree is ended: " + err.Error() + "\n")
		s.stop()
		return
	}
	_ = s.alarm.MoveTo(0)
	s.guard.ExtendDeadline(0)
	s.frozen, s.since = true, time.Now()
	s.tellChange()
	since := s.since
	time.AfterFunc(s.Orphan, func() { s.giveUp(since) })
	time.AfterFunc(folderEvery, func() { s.lookForFolder(since) })
}

// folderEvery is how often the keeper of a frozen tree looks whether its folder is still
// there.
const folderEvery = time.Second

// lookForFolder gives up a tree that was frozen at that time if no runner can come back to it: the
// folder was removed.
func (s *server) lookForFolder(since time.Time) {
	if _, err := os.Stat(filepath.Join(s.Dir, secretName)); errors.Is(err, fs.ErrNotExist) {
		s.giveUp(since)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen && s.since.Equal(since) {
		time.AfterFunc(folderEvery, func() { s.lookForFolder(since) })
	}
}

// giveUp ends a tree that was frozen at that time, and still is.
func (s *server) giveUp(since time.Time) {
	s.mu.Lock()
	orphaned := s.frozen && s.since.Equal(since)
	s.mu.Unlock()
	if orphaned {
		s.stop()
	}
}

// isEnding reports whether the keeper ends what runs, not the programs themselves.
func (s *server) isEnding() bool {
	select {
	case <-s.over:
		return true
	default:
		return s.terminated.Load()
	}
}

func (s *server) stop() { s.once.Do(func() { close(s.over) }) }

// endAll ends all programs, and then the guard with what is left. Without a grace nothing waits for an earlier order that gives them one.
func (s *server) endAll(grace time.Duration) {
	s.mu.Lock()
	running := slices.Collect(maps.Values(s.programs))
	if s.frozen || grace <= 0 {
		running = nil
	}
	s.mu.Unlock()
	var ending sync.WaitGroup
	for _, p := range running {
		ending.Go(func() { _ = p.endTree(grace) })
	}
	ending.Wait()
	s.guard.KillTree()
}

// close ends the tree, whatever is left of it, and says so to the runner.
func (s *server) close() {
	s.guard.KillTree()
	s.group.KillAll()
	s.ground.endLeftovers(s)
	if err := s.group.EndAll(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.programs))
	c := s.attached
	s.mu.Unlock()
	for _, p := range all {
		p.noteExit(-1, "KILL", true)
	}
	for _, p := range all {
		_ = p.lastWords()
	}
	if c != nil {
		c.drainFeeds()
		_ = c.conn.Close()
	}
	_ = os.Remove(filepath.Join(s.Dir, socketName))
}

// handleReport takes what the guard reports of programs.
func (s *server) handleReport(r guard.Report) {
	s.mu.Lock()
	p := s.programs[r.Program]
	s.mu.Unlock()
	if p == nil {
		return
	}
	switch r.Op {
	case "started":
		p.started <- r
	case "exit":
		p.noteExit(r.Code, r.Signal, s.isEnding())
	case "ended":
		select {
		case p.endings <- r.Error:
		case <-s.guard.TreeGone(): // no caller waits for it any more
		}
	}
}

var errAttached = errors.New("another runner is attached")

// Each program that can open keepers is one itself, if it is started as one: it becomes
// a keeper here, and ends; see package guard for when that is.
func init() { //nolint:gochecknoinits // main is too late: a keeper would pay for every library of the program
	if len(os.Args) > 1 && os.Args[1] == keeperVerb {
		os.Exit(serveMain())
	}
}

// keeperVerb is the argument with which the program is a keeper.
const keeperVerb = "keeper"
