package api_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// serve answers log, status and runs on nc until the test ends, and returns
// what ends it earlier and what it logs.
func serve(t *testing.T, nc *nats.Conn) (stop func(), logged *logtest.Output) {
	t.Helper()
	logged = new(logtest.Output)
	s := api.Service{
		Name:   "recorder",
		Logger: slog.New(slog.NewTextHandler(logged, nil)),
		Away: func(err error) string {
			if errors.Is(err, errAway) {
				return "its store is away"
			}
			return ""
		},
		Endpoints: []api.Endpoint{
			api.Handle(wire.VerbLog, "get_log", func(_ context.Context, q wire.LogRequest, f api.Form) (wire.LogResponse, error) {
				switch q.Run {
				case "missing":
					return wire.LogResponse{}, &wire.APIError{Code: wire.CodeRunNotFound, Message: "no run missing", Matches: []string{"a\r\nb"}}
				case "broken":
					return wire.LogResponse{}, errors.New("disk on fire at /secret")
				case "away":
					return wire.LogResponse{}, errAway
				case "leaderless":
					return wire.LogResponse{}, &jetstream.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}
				case "huge":
					return wire.LogResponse{Lines: []wire.LogLine{{Text: strings.Repeat("x", f.Limit+1000)}}}, nil
				}
				text := q.Run + q.AgentID + " " + string(q.Type) + " " + q.Grep
				return wire.LogResponse{TotalLines: int64(q.Since), ReturnedLines: 1, Lines: []wire.LogLine{{TS: 5, Type: wire.LineText, Text: text}}}, nil
			}).OfRun(),
			api.Handle(wire.VerbStatus, "status", func(_ context.Context, q wire.StatusRequest, _ api.Form) (wire.StatusResponse, error) {
				return wire.StatusResponse{AgentStatus: wire.AgentStatus{AgentID: q.Run, CostUsd: 0.34}, RunID: q.Run}, nil
			}),
			api.Handle(wire.VerbRuns, "", func(ctx context.Context, _ wire.RunsRequest, _ api.Form) (wire.RunsResponse, error) {
				<-ctx.Done()
				return wire.RunsResponse{}, ctx.Err()
			}),
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, nc) }()
	for {
		m, err := nc.RequestWithContext(t.Context(), "$SRV.INFO.wake-recorder", nil)
		if err == nil && strings.Contains(string(m.Data), `"wake.api.runs"`) {
			break
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop, logged
}

func ask(t *testing.T, nc *nats.Conn, verb, data string) *nats.Msg {
	t.Helper()
	m, err := nc.RequestWithContext(t.Context(), "wake.api."+verb, []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAnswersComeInKind(t *testing.T) {
	nc := natstest.Start(t)
	serve(t, nc)

	got, err := api.Call[wire.LogResponse](t.Context(), nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: "r1", Grep: "é", Since: 5})
	if err != nil {
		t.Fatal(err)
	}
	want := wire.LogResponse{TotalLines: 5, ReturnedLines: 1, Lines: []wire.LogLine{{TS: 5, Type: wire.LineText, Text: "r1  é"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("msgpack (-want +got):\n%s", diff)
	}

	for _, tt := range []struct{ verb, request, want string }{
		{"log", `{"run":"r1","since":"1h30m","type":"tool"}`, `{"bufferLines":0,"lines":[{"text":"r1 tool ","ts":5,"type":"text"}],"offset":0,"returnedLines":1,"totalLines":5400000}`},
		{"log", ``, `{"bufferLines":0,"lines":[{"text":"  ","ts":5,"type":"text"}],"offset":0,"returnedLines":1,"totalLines":0}`},
		{
			"log", `{"type":"command","requestId":"7","action":"get_log","params":{"agentId":"sentinella","offset":0,"limit":50,"grep":"error|fail","since":300000,"type":"tool"}}`,
			`{"requestId":"7","result":{"bufferLines":0,"lines":[{"text":"sentinella tool error|fail","ts":5,"type":"text"}],"offset":0,"returnedLines":1,"totalLines":300000},"type":"response"}`,
		},
		{"log", `{"type":"command","action":"get_log"}`, `{"result":{"bufferLines":0,"lines":[{"text":"  ","ts":5,"type":"text"}],"offset":0,"returnedLines":1,"totalLines":0},"type":"response"}`},
		{"log", `{"run":"missing"}`, `{"error":{"code":"RUN_NOT_FOUND","matches":["a\r\nb"],"message":"no run missing"}}`},
		{"log", `{"type":"command","requestId":"8","action":"get_log","params":{"run":"missing"}}`, `{"error":{"code":"RUN_NOT_FOUND","matches":["a\r\nb"],"message":"no run missing"},"requestId":"8","type":"response"}`},
		{"log", `{"type":"command","action":"kill_cc"}`, `{"error":{"code":"BAD_REQUEST","message":"\"kill_cc\" is no action of wake.api.log"},"type":"response"}`},
		{"log", `{"run":"huge"}`, `{"error":{"code":"TOO_LARGE","hint":"ask for less, by limit or filters","message":"the answer has 1048652 bytes, a message at most 1047552"}}`},
	} {
		if got := string(ask(t, nc, tt.verb, tt.request).Data); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.request, got, tt.want)
		}
	}
}

func TestAStatusIsFlat(t *testing.T) {
	nc := natstest.Start(t)
	serve(t, nc)
	got := string(ask(t, nc, "status", `{"run":"r1"}`).Data)
	for _, field := range []string{`"agentId":"r1"`, `"costUsd":0.34`, `"runId":"r1"`, `"lastActivityAge":""`} {
		if !strings.Contains(got, field) {
			t.Errorf("no %s in %s", field, got)
		}
	}
	s, err := api.Call[wire.StatusResponse](t.Context(), nc, subjects.Default, wire.VerbStatus, wire.StatusRequest{Run: "r2"})
	if err != nil || s.AgentID != "r2" || s.CostUsd != 0.34 {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	nc := natstest.Start(t)
	serve(t, nc)
	for name, request := range map[string]string{
		"cut off":         `{"run":`,
		"trailing":        `{} {}`,
		"wrong type":      `{"run":5}`,
		"span":            `{"since":"yesterday"}`,
		"negative":        `{"since":-5}`,
		"span kind":       `{"since":[]}`,
		"fraction":        `{"limit":1.5}`,
		"not a map":       "\x93\x01\x02\x03",
		"half a map":      "\x81\xa3run",
		"extension":       "\x81\xa3run\xd4\x01\x01",
		"text":            "hello",
		"odd envelope":    `{"type":"command","action":5}`,
		"long request id": `{"type":"command","action":"get_log","requestId":"` + strings.Repeat("x", 600) + `"}`,
	} {
		m := ask(t, nc, "log", request)
		if code := m.Header.Get(micro.ErrorCodeHeader); code != "BAD_REQUEST" {
			t.Errorf("%s: code %q: %s", name, code, m.Data)
		}
	}
	m := ask(t, nc, "log", `{"run":"`+strings.Repeat("x", api.MaxRequest)+`"}`)
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "TOO_LARGE" {
		t.Errorf("code %q: %s", code, m.Data)
	}
}

func TestErrorsOfTheServiceAreLoggedAndNotTold(t *testing.T) {
	nc := natstest.Start(t)
	_, logged := serve(t, nc)
	_, err := api.Call[wire.LogResponse](t.Context(), nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: "broken"})
	if code(err) != wire.CodeInternal || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(logged.String(), "disk on fire") {
		t.Errorf("logged %q", logged)
	}
}

var errAway = errors.New("no connection to /secret")

// What isn't there at the moment is told as that, and isn't a failure that only a log explains.
func TestWhatIsAwayIsTold(t *testing.T) {
	nc := natstest.Start(t)
	_, logged := serve(t, nc)
	for run, want := range map[string]string{
		"away":       "the recorder can't answer: its store is away",
		"leaderless": "the recorder can't answer: no NATS server leads what it reads at the moment",
	} {
		_, err := api.Call[wire.LogResponse](t.Context(), nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: run})
		if code(err) != wire.CodeUnreachable || err.Error() != want {
			t.Errorf("%s: got %v", run, err)
		}
	}
	if logged.String() != "" {
		t.Errorf("logged %q", logged)
	}
}

func code(err error) wire.ErrorCode {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return e.Code
	}
	return ""
}

