package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// cluster starts three servers with the streams of wake.
func cluster(t *testing.T) *natstest.Cluster {
	t.Helper()
	c := natstest.NewCluster(t, 3)
	setUp(t, c.Conn(t), topology.Config{Replicas: 3})
	c.WaitReady(t, "WAKE_EVENTS")
	return c
}

// most is how many faults there are at most: a machine that takes longer to get over
// one than the next takes to come would never be done.
const most = 30

// every calls f at the given pace until the returned function is called, which
// waits for the last call and returns how many there were.
func every(ctx context.Context, pace time.Duration, f func(context.Context)) (stop func() int) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan int, 1)
	go func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		n := 0
		for n < most && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-tick.C:
				f(ctx)
				n++
			}
		}
		done <- n
	}()
	return func() int {
		cancel()
		return <-done
	}
}

// load is events of many nodes, written at once.
type load struct {
	runs, nodes, events int           // nodes per run, events per node
	pace                time.Duration // between two bursts of a node
}

func (l load) total() int { return l.runs * l.nodes * (l.events + 1) }

// write claims every node and writes its events, in bursts of ten of which the
// last is awaited.
func (l load) write(t *testing.T, p process) {
	t.Helper()
	var writing sync.WaitGroup
	for r := range l.runs {
		for n := range l.nodes {
			writing.Go(func() {
				if err := l.writeNode(t.Context(), p, fmt.Sprint("run", r), fmt.Sprint("node", n)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	writing.Wait()
}

func (l load) writeNode(ctx context.Context, p process, run, node string) error {
	w, err := p.Claim(ctx, run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		return err
	}
	for i := range l.events {
		if i%10 != 9 {
			err = w.Enqueue(ctx, text(fmt.Sprint(i)))
		} else if _, err = w.Append(ctx, text(fmt.Sprint(i))); err == nil && l.pace > 0 {
			<-time.After(l.pace)
		}
		if err != nil {
			return err
		}
	}
	return w.Close(ctx)
}

// check reads the whole log: every event is there once, in order.
func (l load) check(t *testing.T, p process) {
	t.Helper()
	next := map[string]uint64{}
	total := 0
	for e, err := range p.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.RunID == "watched" {
			continue
		}
		node := e.RunID + "/" + e.NodeID
		next[node]++
		total++
		if e.Event == nil || e.Event.Seq != next[node] {
			t.Fatalf("position %d: %s, want seq %d of %s", e.Pos, entryLine(e), next[node], node)
		}
		if want := fmt.Sprintf("%s 1.%d agent:text %d", node, e.Event.Seq, e.Event.Seq-2); e.Event.Seq > 1 && entryLine(e) != want {
			t.Fatalf("position %d: %s, want %s", e.Pos, entryLine(e), want)
		}
	}
	if total != l.total() {
		t.Errorf("the log has %d events, want %d", total, l.total())
	}
}

// run writes and checks while f happens at a pace.
func (l load) run(t *testing.T, p process, pace time.Duration, f func(context.Context)) {
	t.Helper()
	stop := every(t.Context(), pace, f)
	began := time.Now()
	l.write(t, p)
	took := time.Since(began).Round(time.Millisecond)
	if n := stop(); n < 5 {
		t.Errorf("%d events in %s: only %d faults, that shows little", l.total(), took, n)
	} else {
		t.Logf("%d events in %s, %d faults", l.total(), took, n)
	}
	l.check(t, p)
}

// 20 000 events while the stream's leader steps down four times a second.
func TestClusterStepDown(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t), eventlog.Options{Lanes: 3})
	nc := c.Conn(t)
	l := load{runs: 20, nodes: 4, events: 249, pace: 200 * time.Millisecond}
	l.run(t, p, 250*time.Millisecond, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		_ = c.StepDown(ctx, nc, "WAKE_EVENTS") // fails while there is no leader
	})
}

// Acknowledgements are lost, then the connection is cut, and the client
// reconnects to some other server.
func TestClusterLostAcknowledgements(t *testing.T) {
	c := cluster(t)
	var l line
	p := start(t, l.clusterConn(t, c), eventlog.Options{Lanes: 2})
	load{runs: 10, nodes: 4, events: 249, pace: 100 * time.Millisecond}.run(t, p, 150*time.Millisecond, func(context.Context) {
		l.deafen()
		<-time.After(20 * time.Millisecond)
		l.cut()
	})
}

// A follower sees every event once while the leader steps down and its own
// connection is cut; a reader sees all that its writer was told is stored.
func TestClusterReaders(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t), eventlog.Options{Lanes: 2})
	nc := c.Conn(t)
	var broken line
	reader := start(t, broken.clusterConn(t, c), eventlog.Options{})
	l := load{runs: 4, nodes: 2, events: 499, pace: 100 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	followed := make(chan error, 1)
	go func() { followed <- l.follow(ctx, reader) }()
	w := p.claim("watched", "n")
	n := 0
	l.run(t, p, 300*time.Millisecond, func(ctx context.Context) {
		if n++; n%5 == 0 {
			broken.cut()
		}
		appendTo(t, w, text("x"), text("y"))
		step, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		_ = c.StepDown(step, nc, "WAKE_EVENTS")
		read := 0
		for _, err := range reader.Read(t.Context(), eventlog.Query{Run: "watched"}) {
			if err != nil {
				t.Error(err)
			}
			read++
		}
		if read != 2*n+1 {
			t.Errorf("%d events are read right after the change of leader, want %d", read, 2*n+1)
		}
	})
	if err := <-followed; err != nil {
		t.Error(err)
	}
}

