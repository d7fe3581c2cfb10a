package recorder_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// pack stores a snapshot of 40 kB of a run's folder.
func (p *plant) pack(store *workspace.Store, run string, salt uint64) {
	p.t.Helper()
	dir, content, rng := p.t.TempDir(), make([]byte, 40_000), rand.New(rand.NewPCG(salt, 0))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if _, err := store.Folder(run, dir, workspace.Limits{}).Take(p.t.Context(), ""); err != nil {
		p.t.Fatal(err)
	}
}

// The snapshots of the runs that ended first go while all of them take more than they may: not those of a run that goes on, has a fork or a
// label, and no more than has to.
func TestFoldersAreBounded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		store, err := workspace.Open(t.Context(), p.log.JetStream(), subjects.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		raw := func(v any) wire.Raw { return mustRaw(t, v) }
		start := func() *wire.Event {
			return &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: raw(map[string]any{"name": "f"}), DefinitionHash: "h"}}
		}
		end := func() *wire.Event {
			return &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete}}
		}
		for i, run := range []string{"parent", "labelled", "live", "first", "second", "third"} {
			w := p.claim(run, wire.RunNode)
			p.write(w, start())
			if run == "labelled" {
				p.write(w, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "here"}})
			}
			if run != "live" {
				p.write(w, end())
			}
			p.pack(store, run, uint64(i)) // a number of few
		}
		fork := p.claim("fork", wire.RunNode)
		p.write(fork, &wire.Event{Payload: &wire.RunForked{ParentRun: "parent", ParentPos: 1, State: raw(&wire.State{V: wire.Version, RunID: "parent", Status: wire.RunRunning})}})
		p.write(fork, &wire.Event{Payload: &wire.FlowAborted{Reason: "operator"}})

		left := func() (runs []string) {
			holds, err := workspace.Holders(t.Context(), p.log.JetStream(), subjects.Default)
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc([]string{"parent", "labelled", "live", "first", "second", "third"}, func(run string) bool { return !holds(run) })
		}
		for _, want := range []struct {
			most int64
			left []string
		}{
			{0, []string{"parent", "labelled", "live", "first", "second", "third"}},
			{180_000, []string{"parent", "labelled", "live", "third"}},
			{1000, []string{"parent", "labelled", "live"}},
		} {
			r, err := recorder.New(recorder.Config{Path: p.path(), Retain: recorder.Retention{Folders: want.most}}, p.log, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			metrics := prometheus.NewPedanticRegistry()
			metrics.MustRegister(r)
			stop := p.run(r)
			<-time.After(5 * time.Minute)
			if diff := cmp.Diff(want.left, left()); diff != "" {
				t.Errorf("of at most %d bytes are left (-want +got):\n%s", want.most, diff)
			}
			families, err := metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if v := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "wake_recorder_folder_bytes" && int(v)/40_000 != len(want.left) {
					t.Errorf("%d folders take %s bytes", len(want.left), fmt.Sprint(v))
				}
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What a removed run has packed is found though whoever removed it died before it was dropped, and goes before what others have.
func TestFoldersOfRemovedRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		store, err := workspace.Open(t.Context(), p.log.JetStream(), subjects.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		var last uint64
		for i, run := range []string{"first", "removed"} {
			w := p.claim(run, wire.RunNode)
			p.write(w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h"}})
			last = p.write(w, &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete}})
			p.pack(store, run, uint64(i)) // a number of few
		}
		stop := p.record(recorder.Config{})
		p.until(last)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		s := openAt(t, p.path())
		if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "removed", Now: true}, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		for more := true; more; {
			if _, more, err = s.Retention.Remove(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, s)
		p.record(recorder.Config{Retain: recorder.Retention{Folders: 60_000}})
		<-time.After(5 * time.Minute)
		holds, err := workspace.Holders(t.Context(), p.log.JetStream(), subjects.Default)
		if err != nil || holds("removed") || !holds("first") {
			t.Errorf("left of the removed run: %t, of the other one: %t, %v", holds("removed"), holds("first"), err)
		}
	})
}

// How far the removal of runs is, is told with each of them, and when it is over; nothing is told when none is due.
func TestRemovalIsTold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		for _, id := range []string{"a", "b"} {
			w := p.claim(id, wire.RunNode)
			p.write(w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h"}})
			p.write(w, &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete}})
		}
		var mu sync.Mutex
		var told [][2]int64
		p.record(recorder.Config{Retain: recorder.Retention{Age: time.Second, Grace: time.Minute}, Removing: func(done, of int64) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, [2]int64{done, of})
		}})
		<-time.After(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := [][2]int64{{0, 2}, {1, 2}, {2, 2}, {0, 0}}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

// What a run has packed stays as long as a fork of it is there, at any distance: also when a fork between them was removed, and when the run
// itself was. It goes with the last of them.
func TestFoldersThatForksNeed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		store, err := workspace.Open(t.Context(), p.log.JetStream(), subjects.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		const parent, middle, last = "parent", "middle", "last"
		aborted := &wire.Event{Payload: &wire.FlowAborted{Reason: "operator"}}
		w := p.claim(parent, wire.RunNode)
		p.write(w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h"}})
		p.write(w, &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete}})
		state := run.New(parent)
		state.Status = wire.RunRunning
		var f *eventlog.Writer
		for _, fork := range []string{middle, last} {
			f = p.claim(fork, wire.RunNode)
			begun := p.write(f, &wire.Event{Payload: &wire.RunForked{ParentRun: state.RunID, ParentPos: 1, State: mustRaw(t, state)}})
			state = run.New(fork)
			state.Status = wire.RunRunning
			state.Lineage = []wire.Ancestor{{RunID: parent, Position: begun}}
			if fork != last {
				p.write(f, aborted)
			}
		}
		// Each adds a file to the folder that it has of the one before.
		dir, snapshot := t.TempDir(), ""
		for _, id := range []string{parent, middle, last} {
			if err := os.WriteFile(filepath.Join(dir, id), []byte("by "+id), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := store.Folder(id, dir, workspace.Limits{}).Take(t.Context(), snapshot)
			if err != nil {
				t.Fatal(err)
			}
			snapshot = s.ID
		}
		p.record(recorder.Config{Retain: recorder.Retention{Folders: 1, Every: 10 * time.Minute}})
		for _, gone := range []string{middle, parent} {
			p.remove(gone)
			<-time.After(80 * time.Minute)
			if _, err := store.Restore(t.Context(), snapshot, filepath.Join(t.TempDir(), "restored")); err != nil {
				t.Errorf("%s was removed: %v", gone, err)
			}
		}
		p.write(f, aborted)
		p.remove(last)
		<-time.After(80 * time.Minute)
		holds, err := workspace.Holders(t.Context(), p.log.JetStream(), subjects.Default)
		if err != nil || holds(parent) || holds(middle) || holds(last) {
			t.Errorf("snapshots are left: %t %t %t, %v", holds(parent), holds(middle), holds(last), err)
		}
	})
}

// remove has the recorder delete a run for good.
func (p *plant) remove(run string) {
	p.t.Helper()
	<-time.After(time.Minute) // the recorder knows of it
	q := wire.DeleteRequest{Run: run, Now: true, Force: true}
	if _, err := api.Call[wire.DeleteResponse](p.t.Context(), p.log.Conn(), p.log.Names(), wire.VerbDelete, q); err != nil {
		p.t.Fatalf("%s: %v", run, err)
	}
}
