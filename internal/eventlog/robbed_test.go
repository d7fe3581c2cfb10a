package eventlog_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// What is delivered to somebody else is missing in the consumer's sequence, and is
// read again. A reader of some kinds learns of it by nothing else: positions jump
// anyway (RULES 14).
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
