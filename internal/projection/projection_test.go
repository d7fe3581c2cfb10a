package projection_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/projection"
	"code.wake.dev/wake/pkg/wire"
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
	stuck bool   // it leaves its deadline where it is
	full  string // the run that it can't save

	defect wire.Type // it panics at such an event
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
	return newWatchdogOf(t, log, 0)
}

// newWatchdogOf returns one that keeps so many bytes of values in memory; 0: the default.
func newWatchdogOf(t testing.TB, log *eventlog.Log, maxBytes int) *watchdog {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	w := &watchdog{log: log, kv: kv, deaf: 5 * time.Minute, name: "dog"}
	w.begin(t, projection.Config{MaxBytes: maxBytes})
	return w
}

// begin makes the service's projection, as a new process would.
func (w *watchdog) begin(t testing.TB, c projection.Config) {
	t.Helper()
	c.Service, c.Consumer, c.Batch = "dog", "alerter", 10
	c.Kinds = []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}
	w.p = projection.New[*dog](c, w.log, logtest.Logger(t), w)
}

func (w *watchdog) New(run string) *dog { return &dog{Run: run} }

func (w *watchdog) Ended(*dog) bool { return false }

func (w *watchdog) Load(ctx context.Context, run string) (projection.Loaded[*dog], error) {
	e, err := w.kv.Get(ctx, "dog."+run)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return projection.Loaded[*dog]{Value: w.New(run)}, nil
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
	if e.Event.Type() == w.defect {
		panic("not thought of")
	}
	d.Events++
	d.Position = wire.Position{Incarnation: w.log.Incarnation(), Seq: e.Pos}
	d.Deadline = e.Time.Add(w.deaf).UnixMilli()
	if e.Event.Type() == wire.TypeFlowComplete {
		d.Deadline = 0
	}
	return projection.Changed, nil
}

func (w *watchdog) Save(ctx context.Context, d *dog) (int, error) {
	w.mu.Lock()
	full := w.full == d.Run
	w.mu.Unlock()
	if full {
		return 0, errors.New("the disk is full")
	}
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
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

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
		s, log := logtest.StartServer(t)
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

// What isn't saved is read again: the position that is committed lies before it.
func TestUnsavedIsReadAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		first := newWatchdog(t, log)
		stop := logtest.Go(t, first.p.Run)
		other := logtest.Claim(t, log, "r2", wire.RunNode)
		pass(time.Minute)
		first.mu.Lock()
		first.full = "r1"
		first.mu.Unlock()
		logtest.Claim(t, log, "r1", wire.RunNode)
		for i := range 5 {
			pass(time.Minute + time.Duration(i+1)*3*time.Second)
			logtest.Append(t, other, paused())
		}
		pass(2 * time.Minute)
		stop()
		second := newWatchdog(t, log)
		logtest.Go(t, second.p.Run)
		pass(time.Hour)
		second.expect(t, "6m0s for r1 after 1 events", "6m15s for r2 after 6 events")
	})
}

// A value that waits for a deadline stays in memory, however little room there is.
func TestWaitingValueIsKept(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdogOf(t, log, 1)
		logtest.Go(t, w.p.Run)
		logtest.Claim(t, log, "r1", wire.RunNode)
		pass(time.Minute)
		owner := logtest.Claim(t, log, "r2", wire.RunNode)
		logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}})
		pass(time.Hour)
		w.expect(t, "5m0s for r1 after 1 events")
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

// A defect of a service costs it one event, which is a dead letter.
func TestDefect(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdog(t, log)
		w.defect = wire.TypeFlowPaused
		letters, err := log.Conn().SubscribeSync(log.Names().DeadLetter("dog"))
		if err != nil {
			t.Fatal(err)
		}
		logtest.Go(t, w.p.Run)
		r1 := logtest.Claim(t, log, "r1", wire.RunNode)
		logtest.Append(t, r1, paused())
		logtest.Append(t, r1, &wire.Event{Payload: &wire.FlowAborted{}})
		pass(time.Minute)
		if loaded, err := w.Load(t.Context(), "r1"); err != nil || loaded.Value.Events != 2 {
			t.Errorf("r1 has %+v, %v", loaded.Value, err)
		}
		m, err := letters.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var p wire.Poison
		if err := wire.Unmarshal(m.Data, &p); err != nil || !strings.Contains(p.Reason, "not thought of") {
			t.Errorf("dead letter %+v: %v", p, err)
		}
		if n, _, err := letters.Pending(); err != nil || n != 0 {
			t.Errorf("%d more, %v", n, err)
		}
	})
}

// An event that has ended the process as often as may be is a dead letter, and isn't read again when the run is.
func TestEndsItsProcess(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		w := newWatchdog(t, log)
		letters, err := log.Conn().SubscribeSync(log.Names().DeadLetter("dog"))
		if err != nil {
			t.Fatal(err)
		}
		r1 := logtest.Claim(t, log, "r1", wire.RunNode)
		pos := logtest.Append(t, r1, paused())
		logtest.Append(t, r1, &wire.Event{Payload: &wire.FlowAborted{}})
		c := projection.Config{Trial: logtest.Dying(t, "dog", log.Incarnation(), pos)}
		w.begin(t, c)
		stop := logtest.Go(t, w.p.Run)
		pass(time.Minute)
		stop()
		m, err := letters.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var p wire.Poison
		if err := wire.Unmarshal(m.Data, &p); err != nil || p.Position != pos || !strings.Contains(p.Reason, "has ended the process 3 times") {
			t.Errorf("dead letter %+v: %v", p, err)
		}
		if err := w.kv.Delete(t.Context(), "dog.r1"); err != nil { // so that the run is read from its beginning
			t.Fatal(err)
		}
		w.begin(t, c)
		logtest.Go(t, w.p.Run)
		logtest.Append(t, r1, &wire.Event{Payload: &wire.FlowAborted{}})
		pass(2 * time.Minute)
		if loaded, err := w.Load(t.Context(), "r1"); err != nil || loaded.Value.Events != 3 {
			t.Errorf("r1 has %+v, %v", loaded.Value, err)
		}
		if n, _, err := letters.Pending(); err != nil || n != 0 {
			t.Errorf("%d more dead letters, %v", n, err)
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
