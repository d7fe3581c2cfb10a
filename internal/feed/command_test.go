package feed_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func (d *desk) command(c wire.Command) wire.CommandResponse {
	d.Helper()
	r, err := api.Call[wire.CommandResponse](d.Context(), d.log.Conn(), subjects.Default, wire.VerbCommand, c)
	if err != nil {
		d.Fatal(err)
	}
	return r
}

// TestCommand: a command is stored, however long it is, and its sender is told what becomes
// of it: by the run's owner, by the intake that records strays, or, for as long as it waits, by none.
func TestCommand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		d := open(t)
		if r := d.command(wire.Command{Type: "pause", ID: "c1", RunID: "r1"}); r.Recorded || r.CommandID != "c1" || r.RunID != "r1" {
			t.Errorf("without a runner: %+v", r)
		}
		for at, c := range []struct{ run, on, reason string }{{"r1", "r1", ""}, {"", subjects.NoRun, "BAD_REQUEST: no"}, {"gone", subjects.NoRun, "RUN_NOT_FOUND: no"}} {
			owner := logtest.Claim(t, d.log, c.on, wire.RunNode)
			told := make(chan wire.CommandResponse)
			go func() {
				told <- d.command(wire.Command{Type: "send", RunID: c.run, Message: strings.Repeat("long ", 20_000)})
			}()
			d.stored(at + 2)
			for _, other := range []uint64{1, uint64(at) + 2} {
				if _, err := owner.Append(t.Context(), &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, AtPos: other, Accepted: c.reason == "", Reason: c.reason}}); err != nil {
					t.Fatal(err)
				}
			}
			_, last := owner.Last()
			if r := <-told; !r.Recorded || r.Accepted != (c.reason == "") || r.Reason != c.reason || r.Position != last || r.CommandID == "" {
				t.Errorf("to %q: %+v, at %d", c.run, r, last)
			}
		}
	})
}

// stored waits until so many commands are stored.
func (d *desk) stored(n int) {
	d.Helper()
	c, err := d.log.JetStream().OrderedConsumer(d.Context(), subjects.Default.CommandsStream(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		d.Fatal(err)
	}
	for range n {
		if _, err := c.Next(); err != nil {
			d.Fatal(err)
		}
	}
}
