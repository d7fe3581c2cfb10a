package timeline_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"code.wake.dev/wake/internal/timeline"
)

func TestSanitize(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n\ttext ⚠️ é 漢字":                       "plain\n\ttext ⚠️ é 漢字",
		"\x1b[1;31mred\x1b[0m":                        "red",
		"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link": "alink",
		"\x1b]52;c;ZXZpbA==\u009cx":                   "x",
		"\u009b31mred":                                "red",
		"\x1bP1$r0m\x1b\\dcs":                         "dcs",
		"\x1bc reset \x1b(B":                          " reset ",
		"\x1b[31":                                     "␛[31", // never ends: swallows nothing
		"\x1b]0;half\nnext":                           "␛]0;half\nnext",
		"\x1b":                                        "␛",
		"\x1b\x1b[mx":                                 "␛x",
		"a\rb\r\nc":                                   "a\nb\nc",
		"bell\a null\x00 del\x7f nel\u0085":           "bell␇ null␀ del␡ nel\ufffd",
		"exe\u202egnp.":                               "exe\ufffdgnp.",
		"a\u2066b\u2069c\u200fd":                      "a\ufffdb\ufffdc\ufffdd",
		"pass\u200bword\ufeff\u2060\u00ad":            "password",
		"tag\U000e0041\U000e007f":                     "tag",
		"👩\u200d👩\u200d👧":                             "👩\u200d👩\u200d👧",
		"क्\u200dष":                                   "क्\u200dष",
		"ad\u200dmin":                                 "admin",
		"bad \xff\xc3(":                               "bad \ufffd\ufffd(",
		"sep\u2028next":                               "sep\nnext",
		"":                                            "",
	} {
		if got := timeline.Sanitize(in); got != want {
			t.Errorf("Sanitize(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLineFitsOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a b": "a b", " a b": "a b", "a b ": "a b", "a  b": "a b", "a\tb": "a b", "a\x7f": "a␡", " ": "",
		" a\n\tb  c ":                         "a b c",
		"abcdefghijk":                         "abcdefghi…",
		"äöüäöüäöüä":                          "äöüäöüäöüä",
		"\x1b[31mabcdefghij\x1b[0m":           "abcdefghij",
		strings.Repeat(" ", 1000) + "x":       "x",
		"x" + strings.Repeat(" ", 1000) + "y": "x …",
	} {
		if got := timeline.Line(in, 10); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzSanitize(f *testing.F) {
	for _, s := range []string{
		"plain", "\x1b[31mred\x1b[0m", "\x1b]0;t\x07", "\u009b1m", "\x1bP\x1b\\", "\x1b\x1b[m", "a\r\nb", "\u202e", "👩\u200d👧",
		"\xff\xfe", "\u2028", "\x1b]\u009c\u009c", "a\u200d\u200db", "\x1b(\x1b(B", "\x9b31m",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := timeline.Sanitize(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q: not UTF-8: %q", s, got)
		}
		if again := timeline.Sanitize(got); again != got {
			t.Fatalf("%q: %q becomes %q", s, got, again)
		}
		for _, r := range got {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("%q: %U is left in %q", s, r, got)
			}
		}
		if line := timeline.Line(s, 20); strings.ContainsAny(line, "\n\t") || utf8.RuneCountInString(line) > 20 {
			t.Fatalf("%q: not one line: %q", s, line)
		}
	})
}

func BenchmarkSanitize(b *testing.B) {
	s := strings.Repeat("ok  \twake/internal/timeline\t0.012s ✅\n", 30)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		timeline.Sanitize(s)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain é\r\x00": "plain é\r\u2400",
		"\x1b[31mfail\x1b[0m": "fail", "a\x1b[1;32mb": "ab",
		"\x1b]0;title\x07x": "x", "cut \x1b[3": "cut \x1b[3", "\x1b": "\x1b",
	} {
		if got := timeline.Plain(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		if a, b := timeline.Sanitize(timeline.Plain(in)), timeline.Sanitize(in); a != b {
			t.Errorf("%q reads %q, plain %q", in, b, a)
		}
	}
}
