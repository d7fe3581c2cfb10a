package flow_test

import (
	"fmt"
	"sync"
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// What has the same content is read once, and side by side it is decided by as by one's own.
func TestLibrary(t *testing.T) {
	t.Parallel()
	d, err := flow.Parse("x.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	var lib flow.Library
	first, err := lib.Read(d.Raw())
	if err != nil || first.Hash() != d.Hash() {
		t.Fatalf("%v, %v", first, err)
	}
	var deciding sync.WaitGroup
	for i := range 8 {
		deciding.Go(func() {
			again, err := lib.Read(append(wire.Raw(nil), d.Raw()...))
			if err != nil || again != first {
				t.Errorf("%p, %v; first %p", again, err, first)
				return
			}
			s := run.New(fmt.Sprint("r", i))
			for j, p := range []wire.Payload{&wire.RunClaimed{Runner: "r", Nonce: "n"}, flow.Start(again, wire.RunRequest{Input: wire.RawOf(map[string]any{})})[0].Payload} {
				e := &wire.Event{RunID: s.RunID, NodeID: wire.RunNode, Seq: uint64(j + 1), Epoch: 1, Timestamp: 1, Payload: p}
				if err := run.Apply(s, wire.Position{Seq: uint64(j + 1)}, e); err != nil {
					t.Error(err)
				}
			}
			if got, err := flow.Decide(again, s, 1, nil); err != nil || len(got.Events) == 0 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	deciding.Wait()
	if _, err := lib.Read(wire.RawString("no flow")); err == nil {
		t.Error("what is no flow is read")
	}
}

func BenchmarkLibrary(b *testing.B) {
	d, err := flow.Parse("x.yaml", []byte(whole))
	if err != nil {
		b.Fatal(err)
	}
	var lib flow.Library
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lib.Read(d.Raw()); err != nil {
			b.Fatal(err)
		}
	}
}
