package recorder_test

import (
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// A run that was exported while it went on, and imported here, doesn't go on here: a retention deletes it, and what it descends from.
func TestRetainedCopies(t *testing.T) {
	p := newTape(t)
	p.add("origin", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add("origin", wire.RunNode, "", &wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", Imported: wire.ImportedCopy})
	p.add("copy", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add("copy", wire.RunNode, "", &wire.RunForked{ParentRun: "origin", ParentPos: 2, State: wire.RawOf(map[string]any{
		"v": wire.Version, "runId": "origin", "status": "running", "imported": wire.ImportedCopy,
	})})
	s := openStore(t)
	p.store(s, 100)
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "origin"}, time.Minute, time.UnixMilli(p.clock)); err != nil {
		t.Error(err)
	}
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "origin", Undo: true}, time.Minute, time.UnixMilli(p.clock)); err != nil {
		t.Error(err)
	}
	deleted := 0
	for hours := 10_000; hours < 10_010; hours++ { // a fork first
		n, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: time.Hour, Grace: time.Minute}, time.UnixMilli(p.clock).Add(time.Duration(hours)*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		deleted += n
	}
	if deleted == 0 {
		t.Error("a retention of an hour deletes no copy")
	}
}