// follow follows the runs of the load until all is there.
func (l load) follow(ctx context.Context, p process) error {
	next := map[string]uint64{}
	total := 0
	for e, err := range p.Follow(ctx, eventlog.Query{}) {
		if err != nil {
			return err
		}
		if e.RunID == "watched" {
			continue
		}
		node := e.RunID + "/" + e.NodeID
		if next[node]++; e.Event.Seq != next[node] {
			return fmt.Errorf("position %d: %s, want seq %d", e.Pos, entryLine(e), next[node])
		}
		if total++; total == l.total() {
			return nil
		}
	}
	return fmt.Errorf("followed %d events of %d", total, l.total())
}

// The server that leads the stream is killed and comes back, again and again.
func TestClusterKill(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t, nats.ReconnectBufSize(-1)), eventlog.Options{Lanes: 2})
	l := load{runs: 5, nodes: 4, events: 299, pace: 300 * time.Millisecond}
	var writing sync.WaitGroup
	writing.Go(func() { l.write(t, p) })
	kills := 0
	for range 4 {
		c.WaitReady(t, "WAKE_EVENTS")
		if leader := c.Leader("WAKE_EVENTS"); leader >= 0 {
			c.Kill(leader)
			<-time.After(time.Second)
			c.Restart(t, leader)
			kills++
		}
	}
	c.WaitReady(t, "WAKE_EVENTS")
	writing.Wait()
	t.Logf("%d events, %d kills", l.total(), kills)
	l.check(t, p)
}

