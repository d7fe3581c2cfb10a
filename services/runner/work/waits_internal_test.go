package work

import (
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// What a call has waited for isn't the time of its tool, whether its agent has counted that or not.
func TestWaits(t *testing.T) {
	at := func(seconds float64) time.Time {
		return time.UnixMilli(1_000_000).Add(time.Duration(seconds * float64(time.Second)))
	}
	for name, tt := range map[string]struct {
		measured                   float64 // seconds before the result
		duration, storage, approve int64
	}{
		"from the call on":              {20, 5000, 5000, 10000},
		"from behind the storage's":     {15, 5000, 5000, 10000},
		"from behind all waits":         {5, 5000, 5000, 10000},
		"from the middle of a decision": {8, 5000, 5000, 10000},
	} {
		t.Run(name, func(t *testing.T) {
			w := waits{}
			e := func(p wire.Payload) *wire.Event { return &wire.Event{CallID: "c1", Payload: p} }
			w.noteStored(e(&wire.ToolIntent{}), at(0), at(5))
			w.noteDecision(e(&wire.PermissionRequired{}), at(5))
			w.noteDecision(e(&wire.PermissionDecided{}), at(15))
			w.noteStored(e(&wire.ToolState{To: wire.ToolExecuting}), at(15), at(15.05)) // too short to be told
			p := &wire.AgentTool{DurationMs: new(int64(tt.measured * 1000))}
			w.noteResult(e(p), p, at(20))
			if *p.DurationMs != tt.duration || p.StorageWaitMs != tt.storage || p.ApprovalWaitMs != tt.approve {
				t.Errorf("it took %d ms, and waited %d ms and %d ms", *p.DurationMs, p.StorageWaitMs, p.ApprovalWaitMs)
			}
			if len(w) != 0 {
				t.Errorf("%v is left", w)
			}
		})
	}
}
