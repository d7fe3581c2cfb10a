package wire_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"code.wake.dev/wake/pkg/wire"
)

// The race detector makes pools forget, so allocations are counted without it.

// TestEncodeAllocates: encoding an event costs the memory of its bytes.
func TestEncodeAllocates(t *testing.T) {
	for _, typ := range []wire.Type{
		"agent:text:delta", "agent:thinking:delta", "agent:text", "agent:thinking", "agent:tool", "usage", "tool:intent", "tool:state",
		"agent:error", "turn:start", "exec:output", "cc_message", "node:complete", "breakpoint_changed",
	} {
		for _, m := range []map[string]any{leastEvent(typ), fullEvent(typ)} {
			e := decodeMap(t, m)
			if n := testing.AllocsPerRun(200, func() { _, _ = wire.Encode(e) }); n > 1 {
				t.Errorf("encoding %s allocates %v times", typ, n)
			}
		}
	}
}

// TestDecodeAllocates: decoding costs the event, its payload, and what is new in
// it. The names that it shares with the events before it cost nothing.
func TestDecodeAllocates(t *testing.T) {
	for typ, most := range map[wire.Type]float64{
		"agent:text:delta": 3, "agent:thinking:delta": 4, "agent:tool": 7, "usage": 4, "tool:intent": 5,
	} {
		b := encode(t, hotEvent(typ))
		if n := testing.AllocsPerRun(200, func() { _, _ = wire.Decode(b) }); n > most {
			t.Errorf("decoding %s allocates %v times, want %v", typ, n, most)
		}
	}
}

// TestReaderReservesNothing shows why msgpack/v5 writes the wire and doesn't read it: five bytes
// that promise a map of a million entries cost its decoder tens of megabytes.
func TestReaderReservesNothing(t *testing.T) {
	promise := []byte{0xdf, 0x00, 0x10, 0x00, 0x00}
	library := allocated(func() {
		var v map[string]any
		if msgpack.Unmarshal(promise, &v) == nil {
			t.Error("the library decodes a map without entries")
		}
	})
	ours := allocated(func() {
		var v map[string]any
		if err := wire.Unmarshal(promise, &v); !errors.Is(err, wire.ErrSyntax) {
			t.Errorf("refused with %v", err)
		}
	})
	t.Logf("for %d bytes: %d bytes of memory by msgpack/v5, %d by wire", len(promise), library, ours)
	if ours > 4<<10 {
		t.Errorf("the reader takes %d bytes of memory", ours)
	}
	if library < 1<<20 {
		t.Errorf("msgpack/v5 takes %d bytes of memory: read docs/adr/0007-msgpack-writes-we-read.md again, it may read the wire now", library)
	}
}

// allocated returns how many bytes of memory f takes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
