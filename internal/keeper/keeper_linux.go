package keeper

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/process"
)

// Config says which keeper is opened.
type Config struct {
	// Dir is the keeper's own folder, made if it isn't there; its parent must be private.
	Dir string
	// Home is that of its programs, see [process.Config]. Required for a keeper that is started.
	Home string
	// Key seals the journals: 32 bytes, nil for none. It is the same whenever the keeper is opened.
	Key []byte
	// Fence is what [Probe] has found. Required for a keeper that is started.
	Fence Fence
	// Groups are what [ProbeGroups] has found, and Memory is what the tree may use of it, in bytes; 0: all.
	Groups Groups
	Memory int64
	// Limit bounds each journal in bytes: beyond it the program waits. Default 256 MiB.
	Limit int64
	// Orphan is how long a frozen tree waits for a runner. Default 10 min.
	Orphan time.Duration
	// Freeze and Kill are the first deadline; see [Keeper.Extend].
	Freeze, Kill time.Duration
	// User is that programs run as. Nil: this process's own.
	User *process.User
	// Client is the process of a simulated machine that opens the keeper or attaches to it. Nil: this one, of the real machine.
	Client *Client
}

// keeperRoad returns the way to the keeper.
func (c Config) keeperRoad() road {
	if c.Client != nil {
		return c.Client
	}
	return local{}
}

// Keeper is a keeper that this process is attached to. It is a [process.Host].
type Keeper struct {
	*link
	pid   int
	fence Fence
	gone  chan struct{} // closed when the keeper is gone, or was left
	stood time.Duration

	mu       sync.Mutex
	programs map[uint32]*remote
	count    uint32
	names    []string // of programs that were there at the attach
	state    keeperState
	news     func(State)
	left     atomic.Bool // it lives on without this process
}

// Open starts a keeper.
func Open(ctx context.Context, c Config) (*Keeper, error) {
	if c.Limit <= 0 {
		c.Limit = 256 << 20
	}
	if c.Orphan <= 0 {
		c.Orphan = 10 * time.Minute
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	secret := rand.Text()
	if err := os.WriteFile(filepath.Join(c.Dir, secretName), []byte(secret), 0o600); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	k, err := launchKeeper(ctx, c, settings{
		Dir: c.Dir, Home: c.Home, Secret: secret, Key: c.Key, Fence: c.Fence, Limit: c.Limit, Orphan: c.Orphan,
		Extend: extend{Freeze: int64(c.Freeze), Kill: int64(c.Kill)}, Listens: true, User: c.User,
		Groups: c.Groups, Memory: c.Memory,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.Dir))
	}
	return k, nil
}

// launchKeeper starts a keeper and waits until it serves.
func launchKeeper(ctx context.Context, c Config, s settings) (*Keeper, error) {
	conn, err := c.keeperRoad().launchInDir(s.Dir)
	if err != nil {
		return nil, err
	}
	k := newKeeper(conn)
	if err := k.sendJSON(msgHello, s); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return k, k.awaitWelcome(ctx)
}

func newKeeper(conn net.Conn) *Keeper {
	return &Keeper{link: &link{conn: conn}, gone: make(chan struct{}), programs: map[uint32]*remote{}}
}

// Attach attaches to the keeper of a folder. It fails with [ErrGone] if that is gone:
// [Tail] reads what it has left. A keeper of another release that speaks another protocol is ended,
// with its tree: no runner could attach to it.
func Attach(ctx context.Context, c Config) (*Keeper, error) {
	k, err := dialKeeper(ctx, c, false)
	if err != nil {
		return nil, err
	}
	pid := k.serverPid()
	if err := k.awaitWelcome(ctx); errors.Is(err, errProtocol) {
		return nil, dismissKeeper(pid)
	} else if err != nil {
		return nil, err
	}
	return k, nil
}

// serverPid returns the process that listens at the other end, 0 if it can't be told.
func (k *Keeper) serverPid() (pid int) {
	conn, ok := k.conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// dismissWait is how long a keeper may take to end when it is asked to.
const dismissWait = endGrace + 3*time.Second

// dismissKeeper ends the keeper that a process is, and returns [ErrGone] when it has ended.
func dismissKeeper(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("keeper: end process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("keeper: end process %d: %w", pid, err)
		}
		if endsWithin(fd, dismissWait) {
			return ErrGone
		}
	}
	return fmt.Errorf("keeper: process %d doesn't end", pid)
}

