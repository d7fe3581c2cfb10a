//go:build torture

package torture_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// strike is something that was done to an installation.
type strike struct {
	kind     string
	from, to time.Time
	runner   string // that was killed or stopped for longer than leases live
}

// nemesis does harm.
type nemesis struct {
	s      *site
	load   *load
	mu     sync.Mutex
	done   []strike
	events map[string]int // at which runners were killed
	remade []string       // streams that had lost their leader for good
}

// fault is a kind of harm. It returns when it has been made good.
type fault struct {
	kind   string
	weight int
	do     func(n *nemesis, r *rand.Rand) error
	disks  bool // it needs disks
}

// processFaults are done to wake.
func processFaults() []fault {
	return []fault{
		{kind: "kill -9 runner", weight: 6, do: killRunner},
		{kind: "kill -9 runner at an event", weight: 6, do: killRunnerAt},
		{kind: "SIGSTOP runner beyond its leases", weight: 3, do: stopRunner},
		{kind: "SIGTERM runner", weight: 1, do: drainRunner},
		{kind: "kill -9 all runners", weight: 1, do: killRunners},
		{kind: "kill -9 recorder", weight: 2, do: killService("recorder")},
		{kind: "kill -9 snapshotter", weight: 2, do: killService("snapshotter")},
		{kind: "kill -9 alerter", weight: 2, do: killService("alerter")},
		{kind: "SIGSTOP service", weight: 1, do: stopService},
		{kind: "cut runner off", weight: 2, do: cutProcess("runner1", "runner2", "runner3")},
		{kind: "disk of the recorder full", weight: 2, do: fillRecorder, disks: true},
		{kind: "cut service off", weight: 1, do: cutProcess(services()...)},
	}
}

// serverFaults are done to the servers and between them.
func serverFaults() []fault {
	return []fault{
		{kind: "kill -9 server", weight: 3, do: killServer},
		{kind: "kill -9 all servers", weight: 1, do: killServers},
		{kind: "SIGSTOP leader", weight: 2, do: stopLeader},
		{kind: "leader steps down", weight: 3, do: stepDown},
		{kind: "cut server off", weight: 2, do: cutServer},
		{kind: "cut server off one way", weight: 2, do: cutServerOneWay},
		{kind: "cut two servers apart", weight: 2, do: cutPair},
		{kind: "slow links", weight: 1, do: slowLinks},
		{kind: "disk of a server full", weight: 1, do: fillServer, disks: true},
		{kind: "spool of a runner full", weight: 1, do: fillSpool, disks: true},
		{kind: "power cut of a server", weight: 2, do: cutPower(1), disks: true},
		{kind: "power cut of all servers", weight: 1, do: cutPower(servers), disks: true},
	}
}

// run does one thing after the other until stop is closed, each kind once before
// it chooses by weight. Between two there is some calm, up to four times as much.
func (n *nemesis) run(stop <-chan struct{}, faults []fault, calm time.Duration, r *rand.Rand) {
	faults = slices.DeleteFunc(faults, func(f fault) bool { return f.disks && !lab.Mountable() })
	first := r.Perm(len(faults))
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(between(r, calm, 4*calm)):
		}
		f := choose(faults, r)
		if i < len(first) {
			f = faults[first[i]]
		}
		began := time.Now()
		n.s.Tell("%s", f.kind)
		if err := f.do(n, r); err != nil {
			n.s.Tell("%s: %v", f.kind, err)
			n.note(strike{kind: f.kind + " (failed)", from: began, to: time.Now()})
			continue
		}
		n.s.Tell("%s is over", f.kind)
		n.note(strike{kind: f.kind, from: began, to: time.Now()})
	}
}

func choose(faults []fault, r *rand.Rand) fault {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	k := r.IntN(total)
	for _, f := range faults {
		if k -= f.weight; k < 0 {
			return f
		}
	}
	return faults[0]
}

func (n *nemesis) note(s strike) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done = append(n.done, s)
}

// at notes that a runner was killed at an event.
func (n *nemesis) at(event wire.Type) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events[string(event)]++
}

// lost notes that what a runner held has to be taken over.
func (n *nemesis) lost(runner string, at time.Time) {
	n.note(strike{from: at, to: at, runner: runner})
}

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func runners() []string { return []string{"runner1", "runner2", "runner3"} }

