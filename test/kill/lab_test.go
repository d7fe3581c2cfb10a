//go:build kill

package kill_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "where and when to kill; 0: another one each time")
	killsFlag = flag.Int("kills", 40, "how often to kill")
	keepFlag  = flag.Bool("keep", false, "keep the folders of tests that passed")
)

// programs are what a lab runs.
type programs struct{ wake, nats, claude string }

// build builds the programs, once. The folder is removed by TestMain.
var build = sync.OnceValues(func() (programs, error) {
	p := programs{filepath.Join(bin, "wake"), filepath.Join(bin, "nats-server"), filepath.Join(bin, "claude")}
	for path, pkg := range map[string]string{
		p.wake: "wake/cmd/wake", p.nats: "github.com/nats-io/nats-server/v2", p.claude: "wake/test/kill/fakeclaude",
	} {
		c := exec.Command("go", "build", "-o", path, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return p, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return p, nil
})

// bin is the folder of the programs.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "wake-kill-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// mark is the variable that all processes of a lab have in their environment,
// those that agents start included.
const mark = "KILL_LAB"

// lab is an installation of wake as processes.
type lab struct {
	*testing.T
	ctx      context.Context //nolint:containedctx // a lab is a test: it ends with the time of the test
	dir      string
	ttl      time.Duration
	seed     uint64
	rand     *rand.Rand // used by the test's goroutine only
	prog     programs
	url      string
	agentEnv []string // added to the environment of runners
	nc       *nats.Conn
	js       jetstream.JetStream

	mu    sync.Mutex
	procs []*proc
	story []string // what was done to whom
	began time.Time
	runs  []string // that were started
}

// proc is a process.
type proc struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	since time.Time
	log   string // file
}

// newLab starts a server and the services but runners. Everything ends with the
// test, at the latest after limit.
func newLab(t *testing.T, ttl, limit time.Duration) *lab {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "wake-kill-") //nolint:usetesting // it stays if the test fails
	if err != nil {
		t.Fatal(err)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	l := &lab{T: t, ctx: ctx, dir: dir, ttl: ttl, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), prog: p, began: time.Now()}
	t.Cleanup(func() { l.end(cancel) })
	t.Cleanup(l.explain)
	for _, sub := range []string{"ledger", "home", "workspaces", "log"} {
		l.must(os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	l.startServer()
	l.wake("init", "--lease-ttl", ttl.String())
	for _, service := range []string{"recorder", "snapshotter", "alerter"} {
		l.start(service, l.env(""), l.prog.wake, service, "--data-dir", filepath.Join(dir, service))
	}
	return l
}

// explain says what happened in a test that failed, and where its files are.
func (l *lab) explain() {
	if !l.Failed() {
		return
	}
	l.Logf("seed %d, after %s:\n%s", l.seed, time.Since(l.began).Round(time.Millisecond), strings.Join(l.told(), "\n"))
	l.Logf("the folder stays: %s", l.dir)
	if l.js == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), 30*time.Second)
	defer cancel()
	l.ctx = ctx
	for _, run := range l.runs {
		l.history(run)
	}
}

// end ends all processes and those that they left behind.
func (l *lab) end(cancel context.CancelFunc) {
	if l.nc != nil {
		l.nc.Close()
	}
	cancel()
	l.mu.Lock()
	procs := l.procs
	l.mu.Unlock()
	for _, p := range procs {
		_ = p.cmd.Process.Kill() // also what is stopped; it may be gone
		<-p.ended
	}
	for range 5 {
		if l.sweep() == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // processes on their way out
	}
	if !l.Failed() && !*keepFlag {
		_ = os.RemoveAll(l.dir) // whatever stays is in the system's folder for such
	}
}

// sweep kills every process with the lab's mark and returns how many it found.
func (l *lab) sweep() (found int) {
	for _, pid := range l.marked() {
		found++
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	}
	return found
}

// marked lists the processes with the lab's mark.
func (l *lab) marked() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, b...), []byte("\x00"+mark+"="+l.dir+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// tell adds to the story.
func (l *lab) tell(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.story = append(l.story, fmt.Sprintf("%8.3fs ", time.Since(l.began).Seconds())+fmt.Sprintf(format, args...))
}

func (l *lab) told() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.story...)
}

// env is the environment of a process with a home.
func (l *lab) env(home string) []string {
	if home == "" {
		home = filepath.Join(l.dir, "home")
	}
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir(), mark + "=" + l.dir}
}

