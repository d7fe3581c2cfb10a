package eventlog_test

import (
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// What is read of several kinds while events are stored is a prefix of the
// log: no event is left out before one that is yielded.
func TestReadOfKindsIsAPrefix(t *testing.T) {
	p := one(t, eventlog.Options{})
	w := p.claim("run", "node")
	stored := make(chan error, 1)
	go func() {
		kinds := []wire.Payload{
			&wire.NodeStart{NodeType: "agent"},
			&wire.TurnStart{Model: "m"},
			&wire.AgentTool{ToolName: "T", ToolInput: wire.Null, ToolOutput: wire.Null},
		}
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			_, err = w.Append(t.Context(), &wire.Event{Payload: kinds[i%len(kinds)]})
		}
		stored <- err
	}()
	for len(stored) == 0 {
		last := uint64(0)
		q := eventlog.Query{Run: "run", Kinds: []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}}
		for e, err := range p.Read(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Event.Seq != last+1 {
				t.Fatalf("seq %d follows %d at position %d", e.Event.Seq, last, e.Pos)
			}
			last = e.Event.Seq
		}
	}
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
}
