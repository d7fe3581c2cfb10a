package recorder_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/natstest"
	"wake/internal/topology"
	"wake/pkg/subjects"
	"wake/pkg/wire"
	"wake/services/recorder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plant is a server with a log and whoever writes into it.
type plant struct {
	t   *testing.T
	nc  *nats.Conn
	log *eventlog.Log
	dir string
}

// newPlant sets up a server. The log runs until the test ends.
func newPlant(t *testing.T) *plant {
	t.Helper()
	nc := natstest.Start(t)
	p := &plant{t: t, nc: nc, dir: t.TempDir()}
	p.init()
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.log = log
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		nc.Close()
	})
	return p
}

func (p *plant) init() {
	p.t.Helper()
	js, err := jetstream.New(p.nc)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := topology.Init(p.t.Context(), js, topology.Config{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) path() string { return filepath.Join(p.dir, "recorder.db") }

// record runs a recorder until stop is called.
func (p *plant) record(c recorder.Config) (stop func() error) {
	p.t.Helper()
	if c.Path == "" {
		c.Path = p.path()
	}
	r, err := recorder.New(c, p.log, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	p.t.Cleanup(func() {
		if err := stop(); err != nil {
			p.t.Error(err)
		}
	})
	return stop
}

// until returns when position pos is recorded. In a bubble it takes no time.
func (p *plant) until(pos uint64) {
	p.t.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		r, err := api.Call[wire.EventsResponse](p.t.Context(), p.nc, subjects.Default, wire.VerbEvents, wire.EventsRequest{From: pos, Limit: 1, Void: true})
		if e, ok := errors.AsType[*wire.APIError](err); ok && e.Code == wire.CodeUnreachable {
			continue
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if len(r.Events) > 0 {
			tick.Stop()
			return
		}
	}
}

// claim makes the test the writer of a node.
func (p *plant) claim(run, node string) *eventlog.Writer {
	p.t.Helper()
	w, err := p.log.Claim(p.t.Context(), run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

// write appends events of a node.
func (p *plant) write(w *eventlog.Writer, events ...*wire.Event) (pos uint64) {
	p.t.Helper()
	for _, e := range events {
		e.Timestamp = time.Now().UnixMilli()
	}
	pos, err := w.Append(p.t.Context(), events...)
	if err != nil {
		p.t.Fatal(err)
	}
	return pos
}

func text(content string) *wire.Event { return &wire.Event{Payload: &wire.AgentText{Content: content}} }

func (p *plant) lines(run string) []string {
	p.t.Helper()
	r, err := api.Call[wire.LogResponse](p.t.Context(), p.nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: run, Limit: new(1000)})
	if err != nil {
		p.t.Fatal(err)
	}
	return texts(r.Lines)
}

func texts(lines []wire.LogLine) []string {
	list := []string{}
	for _, l := range lines {
		list = append(list, string(l.Type)+" "+l.Text)
	}
	return list
}

func TestWhatIsAppendedIsRecorded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		w := p.claim("r1", "coder")
		p.until(p.write(w, text("one"), text("two")))
		if diff := cmp.Diff([]string{"text one", "text two"}, p.lines("r1")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
