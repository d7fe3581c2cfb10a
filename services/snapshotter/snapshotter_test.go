package snapshotter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/snapshotter"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// Every snapshot that is ever stored is the fold of the log up to its position,
// and the last one is the fold of all.
func TestSnapshotIsTheFold(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	var last uint64
	for _, id := range []string{"r1", "r2", "run with spaces/and.dots"} {
		last = play(t, log, id, 3)
	}
	stored.wait(t, "run with spaces/and.dots", last)
	for _, id := range []string{"r1", "r2", "run with spaces/and.dots"} {
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
	if n := stored.check(t, log); n < 3 {
		t.Errorf("%d snapshots were stored", n)
	}
}

// What matters is saved at once, everything else once per delay.
func TestUrgentAndCoalesced(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		stored := watch(t, log)
		start(t, log, snapshotter.Config{Delay: 10 * time.Second})
		w, _ := begin(t, log, "r1")
		settle(t, 100*time.Millisecond)
		stored.none(t, "after the start of an agent", 0, 0)
		for range 25 { // one a second
			logtest.Append(t, w, usage())
			settle(t, time.Second)
		}
		stored.none(t, "in 25 s of usage", 2, 3)
		before := time.Now()
		pos := logtest.Append(t, w, &wire.Event{ExecID: "a#1", Payload: &wire.SessionBound{OldSession: "s1", NewSession: "s2"}})
		stored.wait(t, "r1", pos)
		if d := time.Since(before); d > 100*time.Millisecond {
			t.Errorf("a bound session was saved after %s", d)
		}
		stored.check(t, log)
	})
}

// A run of some milliseconds has one snapshot, that of its end, and then no place in memory.
func TestShortRun(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	s, _ := startOn(t, log, snapshotter.Config{Delay: time.Hour})
	const runs = 20
	last := map[string]uint64{}
	for i := range runs {
		id := fmt.Sprintf("r%d", i)
		last[id] = logtest.Append(t, claim(t, log, id),
			&wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}},
			&wire.Event{Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}})
	}
	for id, pos := range last {
		stored.wait(t, id, pos)
	}
	waitCommitted(t, log, last[fmt.Sprintf("r%d", runs-1)])
	if n := count(t, s, "wake_snapshotter_saves_total"); n != runs {
		t.Errorf("%d runs were saved %g times", runs, n)
	}
	if n := count(t, s, "wake_snapshotter_runs"); n != 0 {
		t.Errorf("%g runs that are over are in memory", n)
	}
	owner := claim(t, log, "r0") // which comes late
	pos := logtest.Append(t, owner, &wire.Event{Payload: &wire.CommandReceived{CommandID: "c1", Command: wire.RawString("tag")}})
	stored.wait(t, "r0", pos)
	stored.check(t, log)
}

// After an orderly stop everything is saved, after a crash the next process goes
// on where the last one had saved.
func TestRestart(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	stop := start(t, log, snapshotter.Config{Delay: time.Hour})
	stored := watch(t, log)
	w, _ := begin(t, log, "r1")
	pos := logtest.Append(t, w, usage())
	waitRead(t, log, pos)
	stop()
	same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
	if got := position(t, log); got.Seq != pos {
		t.Errorf("committed %d, want %d", got.Seq, pos)
	}

	crashing := s.Conn(t)
	_, crash := startOn(t, logtest.Open(t, crashing), snapshotter.Config{Delay: time.Hour})
	pos = logtest.Append(t, w, usage(), usage())
	waitRead(t, log, pos)
	crashing.Close()
	crash()
	if got := load(t, log, "r1"); got.Position.Seq == pos {
		t.Error("a crash saved the last events")
	}

	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	stored.wait(t, "r1", pos)
	same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
	stored.check(t, log)
}

// A server that goes away and comes back costs nothing but time.
func TestServerAway(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	w, pos := begin(t, log, "r1")
	watch(t, log).wait(t, "r1", pos) // before, it would have to be run again
	for range 3 {
		logtest.Append(t, w, usage())
		s.Stop()
		s.Start(t)
	}
	pos = logtest.Append(t, w, usage())
	stored := watch(t, log)
	stored.wait(t, "r1", pos)
	same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
}