// down is how long something killed stays down: as long as a supervisor takes, or
// longer than leases live.
func (n *nemesis) down(r *rand.Rand) time.Duration {
	if r.IntN(3) == 0 {
		return between(r, 0, 200*time.Millisecond)
	}
	return between(r, 0, 2*n.s.TTL)
}

func killRunner(n *nemesis, r *rand.Rand) error {
	u := n.s.unit(pick(r, runners()))
	down := n.down(r)
	n.lost(u.name, u.kill(down))
	<-time.After(down)
	return nil
}

// triggers are the events at which a runner is killed that publishes them: before
// they are stored, between storing and answer, or right after.
func triggers() []wire.Type {
	return []wire.Type{
		wire.TypeRunClaimed, wire.TypeNodeScheduled, wire.TypeNodeClaimed, wire.TypeNodeStart, wire.TypeNodeComplete, wire.TypeLoopIterate,
		wire.TypeExecStart, wire.TypeAgentStart, wire.TypeToolIntent, wire.TypeAgentTool, wire.TypeAgentTextDelta, wire.TypeTurnEnd,
		wire.TypeFlowResumed, wire.TypeAgentResumed, wire.TypeToolSealed, wire.TypeFlowPaused, wire.TypeCommandReceived, wire.TypeRunForked,
	}
}

// killRunnerAt kills a runner some milliseconds after it has published an event of
// one of a few random types.
func killRunnerAt(n *nemesis, r *rand.Rand) error {
	want := triggers()
	r.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
	delay, down := time.Duration(r.IntN(3)*r.IntN(15))*time.Millisecond, n.down(r)
	x, ok := n.s.witness.await(want[:4], 3*n.s.TTL)
	if !ok {
		return fmt.Errorf("nobody published one of %v", want[:4])
	}
	<-time.After(delay)
	n.lost(x.runner, n.s.unit(x.runner).kill(down))
	n.at(x.event)
	n.s.Tell("killed %s %s after %s", x.runner, delay, x.event)
	<-time.After(down)
	return nil
}

func killRunners(n *nemesis, r *rand.Rand) error {
	down := n.down(r)
	for _, name := range runners() {
		n.s.unit(name).kill(down)
	}
	<-time.After(down)
	return nil
}

func stopRunner(n *nemesis, r *rand.Rand) error {
	u := n.s.unit(pick(r, runners()))
	n.lost(u.name, time.Now())
	return n.stop(u, between(r, n.s.TTL, 3*n.s.TTL))
}

func drainRunner(n *nemesis, r *rand.Rand) error { return n.s.unit(pick(r, runners())).drain() }

// drain ends a process as an operator does.
func (u *unit) drain() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.proc == nil {
		return errors.New("it is down")
	}
	u.killed = true
	if err := u.proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-u.proc.Ended:
		return nil
	case <-time.After(40 * time.Second):
		return u.proc.Cmd.Process.Kill()
	}
}

// killService kills a process of a service, any of those that do the same.
func killService(service string) func(n *nemesis, r *rand.Rand) error {
	return func(n *nemesis, r *rand.Rand) error {
		names := slices.DeleteFunc(services(), func(name string) bool { return strings.TrimRight(name, "12") != service })
		n.s.unit(pick(r, names)).kill(n.down(r))
		return nil
	}
}

func stopService(n *nemesis, r *rand.Rand) error {
	return n.stop(n.s.unit(pick(r, services())), between(r, time.Second, 3*n.s.TTL))
}

// stop lets a process stand still for a while.
func (n *nemesis) stop(u *unit, d time.Duration) error {
	if err := u.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	<-time.After(d)
	return u.signal(syscall.SIGCONT)
}

// cutProcess cuts a process off from all servers or from one, one way or both.
func cutProcess(names ...string) func(n *nemesis, r *rand.Rand) error {
	return func(n *nemesis, r *rand.Rand) error {
		name := pick(r, names)
		only := ""
		if r.IntN(3) == 0 {
			only = server(r.IntN(servers))
		}
		ways, reset := 1+r.IntN(3), r.IntN(2) == 0
		return n.cut(between(r, time.Second, 3*n.s.TTL), func(l *link) bool {
			return l.from == name && (only == "" || l.to == only) && l.set(ways&1 > 0, ways&2 > 0, 0, reset)
		})
	}
}

// cut changes links for a while. The function reports whether it changed one.
func (n *nemesis) cut(d time.Duration, change func(*link) bool) error {
	var changed []*link
	for _, l := range n.s.links {
		if change(l) {
			changed = append(changed, l)
		}
	}
	<-time.After(d)
	for _, l := range changed {
		l.mend()
	}
	return nil
}

