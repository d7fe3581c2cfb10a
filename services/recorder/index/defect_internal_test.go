package index

import (
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// What the recorder can't derive anything from is told; it goes on.
func TestDefect(t *testing.T) {
	var w writer // with no store behind it
	e := eventlog.Entry{Pos: 7, RunID: "r1", Event: &wire.Event{Payload: &wire.FlowAborted{}}}
	if err := w.deriveEvent(&runRow{}, nil, nil, &e); err != nil {
		t.Fatal(err)
	}
	if w.report.Refused != 1 || len(w.report.Defects) != 1 || w.report.Defects[0].Entry.Pos != 7 || w.report.Defects[0].Reason == "" {
		t.Errorf("%+v", w.report)
	}
}
