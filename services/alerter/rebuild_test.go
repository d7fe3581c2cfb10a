package alerter_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// A rebuild raises nothing again, not even what nobody has any more; what is new
// afterwards is raised, with what was before in mind.
func TestRebuildRaisesNothing(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	h := begin(t, log, "r1", nil)
	for range 3 {
		h.add(tool("Bash", "e"))
	}
	h.add(about("coder", &wire.NodeError{Error: "e"}))
	h.add(scheduled("coder", 2))
	for range 2 {
		h.add(tool("Bash", "e"))
	}
	var out printed
	start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	waitRead(t, log, h.last)
	before := len(alerts(t, log, "r1"))
	if before == 0 {
		t.Fatal("there is no alert")
	}
	if err := stream(t, log).Purge(t.Context(), jetstream.WithPurgeSubject(log.Names().AllAlerts())); err != nil {
		t.Fatal(err)
	}
	desk, err := rebuild.Open(t.Context(), log.JetStream(), log.Names(), "alerter")
	if err != nil {
		t.Fatal(err)
	}
	order, err := desk.Place(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	await(t, "rebuilt", func() bool {
		p, err := desk.Progress(t.Context())
		return err == nil && p.ID == order.ID && p.Done
	})
	if got := alerts(t, log, "r1"); len(got) != 0 {
		t.Errorf("raised again: %v", texts(got))
	}
	h.add(tool("Bash", "e"))
	await(t, "a new alert", func() bool { return len(alerts(t, log, "r1")) == 1 })
}
