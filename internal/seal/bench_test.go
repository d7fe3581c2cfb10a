package seal_test

import (
	"bytes"
	"fmt"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func BenchmarkValue(b *testing.B) {
	k := parse(b, vectorKey)
	for _, size := range []int{200, 2 << 10, 100 << 10} {
		content := bytes.Repeat([]byte("x"), size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				stored, err := k.Value("$KV.WAKE_SNAPSHOTS.r", content)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := k.OpenValue("$KV.WAKE_SNAPSHOTS.r", stored); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEvent is what sealing adds to encoding.
func BenchmarkEvent(b *testing.B) {
	k := parse(b, vectorKey)
	e := &wire.Event{RunID: "r", NodeID: "n", Seq: 3, Epoch: 2, Timestamp: 5, Payload: &wire.AgentText{Content: string(bytes.Repeat([]byte("x"), 200))}}
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			if _, err := wire.Encode(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	data := encode(b, e)
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			if _, err := k.Event(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
