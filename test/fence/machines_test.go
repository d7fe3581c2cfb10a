//go:build fence && linux

package fence_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

const (
	ttl     = 4 * time.Second // of leases
	address = "10.77.0.1"     // of the server, on a bridge between the machines
)

// bin is the folder of the programs.
var bin string

var build = sync.OnceValues(func() (lab.Programs, error) { return lab.Build(bin) })

func TestMain(m *testing.M) {
	if err := network(); err != nil {
		fmt.Fprintf(os.Stderr, "test/fence wants root and a network namespace of its own (make fence): %v\n", err)
		os.Exit(1)
	}
	os.Exit(lab.Main(m, &bin))
}

// network makes the bridge. It fails where there is a way out: this is another machine's network.
func network() error {
	routes, err := exec.Command("ip", "route").CombinedOutput()
	if err == nil && len(routes) > 0 {
		err = fmt.Errorf("there are routes: %s", routes)
	}
	if err != nil {
		return err
	}
	for _, line := range []string{"link set lo up", "link add lan type bridge", "addr add " + address + "/24 dev lan", "link set lan up"} {
		if err := ip(line); err != nil {
			return err
		}
	}
	return nil
}

func ip(line string) error {
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}

// bench is a lab of two machines.
type bench struct{ *lab.Lab }

// newBench starts a server that machines reach, and prepares what agents run.
func newBench(t *testing.T) *bench {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	l := &bench{lab.New(t, lab.Config{Programs: p, Host: address, TTL: ttl, Limit: 2 * time.Minute})}
	for name, text := range map[string]string{"tick": tick, "claude": claude, "build": command} {
		text = strings.NewReplacer("DIR", l.Dir, "CLAUDE", l.Prog.Claude).Replace(text)
		l.Must(os.WriteFile(filepath.Join(l.Dir, name), []byte(text), 0o700))
	}
	return l
}

// The agent and the command start a process that leaves their process group and their session, and
// which says again and again that it runs. A clock is read before each line is written, so that a
// line tells when its process ran.
const (
	tick   = "#!/bin/sh\nwhile :; do echo \"$MACHINE $1 $(date +%s%N)\" >> DIR/ledger/ticks; sleep 0.02; done\n"
	claude = "#!/bin/sh\nsetsid DIR/tick agent >/dev/null 2>&1 </dev/null &\nexec CLAUDE \"$@\"\n"
	// command is of 40 steps, each of which leaves a line when it begins.
	command = `#!/bin/sh
setsid DIR/tick build >/dev/null 2>&1 </dev/null &
echo "begin build 0 $$ $(date +%s%N)" >> DIR/ledger/exec
for step in $(seq 40); do echo "$MACHINE build $(date +%s%N)" >> DIR/ledger/ticks; sleep 0.2; done
echo "end build 0 $$ $(date +%s%N)" >> DIR/ledger/exec
`
)

// flow is of an agent and a command at once. Folders are those of the nodes: machines share
// nothing but the server and the ledger.
const flow = `name: both
workspace: node
nodes:
  - id: agent
    type: agent
    input: {provider: claude, prompt: "Do it. calls=14 ms=200 ledger={{ state.ledger }}"}
  - id: build
    type: exec
    idempotent: true
    input: {command: [%s]}
`

// machine is one that has processes, mounts and a network of its own.
type machine struct {
	*bench
	name   string
	port   string // its end of the network that isn't its own
	kernel *lab.Proc
	init   int // pid of its process 1, as it is seen from here
	runner *lab.Proc
}

// machine starts a machine.
func (l *bench) machine(name string, host int) *machine {
	l.Helper()
	m := &machine{bench: l, name: name, port: "port-" + name}
	m.kernel = l.Start("machine-"+name, l.Env(""), "unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", "while :; do sleep 1000 & wait; done")
	l.Until("process 1 of machine "+name, 5*time.Second, func() bool {
		m.init = child(m.kernel.Cmd.Process.Pid)
		names, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.init)) // it may not be there yet
		return strings.TrimSpace(string(names)) == "bash"
	})
	l.Cleanup(func() { _ = ip("link del " + m.port) }) // it goes with the machine
	l.Must(ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", m.port, m.init)))
	l.Must(ip("link set " + m.port + " master lan up"))
	for _, line := range []string{"link set lo up", fmt.Sprintf("addr add 10.77.0.%d/24 dev eth0", host), "link set eth0 up"} {
		argv := append([]string{"-t", strconv.Itoa(m.init), "-n", "ip"}, strings.Fields(line)...)
		out, err := exec.Command("nsenter", argv...).CombinedOutput()
		if err != nil {
			l.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	return m
}

// child returns the child of a process, 0 if there is none.
func child(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if fields := strings.Fields(string(b)); err == nil && len(fields) > 0 {
		n, _ := strconv.Atoi(fields[0]) // the kernel writes numbers
		return n
	}
	return 0
}

// start starts the machine's runner.
func (m *machine) start(flags ...string) {
	m.Helper()
	home := filepath.Join(m.Dir, m.name, "home")
	m.Must(os.MkdirAll(home, 0o700))
	argv := []string{
		"nsenter", "-t", strconv.Itoa(m.init), "-p", "-m", "-n", "--", m.Prog.Wake, "runner",
		"--runner-id", m.name, "--data-dir", filepath.Join(m.Dir, m.name), "--claude", filepath.Join(m.Dir, "claude"),
	}
	env := append(m.Env(home), "MACHINE="+m.name, "WAKE_NATS_URL="+m.URL)
	m.runner = m.Start(m.name, env, append(argv, flags...)...)
	m.Tell("start %s", m.name)
	m.Until("runner "+m.name, 20*time.Second, func() bool { return m.Logged(m.runner, `"msg":"running"`) })
}

// keepers counts the keepers that the machine has.
func (m *machine) keepers() (n int) {
	m.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.init))
	m.Must(err)
	all, err := process.Table()
	m.Must(err)
	for _, p := range all {
		space, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.Pid)) // it may be gone
		argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if space == own && string(argv) == "wake\x00keeper\x00" {
			n++
		}
	}
	return n
}

