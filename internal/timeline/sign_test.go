package timeline_test

import (
	"testing"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// Pages show no picture that a font may lack, and leave what agents said alone.
func TestPlainTexts(t *testing.T) {
	for _, c := range []struct {
		of         wire.LineType
		text, want string
	}{
		{wire.LineTool, "✅ Bash (52ms)\nls", "✓ Bash (52ms)\nls"},
		{wire.LineTool, "❌ Bash", "✗ Bash"},
		{wire.LineSystem, "📋 [1/2] next: test", "[1/2] next: test"},
		{wire.LineSystem, "Run started: demo", "Run started: demo"},
		{wire.LineText, "✅ all is well", "✅ all is well"},
	} {
		if got := timeline.PlainLine(c.of, c.text); got != c.want {
			t.Errorf("%s %q is %q", c.of, c.text, got)
		}
	}
	for text, want := range map[string]string{
		"[subagent:plan] 🔨 Tests passed ✅ (exit code 0)": "Tests passed (exit code 0)",
		"[subagent:code] ⚠️ No progress for 5m":          "No progress for 5m",
		"[subagent:code] 📋 [2/2] test ✅":                 "[2/2] test",
		"Storage fills up":                               "Storage fills up",
	} {
		if got := timeline.PlainAlert(text); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
}
