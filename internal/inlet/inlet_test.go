package inlet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// gate is a log and a server of it.
type gate struct {
	*testing.T
	log   *eventlog.Log
	stop  func()
	waits int // how often a sender was told that the runner doesn't get on
}

func open(t *testing.T) *gate {
	t.Helper()
	g := &gate{T: t, log: logtest.Start(t)}
	g.serveInputs()
	return g
}

// serveInputs begins to take inputs.
func (g *gate) serveInputs() {
	t := g.T
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- inlet.NewServer(g.log, t.TempDir(), nil, slog.New(slog.DiscardHandler)).Run(ctx) }()
	g.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	synctest.Wait()
}

func (g *gate) send(ctx context.Context, q wire.IngestRequest, in io.Reader, result any) error {
	return inlet.Send(ctx, g.log.Conn(), subjects.Default, q, inlet.Input{Reader: in, Waits: func() { g.waits++ }}, result)
}

// last returns the last event of a run.
func (g *gate) last(run string) wire.Payload {
	g.Helper()
	e, found, err := g.log.Last(context.WithoutCancel(g.Context()), run, wire.RunNode)
	if err != nil || !found {
		g.Fatalf("run %s: %v", run, err)
	}
	return e.Event.Payload
}

func stream(lines int) string {
	var b strings.Builder
	b.WriteString(`{"type":"system","subtype":"init","cwd":"/work","session_id":"5e551011-0000-4000-8000-000000000001","tools":["Bash"],"model":"m","permissionMode":"default","uuid":"u0"}` + "\n")
	for i := range lines {
		fmt.Fprintf(&b, `{"type":"assistant","session_id":"5e551011-0000-4000-8000-000000000001","uuid":"u%d","message":{"id":"m%d","role":"assistant","content":[{"type":"text","text":"%s"}]}}`+"\n", i+1, i, strings.Repeat("word ", 100))
	}
	return b.String()
}

func agent(run string) wire.IngestRequest {
	return wire.IngestRequest{Format: string(ingest.StreamJSON), Run: run, Node: "coder"}
}

func code(err error) wire.ErrorCode {
	e, _ := errors.AsType[*wire.APIError](err)
	if e == nil {
		return ""
	}
	return e.Code
}

// TestSend: an input of many pieces becomes what it becomes here, and an exported run the
// run that it was.
func TestSend(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		text := stream(2000)
		var here, there ingest.Result
		here, err := ingest.Run(t.Context(), g.log, strings.NewReader(text), ingest.Options{RunID: "here", NodeID: "coder", Format: ingest.StreamJSON, Runner: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.send(t.Context(), agent("there"), strings.NewReader(text), &there); err != nil {
			t.Fatal(err)
		}
		if there.Lines != here.Lines || there.Events != here.Events || there.Failed != here.Failed || there.Lines != 2001 {
			t.Errorf("here %+v, there %+v", here, there)
		}
		if err := g.send(t.Context(), agent("there"), strings.NewReader(text), &there); code(err) != inlet.CodeRunExists {
			t.Errorf("twice: %v", err)
		}
		var file bytes.Buffer
		if _, err := export.JSONL(&file, export.Run{ID: "there"}, g.log.Read(t.Context(), eventlog.Query{Run: "there"}), nil); err != nil {
			t.Fatal(err)
		}
		var im export.Import
		if err := g.send(t.Context(), wire.IngestRequest{Format: string(inlet.Exported)}, &file, &im); err != nil || im.RunID != "there" || im.Added != 0 || im.Events < 2000 {
			t.Errorf("%+v, %v", im, err)
		}
		if err := g.send(t.Context(), wire.IngestRequest{Format: string(inlet.Exported)}, strings.NewReader("{}\n"), &im); code(err) != wire.CodeCorruptedData {
			t.Errorf("no export: %v", err)
		}
		for _, q := range []wire.IngestRequest{{Format: "novel"}, {Format: string(ingest.StreamJSON)}, {Format: string(ingest.Transcript), Run: "r", Node: "_run"}, {Format: string(ingest.Kahn), Run: "_"}} {
			if err := g.send(t.Context(), q, strings.NewReader(text), &there); code(err) != wire.CodeBadRequest {
				t.Errorf("%+v: %v", q, err)
			}
		}
	})
}