// A reset of the consumer, even one while it works, changes nothing.
func TestConsumerReset(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	for i := range 3 {
		play(t, log, fmt.Sprintf("r%d", i), 2)
		if _, err := log.JetStream().ResetConsumerToSequence(t.Context(), log.Names().EventsStream(), "snapshotter", 1); err != nil {
			t.Fatal(err)
		}
	}
	last := play(t, log, "r9", 1)
	stored.wait(t, "r9", last)
	for _, id := range []string{"r0", "r1", "r2", "r9"} {
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
	stored.check(t, log)
}

// Events that can't be used are set aside once, with the reason, and the next
// ones are folded.
func TestPoison(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	letters := deadLetters(t, log)
	doomed := s.Conn(t)
	kill := start(t, logtest.Open(t, doomed), snapshotter.Config{Delay: time.Hour})
	w, _ := begin(t, log, "r1")
	pos := logtest.Append(t, w, &wire.Event{ExecID: "a#1", Payload: &wire.SessionBound{NewSession: "s1"}})
	watch(t, log).wait(t, "r1", pos)
	logtest.Append(t, w, usage()) // which could wait
	illegal := logtest.Append(t, w, &wire.Event{ExecID: "a#9", Payload: &wire.NodeStart{NodeType: "agent"}})
	publish(t, log, log.Names().Event("r1", "b", "tool"), []byte("garbage"))
	publish(t, log, "wake.events.r1.b=.flow", []byte{0x80})
	pos = logtest.Append(t, claim(t, log, "r2"),
		&wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}}, &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}})
	for i, want := range []string{"a#9 was never scheduled", "wire", "token"} {
		p := letters.next(t)
		if !strings.Contains(p.Reason, want) || p.Position != illegal+uint64(i) || p.Stream != "WAKE_EVENTS" {
			t.Errorf("dead letter %q of position %d, want %q of %d", p.Reason, p.Position, want, illegal+uint64(i))
		}
	}
	watch(t, log).wait(t, "r2", pos)
	waitCommitted(t, log, illegal+2)
	doomed.Close()
	kill()
	if _, err := log.JetStream().ResetConsumerToSequence(t.Context(), log.Names().EventsStream(), "snapshotter", 1); err != nil {
		t.Fatal(err)
	}
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	pos = logtest.Append(t, w, &wire.Event{ExecID: "a#1", Payload: &wire.NodeComplete{Output: wire.Null}})
	watch(t, log).wait(t, "r1", pos)
	letters.none(t)
	same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
}

// A snapshot that can't be used is counted and built again, whatever became of
// it and whether or not its run was in memory.
func TestUnusableSnapshots(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	w, _ := begin(t, log, "r1")
	play(t, log, "r2", 1)
	old := fold(t, log, "r1", 3)
	for name, spoil := range map[string]func(*testing.T, jetstream.KeyValue){
		"garbage": func(t *testing.T, kv jetstream.KeyValue) { put(t, kv, []byte("garbage")) },
		"deleted": func(t *testing.T, kv jetstream.KeyValue) {
			if err := kv.Delete(t.Context(), "r1"); err != nil {
				t.Fatal(err)
			}
		},
		"of another log": func(t *testing.T, kv jetstream.KeyValue) {
			s := run.Clone(old)
			s.Position.Incarnation = "another"
			put(t, kv, encode(t, s))
		},
		"beyond the end": func(t *testing.T, kv jetstream.KeyValue) {
			s := run.Clone(old)
			s.Position.Seq = 1 << 40
			put(t, kv, encode(t, s))
		},
		"an old one": func(t *testing.T, kv jetstream.KeyValue) { put(t, kv, encode(t, old)) },
	} {
		t.Run(name, func(t *testing.T) {
			stored := watch(t, log)
			stop := start(t, log, snapshotter.Config{Delay: time.Millisecond})
			pos := logtest.Append(t, w, usage())
			stored.wait(t, "r1", pos)
			stop()
			spoil(t, bucket(t, log))
			s, stop := startOn(t, log, snapshotter.Config{Delay: time.Millisecond})
			defer stop()
			pos = logtest.Append(t, w, usage())
			stored.wait(t, "r1", pos)
			same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
			if n := count(t, s, "wake_snapshotter_unusable_total"); (n > 0) != (name != "deleted" && name != "an old one") {
				t.Errorf("%g snapshots counted as unusable", n)
			}
			spoil(t, bucket(t, log)) // while the run is in memory
			pos = logtest.Append(t, w, usage())
			stored.wait(t, "r1", pos)
			same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
		})
	}
}

