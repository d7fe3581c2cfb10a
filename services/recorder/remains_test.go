package recorder_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// countLeft counts the messages that the server has, by stream.
func (p *plant) countLeft() map[string]int {
	p.t.Helper()
	n, counts := subjects.Default, map[string]int{}
	for _, stream := range []string{
		"KV_" + n.SnapshotsBucket(), "KV_" + n.BookmarksBucket(), n.AlertsStream(),
		"OBJ_" + n.SessionsBucket(), "OBJ_" + n.WorkspacesBucket(), "OBJ_" + n.BlobsBucket(),
	} {
		s, err := p.log.JetStream().Stream(p.t.Context(), stream)
		if err != nil {
			p.t.Fatal(err)
		}
		if msgs := s.CachedInfo().State.Msgs; msgs > 0 {
			counts[stream] = int(msgs)
		}
	}
	return counts
}

// A run that was removed leaves nothing on the server: its state and its points, with their objects, its alerts, its sessions' files and its folder go at
// once; large fields when the stream has no event any more that refers to them, and never while another run has them.
func TestRemovedRunLeavesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		const age = time.Hour
		p := plantOn(t, natstest.Start(t), topology.Config{MaxAge: age})
		ctx, js := t.Context(), p.log.JetStream()
		folders, err := workspace.Open(ctx, js, subjects.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		sessions, err := transcript.Open(ctx, js, subjects.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		states, err := snapshot.Open(ctx, p.log)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := js.KeyValue(ctx, subjects.Default.StateBucket())
		if err != nil {
			t.Fatal(err)
		}
		shared := strings.Repeat("of both ", 1000)
		keep := func(state *wire.State) {
			if _, err := states.Save(ctx, state, snapshot.Stored{}); err != nil {
				t.Fatal(err)
			}
		}
		play := func(id string, salt uint64) {
			owner := p.claim(id, wire.RunNode)
			p.write(owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h"}})
			p.write(owner, &wire.Event{ExecID: "a#1", Payload: &wire.NodeScheduled{Target: "a", Attempt: 1}})
			w := p.claim(id, "a")
			exec := func(session string, p wire.Payload) *wire.Event {
				return &wire.Event{ExecID: "a#1", SessionID: session, Payload: p}
			}
			p.write(w, exec("", &wire.NodeStart{NodeType: "agent", Attempt: 1}), exec("of-"+id, &wire.AgentStart{Prompt: wire.RawString("Do it.")}),
				exec("of-both", &wire.AgentStart{Prompt: wire.RawString("Do it.")}), exec("", &wire.AgentText{Content: shared}),
				exec("", &wire.AgentText{Content: strings.Repeat("of "+id+" ", 1000)}))
			last := p.write(owner, &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete}})
			p.alert("k", wire.Alert{RunID: id, NodeID: "a", Kind: "completion", Text: "Done."})
			p.pack(folders, id, salt)
			if _, err := kept.Put(ctx, subjects.Default.StateKey("alerter", id), []byte("{}")); err != nil {
				t.Fatal(err)
			}
			for _, session := range []string{"of-" + id, "of-both"} {
				if _, err := sessions.Load(ctx, session); err != nil {
					t.Fatal(err)
				}
				if err := sessions.Save(ctx, session, 0, []byte("{}\n")); err != nil {
					t.Fatal(err)
				}
			}
			state := run.New(id)
			state.Position = wire.Position{Incarnation: p.log.Incarnation(), Seq: last}
			state.State = wire.RawString(string(bytes.Repeat([]byte{'x'}, snapshot.MaxValue)))
			keep(state)
		}
		play("one", 1)
		play("two", 2)
		all := p.countLeft()
		stop := p.record(recorder.Config{})
		ask := func(run string) {
			t.Helper()
			<-time.After(time.Minute) // the recorder knows of it
			if _, err := api.Call[wire.DeleteResponse](ctx, p.nc, subjects.Default, wire.VerbDelete, wire.DeleteRequest{Run: run, Now: true}); err != nil {
				t.Fatal(err)
			}
			<-time.After(5 * time.Minute)
		}
		objects := func() string {
			t.Helper()
			b, err := js.ObjectStore(ctx, subjects.Default.BlobsBucket())
			if err != nil {
				t.Fatal(err)
			}
			list, err := b.List(ctx)
			if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
				t.Fatal(err)
			}
			return fmt.Sprint(len(list), " objects")
		}
		if got := objects(); got != "5 objects" { // two states, two fields, and the one of both
			t.Fatalf("there are %s, %v", got, all)
		}

		ask("one")
		half := maps.Clone(all)
		delete(half, "OBJ_"+subjects.Default.BlobsBucket())
		for stream, n := range half {
			half[stream] = n / 2
		}
		half["OBJ_"+subjects.Default.SessionsBucket()] = 4 // two files of the other run
		now := p.countLeft()
		delete(now, "OBJ_"+subjects.Default.BlobsBucket())
		if diff := cmp.Diff(half, now); diff != "" {
			t.Errorf("without one of two runs (-want +got):\n%s", diff)
		}
		if got := objects(); got != "4 objects" {
			t.Errorf("there are %s, while the stream has events that refer to fields", got)
		}
		// The snapshotter comes to the end of the run late.
		late := run.New("one")
		late.Position = wire.Position{Incarnation: p.log.Incarnation(), Seq: 1}
		keep(late)
		if err := stop(); err != nil {
			t.Fatal(err)
		}

		<-time.After(age + 24*time.Hour)
		stop = p.record(recorder.Config{})
		<-time.After(5 * time.Minute)
		if got := objects(); got != "3 objects" { // the state and the field of the other run, and that of both
			t.Errorf("there are %s when the stream has nothing any more", got)
		}
		ask("two")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		<-time.After(24 * time.Hour)
		stop = p.record(recorder.Config{})
		<-time.After(5 * time.Minute)
		if left := p.countLeft(); len(left) > 0 {
			t.Errorf("in the end there is %v", left)
		}
		if keys, err := kept.ListKeysFiltered(ctx, "alerter.>"); err != nil {
			t.Error(err)
		} else if key, ok := <-keys.Keys(); ok {
			t.Errorf("the alerter's %s is left", key)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		db := openDB(t, p.path())
		defer db.Close()
		if rows := rowsOf(t, db, `SELECT * FROM remains`); len(rows) > 0 {
			t.Errorf("it is still noted: %s", strings.Join(rows, "\n"))
		}
	})
}