// TestNotWhole: what was read of an input that isn't whole is kept, and its run has failed:
// when its sender ends it, when that is gone, and when the server ends.
func TestNotWhole(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		g.interrupt("ended")
		begun, err := api.Call[wire.IngestResponse](t.Context(), g.log.Conn(), subjects.Default, wire.VerbIngest, agent("gone"))
		if err != nil {
			t.Fatal(err)
		}
		g.put(begun, wire.IngestPiece{Data: []byte(stream(3))})
		<-time.After(3 * time.Minute)
		g.failed("gone")
		if _, err := api.CallAt[wire.IngestProgress](t.Context(), g.log.Conn(), subjects.Default, begun.Subject, "piece", wire.IngestPiece{Session: begun.Session}); code(err) != wire.CodeNotFound {
			t.Errorf("it is remembered: %v", err)
		}
		if begun, err = api.Call[wire.IngestResponse](t.Context(), g.log.Conn(), subjects.Default, wire.VerbIngest, agent("server")); err != nil {
			t.Fatal(err)
		}
		g.put(begun, wire.IngestPiece{Data: []byte(stream(3))})
		<-time.After(time.Second)
		g.stop()
		g.failed("server")
	})
}

// interrupt sends an input whose sender ends it.
func (g *gate) interrupt(run string) {
	g.Helper()
	ctx, cancel := context.WithCancel(g.Context())
	r, w := io.Pipe()
	defer w.Close()
	done := make(chan error, 1)
	go func() {
		var result ingest.Result
		done <- g.send(ctx, agent(run), r, &result)
	}()
	if _, err := io.WriteString(w, stream(3)); err != nil {
		g.Fatal(err)
	}
	<-time.After(5 * time.Minute) // a sender that has nothing to send isn't gone
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		g.Errorf("%s: %v", run, err)
	}
	g.failed(run)
}

func (g *gate) put(to wire.IngestResponse, q wire.IngestPiece) wire.IngestProgress {
	g.Helper()
	q.Session = to.Session
	p, err := api.CallAt[wire.IngestProgress](g.Context(), g.log.Conn(), subjects.Default, to.Subject, "piece", q)
	if err != nil {
		g.Fatal(err)
	}
	return p
}

func (g *gate) failed(run string) {
	g.Helper()
	if p, ok := g.last(run).(*wire.FlowComplete); !ok || p.Status != wire.FlowStatusFailed {
		g.Errorf("%s: %+v", run, g.last(run))
	}
	n := 0
	for e, err := range g.log.Read(context.WithoutCancel(g.Context()), eventlog.Query{Run: run}) {
		if err != nil {
			g.Fatal(err)
		}
		if _, ok := e.Event.Payload.(*wire.AgentText); ok {
			n++
		}
	}
	if n != 3 {
		g.Errorf("%s has %d texts", run, n)
	}
}

// TestPieces: a piece that comes twice counts once, one that comes too early is refused, and
// an answer that was lost can be asked for again.
func TestPieces(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		begun, err := api.Call[wire.IngestResponse](t.Context(), g.log.Conn(), subjects.Default, wire.VerbIngest, agent("r"))
		if err != nil {
			t.Fatal(err)
		}
		text := []byte(stream(3))
		half := int64(len(text) / 2)
		for range 2 {
			if p := g.put(begun, wire.IngestPiece{Data: text[:half]}); p.Received != half || p.Done {
				t.Errorf("%+v", p)
			}
		}
		_, err = api.CallAt[wire.IngestProgress](t.Context(), g.log.Conn(), subjects.Default, begun.Subject, "piece", wire.IngestPiece{Session: begun.Session, Offset: half + 1})
		if code(err) != wire.CodeBadRequest {
			t.Errorf("too early: %v", err)
		}
		for range 2 {
			p := g.put(begun, wire.IngestPiece{Offset: half - 10, Data: text[half-10:], End: true})
			var r ingest.Result
			if err := wire.Unmarshal(p.Result, &r); err != nil || !p.Done || p.Problem != nil || p.Received != int64(len(text)) || r.Lines != 4 {
				t.Errorf("%+v, %+v, %v", p, r, err)
			}
		}
		for i := range 100 {
			_, err = api.Call[wire.IngestResponse](t.Context(), g.log.Conn(), subjects.Default, wire.VerbIngest, agent(fmt.Sprint("r", i)))
			if err != nil {
				break
			}
		}
		if code(err) != wire.CodeBusy {
			t.Errorf("as many as anybody likes: %v", err)
		}
	})
}