func TestNobodyAnswers(t *testing.T) {
	nc := natstest.Start(t)
	_, err := api.Call[wire.LogResponse](t.Context(), nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: "r"})
	if code(err) != wire.CodeUnreachable || err.Error() != "no recorder answers wake.api.log" {
		t.Errorf("got %v", err)
	}
	_, err = api.Call[wire.SnapshotResponse](t.Context(), nc, subjects.Default, wire.VerbSnapshot, wire.SnapshotRequest{Run: "r"})
	if code(err) != wire.CodeUnreachable || !strings.Contains(err.Error(), "snapshotter") {
		t.Errorf("got %v", err)
	}
	nc.Close()
	if _, err = api.Call[wire.RunsResponse](t.Context(), nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{}); code(err) != wire.CodeUnreachable {
		t.Errorf("got %v", err)
	}
}

func TestNoAnswerInTime(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		stop, _ := serve(t, nc)
		start := time.Now()
		_, err := api.Call[wire.RunsResponse](t.Context(), nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{})
		if took := time.Since(start); code(err) != wire.CodeTimeout || took != api.MaxWork {
			t.Errorf("the service's limit: got %v after %s", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = api.Call[wire.RunsResponse](ctx, nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{})
		if code(err) != wire.CodeTimeout || !strings.Contains(err.Error(), "within 500ms") {
			t.Errorf("the caller's limit: got %v", err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err = api.Call[wire.RunsResponse](cancelled, nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
		stop()
		nc.Close()
	})
}

func TestRunWaitsForWhatIsBeingAnswered(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		stop, _ := serve(t, nc)
		asked := make(chan error, 1)
		go func() {
			_, err := api.Call[wire.RunsResponse](t.Context(), nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{})
			asked <- err
		}()
		synctest.Wait()
		stop()
		if err := <-asked; code(err) != wire.CodeUnreachable || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("got %v", err)
		}
		nc.Close()
	})
}