// endsWithin reports whether the process of a pidfd ends in time.
func endsWithin(fd int, within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		left := max(0, time.Until(until))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// errProtocol says that a keeper speaks another protocol than this process.
var errProtocol = errors.New("another protocol")

// askState asks a keeper how it is, without attaching to it. It fails with [ErrGone] if that is gone.
func askState(ctx context.Context, c Config) (State, error) {
	k, err := dialKeeper(ctx, c, true)
	if err != nil {
		return State{}, err
	}
	err = k.awaitWelcome(ctx)
	if err == nil {
		k.Leave()
	}
	return State(k.state), err
}

// dialKeeper says hello to the keeper of a folder.
func dialKeeper(ctx context.Context, c Config, look bool) (*Keeper, error) {
	secret, err := os.ReadFile(filepath.Join(c.Dir, secretName))
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	conn, err := c.keeperRoad().dialDir(ctx, c.Dir)
	if err != nil {
		return nil, err
	}
	k := newKeeper(conn)
	if err := k.sendJSON(msgHello, hello{Protocol: protocol, Secret: string(secret), Look: look}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return k, nil
}

// awaitWelcome waits for the keeper's welcome and begins to listen.
func (k *Keeper) awaitWelcome(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = k.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = k.conn.SetDeadline(time.Now().Add(openWait))
	r := bufio.NewReaderSize(k.conn, 64<<10)
	message, body, err := readMessage(r)
	var w welcome
	if err == nil && message == msgWelcome {
		err = json.Unmarshal(body, &w)
	}
	switch {
	case err != nil || w.Error == "":
	case w.Protocol != protocol:
		err = fmt.Errorf("%w: %s", errProtocol, w.Error)
	default:
		err = errors.New(w.Error)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keeper: %w", err), k.conn.Close())
	}
	_ = k.conn.SetDeadline(time.Time{})
	k.pid, k.fence, k.names, k.state = w.Pid, w.Fence, w.Programs, w.State
	k.stood = w.Stood
	go k.readMessages(r)
	return nil
}

// Fence returns how the tree ends with the keeper.
func (k *Keeper) Fence() Fence { return k.fence }

// Stood returns how long the tree had been frozen when this process attached to it, in all.
func (k *Keeper) Stood() time.Duration { return k.stood }

// Pid returns the keeper's process id.
func (k *Keeper) Pid() int { return k.pid }

// Gone is closed when the keeper is gone, and its tree with it, or was left.
func (k *Keeper) Gone() <-chan struct{} { return k.gone }

// Watch has f called when the keeper's state changes, and at once if it isn't the
// zero one. f must not wait; nil ends it.
func (k *Keeper) Watch(f func(State)) {
	k.mu.Lock()
	k.news = f
	now := State(k.state)
	k.mu.Unlock()
	if f != nil && now != (State{}) {
		f(now)
	}
}

// Extend moves the deadline, in times of [process.Uptime]: at freeze the tree is stopped until the
// deadline lies ahead again; at kill it is ended if it could not be stopped, or the keeper
// itself is. A runner extends only while its lease is valid, and when the tree
// may be frozen, only after it has read that no other claim stands behind its own.
func (k *Keeper) Extend(freeze, kill time.Duration) error {
	return k.sendJSON(msgExtend, extend{Freeze: int64(freeze), Kill: int64(kill)})
}

// Has reports whether the keeper has a program of a name.
func (k *Keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return name != "" && slices.Contains(k.names, name)
}

// Forget removes what a program has left that has ended; see [process.Host]. Its name stays taken as long as this
// process is attached.
func (k *Keeper) Forget(name string) {
	if k.Has(name) {
		_ = k.sendJSON(msgForget, forget{name})
	}
}

// Start starts a program, or attaches to the one of that name; see [process.Host].
func (k *Keeper) Start(c process.Config) (*process.Process, error) {
	p := newRemote(k, c)
	k.mu.Lock()
	k.count++
	p.id = k.count
	k.programs[p.id] = p
	k.mu.Unlock()
	argv := c.Argv
	if argv == nil {
		argv = []string{}
	}
	if err := k.sendJSON(msgStart, start{Program: p.id, Name: c.Name, Argv: argv, Dir: c.Dir, Env: c.Env}); err != nil {
		k.dropProgram(p)
		return nil, errors.Join(ErrGone, err)
	}
	select {
	case s := <-p.started:
		if s.Error != "" {
			k.dropProgram(p)
			if s.Gone {
				return nil, fmt.Errorf("%w: %s", ErrGone, s.Error)
			}
			return nil, &startError{s.Error, syscall.Errno(s.Errno)} // as the keeper had it
		}
		k.mu.Lock()
		if c.Name != "" && !slices.Contains(k.names, c.Name) {
			k.names = append(k.names, c.Name)
		}
		k.mu.Unlock()
		return p.toProcess(s), nil
	case <-k.gone:
		k.dropProgram(p)
		return nil, ErrGone
	}
}

// startError is why a keeper didn't start a program.
type startError struct {
	text   string
	number syscall.Errno // 0: the system has none for it
}

func (e *startError) Error() string { return "process: " + e.text }

func (e *startError) Unwrap() error {
	if e.number == 0 {
		return nil
	}
	return e.number
}

func (k *Keeper) dropProgram(p *remote) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.programs, p.id)
}

