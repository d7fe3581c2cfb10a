package wire_test

import (
	"sync"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// An event may be encoded by several goroutines at once: encoding reads only.
// The race detector tells if it doesn't.
func TestEncodeReadsOnly(t *testing.T) {
	events := []*wire.Event{
		{RunID: "r", NodeID: "n", Seq: 1, Epoch: 1, Turn: 1, Step: 2, Redactions: 3, Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusFailed}},
		{RunID: "r", NodeID: "n", Seq: 1, Epoch: 1, Payload: &wire.NodeScheduled{Target: "n", Attempt: 1, Index: new(0), Count: 2}},
		{RunID: "r", NodeID: "n", Seq: 1, Epoch: 1, Payload: &wire.TodoChanged{Items: []wire.Todo{{Content: "c", Status: "pending"}}, Total: 1}},
	}
	for _, e := range events {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := wire.Encode(e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}
