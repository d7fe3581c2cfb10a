// Package lab runs wake as processes for tests that break them: a NATS server or
// several, runners, a recorder, a snapshotter and an alerter, and agents that
// leave a line for everything they do. It reads back what all of them made of it,
// and audits it.
package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Programs are the paths of what a lab runs.
type Programs struct{ Wake, NATS, Claude string }

// Build builds the programs into a folder.
func Build(dir string) (Programs, error) {
	p := Programs{filepath.Join(dir, "wake"), filepath.Join(dir, "nats-server"), filepath.Join(dir, "claude")}
	for path, pkg := range map[string]string{
		p.Wake: "code.wake.dev/wake/cmd/wake", p.NATS: "github.com/nats-io/nats-server/v2", p.Claude: "code.wake.dev/wake/test/kill/fakeclaude",
	} {
		c := exec.Command("go", "build", "-o", path, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return p, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return p, nil
}

// BuildNext builds wake into a file as a later release might be: in the file of its source that edit names, one text stands
// for another.
func BuildNext(path string, edit Edit) error {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("build the next release: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), edit.File)
	b, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if bytes.Count(b, []byte(edit.Old)) != 1 {
		return fmt.Errorf("build the next release: %s has not one %q", edit.File, edit.Old)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: path + ".go"}})
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(path+".go", bytes.Replace(b, []byte(edit.Old), []byte(edit.New), 1), 0o600),
		os.WriteFile(path+".json", overlay, 0o600),
	); err != nil {
		return err
	}
	c := exec.Command("go", "build", "-overlay", path+".json", "-o", path, "code.wake.dev/wake/cmd/wake")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build the next release: %w\n%s", err, out)
	}
	return nil
}

// Edit is a change of a file of wake's source.
type Edit struct{ File, Old, New string }

// Main runs the tests with a folder for programs, which is removed afterwards.
func Main(m *testing.M, bin *string) int {
	dir, err := os.MkdirTemp("", "wake-lab-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*bin = dir
	code := m.Run()
	_ = os.RemoveAll(dir) // it is in the system's folder for such
	return code
}

// mark is the variable that all processes of a lab have in their environment,
// those that agents start included.
const mark = "WAKELAB_DIR"

// Config is what a lab is made of.
type Config struct {
	Programs Programs
	Host     string        // address of the server; "": 127.0.0.1
	TTL      time.Duration // of leases
	Limit    time.Duration // of the whole test
	Seed     uint64        // 0: another one each time
	Rules    string        // of the alerter; "": the defaults
	Keep     bool          // keep the folder of a test that passed, too

	Store string // how large the server's store may become, such as 64MB; "": as large as it likes
	// Disks are folders that are disks of their own, such as nats or recorder, with their sizes, such as 64M. They need root.
	Disks map[string]string
}

// Lab is an installation of wake as processes. It ends with its test.
type Lab struct {
	*testing.T
	Ctx      context.Context //nolint:containedctx // a lab is a test: it ends with the time of the test
	Dir      string
	TTL      time.Duration
	Seed     uint64
	Rand     *rand.Rand // used by the test's goroutine only
	Prog     Programs
	URL      string   // of the server, or of several
	Server   *Proc    // nil: the lab has none, or several
	AgentEnv []string // added to the environment of runners
	NC       *nats.Conn
	JS       jetstream.JetStream
	Runs     []string // that were started
	Disks    map[string]*Disk

	store      string
	mu         sync.Mutex
	keep       bool
	stopped    bool // nothing starts any more
	procs      []*Proc
	story      []string // what was done to which process
	began      time.Time
	violations atomic.Int64
}

// Proc is a process.
type Proc struct {
	Name  string
	Cmd   *exec.Cmd
	Ended chan struct{}
	Log   string // file
}

// Empty returns a lab without any process. What is started in it ends with the
// test, at the latest after the limit.
func Empty(t *testing.T, c Config) *Lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "wake-lab-") //nolint:usetesting // it stays if the test fails
	if err != nil {
		t.Fatal(err)
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), c.Limit)
	l := &Lab{
		T: t, Ctx: ctx, Dir: dir, TTL: c.TTL, Seed: c.Seed, Rand: rand.New(rand.NewPCG(c.Seed, 0)), Prog: c.Programs,
		keep: c.Keep, began: time.Now(), store: c.Store, Disks: make(map[string]*Disk),
	}
	t.Cleanup(func() { l.end(cancel) })
	t.Cleanup(l.explain)
	for _, sub := range []string{"ledger", "home", "workspaces", "log"} {
		l.Must(os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	for name, size := range c.Disks {
		l.Disks[name], err = NewDisk(filepath.Join(dir, name), filepath.Join(dir, name+".img"), size)
		l.Must(err)
	}
	return l
}

// New starts a server and the services but runners.
func New(t *testing.T, c Config) *Lab {
	t.Helper()
	l := Empty(t, c)
	l.startServer(cmp.Or(c.Host, "127.0.0.1"))
	l.Wake("init", "--lease-ttl", c.TTL.String())
	env := l.Env("")
	if c.Rules != "" {
		rules := filepath.Join(l.Dir, "rules.yaml")
		l.Must(os.WriteFile(rules, []byte(c.Rules), 0o600))
		env = append(env, "WAKE_RULES="+rules)
	}
	for _, service := range []string{"recorder", "snapshotter", "alerter"} {
		l.Start(service, env, l.Prog.Wake, service, "--data-dir", filepath.Join(l.Dir, service))
	}
	return l
}

// Errorf counts what is wrong and fails the test.
func (l *Lab) Errorf(format string, args ...any) {
	l.Helper()
	l.violations.Add(1)
	l.T.Errorf(format, args...)
}

// Began is when the lab began.
func (l *Lab) Began() time.Time { return l.began }

// Violations is how much was found to be wrong.
func (l *Lab) Violations() int { return int(l.violations.Load()) }

// explain says what happened in a test that failed, and where its files are.
func (l *Lab) explain() {
	if !l.Failed() {
		return
	}
	l.Logf("seed %d, after %s:\n%s", l.Seed, time.Since(l.began).Round(time.Millisecond), strings.Join(l.Told(), "\n"))
	l.Logf("the folder stays: %s", l.Dir)
	if l.JS == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.Ctx), 30*time.Second)
	defer cancel()
	l.Ctx = ctx
	for _, run := range l.Runs {
		l.History(run)
	}
}

