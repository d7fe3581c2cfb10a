package eventlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// The rules of writing. Each test also breaks its rule, by publishing past the
// package, to show that it would notice.

// request publishes what a careless publisher would and returns the server's
// answer.
func request(ctx context.Context, nc *nats.Conn, subject string, data []byte, headers ...string) (code int, err error) {
	m := nats.NewMsg(subject)
	m.Data = data
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	answer, err := nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Error struct {
			Code int `json:"err_code"`
		} `json:"error"`
	}
	return ack.Error.Code, json.Unmarshal(answer.Data, &ack)
}

// claimEvent is the claim of a careless publisher.
func claimEvent(t testing.TB, run, node string) []byte {
	t.Helper()
	return encoded(t, &wire.Event{RunID: run, NodeID: node, Seq: 1, Epoch: 1, Payload: &wire.NodeClaimed{Runner: "careless", Nonce: "x"}})
}

func encoded(t testing.TB, e *wire.Event) []byte {
	t.Helper()
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Rule 1: all expectations of a node are spelled alike. The server compares those
// that are in flight as strings: with two spellings both of two writers win.
func TestRule1OneSpelling(t *testing.T) {
	c := cluster(t)
	p := start(t, c.Conn(t), eventlog.Options{})
	rival := c.Conn(t)
	race := func(run string, spelling func(node string) string) (both int) {
		var racing sync.WaitGroup
		for i := range 200 {
			node := fmt.Sprint("n", i)
			data := claimEvent(t, run, node)
			racing.Go(func() {
				_, _ = request(soon(t), rival, subjects.Default.Event(run, node, "flow"), data,
					"Nats-Expected-Last-Subject-Sequence", "0", "Nats-Expected-Last-Subject-Sequence-Subject", spelling(node))
			})
			racing.Go(func() {
				if _, err := p.Claim(t.Context(), run, node, eventlog.Claim{Runner: "x"}); err != nil && !errors.Is(err, eventlog.ErrFenced) {
					t.Error(err)
				}
			})
			racing.Wait()
		}
		return violations(t, p, run)
	}
	if n := race("alike", func(node string) string { return subjects.Default.NodeEvents("alike", node) }); n != 0 {
		t.Errorf("with one spelling %d of 200 nodes have two writers", n)
	}
	n := race("other", func(node string) string {
		return strings.TrimSuffix(subjects.Default.NodeEvents("other", node), "*") + ">"
	})
	if n == 0 {
		t.Error("with two spellings no node has two writers: the test doesn't notice")
	}
	t.Logf("with two spellings %d of 200 nodes have two writers", n)
}

// violations counts the events of a run that follow another event than the one
// they were to follow.
func violations(t testing.TB, p process, run string) (n int) {
	t.Helper()
	s, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]uint64{}
	for e, err := range p.Read(t.Context(), eventlog.Query{Run: run}) {
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.GetMsg(t.Context(), e.Pos)
		if err != nil {
			t.Fatal(err)
		}
		if expected := m.Header.Get("Nats-Expected-Last-Subject-Sequence"); expected != "" && expected != strconv.FormatUint(last[e.NodeID], 10) {
			n++
		}
		last[e.NodeID] = e.Pos
	}
	return n
}

// Rule 2: what became of a publish whose acknowledgement was lost is read from
// the log. Who just repeats it stores it twice.
func TestRule2Reconcile(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	setUp(t, s.Conn(t), topology.Config{})
	var l line
	nc := l.conn(t, s)
	p := start(t, nc, eventlog.Options{Lanes: 1})
	witness := start(t, s.Conn(t), eventlog.Options{})
	w := p.claim("r", "n")
	// storedUnheard runs f on a deaf line until the log has n events, then cuts it.
	storedUnheard := func(n uint64, f func()) {
		t.Helper()
		l.deafen()
		var running sync.WaitGroup
		running.Go(f)
		for last := uint64(0); last < n; {
			_, last, _ = witness.Bounds(t.Context())
		}
		l.cut()
		running.Wait()
	}
	storedUnheard(2, func() {
		if pos := appendTo(t, w, text("alone")); pos != 2 {
			t.Errorf("position %d, want 2", pos)
		}
	})
	storedUnheard(5, func() {
		if pos := appendTo(t, w, text("1"), text("2"), text("3")); pos != 5 {
			t.Errorf("position %d, want 5", pos)
		}
	})
	// A rival claims the node while the writer doesn't know what it has stored: that
	// stays, the rest becomes dead letters, and nothing is both.
	storedUnheard(8, func() {
		var appending sync.WaitGroup
		defer appending.Wait()
		appending.Go(func() {
			if pos := appendTo(t, w, text("4"), text("5")); pos != 7 {
				t.Errorf("position %d, want 7", pos)
			}
		})
		for last := uint64(0); last < 7; {
			_, last, _ = witness.Bounds(t.Context())
		}
		if err := w.Enqueue(t.Context(), text("late")); err != nil {
			t.Error(err)
		}
		witness.claim("r", "n")
	})
	<-w.Fenced()
	equal(t, "the log", witness.read(eventlog.Query{}),
		"r/n 1.1 node:claimed",
		"r/n 1.2 agent:text alone",
		"r/n 1.3 agent:text 1",
		"r/n 1.4 agent:text 2",
		"r/n 1.5 agent:text 3",
		"r/n 1.6 agent:text 4",
		"r/n 1.7 agent:text 5",
		"r/n 2.8 node:claimed",
	)
	witness.deadLetters(1)

	careless := encoded(t, &wire.Event{RunID: "r", NodeID: "careless", Seq: 1, Epoch: 1, Payload: &wire.AgentText{Content: "x"}})
	storedUnheard(9, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, _ = request(ctx, nc, "wake.events.r.careless.text", careless)
	})
	for !nc.IsConnected() {
		<-time.After(time.Millisecond)
	}
	if _, err := request(soon(t), nc, "wake.events.r.careless.text", careless); err != nil {
		t.Fatal(err)
	}
	if n := len(witness.read(eventlog.Query{Run: "r", Node: "careless"})); n != 2 {
		t.Errorf("a careless repetition is stored %d times, want 2: the test doesn't notice", n)
	}
}

