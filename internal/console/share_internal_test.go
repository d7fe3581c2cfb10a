package console

import (
	"bytes"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
)

// A shared page shows no secret of a text, be it told as a whole or in pieces of which none has it.
func TestShareRedactsPieces(t *testing.T) {
	set, err := redact.New(redact.All, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, payloads := range map[string][]wire.Payload{
		"whole": {&wire.AgentText{Content: "the password: hunter2hunter2 is it"}},
		"pieces": {
			&wire.AgentTextDelta{Content: "the pass", Block: 1}, &wire.AgentTextDelta{Content: "word: hunter2hu", Block: 1}, &wire.AgentTextDelta{Content: "nter2 is it", Block: 1},
		},
	} {
		events := func(yield func(eventlog.Entry, error) bool) {
			for i, p := range payloads {
				pos := uint64(i + 1)
				e := &wire.Event{RunID: "r", NodeID: "a", Epoch: 1, Seq: pos, ExecID: "a#1", Timestamp: 1000, Payload: p}
				if !yield(eventlog.Entry{RunID: "r", NodeID: "a", Pos: pos, Event: e}, nil) {
					return
				}
			}
		}
		var page bytes.Buffer
		if _, err := export.HTML(&page, export.Run{ID: "r", Redact: lineRedactor(set)}, redactEvents(set, events)); err != nil {
			t.Fatal(err)
		}
		if text := page.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, redact.Mark) {
			t.Errorf("%s: the page shows it", name)
		}
	}
}