// end ends all processes and those that they left behind.
func (l *Lab) end(cancel context.CancelFunc) {
	if l.NC != nil {
		l.NC.Close()
	}
	cancel()
	l.StopAll()
	for _, d := range l.Disks {
		if err := d.Unmount(); err != nil {
			l.Log(err)
		}
	}
	if !l.Failed() && !l.keep {
		_ = os.RemoveAll(l.Dir) // whatever stays is in the system's folder for such
	}
}

// StopAll kills all processes and those that they left behind; none starts any
// more.
func (l *Lab) StopAll() {
	l.mu.Lock()
	procs := l.procs
	l.stopped = true
	l.mu.Unlock()
	for _, p := range procs {
		_ = p.Cmd.Process.Kill() // also what is stopped; it may be gone
		<-p.Ended
	}
	for range 5 {
		if l.sweep() == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // processes on their way out
	}
}

// sweep kills every process with the lab's mark and returns how many it found.
func (l *Lab) sweep() (found int) {
	for _, pid := range l.Marked() {
		found++
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	}
	return found
}

// Marked lists the processes with the lab's mark.
func (l *Lab) Marked() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, b...), []byte("\x00"+mark+"="+l.Dir+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Pids are the processes that the lab itself has started and that are there.
func (l *Lab) Pids() (pids []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.procs {
		if p.Alive() {
			pids = append(pids, p.Cmd.Process.Pid)
		}
	}
	return pids
}

// Must ends the test on an error.
func (l *Lab) Must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// Tell adds to the story.
func (l *Lab) Tell(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.story = append(l.story, fmt.Sprintf("%8.3fs ", time.Since(l.began).Seconds())+fmt.Sprintf(format, args...))
}

// Told is the story so far.
func (l *Lab) Told() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.story...)
}

// Env is the environment of a process with a home.
func (l *Lab) Env(home string) []string {
	home = cmp.Or(home, filepath.Join(l.Dir, "home"))
	path := os.Getenv("PATH") //nolint:forbidigo // what is started finds its tools as we do
	return []string{"PATH=" + path, "HOME=" + home, "TMPDIR=" + os.TempDir(), mark + "=" + l.Dir}
}

