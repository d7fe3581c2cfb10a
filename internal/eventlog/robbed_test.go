package eventlog_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// What is delivered to another client is read again.
func TestConsumeRobbed(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	for range 100 {
		appendTo(t, w, text("x"), &wire.Event{Payload: &wire.TurnStart{}})
	}
	s := newService(p, "snapshotter")
	n := 0
	s.before = func([]eventlog.Entry) error {
		if n++; n == 2 || n == 5 {
			rob(t, p, "snapshotter", 3)
		}
		return nil
	}
	s.until(t, 201)
	var want []uint64
	for pos := uint64(1); pos <= 201; pos += 2 {
		want = append(want, pos)
	}
	if !slices.Equal(s.seen, want) {
		t.Errorf("positions %d, want the odd ones up to 201", s.seen)
	}
}

// What a consumer leaves out is missing in its sequence, and is read again. Who follows a run
// learns of it by nothing else: positions jump anyway (RULES 14).
func TestFollowRobbed(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w, other := p.claim("r", "n"), p.claim("other", "n")
	grow := func() {
		for range 5 {
			appendTo(t, w, text("x"))
			appendTo(t, other, text("y"))
		}
	}
	grow()
	stream, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	var seqs []uint64
	for e, err := range p.Follow(soon(t), eventlog.Query{Run: "r"}) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, e.Event.Seq)
		if len(seqs) == 6 {
			for name := range stream.ConsumerNames(t.Context()).Name() {
				if _, durable := topology.Durable(p.Names(), name); durable {
					continue
				}
				if _, err := stream.ResetConsumerToSequence(t.Context(), name, e.Pos+6); err != nil {
					t.Fatal(err)
				}
			}
			grow()
		}
		if e.Event.Seq == 11 {
			break
		}
	}
	if want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(seqs, want) {
		t.Errorf("followed %d, want %d", seqs, want)
	}
}

// rob takes n messages from the reader of a service.
func rob(t testing.TB, p process, durable string, n int) {
	t.Helper()
	stream, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	robbed := 0
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if !eventlog.IsReader(name, durable) {
			continue
		}
		c, err := stream.Consumer(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := c.Fetch(n, jetstream.FetchContext(soon(t)))
		if err != nil {
			t.Fatal(err)
		}
		for range batch.Messages() {
			robbed++
		}
	}
	if robbed == 0 {
		t.Error("nothing to rob")
	}
}
