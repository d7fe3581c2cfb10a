package snapshotter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/snapshotter"
)

func label(l string) *wire.Event {
	return &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: l}}
}

// kept checks that the state under a label is the fold at a position.
func kept(t testing.TB, log *eventlog.Log, id, label string, pos uint64) {
	t.Helper()
	s, err := snapshot.Kept(t.Context(), log, id, label)
	if err != nil {
		t.Fatal(err)
	}
	if s.Position.Seq != pos {
		t.Errorf("%s is of position %d, want %d", label, s.Position.Seq, pos)
	}
	same(t, s, fold(t, log, id, pos))
}

func bookmarks(t testing.TB, log *eventlog.Log) jetstream.KeyValue {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().BookmarksBucket())
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func revision(t testing.TB, kv jetstream.KeyValue, key string) uint64 {
	t.Helper()
	e, err := kv.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e.Revision()
}

// A labelled point is kept with its state before a snapshot goes beyond it (RULES 20). Reading
// the log anew puts back what is missing, and nothing else.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	stop := start(t, log, snapshotter.Config{Delay: time.Millisecond})
	owner := claim(t, log, "r1")
	logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
	at := map[string]uint64{"first": logtest.Append(t, owner, label("first"))}
	stored.wait(t, "r1", at["first"])
	kept(t, log, "r1", "first", at["first"])
	for i, text := range []string{"a", "b"} { // a large state, twice
		value := wire.RawString(strings.Repeat(text, 800<<10))
		logtest.Append(t, owner, &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "k", Value: value}}})
		at["moved"] = logtest.Append(t, owner, label("moved"))
		if i == 0 {
			at["large"] = logtest.Append(t, owner, label("large"))
		}
	}
	at["with space"] = logtest.Append(t, owner, label("with space"))
	// What is labelled later is kept as it was, also under a label that was elsewhere.
	logtest.Append(t, owner, label("back"))
	var last uint64
	for l, former := range map[string]uint64{"former": at["first"], "back": at["first"], "former large": at["large"]} {
		at[l] = former
		last = logtest.Append(t, owner, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: l, AtPos: former}})
	}
	stored.wait(t, "r1", last)
	for l, pos := range at {
		kept(t, log, "r1", l, pos)
	}

	stop()
	kv, key := bookmarks(t, log), log.Names().BookmarkKey
	before := map[string]uint64{}
	for l := range at {
		before[l] = revision(t, kv, key("r1", l))
	}
	if err := kv.Delete(t.Context(), key("r1", "first")); err != nil {
		t.Fatal(err)
	}
	put(t, bucket(t, log), []byte("garbage")) // the snapshot, and
	state, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Delete(t.Context(), log.Names().StateKey("snapshotter", subjects.NoRun)); err != nil { // how far it was read
		t.Fatal(err)
	}
	start(t, log, snapshotter.Config{Delay: time.Millisecond, Batch: 1})
	last = logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowPaused{Reason: "operator"}})
	stored.wait(t, "r1", last)
	for l, pos := range at {
		kept(t, log, "r1", l, pos)
		if l != "first" && revision(t, kv, key("r1", l)) != before[l] {
			t.Errorf("%s was kept again", l)
		}
	}
}

// Of a run with more labels than it may have, as an imported one, the first ones are kept, also where they are moved.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	owner := claim(t, log, "r1")
	last := logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
	at := map[string]uint64{}
	for i := 0; i < run.MaxLabels+100; i += 100 {
		var events []*wire.Event
		for k := range 100 {
			at[fmt.Sprint("l", i+k)] = last
			events = append(events, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint("l", i+k), AtPos: last}})
		}
		last = logtest.Append(t, owner, events...)
	}
	at["l0"] = logtest.Append(t, owner, label("l0"))
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	stored.wait(t, "r1", at["l0"])
	for _, l := range []string{"l0", "l1", "l100", "l555", fmt.Sprint("l", run.MaxLabels-1)} {
		kept(t, log, "r1", l, at[l])
	}
	if _, err := snapshot.Kept(t.Context(), log, "r1", fmt.Sprint("l", run.MaxLabels)); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("one label too many: %v", err)
	}
	if n := len(load(t, log, "r1").Bookmarks); n != run.MaxLabels {
		t.Errorf("%d labels", n)
	}
}

// Labels of former positions that come in no order, or one that is moved without end, have a run folded anew so often and no more.
func TestLabelsWithoutOrder(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	owner := claim(t, log, "r1")
	first := logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
	last := first
	for range 4 {
		var events []*wire.Event
		for range 50 {
			events = append(events, &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "k", Value: wire.RawString("v")}}})
		}
		last = logtest.Append(t, owner, events...)
	}
	var marks []*wire.Event
	for i := range uint64(200) {
		marks = append(marks, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint("l", i), AtPos: last - i}})
	}
	end := logtest.Append(t, owner, marks...)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	stored.wait(t, "r1", end)
	kept(t, log, "r1", "l0", last)
	kept(t, log, "r1", "l99", last-99)
	if _, err := snapshot.Kept(t.Context(), log, "r1", "l100"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a run is folded from its beginning for each label: %v", err)
	}
}

// A state that can't be kept is kept later: until then no snapshot goes beyond its
// point (RULES 20).
func TestBookmarkIsKeptLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		logtest.Init(t, nc, topology.Config{})
		log := logtest.Open(t, nc)
		if err := log.JetStream().DeleteKeyValue(t.Context(), log.Names().BookmarksBucket()); err != nil {
			t.Fatal(err)
		}
		start(t, log, snapshotter.Config{Delay: time.Millisecond})
		owner := claim(t, log, "r1")
		before := logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
		settle(t, time.Minute)
		pos := logtest.Append(t, owner, label("good"))
		logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}})
		settle(t, time.Minute)
		if got := load(t, log, "r1").Position.Seq; got != before {
			t.Errorf("the snapshot is of position %d, want %d", got, before)
		}
		logtest.Init(t, nc, topology.Config{})
		settle(t, time.Minute)
		kept(t, log, "r1", "good", pos)
	})
}

// What a fenced writer marks is no point.
func TestVoidBookmark(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	stored := watch(t, log)
	start(t, log, snapshotter.Config{Delay: time.Millisecond})
	fenced := claim(t, log, "r1")
	logtest.Append(t, fenced, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}})
	epoch := fold(t, log, "r1", 0).Nodes[wire.RunNode].Epoch
	claim(t, log, "r1")
	void := label("void")
	void.RunID, void.NodeID, void.Epoch, void.Seq = "r1", wire.RunNode, epoch, 1000
	data, err := wire.Encode(void)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, log, log.Names().Event("r1", wire.RunNode, string(wire.TypeCheckpoint.Kind())), data)
	logtest.Claim(t, log, "r1", "a")
	_, last, err := log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stored.wait(t, "r1", last)
	if s := fold(t, log, "r1", 0); s.VoidEvents != 1 {
		t.Errorf("%d void events", s.VoidEvents)
	}
	if _, err := snapshot.Kept(t.Context(), log, "r1", "void"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a void point was kept: %v", err)
	}
}
