package projection_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/logtest"
	"wake/internal/natstest"
	"wake/internal/projection"
	"wake/internal/topology"
	"wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// watchdog is a service that counts a run's events and barks when there was none
// for a while.
type watchdog struct {
	log  *eventlog.Log
	p    *projection.Projection[*dog]
	kv   jetstream.KeyValue
	deaf time.Duration // how long it waits
	name string

	mu    sync.Mutex
	barks []string
	stuck bool // it leaves its deadline where it is
}

type dog struct {
	Run      string        `json:"run"`
	Position wire.Position `json:"position"`
	Events   int           `json:"events"`
	Deadline int64         `json:"deadline"`
	revision uint64
}

func newWatchdog(t testing.TB, log *eventlog.Log) *watchdog {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	w := &watchdog{log: log, kv: kv, deaf: 5 * time.Minute, name: "dog"}
	w.p = projection.New[*dog](projection.Config{
		Service: "dog", Consumer: "alerter", Kinds: []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}, Batch: 10,
	}, log, logtest.Logger(t), w)
	return w
}

func (w *watchdog) Load(ctx context.Context, run string) (projection.Loaded[*dog], error) {
	e, err := w.kv.Get(ctx, "dog."+run)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return projection.Loaded[*dog]{Value: &dog{Run: run}}, nil
	}
	if err != nil {
		return projection.Loaded[*dog]{}, err
	}
	d := &dog{revision: e.Revision()}
	err = wire.Unmarshal(e.Value(), d)
	return projection.Loaded[*dog]{Value: d, Position: d.Position}, err
}

func (w *watchdog) Reset(d *dog) { *d = dog{Run: d.Run, revision: d.revision} }

func (w *watchdog) Fold(_ context.Context, d *dog, e eventlog.Entry) (projection.Effect, error) {
	d.Events++
	d.Position = wire.Position{Incarnation: w.log.Incarnation(), Seq: e.Pos}
	d.Deadline = e.Time.Add(w.deaf).UnixMilli()
	if e.Event.Type() == wire.TypeFlowComplete {
		d.Deadline = 0
	}
	return projection.Changed, nil
}

func (w *watchdog) Save(ctx context.Context, d *dog) (int, error) {
	data, err := wire.Marshal(d)
	if err != nil {
		return 0, err
	}
	if d.revision == 0 {
		d.revision, err = w.kv.Create(ctx, "dog."+d.Run, data)
	} else {
		d.revision, err = w.kv.Update(ctx, "dog."+d.Run, data, d.revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) {
		err = projection.ErrConflict
	}
	return len(data), err
}

func (w *watchdog) Deadline(d *dog) int64 { return d.Deadline }

func (w *watchdog) Tick(_ context.Context, d *dog, at int64) (projection.Effect, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.barks = append(w.barks, fmt.Sprintf("%s for %s after %d events", time.UnixMilli(at).Sub(epoch), d.Run, d.Events))
	if !w.stuck {
		d.Deadline = 0
	}
	return projection.Changed, nil
}

func (w *watchdog) Runs(ctx context.Context) ([]string, error) {
	keys, err := w.kv.ListKeysFiltered(ctx, "dog.*")
	if err != nil {
		return nil, err
	}
	var runs []string
	for key := range keys.Keys() {
		if key != "dog._" {
			runs = append(runs, key[len("dog."):])
		}
	}
	return runs, nil
}

// epoch is when a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // constant

func (w *watchdog) expect(t testing.TB, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := cmp.Diff(want, w.barks); d != "" {
		t.Errorf("barks:\n%s", d)
	}
}

// pass lets time pass until a time of the bubble.
func pass(until time.Duration) {
	<-time.After(time.Until(epoch.Add(until)))
	synctest.Wait()
}

func paused() *wire.Event { return &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}} }

// When everything is read, the wall clock tells, and every event puts the
// deadline off.
func TestTickByTheWallClock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdog(t, log)
		logtest.Go(t, w.p.Run)
		owner := logtest.Claim(t, log, "r1", wire.RunNode)
		pass(4 * time.Minute)
		logtest.Append(t, owner, paused())
		pass(8*time.Minute + 59*time.Second)
		w.expect(t)
		pass(9*time.Minute + 2*time.Second)
		w.expect(t, "9m0s for r1 after 2 events")
		pass(2 * time.Hour)
		w.expect(t, "9m0s for r1 after 2 events")
	})
}

