package keeper

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/process"
)

// Machine is a machine that is simulated in this process: its keepers are goroutines, their programs are functions,
// and it has the time of Go's timers, which a bubble of synctest may replace. All else of a keeper is what it is on a
// real machine: its protocol, journals and deadlines.
type Machine struct {
	// Main is what each program does. It ends soon when its task does, and returns its exit code.
	Main func(t *Task) int
	// Startup is how long a keeper takes to start.
	Startup time.Duration

	mu      sync.Mutex
	keepers map[string]*simulated // by folder
	tasks   int
	running sync.WaitGroup
}

// Client is a process of a machine that has keepers, or attaches to them.
type Client struct {
	machine *Machine

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

// Client returns a new process of the machine.
func (m *Machine) Client() *Client { return &Client{machine: m} }

// Kill ends the process at once. Its keepers live on.
func (c *Client) Kill() {
	c.mu.Lock()
	conns := c.conns
	c.dead, c.conns = true, nil
	c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// newConnection returns the ends of a new connection of the process.
func (c *Client) newConnection() (ours, theirs net.Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return nil, nil, net.ErrClosed
	}
	ours, theirs = net.Pipe()
	c.conns = append(c.conns, ours)
	return ours, theirs, nil
}

func (c *Client) launchInDir(dir string) (net.Conn, error) {
	ours, theirs, err := c.newConnection()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	k := &simulated{machine: c.machine, dir: dir}
	c.machine.running.Go(func() {
		<-time.After(c.machine.Startup)
		newServer(k).runKeeper(theirs, nil)
		_ = theirs.Close()
		c.machine.removeKeeper(k)
		k.closeConnections()
	})
	return ours, nil
}

func (c *Client) dialDir(_ context.Context, dir string) (net.Conn, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	k := c.machine.keeperAt(dir)
	if k == nil {
		return nil, ErrGone
	}
	ours, theirs, err := c.newConnection()
	if err != nil {
		return nil, err
	}
	k.addConnection(theirs)
	c.machine.running.Go(func() { k.server.greetRunner(theirs) })
	return ours, nil
}

func (m *Machine) keeperAt(dir string) *simulated {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keepers[dir]
}

func (m *Machine) addKeeper(k *simulated) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keepers == nil {
		m.keepers = map[string]*simulated{}
	}
	m.keepers[k.dir] = k
}

func (m *Machine) removeKeeper(k *simulated) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keepers[k.dir] == k {
		delete(m.keepers, k.dir)
	}
}

// Keepers returns the folders of the keepers that live.
func (m *Machine) Keepers() (dirs []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir := range m.keepers {
		dirs = append(dirs, dir)
	}
	return dirs
}

// Kill ends a keeper at once, and its programs with it. How they end isn't noted.
func (m *Machine) Kill(dir string) {
	if k := m.keeperAt(dir); k != nil {
		k.killKeeper()
	}
}

// Off ends all keepers and waits until nothing of the machine is at work any more.
func (m *Machine) Off() {
	for _, dir := range m.Keepers() {
		m.Kill(dir)
	}
	m.running.Wait()
}

// simulated is what a keeper of a machine stands on. It has the programs in its hands itself, as no guard does.
type simulated struct {
	machine *Machine
	dir     string
	server  *server
	gone    chan struct{}

	mu     sync.Mutex
	thawed chan struct{} // closed unless the programs are stopped
	tasks  map[uint32]*Task
	killed bool
	conns  []net.Conn // of runners that have dialled
	exited bool
	once   sync.Once
}

// addConnection adds a connection to the keeper's process. One that has ended takes none.
func (k *simulated) addConnection(conn net.Conn) {
	k.mu.Lock()
	k.conns = append(k.conns, conn)
	exited := k.exited
	k.mu.Unlock()
	if exited {
		_ = conn.Close()
	}
}

// closeConnections closes the connections of the keeper's process, as the kernel does at its end.
func (k *simulated) closeConnections() {
	k.mu.Lock()
	conns := k.conns
	k.conns, k.exited = nil, true
	k.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

func (k *simulated) prepareServer(s *server) error {
	k.server, k.gone, k.tasks, k.thawed = s, make(chan struct{}), map[uint32]*Task{}, make(chan struct{})
	close(k.thawed)
	s.Dir = k.dir // whatever becomes of the name that its runner has for it
	s.guard, s.alarm, s.deadline = k, newTimer(k.killKeeper), newTimer(s.freezeOverdue)
	return nil
}

func (k *simulated) acceptRunners(*server) error {
	k.machine.addKeeper(k)
	return nil
}

func (*simulated) hideSecrets() error            { return nil }
func (*simulated) ofTree(*server, net.Conn) bool { return false }
func (*simulated) endLeftovers(*server)          {}
func (*simulated) keeperPid() int                { return 0 }

// ExtendDeadline does nothing.
func (*simulated) ExtendDeadline(int64) {} // the alarm is enough: nothing stops it

// TreeGone is closed when the simulated guard is gone.
func (k *simulated) TreeGone() <-chan struct{} { return k.gone }

// killKeeper ends the keeper as SIGKILL does: nothing is journalled, said or noted from here on.
func (k *simulated) killKeeper() {
	k.machine.removeKeeper(k)
	s := k.server
	s.mu.Lock()
	for _, p := range s.programs {
		if p.journal != nil {
			_ = p.journal.Close()
		}
	}
	if s.attached != nil {
		_ = s.attached.conn.Close()
	}
	s.mu.Unlock()
	k.closeConnections()
	s.stop()
}

// FreezeTree stops the simulated programs.
func (k *simulated) FreezeTree(time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.thawed:
		k.thawed = make(chan struct{})
	default:
	}
	return nil
}

