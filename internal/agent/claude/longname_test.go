package claude_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

// TestLongNames has Claude Code print ids that no event can hold: the normalizer keeps their lines as they are, and tells what comes behind them.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for name, line := range map[string]string{
		"call":    `{"type":"assistant","uuid":"a","session_id":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"LONG","name":"Bash","input":{}}]}}`,
		"tool":    `{"type":"assistant","uuid":"a","session_id":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"t","name":"LONG","input":{}}]}}`,
		"message": `{"type":"assistant","uuid":"a","session_id":"s","message":{"id":"LONG","role":"assistant","content":[{"type":"text","text":"x"}],"usage":{"input_tokens":1,"output_tokens":1}}}`,
		"parent":  `{"type":"assistant","uuid":"a","session_id":"s","parent_tool_use_id":"LONG","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"x"}]}}`,
		"session": `{"type":"assistant","uuid":"a","session_id":"LONG","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"x"}]}}`,
		"kind":    `{"type":"LONG"}`,
		"input":   `{"type":"assistant","uuid":"a","session_id":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"id":"LONG"}}]}}`,
	} {
		n := claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Stream, SessionID: "s", Started: true})
		events := n.Line(1, []byte(strings.ReplaceAll(line, "LONG", long)))
		told := n.Line(2, []byte(`{"type":"assistant","uuid":"b","session_id":"s","message":{"id":"m2","role":"assistant","content":[{"type":"text","text":"after it"}]}}`))
		malformed := false
		for _, e := range append(events, told...) {
			if raw, is := e.Payload.(*wire.RawMessage); is && raw.Name == "malformed" {
				malformed = true
			}
			e.RunID, e.NodeID, e.ExecID, e.Seq, e.Epoch = "r", "n", "n#1", 1, 1
			data, err := wire.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := wire.Externalize(data, 64<<10); err != nil {
				t.Errorf("%s: %s can't be stored: %v", name, e.Type(), err)
			}
		}
		if malformed != (name != "input") || len(told) == 0 {
			t.Errorf("%s: malformed %t, %d events behind it", name, malformed, len(told))
		}
	}
}