// beat is a time at which a process of a node ran on a machine.
type beat struct {
	machine, node string
	at            time.Time
}

// beats reads the ledger, in the order of its times.
func (l *bench) beats() (all []beat) {
	l.Helper()
	b, err := os.ReadFile(filepath.Join(l.Dir, "ledger", "ticks"))
	if os.IsNotExist(err) {
		return nil
	}
	l.Must(err)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			l.Fatalf("a line of the ledger: %q", line)
		}
		ns, err := strconv.ParseInt(f[2], 10, 64)
		l.Must(err)
		all = append(all, beat{f[0], f[1], time.Unix(0, ns)})
	}
	slices.SortFunc(all, func(a, b beat) int { return a.at.Compare(b.at) })
	return all
}

// has reports whether a machine is at work on both nodes.
func (l *bench) has(machine string) bool {
	nodes := map[string]bool{}
	for _, x := range l.beats() {
		nodes[x.node] = nodes[x.node] || x.machine == machine
	}
	return nodes["agent"] && nodes["build"]
}

// outcome is what became of a node whose machine was taken away, counted from then.
type outcome struct {
	node         string
	rest         time.Duration // last sign of life of the first machine's processes
	claim, begin time.Duration // the other machine's claim, and its processes' first sign of life
	overlaps     int           // signs of the first machine's processes after that
}

func (o outcome) String() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s: at work until %s, claimed elsewhere after %s, at work there after %s, %d overlaps", o.node, ms(o.rest), ms(o.claim), ms(o.begin), o.overlaps)
}

// outcomes compares the ledger's times with each other, and shows those of the claims.
func (l *bench) outcomes(run string, at time.Time) (all []outcome) {
	l.Helper()
	beats, stored := l.beats(), l.Stored(run)
	for _, node := range []string{"agent", "build"} {
		o := outcome{node: node}
		for _, x := range stored {
			if o.claim == 0 && x.E.NodeID == node && lab.Claimant(x.E) == "b" {
				o.claim = x.At.Sub(at)
			}
		}
		for _, x := range beats {
			switch {
			case x.node != node:
			case x.machine == "b":
				o.begin = cmp.Or(o.begin, x.at.Sub(at))
			default:
				o.rest = x.at.Sub(at)
				if o.begin != 0 {
					o.overlaps++
				}
			}
		}
		all = append(all, o)
	}
	return all
}

// ways are how machine a is taken away.
var ways = []struct {
	name string
	away func(*machine)
	back func(*machine)
}{
	{"Runner", func(m *machine) {
		m.Must(syscall.Kill(child(m.runner.Cmd.Process.Pid), syscall.SIGKILL))
	}, nil},
	{"Machine", func(m *machine) { m.Must(syscall.Kill(m.init, syscall.SIGKILL)) }, nil},
	{"Network", func(m *machine) { m.Must(ip("link set " + m.port + " down")) }, func(m *machine) {
		m.Must(ip("link set " + m.port + " up"))
		m.Until("the keepers whose nodes are another's have ended", 20*time.Second, func() bool { return m.keepers() == 0 })
	}},
}

// takeover has machine a taken away in mid-work, b go on, and a come back if it can.
func (l *bench) takeover(way int, flags ...string) []outcome {
	l.Helper()
	a, b := l.machine("a", 2), l.machine("b", 3)
	a.start(flags...)
	l.Flow("both", fmt.Sprintf(flow, filepath.Join(l.Dir, "build")))
	l.Until("a is at work", 20*time.Second, func() bool { return l.has("a") })
	b.start(flags...)
	l.Await("both", 0, 10*time.Second, "a call has its result", lab.OfType(wire.TypeAgentTool, "agent"))
	pos, at := l.Last(), time.Now()
	ways[way].away(a)
	l.Tell("%s of a is away", ways[way].name)
	for _, node := range []string{"agent", "build"} {
		// An offer may have been handed to a, whose connection the server takes for alive: it goes out again after 10 s.
		l.Await("both", pos, 3*ttl+20*time.Second, "b claims "+node, func(x lab.Entry) bool { return x.E.NodeID == node && lab.Claimant(x.E) == "b" })
	}
	l.Until("b is at work", 20*time.Second, func() bool { return l.has("b") })
	if back := ways[way].back; back != nil {
		back(a)
		l.Tell("%s of a is back", ways[way].name)
	}
	l.Reach("both", time.Minute, wire.RunComplete)
	return l.outcomes("both", at)
}

// TestMachines: a machine's processes rest before another one's begin, whatever
// is taken away from it.
func TestMachines(t *testing.T) {
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			l := newBench(t)
			for _, o := range l.takeover(i) {
				t.Log(o)
				if o.overlaps != 0 {
					t.Errorf("%s: processes of both machines were at work", o.node)
				}
			}
			l.Check("both").Completed("complete")
		})
	}
}

// TestUnfenced: what TestMachines looks for is there to be seen, without keepers.
func TestUnfenced(t *testing.T) {
	for _, o := range newBench(t).takeover(0, "--fence", "none") {
		t.Log(o)
		if o.overlaps == 0 {
			t.Errorf("%s: no overlap is seen, though nothing ends the processes", o.node)
		}
	}
}