func isServer(name string) bool { return name[:4] == "nats" }

func killServer(n *nemesis, r *rand.Rand) error {
	u := pick(r, n.s.nodes())
	down := between(r, 0, 8*time.Second)
	u.kill(down)
	<-time.After(down)
	return n.healthy()
}

func killServers(n *nemesis, r *rand.Rand) error {
	for _, u := range n.s.nodes() {
		u.kill(between(r, 0, 4*time.Second))
	}
	<-time.After(4 * time.Second)
	return n.healthy()
}

func stopLeader(n *nemesis, r *rand.Rand) error {
	u, ok := n.s.leader()
	if !ok {
		return errors.New("there is none")
	}
	if err := n.stop(u, between(r, 2*time.Second, 12*time.Second)); err != nil {
		return err
	}
	return n.healthy()
}

// stepDown moves the leader of a stream.
func stepDown(n *nemesis, r *rand.Rand) error {
	names := subjects.Default
	stream := pick(r, []string{
		names.EventsStream(), names.EventsStream(), names.CommandsStream(), names.QueueStream(),
		"KV_" + names.LeasesBucket(), "KV_" + names.StateBucket(), "KV_" + names.SnapshotsBucket(),
	})
	m, err := n.s.NC.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second)
	if err != nil {
		return fmt.Errorf("%s: %w", stream, err)
	}
	n.s.Tell("%s: %s", stream, m.Data)
	return nil
}

// cutServer cuts a server off from the others, and sometimes from clients.
func cutServer(n *nemesis, r *rand.Rand) error {
	name, clients, reset := server(r.IntN(servers)), r.IntN(2) == 0, r.IntN(2) == 0
	err := n.cut(between(r, 2*time.Second, 15*time.Second), func(l *link) bool {
		return (l.from == name || l.to == name) && (clients || isServer(l.from)) && l.set(true, true, 0, reset)
	})
	return errors.Join(err, n.healthy())
}

// cutServerOneWay: the others hear a server, which doesn't hear them, or the other
// way round.
func cutServerOneWay(n *nemesis, r *rand.Rand) error {
	name, deaf := server(r.IntN(servers)), r.IntN(2) == 0
	err := n.cut(between(r, 2*time.Second, 15*time.Second), func(l *link) bool {
		switch {
		case !isServer(l.from):
			return false
		case l.from == name:
			return l.set(!deaf, deaf, 0, false)
		case l.to == name:
			return l.set(deaf, !deaf, 0, false)
		}
		return false
	})
	return errors.Join(err, n.healthy())
}

func cutPair(n *nemesis, r *rand.Rand) error {
	p := r.Perm(servers)
	a, b := server(p[0]), server(p[1])
	err := n.cut(between(r, 2*time.Second, 15*time.Second), func(l *link) bool {
		return (l.from == a && l.to == b || l.from == b && l.to == a) && l.set(true, true, 0, false)
	})
	return errors.Join(err, n.healthy())
}

func slowLinks(n *nemesis, r *rand.Rand) error {
	delay := between(r, 5*time.Millisecond, 100*time.Millisecond)
	return n.cut(between(r, 2*time.Second, 8*time.Second), func(l *link) bool { return l.set(false, false, delay, false) })
}

// fillServer lets the disk of a server become full. It is emptied again, and the
// server started again, as an operator would: by itself it doesn't go on.
func fillServer(n *nemesis, r *rand.Rand) error {
	u := pick(r, n.s.nodes())
	if err := u.disk.Fill(); err != nil {
		return err
	}
	<-time.After(between(r, 3*time.Second, 8*time.Second))
	u.hold()
	err := u.disk.Free()
	u.release()
	return errors.Join(err, n.healthy())
}

// fillSpool leaves a runner no room for what it can't send.
func fillSpool(n *nemesis, r *rand.Rand) error {
	u := n.s.unit("runner3")
	if err := u.disk.Fill(); err != nil {
		return err
	}
	p := r.Perm(servers)
	for _, i := range p[:2] {
		n.s.nodes()[i].hold()
	}
	<-time.After(between(r, 2*time.Second, 8*time.Second))
	for _, i := range p[:2] {
		n.s.nodes()[i].release()
	}
	return errors.Join(u.disk.Free(), n.healthy())
}