func (l *lab) startServer() {
	l.Helper()
	store := filepath.Join(l.dir, "nats")
	conf := filepath.Join(l.dir, "nats.conf")
	l.must(os.MkdirAll(store, 0o700))
	l.must(os.WriteFile(conf, fmt.Appendf(nil,
		"host: 127.0.0.1\nport: -1\nports_file_dir: %q\njetstream { store_dir: %q, sync_interval: always }\n", store, store), 0o600))
	l.start("nats", l.env(""), l.prog.nats, "-c", conf)
	l.until("the server listens", 20*time.Second, func() bool {
		files, _ := filepath.Glob(filepath.Join(store, "*.ports")) // the pattern is right
		if len(files) == 0 {
			return false
		}
		var ports struct{ Nats []string }
		b, err := os.ReadFile(files[0])
		if err != nil || json.Unmarshal(b, &ports) != nil || len(ports.Nats) == 0 {
			return false
		}
		l.url = ports.Nats[0]
		return true
	})
	var err error
	l.nc, err = nats.Connect(l.url, nats.MaxReconnects(-1))
	l.must(err)
	l.js, err = jetstream.New(l.nc)
	l.must(err)
}

// start starts a process that logs into a file of its name.
func (l *lab) start(name string, env []string, argv ...string) *proc {
	l.Helper()
	p := &proc{name: name, ended: make(chan struct{}), since: time.Now(), log: filepath.Join(l.dir, "log", name)}
	out, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	l.must(err)
	defer func() { _ = out.Close() }() // the process has its own
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = env, l.dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if argv[0] == l.prog.wake {
		p.cmd.Env = append(p.cmd.Env, "WAKE_NATS_URL="+l.url)
	}
	l.must(p.cmd.Start())
	l.mu.Lock()
	l.procs = append(l.procs, p)
	l.mu.Unlock()
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // it is read from the state
	}()
	return p
}

// signal sends a signal.
func (l *lab) signal(p *proc, s syscall.Signal) {
	l.Helper()
	l.tell("%s %s (pid %d)", s, p.name, p.cmd.Process.Pid)
	l.must(p.cmd.Process.Signal(s))
}

// gone waits for the end of a process.
func (l *lab) gone(p *proc, within time.Duration) {
	l.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		l.Fatalf("%s hasn't ended within %s", p.name, within)
	case <-l.ctx.Done():
		l.Fatalf("%s hasn't ended in time", p.name)
	}
}

func (p *proc) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// wake runs a verb and returns what it prints.
func (l *lab) wake(args ...string) string {
	l.Helper()
	out, err := l.try(args...)
	if err != nil {
		l.Fatalf("wake %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (l *lab) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, l.prog.wake, args...)
	c.Env, c.Dir = append(l.env(""), "WAKE_NATS_URL="+l.url), l.dir
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), err
}

// until waits until something is so.
func (l *lab) until(what string, within time.Duration, so func() bool) {
	l.Helper()
	deadline := time.After(within)
	for !so() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			l.Fatalf("not within %s: %s", within, what)
		case <-l.ctx.Done():
			l.Fatalf("the time of the test is over: %s", what)
		}
	}
}

// flow writes a flow and starts a run of it.
func (l *lab) flow(id, src string, sets ...string) {
	l.Helper()
	file := filepath.Join(l.dir, id+".yaml")
	l.must(os.WriteFile(file, []byte(src), 0o600))
	args := []string{"run", file, "--id", id, "--detach", "--set", "ledger=" + filepath.Join(l.dir, "ledger")}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	l.wake(args...)
	l.runs = append(l.runs, id)
	l.tell("run %s begins", id)
}

// runner is a runner that may be killed and started again.
type runner struct {
	*proc
	id    string
	home  string // of its agents
	flags []string
	back  time.Time // when it is to be started again, while it is down
}

// runner starts a runner. With own, nothing is shared with other runners but the
// server.
func (l *lab) runner(id string, own bool, flags ...string) *runner {
	l.Helper()
	r := &runner{id: id, home: filepath.Join(l.dir, "home")}
	r.flags = append([]string{"--runner-id", id, "--data-dir", filepath.Join(l.dir, id), "--claude", l.prog.claude}, flags...)
	if own {
		r.home = filepath.Join(l.dir, id, "home")
		l.must(os.MkdirAll(r.home, 0o700))
	} else {
		r.flags = append(r.flags, "--workspaces", filepath.Join(l.dir, "workspaces"))
	}
	l.restart(r)
	return r
}

// restart starts a runner that is down.
func (l *lab) restart(r *runner) {
	l.Helper()
	r.back = time.Time{}
	r.proc = l.start(r.id, append(l.env(r.home), l.agentEnv...), append([]string{l.prog.wake, "runner"}, r.flags...)...)
	l.tell("start %s (pid %d)", r.id, r.cmd.Process.Pid)
}

// kill ends a runner as a power cut would.
func (l *lab) kill(r *runner) time.Time {
	l.Helper()
	at := time.Now()
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.Fatal(err)
	}
	<-r.ended
	return at
}

// logged reports whether a process has logged a text.
func (l *lab) logged(p *proc, text string) bool {
	b, err := os.ReadFile(p.log)
	return err == nil && strings.Contains(string(b), text)
}
