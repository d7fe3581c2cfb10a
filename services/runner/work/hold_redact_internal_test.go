package work

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// TestHeldByTheOneBefore: what a worker that died had held of one stream, since a secret may begin with it, is held by its successor,
// whatever the other stream said since.
func TestHeldByTheOneBefore(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery staple"
	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{})
	secrets, err := redact.New(redact.Known, []string{secret})
	if err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{Redact: secrets})
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, log.Run)
	journal := func() []*wire.Event {
		var events []*wire.Event
		for i, p := range []*wire.ExecOutput{
			{Stream: "stdout", Content: "a correct"},
			{Stream: "stderr", Content: "b correct"},
			{Stream: "stderr", Content: "ly. "},
			{Stream: "stdout", Content: " horse battery staple, c"},
		} {
			events = append(events, &wire.Event{ExecID: "n#1", Timestamp: 1, JournalOffset: uint64(10 + i), Payload: p}) //nolint:gosec // a number of few
		}
		return events
	}
	for dies := range len(journal()) {
		node := "n" + string(rune('0'+dies))
		if dies > 0 {
			logtest.Append(t, logtest.Claim(t, log, "r", node), journal()[:dies]...)
		}
		h := &hold{log: &nodeLog{writer: logtest.Claim(t, log, "r", node)}}
		read := func(take func(*wire.Event)) {
			for e, err := range log.Read(t.Context(), eventlog.Query{Run: "r", Node: node}) {
				if err != nil {
					t.Fatal(err)
				}
				take(e.Event)
			}
		}
		read(func(e *wire.Event) {
			if e.JournalOffset != 0 {
				h.mark = h.mark.addEvent(e)
			}
		})
		for _, e := range journal() {
			skipped, err := h.skipRecorded(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			if !skipped {
				logtest.Append(t, h.log.writer, e)
			}
		}
		if err := h.log.writer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		read(func(e *wire.Event) {
			if p, is := e.Payload.(*wire.ExecOutput); is {
				said[p.Stream] += p.Content
			}
		})
		if said["stdout"] != "a [redacted], c" || said["stderr"] != "b correctly. " {
			t.Errorf("who goes on behind %d pieces makes it %q and %q", dies, said["stdout"], said["stderr"])
		}
		if strings.Contains(said["stdout"], "staple") {
			t.Error("a part of the secret is in the log")
		}
	}
}
