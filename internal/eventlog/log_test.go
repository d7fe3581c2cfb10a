package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// setUp makes the streams as `wake init` does.
func setUp(t testing.TB, nc *nats.Conn, c topology.Config) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, c); err != nil {
		t.Fatal(err)
	}
}

// process is a log that runs, as in a process of its own.
type process struct {
	*eventlog.Log
	t    testing.TB
	stop func() error
}

// start opens the log and runs it until the test ends or stop is called.
func start(t testing.TB, nc *nats.Conn, o eventlog.Options) process {
	t.Helper()
	if testing.Verbose() && o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	log, err := eventlog.Open(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	stopped := false
	stop := sync.OnceValue(func() error {
		stopped = true
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if !stopped && stop() != nil {
			t.Errorf("Run: %v", stop())
		}
	})
	return process{Log: log, t: t, stop: stop}
}

// one starts a server with the streams of wake and a process on it.
func one(t testing.TB, o eventlog.Options) process {
	t.Helper()
	nc := natstest.Start(t)
	setUp(t, nc, topology.Config{})
	return start(t, nc, o)
}

func (p process) claim(run, node string) *eventlog.Writer {
	p.t.Helper()
	w, err := p.Claim(p.t.Context(), run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

func text(s string) *wire.Event  { return &wire.Event{Payload: &wire.AgentText{Content: s}} }
func delta(s string) *wire.Event { return &wire.Event{Payload: &wire.AgentTextDelta{Content: s}} }

func appendTo(t testing.TB, w *eventlog.Writer, events ...*wire.Event) uint64 {
	t.Helper()
	pos, err := w.Append(t.Context(), events...)
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

// read returns the selected entries as "run/node seq epoch content".
func (p process) read(q eventlog.Query) []string {
	p.t.Helper()
	var lines []string
	for e, err := range p.Read(p.t.Context(), q) {
		if err != nil {
			p.t.Fatal(err)
		}
		lines = append(lines, entryLine(e))
	}
	return lines
}

func entryLine(e eventlog.Entry) string {
	if e.Event == nil {
		return fmt.Sprintf("%s %v", e.Subject, e.Err)
	}
	s := fmt.Sprintf("%s/%s %d.%d %s", e.RunID, e.NodeID, e.Event.Epoch, e.Event.Seq, e.Event.Type())
	switch p := e.Event.Payload.(type) {
	case *wire.AgentText:
		s += " " + p.Content
	case *wire.AgentTextDelta:
		s += " " + p.Content
	}
	return s
}

func equal(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("%s:\n%s\nwant:\n%s", what, g, w)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r1", "coder")
	e := text("a")
	if pos := appendTo(t, w, e); pos != 2 {
		t.Errorf("position %d, want 2", pos)
	}
	if e.RunID != "r1" || e.NodeID != "coder" || e.Seq != 2 || e.Epoch != 1 || e.Timestamp == 0 {
		t.Errorf("the event is stamped %s/%s %d.%d at %d", e.RunID, e.NodeID, e.Epoch, e.Seq, e.Timestamp)
	}
	if pos := appendTo(t, w, text("b"), delta("c"), text("d")); pos != 5 {
		t.Errorf("position %d, want 5", pos)
	}
	if seq, pos := w.Last(); seq != 5 || pos != 5 {
		t.Errorf("last is %d at %d, want 5 at 5", seq, pos)
	}
	equal(t, "the log", p.read(eventlog.Query{}),
		"r1/coder 1.1 node:claimed",
		"r1/coder 1.2 agent:text a",
		"r1/coder 1.3 agent:text b",
		"r1/coder 1.4 agent:text:delta c",
		"r1/coder 1.5 agent:text d",
	)
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r1", "coder")
	want := []string{"r1/coder 1.1 node:claimed"}
	for i := range 2500 {
		if err := w.Enqueue(t.Context(), delta(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("r1/coder 1.%d agent:text:delta %d", i+2, i))
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "the log", p.read(eventlog.Query{Run: "r1", Node: "coder"}), want...)
	if err := w.Enqueue(t.Context(), delta("x")); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("Enqueue after Close: %v, want ErrClosed", err)
	}
}

func TestReadSelects(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	a, b, other := p.claim("r1", "a"), p.claim("r1", "b"), p.claim("r2", "a")
	for i := range 3 {
		appendTo(t, a, text(fmt.Sprint("a", i)))
		appendTo(t, b, delta(fmt.Sprint("b", i)))
		appendTo(t, other, text(fmt.Sprint("o", i)))
	}
	for _, test := range []struct {
		q    eventlog.Query
		want string
	}{
		{eventlog.Query{Run: "r1", Node: "a"}, "claimed a0 a1 a2"},
		{eventlog.Query{Run: "r1", Kinds: []wire.Kind{wire.KindText, wire.KindDelta}}, "a0 b0 a1 b1 a2 b2"},
		{eventlog.Query{Kinds: []wire.Kind{wire.KindText}}, "a0 o0 a1 o1 a2 o2"},
		{eventlog.Query{Run: "r1", Node: "a", Kinds: []wire.Kind{wire.KindText}, From: 5}, "a1 a2"},
		{eventlog.Query{From: 5, To: 8}, "b0 o0 a1 b1"},
		{eventlog.Query{Run: "r3"}, ""},
	} {
		var got []string
		for _, l := range p.read(test.q) {
			l = strings.TrimSuffix(l, " node:claimed")
			last := l[strings.LastIndexByte(l, ' ')+1:]
			if strings.Contains(last, ".") {
				last = "claimed"
			}
			got = append(got, last)
		}
		if g := strings.Join(got, " "); g != test.want {
			t.Errorf("%+v: %s, want %s", test.q, g, test.want)
		}
	}
}

// Where no replica answers direct gets, the leader does.
func TestReadFromTheLeader(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	for i := range 1200 {
		if err := w.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.withStream(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
	p.texts("r", "n", 1200)
}

// A reader whose server is gone waits for it, and has nothing to give meanwhile.
func TestReadFromNoLeader(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{MaxBackoff: 20 * time.Millisecond})
	w := a.claim("r", "n")
	enqueue(t, w, 0, 50)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.withStream(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var positions []uint64
	var end error
	for e, err := range a.Read(ctx, eventlog.Query{Run: "r"}) {
		if end = err; err != nil {
			break
		}
		if positions = append(positions, e.Pos); len(positions) == 20 {
			a.server.Stop()
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		if len(positions) > 30 {
			break
		}
	}
	if len(positions) != 20 || positions[19] != 20 || !errors.Is(end, context.Canceled) || ctx.Err() == nil {
		t.Errorf("it gave the positions %v and ended by %v", positions, end)
	}
}

// Whether a run has gone on is unknown, not denied, where the log can't be read.
func TestGoesOnIsUnknown(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{MaxBackoff: 20 * time.Millisecond})
	a.claim("r", wire.RunNode)
	a.server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if on, err := eventlog.GoesOn(ctx, a, "r", 1, 1); on || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it goes on: %t, %v", on, err)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r1", "a")
	appendTo(t, w, text("1"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next := uint64(1)
	for e, err := range p.Follow(ctx, eventlog.Query{Run: "r1"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Pos != next {
			t.Fatalf("position %d, want %d", e.Pos, next)
		}
		if next++; next == 50 {
			break
		}
		if next > 2 {
			appendTo(t, w, text(fmt.Sprint(next)))
		}
	}
	if next != 50 {
		t.Errorf("followed up to %d", next)
	}
}

func TestConsume(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r1", "a")
	for i := range 99 {
		appendTo(t, w, text(fmt.Sprint(i)))
	}
	consume := func(from, to uint64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c := eventlog.Consumer{Durable: "recorder", From: wire.Position{Incarnation: p.Incarnation(), Seq: from}, Batch: 7}
		next := from + 1
		err := p.Consume(ctx, c, func(_ context.Context, entries []eventlog.Entry) error {
			for _, e := range entries {
				if e.Pos != next {
					t.Errorf("position %d, want %d", e.Pos, next)
				}
				next++
			}
			if next > to {
				cancel()
			}
			return nil
		})
		if err != nil || next <= to {
			t.Errorf("consumed up to %d, want %d: %v", next-1, to, err)
		}
	}
	consume(0, 60)
	consume(50, 100) // what was saved counts, not what was acknowledged
	consume(0, 100)
}