// ThawTree lets them go on.
func (k *simulated) ThawTree() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.thawed:
	default:
		close(k.thawed)
	}
}

// untilThawed returns the channel that is closed when the programs aren't stopped any more.
func (k *simulated) untilThawed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.thawed
}

// StartProgram starts a simulated program.
func (k *simulated) StartProgram(id uint32, _ string, s guard.Program) (guard.Pipes, error) {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	stderr, err := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // a program's life is its own
	k.machine.mu.Lock()
	k.machine.tasks++
	t := &Task{ID: k.machine.tasks, Argv: s.Argv, Dir: s.Dir, Stdin: in, keeper: k, out: out, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	k.machine.mu.Unlock()
	k.mu.Lock()
	killed := k.killed
	k.tasks[id] = t
	k.mu.Unlock()
	if killed {
		cancel()
	}
	k.server.handleReport(guard.Report{Op: "started", Program: id, Pid: t.ID})
	k.machine.running.Go(func() {
		code := k.machine.Main(t)
		ended := guard.Report{Op: "exit", Program: id, Code: code}
		if ctx.Err() != nil {
			ended.Code, ended.Signal = -1, "KILL"
		}
		cancel()
		_, _, _ = out.Close(), err.Close(), in.Close()
		k.server.handleReport(ended)
		close(t.done)
	})
	return guard.Pipes{Stdin: stdin, Stdout: stdout, Stderr: stderr}, nil
}

// EndProgram ends one.
func (k *simulated) EndProgram(id uint32, _ string, _ time.Duration) {
	k.mu.Lock()
	t := k.tasks[id]
	k.mu.Unlock()
	k.machine.running.Go(func() {
		if t != nil {
			t.killAndWait()
		}
		k.server.handleReport(guard.Report{Op: "ended", Program: id})
	})
}

// KillTree ends all.
func (k *simulated) KillTree() {
	k.mu.Lock()
	k.killed = true
	tasks := slices.Collect(maps.Values(k.tasks))
	k.mu.Unlock()
	for _, t := range tasks {
		t.killAndWait()
	}
	k.once.Do(func() { close(k.gone) })
}

// Task is a program of a machine.
type Task struct {
	ID    int // no other program of the machine has it
	Argv  []string
	Dir   string
	Stdin io.Reader // the task reads it at once, as far as it comes

	keeper *simulated
	out    io.Writer
	ctx    context.Context //nolint:containedctx // a program's life
	cancel context.CancelFunc
	done   chan struct{}
	acting sync.Mutex
}

// Label returns the execution that the task acts for; it is empty if the task's keeper is on no shelf.
func (t *Task) Label() Label {
	l, _ := readLabel(filepath.Join(filepath.Dir(t.keeper.dir), labelName))
	return l
}

// Done is closed when the task is killed.
func (t *Task) Done() <-chan struct{} { return t.ctx.Done() }

// killAndWait ends the task and waits until it is gone. What it does at the moment comes to its end.
func (t *Task) killAndWait() {
	t.acting.Lock()
	t.cancel()
	t.acting.Unlock()
	_ = t.Stdin.(io.Closer).Close()
	_ = t.out.(io.Closer).Close()
	<-t.done
}

// Do has the task do something that takes no time, unless it is killed; while it is stopped, that waits.
func (t *Task) Do(f func()) bool {
	for {
		select {
		case <-t.keeper.untilThawed():
		case <-t.ctx.Done():
			return false
		}
		if done, again := t.tryRun(f); !again {
			return done
		}
	}
}

func (t *Task) tryRun(f func()) (done, again bool) {
	t.acting.Lock()
	defer t.acting.Unlock()
	if t.ctx.Err() != nil {
		return false, false
	}
	select {
	case <-t.keeper.untilThawed():
	default:
		return false, true
	}
	f()
	return true, false
}

// Say writes to the task's stdout.
func (t *Task) Say(b []byte) bool {
	if !t.Do(func() {}) {
		return false
	}
	_, err := t.out.Write(b) // not within Do: its keeper may make it wait
	return err == nil
}

// Sleep reports whether the task goes on after that time.
func (t *Task) Sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return t.Do(func() {})
	case <-t.ctx.Done():
		return false
	}
}

// goTimer is a timer of Go.
type goTimer struct {
	mu      sync.Mutex
	passed  func()
	pending *time.Timer
}

func newTimer(passed func()) *goTimer { return &goTimer{passed: passed} }

// MoveTo moves the timer; 0 is never.
func (t *goTimer) MoveTo(at int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending != nil {
		t.pending.Stop()
	}
	if t.pending = nil; at != 0 {
		t.pending = time.AfterFunc(max(0, time.Duration(at)-process.Uptime()), t.passed)
	}
	return nil
}