// Rule 3: too many open batches is a definite refusal. The events are held in
// order and stored later; none becomes a dead letter.
func TestRule3DefiniteRefusals(t *testing.T) {
	t.Parallel()
	s := natstest.New(t, func(o *server.Options) {
		o.JetStreamLimits.MaxBatchInflightPerStream = 1
		o.JetStreamLimits.MaxBatchTimeout = time.Second
	})
	nc := s.Conn(t)
	setUp(t, nc, topology.Config{})
	p := start(t, nc, eventlog.Options{Lanes: 2})
	w := p.claim("r", "n")

	// A client opens a batch and leaves it open.
	open := func(id string) int {
		m := nats.NewMsg("wake.events.x.y.text")
		m.Reply = nc.NewInbox()
		m.Header.Set("Nats-Batch-Id", id)
		m.Header.Set("Nats-Batch-Sequence", "1")
		sub, err := nc.SubscribeSync(m.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		answer, err := sub.NextMsgWithContext(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(answer.Data), "10210") {
			return 10210
		}
		return 0
	}
	if code := open("a"); code != 0 {
		t.Fatalf("opening a batch: %d", code)
	}
	if code := open("b"); code != 10210 {
		t.Fatalf("opening another: %d, want 10210: the test doesn't notice", code)
	}
	began := time.Now()
	for i := range 50 {
		appendTo(t, w, text(fmt.Sprint(2*i)), text(fmt.Sprint(2*i+1)))
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("it took %s: nothing was refused", took)
	}
	p.texts("r", "n", 100)
	p.deadLetters(0)
}

// Rule 4: a full stream refuses everything, says what to do, and loses nothing.
func TestRule4FullStream(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	setUp(t, nc, topology.Config{MaxBytes: 64 << 10})
	p := start(t, nc, eventlog.Options{})
	w := p.claim("r", "n")
	for i := range 1000 {
		if err := w.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := w.Flush(ctx)
	wantErr(t, "Flush", err, eventlog.ErrFull)
	wantErr(t, "Flush", err, eventlog.ErrAmbiguous)
	if !strings.Contains(err.Error(), "raise its max bytes with `wake init`") {
		t.Errorf("the error doesn't say the remedy: %v", err)
	}
	wantErr(t, "Health", p.Health(), eventlog.ErrFull)
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	big, err := p.Claim(ctx, "r2", strings.Repeat("n", 100), eventlog.Claim{Runner: strings.Repeat("x", 8<<10)})
	if big != nil {
		t.Error("a full stream takes a claim")
	}
	wantErr(t, "Claim", err, eventlog.ErrFull)
	if fill, _, err := p.Fill(t.Context()); err != nil || fill < 0.5 || fill > 1 {
		t.Errorf("the stream is filled to %f: %v", fill, err)
	}
	p.withStream(func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 20 })
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.texts("r", "n", 1000)
	p.deadLetters(0)
	if err := p.Health(); err != nil {
		t.Errorf("Health: %v", err)
	}
	if fill, _, err := p.Fill(t.Context()); err != nil || fill > 0.01 {
		t.Errorf("the stream is filled to %f: %v", fill, err)
	}
}

// Rule 5: what a restarted process finds in its spool is stored under the
// original expectation, before the process claims anything. If another process
// has claimed the node, none of it is stored.
func TestRule5SpoolUnderOriginalExpectation(t *testing.T) {
	t.Parallel()
	crash(t, 10, func(a away, found string) {
		rival := a.another(eventlog.Options{})
		appendTo(t, rival.claim("r", "n"), text("rival"))
		p := a.another(eventlog.Options{SpoolDir: found})
		w := p.claim("r", "n")
		got := p.read(eventlog.Query{Run: "r", Node: "n", From: 11})
		equal(t, "the log", got,
			"r/n 1.11 agent:text 9", "r/n 2.12 node:claimed", "r/n 2.13 agent:text rival", "r/n 3.14 node:claimed")
		for _, l := range p.deadLetters(990) {
			if !strings.Contains(l.Reason, "claimed it with epoch 2") {
				t.Fatalf("dead letter: %s", l.Reason)
			}
		}

		// With an expectation that it reads now, a zombie's event would be stored.
		_, pos := w.Last()
		zombie := encoded(t, &wire.Event{RunID: "r", NodeID: "n", Seq: 12, Epoch: 1, Payload: &wire.AgentText{Content: "zombie"}})
		code, err := request(soon(t), a.server.Conn(t), "wake.events.r.n.text", zombie,
			"Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(pos, 10), "Nats-Expected-Last-Subject-Sequence-Subject", subjects.Default.NodeEvents("r", "n"))
		if err != nil || code != 0 {
			t.Errorf("the log refuses a zombie with a new expectation (%d, %v): the test doesn't notice", code, err)
		}
	})
}

// A claim waits for the spool.
func TestRule5ClaimAfterSpool(t *testing.T) {
	t.Parallel()
	crash(t, 10, func(a away, found string) {
		log, err := eventlog.Open(t.Context(), a.server.Conn(t), eventlog.Options{SpoolDir: found})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = log.Claim(ctx, "r", "n", eventlog.Claim{Runner: "x"}) // Run isn't running
		wantErr(t, "Claim before the spool is stored", err, context.DeadlineExceeded)
	})
}