// fillRecorder leaves the recorder no room, twice. It comes back by itself.
func fillRecorder(n *nemesis, r *rand.Rand) error {
	u := n.s.unit("recorder")
	for range 2 {
		if err := u.disk.Fill(); err != nil {
			return err
		}
		<-time.After(between(r, 2*time.Second, 8*time.Second))
		if err := u.disk.Free(); err != nil {
			return err
		}
		<-time.After(between(r, 0, 2*time.Second))
	}
	return nil
}

// cutPower takes the power from as many servers at once: each goes on from what its
// disk had in that moment.
func cutPower(count int) func(n *nemesis, r *rand.Rand) error {
	return func(n *nemesis, r *rand.Rand) error {
		var units []*unit
		for _, i := range r.Perm(servers)[:count] {
			units = append(units, n.s.nodes()[i])
		}
		return errors.Join(powerOff(units), n.healthy())
	}
}

func powerOff(units []*unit) error {
	var errs []error
	for _, u := range units {
		errs = append(errs, u.freeze())
	}
	for _, u := range units {
		errs = append(errs, u.disk.Snapshot())
		u.kill(0)
	}
	for _, u := range units {
		errs = append(errs, u.disk.Restore())
		u.release()
	}
	return errors.Join(errs...)
}

// freeze lets a process stand still until it is killed, and nobody start it.
func (u *unit) freeze() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held = true
	if u.proc == nil {
		return nil // it is down
	}
	return u.proc.Cmd.Process.Signal(syscall.SIGSTOP)
}

// healed bounds how long the servers may take to agree again.
const healed = time.Minute

// healthy waits until all servers have caught up with the leader of the log. Streams that have none by then, and that
// hold nothing of the log, are made anew, as docs/operations.md tells operators.
func (n *nemesis) healthy() error {
	err := n.awaitHealth()
	if err == nil || n.s.Ctx.Err() != nil {
		return err
	}
	if remedyErr := n.remedy(); remedyErr != nil {
		return errors.Join(err, remedyErr)
	}
	return n.awaitHealth()
}

func (n *nemesis) awaitHealth() error {
	deadline := time.After(healed)
	var last error
	for {
		if last = n.agreed(); last == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-deadline:
			return fmt.Errorf("not healthy within %s: %w", healed, last)
		case <-n.s.Ctx.Done():
			return n.s.Ctx.Err()
		}
	}
}

// remedy is what docs/operations.md says for a stream without a leader.
func (n *nemesis) remedy() error {
	ctx, cancel := n.s.soon()
	defer cancel()
	names := subjects.Default
	orphans, err := topology.Leaderless(ctx, n.s.JS, names)
	if err != nil {
		return err
	}
	anew := []string{names.QueueStream(), "KV_" + names.LeasesBucket()}
	orphans = slices.DeleteFunc(orphans, func(name string) bool { return !slices.Contains(anew, name) })
	if len(orphans) == 0 {
		return errors.New("nothing that may be made anew lacks a leader")
	}
	for _, name := range orphans {
		n.s.Tell("%s has no leader for good: it is made anew", name)
		if _, err := n.s.NC.Request("$JS.API.STREAM.DELETE."+name, nil, 10*time.Second); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := n.s.initialize(); err != nil {
		return err
	}
	n.mu.Lock()
	n.remade = append(n.remade, orphans...)
	n.mu.Unlock()
	n.load.doubt()
	var errs []error
	for _, name := range runners() {
		if err := n.s.unit(name).drain(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		n.s.Tell("restarting: %v", err) // it is down, and comes back by itself
	}
	return nil
}

// agreed says which stream has no leader or a replica that isn't current.
func (n *nemesis) agreed() error {
	names := subjects.Default
	ctx, cancel := n.s.soon()
	defer cancel()
	for _, name := range []string{names.EventsStream(), names.CommandsStream(), names.QueueStream(), "KV_" + names.LeasesBucket(), "KV_" + names.StateBucket()} {
		stream, err := n.s.JS.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := current(stream.CachedInfo()); err != nil {
			return err
		}
	}
	return nil
}

func current(info *jetstream.StreamInfo) error {
	if info.Cluster == nil || info.Cluster.Leader == "" {
		return errors.New(info.Config.Name + " has no leader")
	}
	for _, p := range info.Cluster.Replicas {
		if p.Offline || !p.Current || p.Lag > 100 {
			return fmt.Errorf("%s: replica %+v", info.Config.Name, p)
		}
	}
	return nil
}