// A runner that can't store holds its sender up, which says so once, and not for longer than ten seconds when it is interrupted.
// What it was given is stored when it can be.
func TestStreamIsFull(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		limit := func(bytes int64) {
			t.Helper()
			logtest.Init(t, g.log.Conn(), topology.Config{MaxBytes: bytes})
		}
		limit(1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			var result ingest.Result
			done <- g.send(ctx, agent("full"), strings.NewReader(stream(3)), &result)
		}()
		<-time.After(time.Minute)
		if g.waits != 1 {
			t.Errorf("told %d times that it waits", g.waits)
		}
		cancel()
		interrupted := time.Now()
		if err := <-done; !errors.Is(err, inlet.ErrUnstored) {
			t.Errorf("interrupted: %v", err)
		}
		if took := time.Since(interrupted); took > time.Minute {
			t.Errorf("the interrupted sender went on for %v", took)
		}
		limit(-1)
		<-time.After(5 * time.Minute)
		if p, ok := g.last("full").(*wire.FlowComplete); !ok {
			t.Errorf("afterwards: %+v", p)
		}
	})
}

// A runner ends, as failed, the run of another runner that was killed while it read the input. A run whose runner is there goes on.
func TestReaderIsKilled(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		server, log := logtest.StartServer(t)
		nc := server.Conn(t)
		killed := &gate{T: t, log: logtest.Open(t, nc)}
		killed.serveInputs()
		begin := func(run string) wire.IngestResponse {
			t.Helper()
			to, err := api.Call[wire.IngestResponse](t.Context(), log.Conn(), subjects.Default, wire.VerbIngest, agent(run))
			if err != nil {
				t.Fatal(err)
			}
			return to
		}
		gone := begin("gone")
		g := &gate{T: t, log: log}
		g.serveInputs()
		g.put(gone, wire.IngestPiece{Data: []byte(stream(3))})
		kept, runs := gone, 0
		for kept.Subject == gone.Subject { // either of the two takes it
			runs++
			kept = begin(fmt.Sprint("kept", runs))
			g.put(kept, wire.IngestPiece{Data: []byte(stream(3))})
		}
		another, err := log.Claim(t.Context(), "another's", wire.RunNode, eventlog.Claim{Runner: "w"})
		if err == nil {
			_, err = another.Append(t.Context(), &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.RawOf(map[string]any{"nodes": []any{}}), DefinitionHash: "h"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := g.send(t.Context(), agent("another's"), strings.NewReader(stream(3)), new(ingest.Result)); code(err) != inlet.CodeRunExists {
			t.Errorf("an input for a run that there is: %v", err)
		}
		<-time.After(time.Second)
		nc.Close()
		for range 12 { // its sender is there
			<-time.After(5 * time.Second)
			g.put(kept, wire.IngestPiece{Offset: int64(len(stream(3)))})
		}
		g.failed("gone")
		if p, ended := g.last(fmt.Sprint("kept", runs)).(*wire.FlowComplete); ended {
			t.Errorf("the other's has ended: %+v", p)
		}
		killed.stop()
		if p, ended := g.last("another's").(*wire.FlowComplete); ended {
			t.Errorf("a run that isn't an input's has ended: %+v", p)
		}
		g.stop()
		g.failed(fmt.Sprint("kept", runs))
		js := log.JetStream()
		if all, err := keys.All(t.Context(), js, subjects.Default.StateBucket(), subjects.Default.ServiceStates("ingest")); err != nil || len(all) != 0 {
			t.Errorf("still read: %v, %v", all, err)
		}
	})
}

// A run that its writer has ended since another runner looked stays as it is.
func TestFailsNothingElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		ctx, run := t.Context(), "r"
		if err := g.send(ctx, agent(run), strings.NewReader(stream(3)), new(ingest.Result)); err != nil {
			t.Fatal(err)
		}
		var before eventlog.Message // that one has seen
		state := wire.State{RunID: run}
		for e, err := range g.log.Read(ctx, eventlog.Query{Run: run, Node: wire.RunNode}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Event.Type() == wire.TypeFlowComplete {
				break
			}
			before = eventlog.Message{Subject: e.Subject, Pos: e.Pos, Data: e.Data, Time: e.Time}
			state.Nodes = map[string]wire.NodeState{wire.RunNode: {Epoch: e.Event.Epoch, Seq: e.Event.Seq}}
		}
		_, end, err := g.log.Bounds(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := ingest.FailRun(ctx, g.log, &state, before, "w", "gone"); !errors.Is(err, eventlog.ErrFenced) {
			t.Errorf("FailRun: %v", err)
		}
		if _, now, err := g.log.Bounds(ctx); err != nil || now != end {
			t.Errorf("it has stored something: %d events before, %d now, %v", end, now, err)
		}
	})
}
