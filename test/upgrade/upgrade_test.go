package upgrade_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const runID = "newer"

// newer is an event as it was written.
type newer struct {
	kind string // the last token of its subject
	data []byte
	pos  uint64 // where it is stored, once it is
}

func (n newer) known() bool {
	switch wire.Kind(n.kind) {
	case wire.KindFlow, wire.KindAgent, wire.KindTool, wire.KindText, wire.KindDelta:
		return true
	default:
		return false
	}
}

func load(t *testing.T) (list []newer) {
	t.Helper()
	text, err := os.ReadFile("testdata/newer.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		kind, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		data, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		list = append(list, newer{kind: kind, data: data})
	}
	return list
}

// store puts the events into the stream, as the process of a later version does.
func store(t *testing.T, log *eventlog.Log, events []newer) {
	t.Helper()
	for i, n := range events {
		e := decode(t, n.data)
		ack, err := log.JetStream().Publish(t.Context(), log.Names().Event(e.RunID, e.NodeID, n.kind), n.data)
		if err != nil {
			t.Fatal(err)
		}
		events[i].pos = ack.Sequence
	}
}

func decode(t *testing.T, data []byte) *wire.Event {
	t.Helper()
	e, err := wire.Decode(data)
	if err != nil {
		t.Fatalf("%v: %x", err, data)
	}
	return e
}

// The bytes have what they are to test, and the codec keeps all of it.
func TestBytes(t *testing.T) {
	var kinds, types, fields int
	for _, n := range load(t) {
		e := decode(t, n.data)
		if !n.known() {
			kinds++
		}
		if _, opaque := e.Payload.(*wire.Opaque); opaque {
			types++
		} else if len(e.Unknown) > 0 {
			fields++
		}
		if got, err := wire.Encode(e); err != nil || !bytes.Equal(got, n.data) {
			t.Errorf("%s is written again as %x, %v; it was %x", e.Type(), got, err, n.data)
		}
		j, err := wire.EncodeJSON(e)
		if err != nil {
			t.Fatal(err)
		}
		back, err := wire.DecodeJSON(j)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, back); d != "" {
			t.Errorf("%s by JSON (-was +is):\n%s", e.Type(), d)
		}
		if text := timeline.Summary(e); text == "" {
			t.Errorf("%s isn't shown", e.Type())
		}
	}
	if kinds == 0 || types < 5 || fields < 10 {
		t.Errorf("%d unknown kinds, %d unknown types, %d known ones with unknown fields", kinds, types, fields)
	}
}