// A position that can't be read is no position.
func TestUnusablePosition(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	last := play(t, log, "r1", 1)
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "snapshotter._", []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	s, stop := startOn(t, log, snapshotter.Config{})
	watch(t, log).wait(t, "r1", last)
	if n := count(t, s, "wake_snapshotter_unusable_total"); n != 1 {
		t.Errorf("%g counted, want 1", n)
	}
	stop()
	if got := position(t, log); got.Seq != last {
		t.Errorf("committed %d, want %d", got.Seq, last)
	}
}

// A stream that was created again uses the old positions for other events. The
// snapshotter notices, and builds what it finds again (RULES 15).
func TestIncarnation(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{})
	log := logtest.Open(t, nc)
	stop := start(t, log, snapshotter.Config{Delay: time.Millisecond})
	last := play(t, log, "r1", 3)
	watch(t, log).wait(t, "r1", last)
	stop()
	if err := log.JetStream().DeleteStream(t.Context(), log.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	logtest.Init(t, nc, topology.Config{})
	log = logtest.Open(t, nc)
	_, early := begin(t, log, "early")
	pos := play(t, log, "r1", 3)
	if early > last || pos < last {
		t.Fatalf("positions %d and %d do not frame the old one, %d", early, pos, last)
	}
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	stored.wait(t, "r1", pos)
	stored.wait(t, "early", early)
	for _, id := range []string{"r1", "early"} {
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
}

// A position beyond the end of the log tells of a stream that lost its end (RULES
// 15).
func TestPositionBeyondTheEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		log := logtest.Start(t)
		kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		beyond := map[string]any{"v": 1, "position": wire.Position{Incarnation: log.Incarnation(), Seq: 1000}}
		if _, err := kv.Put(t.Context(), "snapshotter._", encode(t, beyond)); err != nil {
			t.Fatal(err)
		}
		stored := watch(t, log)
		start(t, log, snapshotter.Config{})
		pos := play(t, log, "r1", 1)
		settle(t, time.Minute) // a leader may be behind for that long
		stored.wait(t, "r1", pos)
		settle(t, 2*time.Second)
		if got := position(t, log); got.Seq != pos {
			t.Errorf("committed %d, want %d", got.Seq, pos)
		}
	})
}

// With room for few runs, runs come and go.
func TestEviction(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	s, _ := startOn(t, log, snapshotter.Config{Delay: time.Millisecond, MaxBytes: 20 << 10})
	writers := map[string]*eventlog.Writer{}
	for i := range 20 {
		id := fmt.Sprintf("r%d", i)
		writers[id], _ = begin(t, log, id)
	}
	last := map[string]uint64{}
	for range 3 {
		for id, w := range writers {
			last[id] = logtest.Append(t, w, usage())
		}
	}
	for id, pos := range last {
		stored.wait(t, id, pos)
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
	if n := count(t, s, "wake_snapshotter_runs"); n > 10 {
		t.Errorf("%g runs in memory", n)
	}
	stored.check(t, log)
}

// Two snapshotters at once get in each other's way and agree all the same.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	stored := watch(t, log)
	for range 2 {
		start(t, logtest.Open(t, s.Conn(t)), snapshotter.Config{Delay: time.Millisecond})
	}
	last := map[string]uint64{}
	for i := range 3 {
		id := fmt.Sprintf("r%d", i)
		last[id] = play(t, log, id, 2)
	}
	for id, pos := range last {
		stored.wait(t, id, pos)
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
	stored.check(t, log)
}

// On a cluster whose leaders step down all the time, snapshots are folds too.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	nc := c.Conn(t)
	logtest.Init(t, nc, topology.Config{Replicas: 3})
	log := logtest.Open(t, nc)
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: 10 * time.Millisecond})
	calm := logtest.Go(t, func(ctx context.Context) error {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				stream := []string{"WAKE_EVENTS", "KV_WAKE_SNAPSHOTS", "KV_WAKE_STATE"}[i%3]
				_ = c.StepDown(ctx, nc, stream) // it may have no leader at the moment
			case <-ctx.Done():
				return nil
			}
		}
	})
	last := map[string]uint64{}
	for i := range 20 {
		id := fmt.Sprintf("r%d", i)
		last[id] = play(t, log, id, 5)
	}
	for id, pos := range last {
		stored.wait(t, id, pos)
	}
	calm()
	c.WaitReady(t, "WAKE_EVENTS", "KV_WAKE_SNAPSHOTS") // any replica may answer now
	for id := range last {
		same(t, load(t, log, id), fold(t, log, id, 0))
	}
	stored.check(t, log)
}

