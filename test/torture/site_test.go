//go:build torture

package torture_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/test/lab"
	"code.wake.dev/wake/test/oracle"
)

// servers is how many NATS servers there are.
const servers = 3

// unit is a process that a supervisor starts again whenever it has ended.
type unit struct {
	name string
	env  []string
	argv []string
	disk *lab.Disk // of its own; nil: none

	mu     sync.Mutex
	proc   *lab.Proc
	held   bool      // it is to stay down
	back   time.Time // not to be started before
	starts int
	exits  []string // how it ended by itself
	killed bool     // it was us
}

// site is a whole installation.
type site struct {
	*lab.Lab
	mu      sync.Mutex
	units   []*unit // guarded by mu while they are added
	ports   []int   // of the servers
	links   []*link
	ledger  *oracle.Ledger
	witness *witness
	stop    chan struct{}
	wg      sync.WaitGroup
}

// newSite starts everything.
func newSite(t *testing.T, c lab.Config, sync string) *site {
	t.Helper()
	s := &site{Lab: lab.Empty(t, c), ledger: oracle.NewLedger(), stop: make(chan struct{})}
	t.Cleanup(s.demolish)
	s.cluster(sync)
	s.wg.Go(s.supervise)
	s.connect()
	return s
}

// demolish ends everything, so that the disks can go.
func (s *site) demolish() {
	s.calm()
	if s.witness != nil {
		s.witness.close()
	}
	for _, l := range s.links {
		l.close()
	}
	s.StopAll()
	for _, u := range s.units {
		if u.disk != nil {
			if err := u.disk.Unmount(); err != nil {
				s.Log(err)
			}
		}
	}
}

// calm ends the supervisor, once.
func (s *site) calm() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.wg.Wait()
}

// cluster starts the servers. They reach each other through links only: none
// tells the others or clients where it really listens.
func (s *site) cluster(sync string) {
	s.Helper()
	ports, err := freePorts(2 * servers)
	s.Must(err)
	s.ports = ports[:servers]
	for i := range servers {
		var routes []string
		for j := range servers {
			if i != j {
				routes = append(routes, "nats://"+s.link(server(i), server(j), ports[servers+j]).addr())
			}
		}
		d, err := lab.NewDisk(filepath.Join(s.Dir, server(i)), filepath.Join(s.Dir, server(i)+".img"), "4G")
		s.Must(err)
		conf := filepath.Join(s.Dir, server(i)+".conf")
		s.Must(os.WriteFile(conf, fmt.Appendf(nil, `server_name: %s
host: 127.0.0.1
port: %d
jetstream { store_dir: %q, max_file_store: 3G, sync_interval: %s }
cluster { name: torture, host: 127.0.0.1, port: %d, advertise: "127.0.0.1:1", no_advertise: true, routes: [%s] }
`, server(i), ports[i], d.Dir, sync, ports[servers+i], strings.Join(routes, ", ")), 0o600))
		s.units = append(s.units, &unit{name: server(i), env: s.Env(""), argv: []string{s.Prog.NATS, "-c", conf}, disk: d})
	}
}

func server(i int) string { return fmt.Sprintf("nats%d", i) }

func (s *site) link(from, to string, port int) *link {
	s.Helper()
	l, err := newLink(from, to, fmt.Sprintf("127.0.0.1:%d", port))
	s.Must(err)
	s.links = append(s.links, l)
	return l
}

// connect connects the test itself, and prepares the cluster.
func (s *site) connect() {
	s.Helper()
	urls := make([]string, servers)
	for i, port := range s.ports {
		urls[i] = fmt.Sprintf("nats://127.0.0.1:%d", port)
	}
	s.URL = strings.Join(urls, ",")
	s.Until("a server answers", time.Minute, func() bool {
		var err error
		s.NC, err = nats.Connect(s.URL, nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond), nats.Name("torture"), quiet())
		return err == nil
	})
	var err error
	s.JS, err = jetstream.New(s.NC)
	s.Must(err)
}

// services are the processes besides runners.
func services() []string {
	if *pairsFlag {
		return []string{"recorder", "snapshotter1", "snapshotter2", "alerter1", "alerter2"}
	}
	return []string{"recorder", "snapshotter1", "alerter1"}
}

// quiet is about errors that are no news here: connections end all the time.
func quiet() nats.Option { return nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) }

// initialize makes what isn't there of streams and buckets.
func (s *site) initialize() (err error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && s.Ctx.Err() == nil; <-time.After(200 * time.Millisecond) {
		if _, err = s.Try("init", "--replicas", "3", "--lease-ttl", s.TTL.String(), "--connect-timeout", "2s"); err == nil {
			return nil
		}
		s.Tell("%v", err)
	}
	return err
}

