package eventlog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
)

// NATS doesn't check reply subjects: with a request of JetStream's, anybody in the
// account has an answer of the server stored in the log, and services may be able
// to publish what they have read (RULES 28). It fences no writer.
func TestStranger(t *testing.T) {
	t.Parallel()
	const stream = "$JS.API.STREAM.INFO.WAKE_EVENTS"
	strangers := map[string]func(p process){
		"an answer":             func(p process) { p.strange(func(to string) error { return p.Conn().PublishRequest(stream, to, nil) }) },
		"an event of its own":   func(p process) { p.repeat(2) },
		"its own claim":         func(p process) { p.repeat(1) },
		"an event of another":   func(p process) { p.repeat(4) },
		"a claim of another":    func(p process) { p.repeat(3) },
		"what was void already": func(p process) { p.repeat(5) },
	}
	for name, stranger := range strangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := one(t, eventlog.Options{})
			w := p.claim("r", "n")
			appendTo(t, w, text("before"))
			appendTo(t, p.claim("r", "other"), text("of another"))
			for range 3 {
				stranger(p)
			}
			for i := range 20 { // one by one and, as there are many, in a batch
				appendTo(t, w, text(fmt.Sprint(i)))
			}
			stranger(p)
			next, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "next", MinEpoch: 2, AtSeq: 22})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Append(t.Context(), text("late")); !errors.Is(err, eventlog.ErrFenced) {
				t.Errorf("after the next claim the former writer got %v, want %v", err, eventlog.ErrFenced)
			}
			appendTo(t, next, text("after"))
			want := []string{"1 1", "2 1"}
			for i := range 20 {
				want = append(want, fmt.Sprint(i+3, " 1"))
			}
			want = append(want, "23 2", "24 2")
			if diff := cmp.Diff(want, p.chain("r", "n")); diff != "" {
				t.Errorf("seq and epoch of what counts:\n%s", diff)
			}
		})
	}
}

// strange waits until what a stranger publishes on a subject of node n is stored.
func (p process) strange(publish func(subject string) error) {
	p.t.Helper()
	wait := soon(p.t)
	_, before, err := p.Bounds(wait)
	if err == nil {
		err = publish("wake.events.r.n.flow")
	}
	for last := before; err == nil && last == before; {
		_, last, err = p.Bounds(wait)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// repeat publishes what is stored at a position, or at the last one.
func (p process) repeat(pos uint64) {
	p.t.Helper()
	p.strange(func(subject string) error {
		s, err := p.JetStream().Stream(p.t.Context(), "WAKE_EVENTS")
		if err != nil {
			return err
		}
		m, err := s.GetMsg(p.t.Context(), min(pos, s.CachedInfo().State.LastSeq))
		if err != nil {
			return err
		}
		return p.Conn().Publish(subject, m.Data)
	})
}

// chain returns seq and epoch of the events of a node that count: each follows the
// one before it, or claims the node.
func (p process) chain(run, node string) (lines []string) {
	p.t.Helper()
	var seq, epoch uint64
	for e, err := range p.Read(p.t.Context(), eventlog.Query{Run: run, Node: node}) {
		if err != nil {
			p.t.Fatal(err)
		}
		if e.Event == nil || e.Event.Seq <= seq || e.Event.Epoch < epoch {
			continue
		}
		seq, epoch = e.Event.Seq, e.Event.Epoch
		lines = append(lines, fmt.Sprint(seq, " ", epoch))
	}
	return lines
}
