package document_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/document"
)

// keys is an object of so many.
func keys(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// What would cost the parser more than it is worth is refused before, with its place.
func TestBounds(t *testing.T) {
	const size = 200 << 10
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 x\n")
	for i := range 9 {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 10))
	}
	tests := []struct{ name, src, want string }{
		{"brackets", strings.Repeat("[", size), "1:257: nested deeper"},
		{"braces", "- " + strings.Repeat("{a: ", size/4), "1:1023: nested deeper"},
		{"dashes", strings.Repeat("- ", size/2), "1:513: nested deeper"},
		{"questions", strings.Repeat("? ", size/2), "1:513: nested deeper"},
		{"lines", "a:\n" + keys(300, "%[1]*[1]d:\n"), "nested deeper"},
		{"keys", keys(size/8, "k%d: 1\n"), "2001:6: an object with more than 2000 keys"},
		{"flow keys", "- {" + keys(size/8, "k%d: 1, "), "an object with more than 2000 keys"},
		{"words", "[" + strings.Repeat("1,", size), "more than 200000"},
		{"aliases", laughs.String(), "what aliases stand for included"},
		{"itself", "a: &a [*a]", "unknown alias"},
		{"deep", strings.Repeat("[", 250) + strings.Repeat("]", 250), ""},
		{"many lists", strings.Repeat("- {a: 1, b: [x]}\n- a: 1\n  b: 2\n", 4000), ""},
		{"siblings", "a:\n- b:\n  - c: 1\n    d: 2\n  - c: 1\n- b: []\ne: 1\n", ""},
		{"second", "a: 1\n---\nb: 1\n", "3:2: a second document"},
		{"tab", "a:\n\t- b\n", "2:1: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ps := &document.Problems{File: "f"}
			document.Read(ps, []byte(test.src), len(test.src))
			err := ps.Err()
			runtime.ReadMemStats(&after)
			if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 128 {
				t.Errorf("took %d MiB", made)
			}
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, src := range []string{
		`{"a": [1, 2.5, "x"]}`, "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  b: 3\n",
		"a: 1", "- - - a", "? b\n: c", "&a [*a]", "{a: [b, {c: d}]}", "a: |\n  x\n", "a: &x {b: 1}\nc:\n  <<: *x\n", "---\n# c\n...", "!!str 1", "\"\\u00e9\"", "[[[", "}", "a:\n\t- b",
	} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		ps := &document.Problems{File: "f"}
		v := document.Read(ps, src, 1<<20)
		if ps.Count() == 0 {
			var into any
			ps.Decode(v, &into)
			return
		}
		if v != nil {
			t.Error("a value beside problems")
		}
		e, _ := errors.AsType[*document.Error](ps.Err())
		for _, p := range e.Problems {
			if p.Line < 1 || p.Col < 1 || p.Message == "" {
				t.Errorf("%+v", p)
			}
		}
	})
}
