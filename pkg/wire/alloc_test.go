//go:build !race

package wire_test

import (
	"testing"

	"wake/pkg/wire"
)

// The race detector makes pools forget, so allocations are counted without it.

// TestEncodeAllocates: encoding an event costs the memory of its bytes, and
// validating it costs none.
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
			if n := testing.AllocsPerRun(200, func() { _ = wire.Validate(e) }); n > 0 {
				t.Errorf("validating %s allocates %v times", typ, n)
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