// Every service of this version reads the run of a later one to its end: nothing is set
// aside, and the state is everywhere that of the events it knows.
func TestServices(t *testing.T) {
	log := logtest.Start(t)
	events := load(t)
	path := filepath.Join(t.TempDir(), "recorder.db")
	stop := services(t, log, path)
	store(t, log, events)
	last := events[len(events)-1].pos

	state := snapshotOf(t, log, last)
	if state.Status != wire.RunComplete || state.NodeStatus["coder"] != wire.NodeDone || state.Usage.CostUsd != 0.5 || len(state.Tools) != 0 {
		t.Errorf("the state is %s, nodes %v, $%v, open calls %v", state.Status, state.NodeStatus, state.Usage.CostUsd, state.Tools)
	}
	folded := run.New(runID)
	if err := snapshot.Fold(t.Context(), log, folded, last); err != nil {
		t.Fatal(err)
	}
	same(t, "snapshot", folded, state)
	checkRecorded(t, log, events)
	recorded := ask[wire.StateResponse](t, log, wire.VerbState, wire.StateRequest{Run: runID})
	var s wire.State
	if err := wire.Unmarshal(recorded.State, &s); err != nil {
		t.Fatal(err)
	}
	same(t, "state of the recorder", folded, &s)
	checkAlert(t, log)
	letters, err := log.JetStream().Stream(t.Context(), log.Names().DeadLetterStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := letters.CachedInfo().State.Msgs; n != 0 {
		t.Errorf("%d dead letters", n)
	}

	stop()
	db, err := recorder.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	v, err := db.Checker.VerifyAgainst(t.Context(), "", log)
	if err != nil || len(v.Damages) > 0 {
		t.Errorf("wake verify finds %v, %v", v.Damages, err)
	}
}

// services runs a recorder, a snapshotter and an alerter.
func services(t *testing.T, log *eventlog.Log, path string) (stop func()) {
	t.Helper()
	r, err := recorder.New(recorder.Config{Path: path}, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := snapshotter.New(snapshotter.Config{Delay: time.Millisecond}, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	a, err := alerter.New(alerter.Config{Delay: time.Millisecond}, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	stops := []func(){logtest.Go(t, r.Run), logtest.Go(t, s.Run), logtest.Go(t, a.Run)}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func snapshotOf(t *testing.T, log *eventlog.Log, pos uint64) (s *wire.State) {
	t.Helper()
	await(t, "the snapshot", func() bool {
		var err error
		s, _, err = snapshot.Load(t.Context(), log, runID)
		if err != nil {
			t.Fatal(err)
		}
		return s != nil && s.Position.Seq >= pos
	})
	return s
}

func checkRecorded(t *testing.T, log *eventlog.Log, events []newer) {
	t.Helper()
	var got wire.EventsResponse
	await(t, "the recorder", func() bool {
		var err error
		got, err = api.Call[wire.EventsResponse](t.Context(), log.Conn(), log.Names(), wire.VerbEvents, wire.EventsRequest{Run: runID, Void: true})
		var failed *wire.APIError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return len(got.Events) >= len(events)
	})
	for i, e := range got.Events {
		if i >= len(events) || e.Pos != events[i].pos || e.Mark != "" || !bytes.Equal(e.Data, events[i].data) {
			t.Errorf("event %d is recorded as %d %q %x", i, e.Pos, e.Mark, e.Data)
		}
	}
}

// checkAlert waits for the alert of the question that the agent asks.
func checkAlert(t *testing.T, log *eventlog.Log) {
	t.Helper()
	alerts, err := log.JetStream().Stream(t.Context(), log.Names().AlertsStream())
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the alert", func() bool {
		info, err := alerts.Info(t.Context(), jetstream.WithSubjectFilter(log.Names().RunAlerts(runID)))
		if err != nil {
			t.Fatal(err)
		}
		for subject := range info.State.Subjects {
			msg, err := alerts.GetLastMsgForSubject(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(msg.Data, []byte("which database?")) {
				return true
			}
		}
		return false
	})
}

// A run of a later version can be exported by this one, and imported again.
func TestExportAndImport(t *testing.T) {
	from, to := logtest.Start(t), logtest.Start(t)
	events := load(t)
	store(t, from, events)
	var file bytes.Buffer
	if _, err := export.JSONL(&file, export.Run{ID: runID, Incarnation: from.Incarnation()}, from.Read(t.Context(), eventlog.Query{Run: runID}), nil); err != nil {
		t.Fatal(err)
	}
	im, err := export.Restore(t.Context(), to, bytes.NewReader(file.Bytes()), nil)
	if err != nil || im.Added != len(events) {
		t.Fatalf("%+v, %v", im, err)
	}
	i := 0
	for entry, err := range to.Read(t.Context(), eventlog.Query{Run: runID}) {
		if err != nil || entry.Err != nil {
			t.Fatal(err, entry.Err)
		}
		want := decode(t, events[i].data)
		if start, ok := want.Payload.(*wire.FlowStart); ok {
			start.Imported = "import" // so that nobody goes on with it
		}
		if d := cmp.Diff(want, entry.Event); d != "" {
			t.Errorf("event %d is imported as another (-was +is):\n%s", i, d)
		}
		i++
	}
	if i != len(events) {
		t.Errorf("%d events of %d", i, len(events))
	}
}

func same(t *testing.T, what string, want, got *wire.State) {
	t.Helper()
	a, err := wire.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	b, err := wire.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("the %s isn't the fold of the log (-fold +%s):\n%s", what, what, cmp.Diff(want, got))
	}
}

func ask[R any](t *testing.T, log *eventlog.Log, verb string, request any) R {
	t.Helper()
	r, err := api.Call[R](t.Context(), log.Conn(), log.Names(), verb, request)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited for %s", what)
		}
	}
}