// A large state is kept as a blob.
func TestLargeState(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	w := claim(t, log, "r1")
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
	for i := range 4 {
		value := wire.RawString(strings.Repeat(fmt.Sprint(i), 200<<10))
		logtest.Append(t, w, &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: fmt.Sprint("k", i), Value: value}}})
	}
	pos := logtest.Append(t, w, &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}})
	stored.wait(t, "r1", pos)
	same(t, load(t, log, "r1"), fold(t, log, "r1", 0))
	e, err := bucket(t, log).Get(t.Context(), "r1")
	if err != nil || len(e.Value()) > 1000 {
		t.Errorf("the value has %d bytes, %v", len(e.Value()), err)
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	last := play(t, log, "r1", 1)
	watch(t, log).wait(t, "r1", last)
	a, err := api.Call[wire.SnapshotResponse](t.Context(), log.Conn(), log.Names(), wire.VerbSnapshot, wire.SnapshotRequest{Run: "r1"})
	if err != nil || a.RunID != "r1" || a.Revision == 0 || a.Bytes != len(a.State) || !bytes.Equal(a.State, encode(t, fold(t, log, "r1", 0))) {
		t.Errorf("answer %+v, %v", a, err)
	}
	put(t, bucket(t, log), []byte("garbage"))
	for id, want := range map[string]wire.ErrorCode{"": wire.CodeBadRequest, "nobody": wire.CodeRunNotFound, "r1": wire.CodeNotFound} {
		_, err := api.Call[wire.SnapshotResponse](t.Context(), log.Conn(), log.Names(), wire.VerbSnapshot, wire.SnapshotRequest{Run: id})
		if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != want {
			t.Errorf("run %q: %v, want %s", id, err, want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := snapshotter.New(snapshotter.Config{Delay: -1}, nil, nil); err == nil {
		t.Error("a negative delay is accepted")
	}
}

// Whatever happens, legal or not, and wherever the process is stopped or killed,
// snapshots are folds.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	stored := watch(t, log)
	serial := 0
	rapid.Check(t, func(r *rapid.T) {
		serial++
		id := fmt.Sprintf("run%d", serial)
		w := map[string]*eventlog.Writer{wire.RunNode: claim(t, log, id), "a": logtest.Claim(t, log, id, "a")}
		conn := s.Conn(t)
		_, stop := startOn(t, logtest.Open(t, conn), snapshotter.Config{Delay: time.Millisecond, Batch: 3})
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			switch n := rapid.IntRange(0, 21).Draw(r, "step"); n {
			case 0:
				stop()
				_, stop = startOn(t, logtest.Open(t, conn), snapshotter.Config{Delay: time.Millisecond, Batch: 3})
			case 1:
				conn.Close()
				stop()
				conn = s.Conn(t)
				_, stop = startOn(t, logtest.Open(t, conn), snapshotter.Config{Delay: time.Millisecond, Batch: 3})
			case 2:
				w["a"] = logtest.Claim(t, log, id, "a")
			case 3:
				publish(t, log, log.Names().Event(id, "b", "flow"), []byte("garbage"))
			default:
				node, e := history(n)
				logtest.Append(t, w[node], e)
			}
		}
		if s := fold(t, log, id, 0); s.Position.Seq > 0 {
			stored.wait(t, id, s.Position.Seq)
			same(t, load(t, log, id), s)
			for _, b := range s.Bookmarks {
				kept(t, log, id, b.Label, b.Position)
			}
		}
		stop()
		conn.Close()
	})
	stored.check(t, log)
}

// history is a choice of events that are often legal.
func history(n int) (node string, e *wire.Event) {
	switch n {
	case 4, 5:
		return wire.RunNode, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}}
	case 6, 7, 8:
		return wire.RunNode, &wire.Event{ExecID: "a#1", Payload: &wire.NodeScheduled{Target: "a", Attempt: 1}}
	case 9:
		return "a", &wire.Event{ExecID: "a#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}}
	case 10:
		return "a", &wire.Event{ExecID: "a#1", SessionID: "s", Payload: &wire.AgentStart{Prompt: wire.RawString("p")}}
	case 11, 12:
		return "a", &wire.Event{ExecID: "a#1", CallID: "t1", Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null}}
	case 13, 14:
		return "a", &wire.Event{ExecID: "a#1", CallID: "t1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}}
	case 15:
		return "a", usage()
	case 16:
		return "a", &wire.Event{ExecID: "a#1", Payload: &wire.AgentTextDelta{Content: "x"}}
	case 17:
		return "a", &wire.Event{ExecID: "a#1", Payload: &wire.NodeComplete{Output: wire.Null}}
	case 18:
		return wire.RunNode, &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}}
	case 19:
		return wire.RunNode, &wire.Event{Payload: &wire.FlowResumed{}}
	case 20:
		return wire.RunNode, label("good")
	default:
		return wire.RunNode, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, CommandID: "c", Accepted: true}}
	}
}

