package history_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// begin starts a run.
func begin(t *testing.T, log *eventlog.Log, id string) *eventlog.Writer {
	t.Helper()
	definition, err := wire.Marshal(map[string]any{"name": "f"})
	if err != nil {
		t.Fatal(err)
	}
	w := logtest.Claim(t, log, id, wire.RunNode)
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: definition, DefinitionHash: "h"}})
	return w
}

// age waits until the stream has dropped all but a fresh event of the run, and
// returns the position of that.
func age(t *testing.T, w *eventlog.Writer) uint64 {
	t.Helper()
	<-time.After(4 * time.Minute)
	pos, err := w.Anchor(t.Context(), "test", "")
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(4 * time.Minute)
	return pos
}

func patch(n int) *wire.Event {
	return &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "n", Value: wire.RawString(fmt.Sprint(n))}}}
}

// record runs a recorder until the test ends, and returns how to wait for it to
// have a position.
func record(t *testing.T, log *eventlog.Log) (until func(uint64)) {
	t.Helper()
	r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, log, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, r.Run)
	return func(pos uint64) {
		t.Helper()
		for range 1000 {
			q := wire.EventsRequest{From: pos, To: pos}
			page, err := api.Call[wire.EventsResponse](t.Context(), log.Conn(), log.Names(), wire.VerbEvents, q)
			if err == nil && len(page.Events) > 0 {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
		t.Fatalf("position %d isn't recorded", pos)
	}
}

func read(t *testing.T, log *eventlog.Log, q eventlog.Query) (all []string, err error) {
	t.Helper()
	for e, err := range history.Read(t.Context(), log, q) {
		if err != nil {
			return all, err
		}
		if e.Event == nil || e.RunID != q.Run || e.Time.IsZero() || len(e.Data) == 0 {
			t.Errorf("entry %+v", e)
			continue
		}
		all = append(all, fmt.Sprintf("%d %s %s %s", e.Pos, e.NodeID, e.Kind, e.Event.Type()))
	}
	return all, nil
}

// What the stream has dropped the recorder gives.
func TestReadBeyondTheStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		logtest.Init(t, nc, topology.Config{MaxAge: 6 * time.Minute})
		log := logtest.Open(t, nc)
		until := record(t, log)
		w := begin(t, log, "r1")
		begin(t, log, "r10")
		until(logtest.Append(t, w, patch(1), patch(2)))
		whole, err := read(t, log, eventlog.Query{Run: "r1"})
		if err != nil || len(whole) != 4 {
			t.Fatalf("%v, %v", whole, err)
		}
		anchor := age(t, w)
		last := logtest.Append(t, w, patch(3), patch(4))
		until(last)
		first, _, err := log.Bounds(t.Context())
		if err != nil || first != anchor || last != anchor+2 {
			t.Fatalf("the stream begins at %d, %v", first, err)
		}
		whole = append(whole, fmt.Sprintf("%d _run flow run:claimed", anchor),
			fmt.Sprintf("%d _run flow state:patch", last-1), fmt.Sprintf("%d _run flow state:patch", last))
		for name, tt := range map[string]struct {
			q    eventlog.Query
			want []string
		}{
			"all":           {eventlog.Query{}, whole},
			"from":          {eventlog.Query{From: last - 3}, whole[len(whole)-4:]},
			"from, in both": {eventlog.Query{From: last}, whole[len(whole)-1:]},
			"to":            {eventlog.Query{To: 2}, whole[:2]},
			"to, in both":   {eventlog.Query{To: last - 1}, whole[:len(whole)-1]},
			"kinds":         {eventlog.Query{Kinds: []wire.Kind{wire.KindText}}, nil},
			"node":          {eventlog.Query{Node: "coder"}, nil},
		} {
			tt.q.Run = "r1"
			got, err := read(t, log, tt.q)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
			}
		}
		if got, err := read(t, log, eventlog.Query{Run: "r"}); len(got) > 0 || err != nil {
			t.Errorf("a prefix isn't a run: %v, %v", got, err)
		}
	})
}

// Without a recorder it is an error if something may be missing.
func TestReadWithoutRecorder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		logtest.Init(t, nc, topology.Config{MaxAge: 6 * time.Minute})
		log := logtest.Open(t, nc)
		w := begin(t, log, "old")
		age(t, w)
		logtest.Append(t, w, patch(1))
		begin(t, log, "young")
		_, err := read(t, log, eventlog.Query{Run: "old"})
		if !wire.HasCode(err, wire.CodeUnreachable) {
			t.Errorf("got %v", err)
		}
		if all, err := read(t, log, eventlog.Query{Run: "young"}); err != nil || len(all) != 2 {
			t.Errorf("of a run that the stream has whole: %v, %v", all, err)
		}
	})
}

// The state at any position is the same with and without a recorder, a snapshot,
// a bookmark, or the beginning of the stream.
func TestStateAt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		logtest.Init(t, nc, topology.Config{MaxAge: 6 * time.Minute})
		log := logtest.Open(t, nc)
		w := begin(t, log, "r1")
		var last uint64
		for i := range 20 {
			last = logtest.Append(t, w, patch(i))
		}
		want := map[uint64][]byte{}
		state := run.New("r1")
		for pos := uint64(1); pos <= last; pos++ {
			if err := snapshot.Fold(t.Context(), log, state, pos); err != nil {
				t.Fatal(err)
			}
			want[pos] = encode(t, state)
		}
		check := func(when string, ctx context.Context) {
			t.Helper()
			for pos := uint64(1); pos <= last; pos++ {
				got, err := history.StateAt(ctx, log, "r1", pos)
				if err != nil || !bytes.Equal(encode(t, got), want[pos]) {
					t.Errorf("%s, at %d: another state, %v", when, pos, err)
				}
			}
			if got, err := history.StateAt(ctx, log, "r1", 0); err != nil || !bytes.Equal(encode(t, got), want[last]) {
				t.Errorf("%s, now: another state, %v", when, err)
			}
		}
		check("from the log", t.Context())
		store, err := snapshot.Open(t.Context(), log)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := run.Decode(want[15])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Save(t.Context(), kept, snapshot.Stored{}); err != nil {
			t.Fatal(err)
		}
		check("with a snapshot", t.Context())
		record(t, log)(last)
		<-time.After(12 * time.Minute)
		if first, _, err := log.Bounds(t.Context()); err != nil || first <= last {
			t.Fatalf("the stream begins at %d, %v", first, err)
		}
		check("with a recorder, without a stream", t.Context())
		if s, err := history.StateAt(t.Context(), log, "nosuch", 0); err != nil || s.Position.Seq != 0 {
			t.Errorf("of no run: %d, %v", s.Position.Seq, err)
		}
	})
}

func encode(t *testing.T, s *wire.State) []byte {
	t.Helper()
	b, err := wire.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