// Two processes of one service consume what isn't all of the log, end and begin
// again where they are, while the leader of the stream steps down and their
// connections are cut: each is handed every event once and in order.
func TestClusterConsumeByTwo(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t), eventlog.Options{})
	nc := c.Conn(t)
	w := p.claim("r", "n")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var broken line
	two := []*service{
		newService(start(t, broken.clusterConn(t, c), eventlog.Options{}), "snapshotter"),
		newService(start(t, c.Conn(t), eventlog.Options{}), "snapshotter"),
	}
	faults := 0
	stop := every(ctx, 300*time.Millisecond, func(ctx context.Context) {
		if faults++; faults%4 == 0 {
			broken.cut()
		}
		step, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		_ = c.StepDown(step, nc, "WAKE_EVENTS")
	})
	var last atomic.Uint64 // position; 0: not known yet
	var consuming sync.WaitGroup
	for _, s := range two {
		consuming.Go(func() {
			for ctx.Err() == nil && (last.Load() == 0 || s.pos < last.Load()) {
				if err := s.some(ctx, 40); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		appendTo(t, w, text("x"), &wire.Event{Payload: &wire.TurnStart{}})
	}
	last.Store(lastOf(t, p, wire.KindAgent))
	appendTo(t, w, &wire.Event{Payload: &wire.TurnStart{}}) // ends who waits for more
	consuming.Wait()
	t.Logf("%d faults", stop())
	for i, s := range two {
		want := positions(t, p, s.pos)
		if s.pos < last.Load() || !slices.Equal(s.seen, want) {
			t.Errorf("process %d saw up to %d of %d: %v, want %v", i, s.pos, last.Load(), s.seen, want)
		}
	}
}

// some consumes n entries, or what there is within a second.
func (s *service) some(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	until := len(s.seen) + n
	return s.run(ctx, func() {
		if len(s.seen) >= until {
			cancel()
		}
	})
}

func lastOf(t testing.TB, p process, kind wire.Kind) (last uint64) {
	t.Helper()
	for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{kind}}) {
		if err != nil {
			t.Fatal(err)
		}
		last = e.Pos
	}
	return last
}

// positions returns those of the events that the snapshotter is given, up to one.
func positions(t testing.TB, p process, to uint64) (all []uint64) {
	t.Helper()
	kinds := []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}
	for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: kinds, To: to}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Pos)
	}
	return all
}

// Several writers save one key at once, each the revision that it has read. One of them has saved it, and all others hear that: servers of
// a cluster say so in other words while the key is being written.
func TestClusterConflicts(t *testing.T) {
	c := cluster(t)
	c.WaitReady(t, "KV_WAKE_STATE")
	for name, stamp := range map[string]*seal.Stamp{"state": nil, "stamped": seal.NewStamp()} {
		t.Run(name, func(t *testing.T) {
			place := subjects.Default.StateBucket()
			if stamp != nil {
				place = subjects.Default.SnapshotsBucket()
			}
			var writers []*eventlog.Bucket
			for range 4 {
				log, err := eventlog.Open(t.Context(), c.Conn(t), eventlog.Options{Stamp: stamp})
				if err != nil {
					t.Fatal(err)
				}
				b, err := log.Bucket(t.Context(), place)
				if err != nil {
					t.Fatal(err)
				}
				writers = append(writers, b)
			}
			for round := uint64(0); round < 50; {
				_, revision, err := writers[0].Get(t.Context(), "test.conflict")
				if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
					t.Fatal(err)
				}
				var saving sync.WaitGroup
				var saved atomic.Int32
				for i, b := range writers {
					saving.Go(func() {
						switch _, err := b.Save(t.Context(), "test.conflict", fmt.Appendf(nil, "%d by %d", round, i), revision); {
						case err == nil:
							saved.Add(1)
						case !errors.Is(err, jetstream.ErrKeyExists):
							t.Errorf("no conflict: %v", err)
						}
					})
				}
				saving.Wait()
				if n := saved.Load(); n > 1 || t.Failed() {
					t.Fatalf("%d writers have saved round %d", n, round)
				}
				round++
			}
		})
	}
}

// Several processes send what is to be stored once at the same time: it is, and none of them is told that it failed.
func TestClusterSendOnce(t *testing.T) {
	c := cluster(t)
	c.WaitReady(t, "WAKE_QUEUE")
	var senders []*eventlog.Log
	for range 4 {
		log, err := eventlog.Open(t.Context(), c.Conn(t), eventlog.Options{})
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, log)
	}
	const rounds = 50
	for round := range rounds {
		var sending sync.WaitGroup
		for _, log := range senders {
			sending.Go(func() {
				if _, err := log.Send(t.Context(), log.Names().QueueRun(), []byte("{}"), jetstream.WithMsgID(fmt.Sprint("run ", round))); err != nil {
					t.Error(err)
				}
			})
		}
		sending.Wait()
	}
	stream, err := senders[0].JetStream().Stream(t.Context(), senders[0].Names().QueueStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != rounds {
		t.Errorf("%d are stored, want %d", n, rounds)
	}
}
