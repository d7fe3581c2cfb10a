package native

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
)

// Whatever a server streams, line by line, the answer is refused or can be sent back: its texts have words.
func FuzzMessageStream(f *testing.F) {
	begin := `{"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`
	text := `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	delta := `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\n"}}`
	stop := `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`
	end := `{"type":"message_stop"}`
	for _, lines := range [][]string{{begin, text, delta, stop, end}, {end}, {text, delta, stop, end}, {begin, end}} {
		f.Add(strings.Join(lines, "\n"))
	}
	f.Fuzz(func(t *testing.T, stream string) {
		var m assembly
		for line := range strings.Lines(stream) {
			var e anthropic.MessageStreamEventUnion
			if json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			if err := m.takeEvent(e, func(streamPiece) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if !m.whole {
			return
		}
		for _, b := range m.toAnswer().blocks {
			if b.TextAt("type") == "text" && len(bytes.TrimSpace([]byte(b.TextAt("text")))) == 0 {
				t.Errorf("a text without words: %s", b)
			}
		}
	})
}
