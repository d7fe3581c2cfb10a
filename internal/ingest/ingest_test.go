package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func openLog(t *testing.T) *eventlog.Log {
	t.Helper()
	nc := natstest.Start(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return log
}

// fold returns the state of a run and its events.
func fold(t testing.TB, log *eventlog.Log, id string) (*wire.State, []*wire.Event) {
	t.Helper()
	s := run.New(id)
	var events []*wire.Event
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Err != nil {
			t.Fatalf("at %d: %v", e.Pos, e.Err)
		}
		if err := run.Apply(s, wire.Position{Incarnation: log.Incarnation(), Seq: e.Pos}, e.Event); err != nil {
			t.Errorf("fold: %v", err)
		}
		events = append(events, e.Event)
	}
	return s, events
}

// Every recording becomes a run that folds without a complaint and has ended.
func TestRecordings(t *testing.T) {
	log := openLog(t)
	files, err := filepath.Glob("../agent/claude/testdata/*/*.jsonl")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			id := strings.NewReplacer("/", "-", ".", "-").Replace(t.Name())
			res, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"})
			if err != nil {
				t.Fatal(err)
			}
			want := ingest.StreamJSON
			if strings.Contains(file, "transcript") {
				want = ingest.Transcript
			}
			if res.Format != want {
				t.Errorf("read as %s", res.Format)
			}
			state, events := fold(t, log, id)
			if state.Status != wire.RunComplete || (state.Result == wire.FlowStatusFailed) != res.Failed {
				t.Errorf("run is %s, %s; result %+v", state.Status, state.Result, res)
			}
			if len(state.Tools) > 0 || len(events) < res.Events {
				t.Errorf("%d calls are open, %d events of %d", len(state.Tools), len(events), res.Events)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	log := openLog(t)
	o := ingest.Options{RunID: "r1", Runner: "test"}
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(" \n\n"), o); !errors.Is(err, ingest.ErrEmpty) {
		t.Errorf("empty input: %v", err)
	}
	o.Format = "yaml"
	if _, err := ingest.Run(t.Context(), log, strings.NewReader("x\n"), o); err == nil || !strings.Contains(err.Error(), "yaml") {
		t.Errorf("unknown format: %v", err)
	}
	o.Format = ingest.Auto
	if _, err := ingest.Run(t.Context(), log, strings.NewReader("not json\n{\"type\":\"new\"}\n"), o); err != nil {
		t.Fatal(err)
	}
	_, events := fold(t, log, "r1")
	kept := 0
	for _, e := range events {
		if e.Type() == wire.TypeRaw {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("%d of 2 lines were kept", kept)
	}
	if _, err := ingest.Run(t.Context(), log, strings.NewReader("{}\n"), o); !errors.Is(err, ingest.ErrExists) {
		t.Errorf("same run twice: %v", err)
	}
}

type broken struct{ io *strings.Reader }

func (b broken) Read(p []byte) (int, error) {
	if b.io.Len() == 0 {
		return 0, errors.New("cable pulled")
	}
	return b.io.Read(p)
}

// An input that breaks off is kept and its run has failed.
func TestBreaksOff(t *testing.T) {
	log := openLog(t)
	in := broken{strings.NewReader(`{"type":"system","subtype":"init","session_id":"s1"}` + "\n")}
	_, err := ingest.Run(t.Context(), log, in, ingest.Options{RunID: "r1", Runner: "test"})
	if err == nil || !strings.Contains(err.Error(), "cable pulled") {
		t.Errorf("error is %v", err)
	}
	state, _ := fold(t, log, "r1")
	if state.Result != wire.FlowStatusFailed || state.AgentSessions["agent"] != "s1" {
		t.Errorf("run ended as %s, session %q", state.Result, state.AgentSessions["agent"])
	}
}

// The events of a live stream are stored while it goes on, and a stream that
// stands still can be left.
func TestLive(t *testing.T) {
	log := openLog(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	done := make(chan error, 1)
	go func() {
		_, err := ingest.Run(ctx, log, r, ingest.Options{RunID: "r1", Runner: "test"})
		done <- err
	}()
	if _, err := io.WriteString(w, `{"type":"system","subtype":"init","session_id":"s1"}`+"\n"+
		`{"type":"assistant","session_id":"s1","message":{"id":"m1","content":[{"type":"text","text":"Hello."}]}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for e, err := range log.Follow(t.Context(), eventlog.Query{Run: "r1"}) {
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := e.Event.Payload.(*wire.AgentText); ok && p.Content == "Hello." {
			break
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if state, _ := fold(t, log, "r1"); state.Result != wire.FlowStatusFailed {
		t.Errorf("run ended as %s", state.Result)
	}
}

func TestDetect(t *testing.T) {
	log := openLog(t)
	for i, test := range []struct {
		line string
		want ingest.Format
	}{
		{`{"type":"queue-operation","sessionId":"s1"}`, ingest.Transcript},
		{`{"parentUuid":null,"type":"user","message":{"content":"x"}}`, ingest.Transcript},
		{`{"type":"summary","leafUuid":"u"}`, ingest.Transcript},
		{`{"type":"control_response","response":{}}` + "\n" + `{"type":"system","session_id":"s1"}`, ingest.StreamJSON},
		{`{"type":"control_request","request_id":"q"}`, ingest.StreamJSON},
		{`{"type":"thread.started","thread_id":"t"}`, ingest.Codex},
		{"// a comment\n" + `{"type":"assistant","sessionId":"s1"}`, ingest.Transcript},
	} {
		res, err := ingest.Run(t.Context(), log, strings.NewReader(test.line), ingest.Options{RunID: fmt.Sprint("r", i), Runner: "test"})
		if err != nil || res.Format != test.want {
			t.Errorf("%s read as %s, %v; want %s", test.line, res.Format, err, test.want)
		}
	}
}

// A stream tells what its program asks about, and not who answered what: that a call
// which was asked about was executed tells it.
func TestAskedElsewhere(t *testing.T) {
	data, err := os.ReadFile("../agent/claude/testdata/stream/tools.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	const call = "toolu_01ws4sBDBiYuo8kvq8AS06xJ"
	const question = `{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"` + call + `"}}`
	var stream strings.Builder
	asked := false
	for line := range strings.Lines(string(data)) {
		stream.WriteString(line)
		if !asked && strings.HasPrefix(line, `{"type":"assistant"`) && strings.Contains(line, call) {
			stream.WriteString(question + "\n")
			asked = true
		}
	}
	log := openLog(t)
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(stream.String()), ingest.Options{RunID: "asked", Runner: "test"}); err != nil || !asked {
		t.Fatal(asked, err)
	}
	s, events := fold(t, log, "asked")
	var told []wire.Type
	for _, e := range events {
		if e.CallID == call {
			told = append(told, e.Type())
		}
	}
	want := []wire.Type{wire.TypeToolIntent, wire.TypePermissionRequired, wire.TypePermissionDecided, wire.TypeToolState, wire.TypeAgentTool}
	if s.Usage.ToolCalls != 9 || !slices.Equal(told, want) {
		t.Errorf("%d calls, %v", s.Usage.ToolCalls, told)
	}
}