func TestOtherPrefixesAreOtherServices(t *testing.T) {
	nc := natstest.Start(t)
	serve(t, nc)
	other, err := subjects.New("acme.wake")
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.Call[wire.LogResponse](t.Context(), nc, other, wire.VerbLog, wire.LogRequest{Run: "r"})
	if code(err) != wire.CodeUnreachable {
		t.Errorf("got %v", err)
	}
}

// Requests for what takes much memory are answered a few at once; one for which no room comes is told so, and one whose answer is too
// large what to do instead.
func TestBound(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		room, free := make(chan struct{}, 1), make(chan struct{})
		s := api.Service{Name: "recorder", Logger: slog.New(slog.DiscardHandler), Endpoints: []api.Endpoint{
			api.Hold(wire.VerbDiff, func(_ context.Context, q wire.DiffRequest, f api.Form) (wire.DiffResponse, error) {
				if q.Run == "held" {
					<-free
				}
				return wire.DiffResponse{A: wire.DiffRun{RunID: strings.Repeat("x", f.Limit+1000)}}, nil
			}).Bound(room).Instead("use wake diff"),
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, nc) }()
		synctest.Wait()
		ask := func(run string) error {
			_, err := api.Call[wire.DiffResponse](t.Context(), nc, subjects.Default, wire.VerbDiff, wire.DiffRequest{Run: run})
			return err
		}
		go func() { _ = ask("held") }()
		synctest.Wait()
		if err := ask("second"); code(err) != wire.CodeBusy {
			t.Errorf("beside another one: %v", err)
		}
		close(free)
		synctest.Wait()
		if e, ok := errors.AsType[*wire.APIError](ask("third")); !ok || e.Code != wire.CodeTooLarge || e.Hint != "use wake diff" {
			t.Errorf("too large: %+v", e)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		nc.Close()
	})
}