// readMessages takes what the keeper says until it is gone.
func (k *Keeper) readMessages(r *bufio.Reader) {
	defer k.endPrograms()
	for {
		message, body, err := readMessage(r)
		if err != nil {
			return
		}
		k.handleMessage(message, body)
	}
}

func (k *Keeper) programByID(id uint32) *remote {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.programs[id]
}

func (k *Keeper) handleMessage(message kind, body []byte) {
	switch message {
	case msgStarted:
		var m startedMessage
		if json.Unmarshal(body, &m) == nil {
			if p := k.programByID(m.Program); p != nil {
				p.started <- m
			}
		}
	case msgFrame:
		if id, f, ok := parseFrame(body); ok {
			if p := k.programByID(id); p != nil {
				p.queueFrame(f)
			}
		}
	case msgExit:
		var m exitMessage
		if json.Unmarshal(body, &m) == nil {
			if p := k.programByID(m.Program); p != nil {
				p.noteExit(m)
			}
		}
	case msgEnded:
		var m endedMessage
		if json.Unmarshal(body, &m) == nil {
			if p := k.programByID(m.Program); p != nil {
				p.endings <- m
			}
		}
	case msgState:
		var m keeperState
		if json.Unmarshal(body, &m) == nil {
			k.mu.Lock()
			k.state = m
			f := k.news
			k.mu.Unlock()
			if f != nil {
				f(State(m))
			}
		}
	case msgHello, msgStart, msgInput, msgRest, msgExtend, msgCredit, msgEnd, msgQuit, msgForget, msgWelcome: // none of a keeper's, here
	}
}

// endPrograms ends what this process has of programs: the keeper is gone, or was left.
func (k *Keeper) endPrograms() {
	_ = k.conn.Close()
	k.mu.Lock()
	programs := k.programs
	k.programs = map[uint32]*remote{}
	k.mu.Unlock()
	for _, p := range programs {
		p.noteExit(exitMessage{Code: -1, Lost: true})
		p.queueFrame(process.Frame{})
	}
	close(k.gone)
}

// Leave gives the keeper up without ending anything, for a runner that attaches
// later. Programs without a name end.
func (k *Keeper) Leave() {
	k.left.Store(true)
	_ = k.conn.Close()
	<-k.gone
}

// Quit ends all programs, after the grace by force, and the keeper, and waits until they
// are gone. Their journals stay. A keeper that doesn't obey within 5 s after the grace, since its
// process was stopped, is killed; its fence ends the programs.
func (k *Keeper) Quit(grace time.Duration) error {
	process, err := unix.PidfdOpen(k.pid, 0) // before it can end, so that its number isn't another's
	if err == nil {
		defer func() { _ = unix.Close(process) }()
	}
	ended := err != nil // or no process that this one sees
	if err := k.sendJSON(msgQuit, end{Grace: grace}); err != nil {
		select {
		case <-k.gone:
		default:
			return err
		}
	}
	select {
	case <-k.gone:
	case <-time.After(grace + exitWait):
		if !ended {
			_ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0) // it may have ended just now
		}
		<-k.gone
	}
	if !ended && !k.left.Load() {
		endsWithin(process, exitWait)
	}
	return nil
}

// exitWait bounds how long the process of a keeper may take to obey, and to end.
const exitWait = 5 * time.Second

// newKey returns a key for journals.
func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return key
}
