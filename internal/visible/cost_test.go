package visible_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/visible"
)

// A control string that another control sequence breaks off is none, so that who begins many has none looked at to its end.
func TestBrokenControlString(t *testing.T) {
	for s, want := range map[string]int{
		"\x1b]0;title\x07": 10, "\u009d0;title\u009c": 11, "\u009d0;\u009dtitle\x07": 0, "\x1b]0;\u0085title\x07": 0, "\x1b]0;\x1b]title\x07": 0,
		"\u009d" + strings.Repeat("x", 10_000) + "\x07": 10_003,
	} {
		if got := visible.Sequence(s); got != want {
			t.Errorf("%.20q: %d bytes, want %d", s, got, want)
		}
	}
	for s, want := range map[string]int{"a\x1b]0;t\x1b": 1, "a\x1b]0;t\x1b\x1b": 7, "a\x1b\x1b\x1b": 3} {
		if got := visible.Open(s); got != want {
			t.Errorf("%q is open from %d, want %d", s, got, want)
		}
	}
}

// BenchmarkText: twice the text takes twice the time, also where each character begins a control string.
func BenchmarkText(b *testing.B) {
	for _, s := range []string{strings.Repeat("\u009d", 1<<16), strings.Repeat("\u009d", 1<<17)} {
		b.Run("", func(b *testing.B) {
			for b.Loop() {
				visible.Text(s)
			}
		})
	}
}
