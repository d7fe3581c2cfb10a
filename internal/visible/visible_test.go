package visible_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/visible"
)

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":                                "plain",
		"\x1b[01;31m\x1b[Ktoken\x1b[m\x1b[K=x": "token=x",
		"to\u200bk\u00aden\ufeff":              "token",
		"\u009b31mred\u009b0m":                 "red",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\a": "link",
		"“dashes” — • …":                       "“dashes” — • …",
		"\x1b[31":                              "\x1b[31", // it has no end
		"\xff\xe2":                             "\xff\xe2",
		"\u202eabc":                            "abc",
	} {
		got, at := visible.Text(in)
		if got != want {
			t.Errorf("of %q people see %q, want %q", in, got, want)
		}
		if len(at) != len(got)+1 || at[len(got)] != len(in) {
			t.Fatalf("%q: places %d", in, at)
		}
		for i := range len(got) {
			if in[at[i]] != got[i] {
				t.Errorf("%q: byte %d is %q at %d", in, i, in[at[i]], at[i])
			}
		}
		if visible.All(in) && got != in {
			t.Errorf("not all of %q is seen", in)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"text":                     "",
		"a\x1b":                    "\x1b",
		"a\x1b[":                   "\x1b[",
		"a\x1b[01;3":               "\x1b[01;3",
		"a\x1b[31mred":             "",
		"a\x1b(":                   "\x1b(",
		"a\x1b]0;title":            "\x1b]0;title",
		"a\x1b]0;title\x1b":        "\x1b]0;title\x1b",
		"a\x1b]0;title\x1b\\":      "",
		"a\x1b]0;title\nnext":      "",
		"a\x1b[31\nnext":           "",
		"\x1b[0m" + "a\x1b[K\x1b[": "\x1b[",
	} {
		if got := in[visible.Open(in):]; got != want {
			t.Errorf("of %q %q has no end, want %q", in, got, want)
		}
	}
}

// What people see of a text that comes in two pieces is what they see of it: of the
// first one what is open waits for the second.
func FuzzOpen(f *testing.F) {
	f.Add("a\x1b[31mred\x1b]8;;u\x1b\\l\u200b", 4)
	f.Fuzz(func(t *testing.T, s string, at int) {
		at = max(0, min(at, len(s)))
		all, places := visible.Text(s)
		if len(places) != len(all)+1 || visible.All(s) && all != s {
			t.Fatalf("%q: %q, %d", s, all, places)
		}
		if strings.ContainsAny(s, "\n\u009b\u009d\u0090") || strings.ToValidUTF8(s, "") != s || strings.ToValidUTF8(s[:at], "") != s[:at] || len(s) > 1000 {
			return
		}
		open := visible.Open(s[:at])
		first, _ := visible.Text(s[:open])
		if rest, _ := visible.Text(s[open:]); visible.Open(s) == len(s) && strings.Count(s, "\x1b") < 2 && first+rest != all {
			t.Fatalf("%q in two at %d: %q and %q, want %q", s, at, first, rest, all)
		}
	})
}