// start runs a snapshotter until stop is called or the test ends.
func start(t testing.TB, log *eventlog.Log, cfg snapshotter.Config) (stop func()) {
	t.Helper()
	_, stop = startOn(t, log, cfg)
	return stop
}

func startOn(t testing.TB, log *eventlog.Log, cfg snapshotter.Config) (*snapshotter.Snapshotter, func()) {
	t.Helper()
	s, err := snapshotter.New(cfg, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	return s, logtest.Go(t, func(ctx context.Context) error {
		if err := s.Run(ctx); !log.Conn().IsClosed() {
			return err
		}
		return nil // the process was killed
	})
}

func claim(t testing.TB, log *eventlog.Log, id string) *eventlog.Writer {
	t.Helper()
	return logtest.Claim(t, log, id, wire.RunNode)
}

// begin starts a run with one agent. It returns the agent's writer and the
// position of its last event.
func begin(t testing.TB, log *eventlog.Log, id string) (*eventlog.Writer, uint64) {
	t.Helper()
	owner := claim(t, log, id)
	logtest.Append(t, owner,
		&wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}},
		&wire.Event{ExecID: "a#1", Payload: &wire.NodeScheduled{Target: "a", Attempt: 1}},
	)
	w := logtest.Claim(t, log, id, "a")
	return w, logtest.Append(t, w,
		&wire.Event{ExecID: "a#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
		&wire.Event{ExecID: "a#1", SessionID: "s1", Payload: &wire.AgentStart{Prompt: wire.RawString("p")}},
	)
}

// play is a run with some turns, from its beginning to its end. It returns the
// position of the end.
func play(t testing.TB, log *eventlog.Log, id string, turns int) uint64 {
	t.Helper()
	w, _ := begin(t, log, id)
	for i := range turns {
		logtest.Append(t, w,
			&wire.Event{ExecID: "a#1", Turn: i + 1, Payload: &wire.TurnStart{}},
			&wire.Event{ExecID: "a#1", Payload: &wire.AgentTextDelta{Content: "…"}},
			usage(),
		)
	}
	return logtest.Append(t, w,
		&wire.Event{ExecID: "a#1", Payload: &wire.AgentComplete{Result: "done"}},
		&wire.Event{ExecID: "a#1", Payload: &wire.NodeComplete{Output: wire.RawString("done")}},
	)
}

func usage() *wire.Event {
	return &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: "m", InputTokens: 1, OutputTokens: 2}}
}

func publish(t testing.TB, log *eventlog.Log, subject string, data []byte) {
	t.Helper()
	if _, err := log.JetStream().Publish(t.Context(), subject, data); err != nil {
		t.Fatal(err)
	}
}

func fold(t testing.TB, log *eventlog.Log, id string, to uint64) *wire.State {
	t.Helper()
	s := run.New(id)
	if err := snapshot.Fold(t.Context(), log, s, to); err != nil {
		t.Fatal(err)
	}
	return s
}

func load(t testing.TB, log *eventlog.Log, id string) *wire.State {
	t.Helper()
	s, ok, err := snapshot.Load(t.Context(), log, id)
	if err != nil || !ok {
		t.Fatalf("no snapshot of %s: %v", id, err)
	}
	return s
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t testing.TB, got, want *wire.State) {
	t.Helper()
	if !bytes.Equal(encode(t, got), encode(t, want)) {
		t.Errorf("the snapshot of %s isn't the fold:\n%s", want.RunID, cmp.Diff(want, got))
	}
}

func bucket(t testing.TB, log *eventlog.Log) jetstream.KeyValue {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().SnapshotsBucket())
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func put(t testing.TB, kv jetstream.KeyValue, value []byte) {
	t.Helper()
	if _, err := kv.Put(t.Context(), "r1", value); err != nil {
		t.Fatal(err)
	}
}