func (l *Lab) startServer(host string) {
	l.Helper()
	store, ports := filepath.Join(l.Dir, "nats"), filepath.Join(l.Dir, "ports")
	conf := filepath.Join(l.Dir, "nats.conf")
	l.Must(errors.Join(os.MkdirAll(store, 0o700), os.MkdirAll(ports, 0o700)))
	limit := ""
	if l.store != "" {
		limit = ", max_file_store: " + l.store
	}
	l.Must(os.WriteFile(conf, fmt.Appendf(nil,
		"host: %s\nport: -1\nports_file_dir: %q\njetstream { store_dir: %q, sync_interval: always%s }\n", host, ports, store, limit), 0o600))
	l.Server = l.Start("nats", l.Env(""), l.Prog.NATS, "-c", conf)
	l.Until("the server listens", 20*time.Second, func() bool {
		files, _ := filepath.Glob(filepath.Join(ports, "*.ports")) // the pattern is right
		if len(files) == 0 {
			return false
		}
		var ports struct{ Nats []string }
		b, err := os.ReadFile(files[0])
		if err != nil || json.Unmarshal(b, &ports) != nil || len(ports.Nats) == 0 {
			return false
		}
		l.URL = ports.Nats[0]
		return true
	})
	l.connect()
}

// RestartServer ends the server and starts it again, where it was.
func (l *Lab) RestartServer() {
	l.Helper()
	conf := filepath.Join(l.Dir, "nats.conf")
	b, err := os.ReadFile(conf)
	l.Must(err)
	u, err := url.Parse(l.URL)
	l.Must(err)
	l.Must(os.WriteFile(conf, bytes.Replace(b, []byte("port: -1"), []byte("port: "+u.Port()), 1), 0o600))
	l.Kill(l.Server)
	l.Server = l.Start("nats", l.Env(""), l.Prog.NATS, "-c", conf)
}

// Start starts a process that logs into a file of its name.
func (l *Lab) Start(name string, env []string, argv ...string) *Proc {
	l.Helper()
	p, err := l.Spawn(name, env, argv...)
	l.Must(err)
	return p
}

// Spawn is Start for other goroutines than the test's. A verb of wake uses the
// lab's server unless env names another one.
func (l *Lab) Spawn(name string, env []string, argv ...string) (*Proc, error) {
	p := &Proc{Name: name, Ended: make(chan struct{}), Log: filepath.Join(l.Dir, "log", name)}
	out, err := os.OpenFile(p.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the process has its own
	p.Cmd = exec.Command(argv[0], argv[1:]...)
	if argv[0] == l.Prog.Wake {
		env = append([]string{"WAKE_NATS_URL=" + l.URL}, env...) // the last one counts
	}
	p.Cmd.Env, p.Cmd.Dir, p.Cmd.Stdout, p.Cmd.Stderr = env, l.Dir, out, out
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return nil, errors.New("the lab has ended")
	}
	if err := p.Cmd.Start(); err != nil {
		return nil, err
	}
	l.procs = append(l.procs, p)
	go func() {
		defer close(p.Ended)
		_ = p.Cmd.Wait() // it is read from the state
	}()
	return p, nil
}

// Signal sends a signal.
func (l *Lab) Signal(p *Proc, s syscall.Signal) {
	l.Helper()
	l.Tell("%s %s (pid %d)", s, p.Name, p.Cmd.Process.Pid)
	l.Must(p.Cmd.Process.Signal(s))
}

// Gone waits for the end of a process.
func (l *Lab) Gone(p *Proc, within time.Duration) {
	l.Helper()
	select {
	case <-p.Ended:
	case <-time.After(within):
		l.Fatalf("%s hasn't ended within %s", p.Name, within)
	case <-l.Ctx.Done():
		l.Fatalf("%s hasn't ended in time", p.Name)
	}
}

// Alive reports whether the process has not ended.
func (p *Proc) Alive() bool {
	select {
	case <-p.Ended:
		return false
	default:
		return true
	}
}

// Wake runs a verb and returns what it prints.
func (l *Lab) Wake(args ...string) string {
	l.Helper()
	out, err := l.Try(args...)
	if err != nil {
		l.Fatalf("wake %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Try is Wake for what may fail.
func (l *Lab) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(l.Ctx, 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, l.Prog.Wake, args...)
	c.Env, c.Dir = append(l.Env(""), "WAKE_NATS_URL="+l.URL), l.Dir
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), err
}

// Until waits until something is so.
func (l *Lab) Until(what string, within time.Duration, so func() bool) {
	l.Helper()
	deadline := time.After(within)
	for !so() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			l.Fatalf("not within %s: %s", within, what)
		case <-l.Ctx.Done():
			l.Fatalf("the time of the test is over: %s", what)
		}
	}
}