// While there is something to read, the time is that of the log: an hour of
// silence is noticed however late one reads about it, and only that.
func TestTickByTheLog(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		owner := logtest.Claim(t, log, "r1", wire.RunNode)
		for i := range 30 { // a batch is 10
			pass(time.Duration(i+1) * time.Minute)
			logtest.Append(t, owner, paused())
		}
		pass(time.Hour)
		logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}})
		pass(2 * time.Hour)
		w := newWatchdog(t, log)
		logtest.Go(t, w.p.Run)
		pass(3 * time.Hour)
		w.expect(t, "35m0s for r1 after 31 events")
	})
}

// A deadline outlives the process, even if nothing else ever happens in the run.
func TestTickAfterRestart(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		first := newWatchdog(t, log)
		stop := logtest.Go(t, first.p.Run)
		logtest.Claim(t, log, "r1", wire.RunNode)
		owner := logtest.Claim(t, log, "r2", wire.RunNode)
		logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}})
		pass(time.Minute)
		stop()
		second := newWatchdog(t, log)
		logtest.Go(t, second.p.Run)
		pass(time.Hour)
		first.expect(t)
		second.expect(t, "5m0s for r1 after 1 events")
	})
}

// A service that is cut off doesn't take its own deafness for silence.
func TestNoTickWhileCutOff(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		nc := s.Conn(t)
		logtest.Init(t, nc, topology.Config{})
		log := logtest.Open(t, nc)
		way := &way{server: s}
		w := newWatchdog(t, logtest.Open(t, s.Conn(t, nats.InProcessServer(way))))
		logtest.Go(t, w.p.Run)
		owner := logtest.Claim(t, log, "r1", wire.RunNode)
		pass(time.Minute)
		way.cut()
		for i := range 10 { // a busy run
			pass(time.Duration(2+2*i) * time.Minute)
			logtest.Append(t, owner, paused())
		}
		w.expect(t)
		way.mend()
		pass(21 * time.Minute)
		w.expect(t)
		pass(time.Hour)
		w.expect(t, "25m0s for r1 after 11 events")
	})
}

// A service that wants the same tick for ever gets it once.
func TestTickOfABrokenService(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdog(t, log)
		w.stuck = true
		logtest.Go(t, w.p.Run)
		logtest.Claim(t, log, "r1", wire.RunNode)
		pass(time.Hour)
		w.expect(t, "5m0s for r1 after 1 events")
	})
}

// A value that knows more than the log has, or that is of another log, is folded
// again from the beginning (RULES 15).
func TestValueOfAnotherLog(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdog(t, log)
		for run, pos := range map[string]wire.Position{
			"r1": {Incarnation: log.Incarnation(), Seq: 1000},
			"r2": {Incarnation: "another", Seq: 2},
		} {
			value, err := wire.Marshal(dog{Run: run, Position: pos, Events: 100})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.kv.Put(t.Context(), "dog."+run, value); err != nil {
				t.Fatal(err)
			}
		}
		logtest.Go(t, w.p.Run)
		for _, run := range []string{"r1", "r2"} {
			logtest.Append(t, logtest.Claim(t, log, run, wire.RunNode), paused())
		}
		pass(time.Minute)
		for _, run := range []string{"r1", "r2"} {
			loaded, err := w.Load(t.Context(), run)
			if err != nil || loaded.Value.Events != 2 || loaded.Position.Incarnation != log.Incarnation() {
				t.Errorf("%s has %+v, %v", run, loaded.Value, err)
			}
		}
	})
}

// What belongs to no run has no value.
func TestNoRun(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	w := newWatchdog(t, log)
	stop := logtest.Go(t, w.p.Run)
	logtest.Claim(t, log, "_", wire.RunNode)
	logtest.Claim(t, log, "r1", wire.RunNode)
	watch, err := w.kv.Watch(t.Context(), "dog.r1")
	if err != nil {
		t.Fatal(err)
	}
	for e := range watch.Updates() {
		if e != nil {
			break
		}
	}
	if err := watch.Stop(); err != nil {
		t.Error(err)
	}
	stop()
	e, err := w.kv.Get(t.Context(), "dog._")
	if err != nil {
		t.Fatal(err)
	}
	if got := wire.Raw(e.Value()).Get("position").Get("seq").Any(); got != int64(2) {
		t.Errorf("dog._ is %v, want the position", wire.Raw(e.Value()).Any())
	}
}

// way is a way to the server that can be cut.
type way struct {
	server *natstest.Server

	mu    sync.Mutex
	gone  bool
	conns []net.Conn
}

var errCut = errors.New("the way is cut")

// InProcessConn implements [nats.InProcessConnProvider].
func (w *way) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil, errCut
	}
	c, err := w.server.InProcessConn()
	w.conns = append(w.conns, c)
	return c, err
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *way) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = false
}
