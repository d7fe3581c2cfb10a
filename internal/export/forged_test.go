package export_test

import (
	"bytes"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	past "code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// A fork in a file is only recorded, whatever the state that it carries says of that: no runner is to execute what somebody has written.
func TestForgedForkIsCopy(t *testing.T) {
	for _, imported := range []any{nil, "", false, map[string]any{}} {
		parent := run.New("r0")
		parent.FlowName, parent.Status, parent.Definition, parent.DefinitionHash = "x", wire.RunRunning, wire.RawOf(map[string]any{"name": "x"}), "h"
		raw, err := wire.Marshal(parent)
		if err != nil {
			t.Fatal(err)
		}
		state, _ := raw.Any().(map[string]any)
		state["imported"] = imported
		if raw, err = wire.Marshal(state); err != nil {
			t.Fatal(err)
		}
		var entries []eventlog.Entry
		for i, p := range []wire.Payload{&wire.RunClaimed{Runner: "r", Nonce: "n"}, &wire.RunForked{ParentRun: "r0", ParentPos: 7, State: raw}} {
			e := &wire.Event{RunID: "r1", NodeID: wire.RunNode, Seq: uint64(i + 1), Epoch: 1, Timestamp: time.Now().UnixMilli(), Payload: p}
			data, err := wire.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, eventlog.Entry{Pos: uint64(2*i + 1), Time: time.Now(), RunID: "r1", NodeID: wire.RunNode, Kind: e.Type().Kind(), Data: data, Event: e})
		}
		var file bytes.Buffer
		if _, err := export.JSONL(&file, export.Run{ID: "r1", Incarnation: "i"}, func(yield func(eventlog.Entry, error) bool) {
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		}, nil); err != nil {
			t.Fatal(err)
		}
		log := logtest.Start(t)
		im, err := export.Restore(t.Context(), log, bytes.NewReader(file.Bytes()), nil)
		if text, is := imported.(string); err != nil && (is || imported == nil) {
			t.Errorf("imported: %q: %v", text, err)
		}
		if err != nil { // a state that no runner reads: nothing of the run is there
			continue
		}
		s, err := past.StateAt(t.Context(), log, im.RunID, 1<<40)
		if err != nil || s.Imported != wire.ImportedCopy {
			t.Errorf("imported: %v: the run is %q, %v", imported, s.Imported, err)
		}
	}
}