// position is what the snapshotter has committed.
func position(t testing.TB, log *eventlog.Log) wire.Position {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "snapshotter._")
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Position wire.Position `json:"position"`
	}
	if err := wire.Unmarshal(e.Value(), &r); err != nil {
		t.Fatal(err)
	}
	return r.Position
}

// waitRead waits until the consumer has acknowledged a position.
func waitRead(t testing.TB, log *eventlog.Log, pos uint64) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for {
		c, err := log.JetStream().Consumer(t.Context(), log.Names().EventsStream(), "snapshotter")
		if err != nil {
			t.Fatal(err)
		}
		if c.CachedInfo().AckFloor.Stream >= pos {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("position %d was not read", pos)
		}
	}
}

// waitCommitted waits until a position is committed.
func waitCommitted(t testing.TB, log *eventlog.Log, pos uint64) {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	w, err := kv.Watch(t.Context(), "snapshotter._")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Stop() }()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case e := <-w.Updates():
			if e == nil {
				continue
			}
			if seq, ok := wire.Raw(e.Value()).Get("position").Get("seq").Any().(int64); ok && uint64(seq) >= pos {
				return
			}
		case <-timeout:
			t.Fatalf("position %d was not committed", pos)
		}
	}
}

// settle lets time pass in a bubble.
func settle(t testing.TB, d time.Duration) {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
}

func count(t testing.TB, c prometheus.Collector, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// snapshots collects what is stored while the test runs.
type snapshots struct {
	mu   sync.Mutex
	seen []*wire.State
	last map[string]uint64
	news chan struct{}
}

// watch sees what the bucket keeps. A subscription would also show what it
// refuses.
func watch(t testing.TB, log *eventlog.Log) *snapshots {
	t.Helper()
	s := &snapshots{last: map[string]uint64{}, news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w, err := bucket(t, log).WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.Updates() {
			if e != nil {
				s.add(ctx, log, e.Value())
			}
		}
	}()
	t.Cleanup(func() {
		_ = w.Stop()
		cancel()
		<-done
	})
	return s
}

func (s *snapshots) add(ctx context.Context, log *eventlog.Log, data []byte) {
	if sum, ok := wire.Raw(data).Get("$blob").Get("sha256").Text(); ok {
		blob, err := log.Blob(ctx, sum)
		if err != nil {
			return // replaced meanwhile
		}
		data = blob
	}
	state, err := run.Decode(data)
	if err != nil || state.Position.Incarnation != log.Incarnation() || state.Position.Seq >= 1<<40 {
		return // a test put it there
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, state)
	s.last[state.RunID] = state.Position.Seq
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// wait waits until the snapshot of a run is that of pos.
func (s *snapshots) wait(t testing.TB, id string, pos uint64) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		last := s.last[id]
		s.mu.Unlock()
		if last == pos {
			return
		}
		select {
		case <-s.news:
		case <-timeout:
			t.Fatalf("the snapshot of %s is of position %d, want %d", id, last, pos)
		}
	}
}

// none checks how many snapshots were stored since it was last called.
func (s *snapshots) none(t testing.TB, when string, least, most int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.seen); n < least || n > most {
		t.Errorf("%d snapshots were stored %s, want %d to %d", n, when, least, most)
	}
	s.seen = nil
}

// check checks all that was stored against the log, and returns how many.
func (s *snapshots) check(t testing.TB, log *eventlog.Log) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]uint64{}
	for _, state := range s.seen {
		same(t, state, fold(t, log, state.RunID, state.Position.Seq))
		if state.Position.Seq < last[state.RunID] {
			t.Errorf("the position of %s went from %d to %d", state.RunID, last[state.RunID], state.Position.Seq)
		}
		last[state.RunID] = state.Position.Seq
	}
	return len(s.seen)
}

// letters are the dead letters of the snapshotter.
type letters struct{ sub *nats.Subscription }

func deadLetters(t testing.TB, log *eventlog.Log) letters {
	t.Helper()
	sub, err := log.Conn().SubscribeSync(log.Names().DeadLetter("snapshotter"))
	if err != nil {
		t.Fatal(err)
	}
	return letters{sub}
}

func (l letters) next(t testing.TB) wire.Poison {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	m, err := l.sub.NextMsgWithContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var p wire.Poison
	if err := wire.Unmarshal(m.Data, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (l letters) none(t testing.TB) {
	t.Helper()
	if n, _, err := l.sub.Pending(); err != nil || n > 0 {
		t.Errorf("%d more dead letters, %v", n, err)
	}
}