// services starts wake.
func (s *site) services() {
	s.Helper()
	s.Must(s.initialize())
	var err error
	s.witness, err = newWitness(s.URL, s.ledger)
	s.Must(err)
	for _, name := range services() {
		var d *lab.Disk
		if name == "recorder" {
			d, err = lab.NewDisk(filepath.Join(s.Dir, name), filepath.Join(s.Dir, name+".img"), "512M")
			s.Must(err)
		}
		s.add(name, d, s.Env(""), strings.TrimRight(name, "12"))
	}
	for i, name := range []string{"runner1", "runner2", "runner3"} {
		own := i == 2 // shares nothing with the others
		home, more := filepath.Join(s.Dir, "home"), []string{"--runner-id", name, "--claude", s.Prog.Claude}
		if own {
			home = filepath.Join(s.Dir, name, "home")
			s.Must(os.MkdirAll(home, 0o700))
		} else {
			more = append(more, "--workspaces", filepath.Join(s.Dir, "workspaces"))
		}
		var d *lab.Disk
		if own {
			d, err = lab.NewDisk(filepath.Join(s.Dir, name, "spool"), filepath.Join(s.Dir, name+".img"), "16M")
			s.Must(err)
		}
		s.add(name, d, s.Env(home), append([]string{"runner"}, more...)...)
	}
}

// add adds a process of wake with links of its own to all servers.
func (s *site) add(name string, d *lab.Disk, env []string, args ...string) {
	s.Helper()
	urls := make([]string, servers)
	for i, port := range s.ports {
		urls[i] = "nats://" + s.link(name, server(i), port).addr()
	}
	env = append(env, "WAKE_NATS_URL="+strings.Join(urls, ","))
	u := &unit{name: name, disk: d, env: env, argv: append(append([]string{s.Prog.Wake}, args...),
		"--data-dir", filepath.Join(s.Dir, name), "--connect-timeout", "2s", "--wait", "1h")}
	s.withUnits(func() { s.units = append(s.units, u) })
}

func (s *site) withUnits(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// supervise starts what has ended again.
func (s *site) supervise() {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			var all []*unit
			s.withUnits(func() { all = slices.Clone(s.units) })
			for _, u := range all {
				s.revive(u, now)
			}
		case <-s.stop:
			return
		}
	}
}

// respawn is when a process that ended by itself is started again.
const respawn = time.Second

func (s *site) revive(u *unit, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.proc != nil && !u.proc.Alive() {
		if !u.killed {
			u.exits = append(u.exits, fmt.Sprintf("%.1fs %s: %s", time.Since(s.Began()).Seconds(), u.proc.Cmd.ProcessState, lastLine(u.proc.Log)))
			u.back = now.Add(respawn)
			s.Tell("%s ended by itself: %s", u.name, u.exits[len(u.exits)-1])
		}
		u.proc, u.killed = nil, false
	}
	if u.proc != nil || u.held || now.Before(u.back) {
		return
	}
	p, err := s.Spawn(u.name, u.env, u.argv...)
	if err != nil {
		s.Tell("%s doesn't start: %v", u.name, err)
		u.back = now.Add(respawn)
		return
	}
	u.proc = p
	u.starts++
}

func lastLine(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// kill ends a process and returns when. It stays down for a while, or until it
// is released.
func (u *unit) kill(down time.Duration) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := time.Now()
	u.back = at.Add(down)
	if u.proc == nil {
		return at
	}
	u.killed = true
	_ = u.proc.Cmd.Process.Kill() // it may be gone
	<-u.proc.Ended
	return at
}

// hold keeps a process down from now on; release lets it start.
func (u *unit) hold() time.Time {
	u.mu.Lock()
	u.held = true
	u.mu.Unlock()
	return u.kill(0)
}

func (u *unit) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held, u.back = false, time.Time{}
}

// signal sends a signal if the process is up.
func (u *unit) signal(sig syscall.Signal) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.proc == nil {
		return errors.New(u.name + " is down")
	}
	return u.proc.Cmd.Process.Signal(sig)
}

func (s *site) unit(name string) *unit {
	var found *unit
	s.withUnits(func() {
		i := slices.IndexFunc(s.units, func(u *unit) bool { return u.name == name })
		found = s.units[i]
	})
	return found
}

// nodes are the servers.
func (s *site) nodes() []*unit { return s.units[:servers] }

// soon bounds a question to servers that may be away: an answer may get lost.
func (s *site) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.Ctx, 3*time.Second)
}

// leader returns the leader of the log, if anybody knows.
func (s *site) leader() (*unit, bool) {
	ctx, cancel := s.soon()
	defer cancel()
	stream, err := s.JS.Stream(ctx, subjects.Default.EventsStream())
	if err != nil || stream.CachedInfo().Cluster == nil || stream.CachedInfo().Cluster.Leader == "" {
		return nil, false
	}
	return s.unit(stream.CachedInfo().Cluster.Leader), true
}