// Flow writes a flow and starts a run of it.
func (l *Lab) Flow(id, src string, sets ...string) {
	l.Helper()
	file := filepath.Join(l.Dir, id+".yaml")
	l.Must(os.WriteFile(file, []byte(src), 0o600))
	args := []string{"run", file, "--id", id, "--detach", "--set", "ledger=" + filepath.Join(l.Dir, "ledger")}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	l.Wake(args...)
	l.Runs = append(l.Runs, id)
	l.Tell("run %s begins", id)
}

// Runner is a runner, or all services in one process, that may be killed and started again.
type Runner struct {
	*Proc
	ID    string
	Verb  string    // of wake
	Home  string    // of its agents
	Env   []string  // more than others have
	Back  time.Time // when it is to be started again, while it is down
	flags []string
	from  int64 // where the log of its process begins
}

// Runner starts a runner. With own, nothing is shared with other runners but the
// server.
func (l *Lab) Runner(id string, own bool, flags ...string) *Runner {
	l.Helper()
	r := l.NewRunner(id, own, flags...)
	l.Restart(r)
	return r
}

// NewRunner returns a runner that isn't started yet.
func (l *Lab) NewRunner(id string, own bool, flags ...string) *Runner {
	l.Helper()
	r := &Runner{ID: id, Verb: "runner", Home: filepath.Join(l.Dir, "home")}
	r.flags = append([]string{"--runner-id", id, "--data-dir", filepath.Join(l.Dir, id), "--claude", l.Prog.Claude}, flags...)
	if own {
		r.Home = filepath.Join(l.Dir, id, "home")
		l.Must(os.MkdirAll(r.Home, 0o700))
	} else {
		r.flags = append(r.flags, "--workspaces", filepath.Join(l.Dir, "workspaces"))
	}
	return r
}

// Up starts all services in one process, of an empty lab.
func (l *Lab) Up(id string, flags ...string) *Runner {
	l.Helper()
	r := l.NewRunner(id, false, append([]string{
		"--lease-ttl", l.TTL.String(), "--store", filepath.Join(l.Dir, "recorder", "recorder.db"),
	}, flags...)...)
	r.Verb = "up"
	l.Must(os.Mkdir(filepath.Join(l.Dir, "recorder"), 0o700))
	l.Restart(r)
	l.Until("the server listens", 20*time.Second, func() bool {
		b, err := os.ReadFile(filepath.Join(l.Dir, id, "nats-url"))
		l.URL = strings.TrimSpace(string(b))
		return err == nil && l.URL != ""
	})
	l.connect()
	l.Ready(r)
	return r
}

// Ready waits until a runner serves.
func (l *Lab) Ready(r *Runner) {
	l.Helper()
	want := `"msg":"running"`
	if r.Verb == "up" {
		want = "wake is up"
	}
	l.Until(r.ID+" serves", 30*time.Second, func() bool {
		b, err := os.ReadFile(r.Log)
		return err == nil && strings.Contains(string(b[min(int64(len(b)), r.from):]), want)
	})
	l.Until("the server answers", 20*time.Second, func() bool {
		_, err := l.NC.RTT()
		return err == nil
	})
}

func (l *Lab) connect() {
	l.Helper()
	var err error
	l.NC, err = nats.Connect(l.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	l.Must(err)
	l.JS, err = jetstream.New(l.NC)
	l.Must(err)
}

// Restart starts a runner that is down.
func (l *Lab) Restart(r *Runner) {
	l.Helper()
	r.Back = time.Time{}
	env := append(append(l.Env(r.Home), l.AgentEnv...), r.Env...)
	if info, err := os.Stat(filepath.Join(l.Dir, "log", r.ID)); err == nil {
		r.from = info.Size()
	}
	r.Proc = l.Start(r.ID, env, append([]string{l.Prog.Wake, r.Verb}, r.flags...)...)
	l.Tell("start %s (pid %d)", r.ID, r.Cmd.Process.Pid)
}

// Kill ends a process as a power cut would, and returns when.
func (l *Lab) Kill(p *Proc) time.Time {
	l.Helper()
	at := time.Now()
	if err := p.Cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.Fatal(err)
	}
	<-p.Ended
	return at
}

// Logged reports whether a process has logged a text.
func (l *Lab) Logged(p *Proc, text string) bool {
	b, err := os.ReadFile(p.Log)
	return err == nil && strings.Contains(string(b), text)
}
