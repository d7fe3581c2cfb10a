package work

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// TestHeldByTheOneBefore: what a worker that died had held of one stream, since a secret may begin with it, is held by its successor,
// and by the one after that, whatever the other stream said since.
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
		for i, p := range []wire.Payload{
			&wire.ExecOutput{Stream: "stdout", Content: "a correct"},
			&wire.ExecOutput{Stream: "stderr", Content: "b correct"},
			&wire.ExecOutput{Stream: "stderr", Content: "ly. "},
			&wire.ExecOutput{Stream: "stdout", Content: " horse battery staple, c"},
			&wire.ExecOutput{Stream: "stdout", Content: "; correct"},
			&wire.AgentText{Content: "what isn't a piece ends texts"},
			&wire.ExecOutput{Stream: "stdout", Content: " horses."},
		} {
			events = append(events, &wire.Event{ExecID: "n#1", Timestamp: 1, JournalOffset: uint64(10 + i), Payload: p}) // a number of few
		}
		return events
	}
	// Two workers die, one behind the other, when so many pieces are on record.
	for first := range len(journal()) {
		for second := first; second < len(journal()); second++ {
			node := fmt.Sprintf("n%d%d", first, second)
			var label keeper.Label
			for _, dies := range []int{first, second, len(journal())} {
				writer := logtest.Claim(t, log, "r", node)
				h := &hold{log: &nodeLog{writer: writer}, mark: readMark(label)}
				for e := range told(t, log, node, label.Position+1) {
					if e.JournalOffset != 0 {
						h.mark = h.mark.addEvent(e)
					}
				}
				_, label.Position = writer.Last()
				h.mark.setLabel(&label)
				for _, e := range journal()[:dies] {
					skipped, err := h.skipRecorded(t.Context(), e)
					if err != nil {
						t.Fatal(err)
					}
					if !skipped {
						logtest.Append(t, writer, e)
					}
				}
				if dies == len(journal()) {
					if err := writer.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			said := map[string]string{}
			for e := range told(t, log, node, 0) {
				if p, is := e.Payload.(*wire.ExecOutput); is {
					said[p.Stream] += p.Content
				}
			}
			if said["stdout"] != "a [redacted], c; correct horses." || said["stderr"] != "b correctly. " {
				t.Errorf("who goes on behind %d and %d pieces makes it %q and %q", first, second, said["stdout"], said["stderr"])
			}
			if strings.Contains(said["stdout"], "staple") {
				t.Error("a part of the secret is in the log")
			}
		}
	}
}

// told returns the events of a node from a position on.
func told(t *testing.T, log *eventlog.Log, node string, from uint64) iter.Seq[*wire.Event] {
	t.Helper()
	return func(yield func(*wire.Event) bool) {
		for e, err := range log.Read(t.Context(), eventlog.Query{Run: "r", Node: node, From: from}) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(e.Event) {
				return
			}
		}
	}
}