// A large field to which an event refers again is as new, so that it stays.
func TestFieldIsNewAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		content := strings.Repeat("again ", 2000)
		w := p.claim("one", wire.RunNode)
		p.write(w, &wire.Event{Payload: &wire.CommandReceived{Command: mustRaw(t, map[string]any{"type": "send", "message": content}), Reason: content}})
		b, err := p.log.JetStream().ObjectStore(t.Context(), subjects.Default.BlobsBucket())
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.List(t.Context())
		if err != nil || len(list) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		name := list[slices.IndexFunc(list, func(o *jetstream.ObjectInfo) bool { return o.Size >= uint64(len(content)) })].Name
		old := time.Now()
		<-time.After(5 * time.Hour)
		p.write(w, &wire.Event{Payload: &wire.CommandReceived{Command: mustRaw(t, map[string]any{"type": "send", "message": content}), Reason: content}})
		if gone, err := p.log.DropBlob(t.Context(), name, old); gone || err != nil {
			t.Errorf("gone: %t, %v", gone, err)
		}
		if data, err := p.log.Blob(t.Context(), name); err != nil || len(data) < len(content) {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		if gone, err := p.log.DropBlob(t.Context(), name, time.Now()); !gone || err != nil {
			t.Errorf("gone: %t, %v", gone, err)
		}
		meta := "$O." + subjects.Default.BlobsBucket() + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
		s, err := p.log.JetStream().Stream(t.Context(), "OBJ_"+subjects.Default.BlobsBucket())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetLastMsgForSubject(t.Context(), meta); err == nil {
			t.Error("its description is left")
		}
		<-time.After(5 * time.Hour)
		p.write(w, &wire.Event{Payload: &wire.CommandReceived{Command: mustRaw(t, map[string]any{"type": "send", "message": content}), Reason: content}})
		if data, err := p.log.Blob(t.Context(), name); err != nil || len(data) < len(content) {
			t.Errorf("stored again: %d bytes, %v", len(data), err)
		}
	})
}
