package redact

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What the filter says is what looking for each word says, wherever a word is and
// whatever is around it; of one that isn't whole all waits; and a text is redacted as it is without the filter.
func TestFilter(t *testing.T) {
	t.Parallel()
	known := []string{"correct horse", "tr0ub4dor&3", "aaaaaaaaaa"}
	s, err := New(All, known)
	if err != nil {
		t.Fatal(err)
	}
	words := slices.Clone(s.values)
	for _, r := range s.rules {
		words = append(words, slices.DeleteFunc(slices.Clone(r.keywords), func(k string) bool { return len(k) < block })...)
	}
	in := func(text string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	for _, w := range words {
		for i := 1; i < len(w); i++ {
			if got := s.Held("of a text " + w[:i]); got < i {
				t.Fatalf("of %q %d bytes are held", w[:i], got)
			}
		}
		for before := range 14 {
			for _, after := range []int{0, 1, 2, 20} {
				for _, text := range []string{w, w[1:], w[:len(w)-1]} {
					text = strings.Repeat(" ", before) + text + strings.Repeat(".", after)
					if got := s.words.containsWord(text); got != in(text) {
						t.Fatalf("%q: %t", text, got)
					}
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.OneOf(rapid.SampledFrom(words), rapid.StringMatching(`[a-zA-Z0-9 _.:/@-]{0,40}`), rapid.String())
		text := strings.Join(rapid.SliceOfN(part, 0, 6).Draw(t, "text"), "")
		if got := s.words.containsWord(text); got != in(text) {
			t.Fatalf("in %q: %t", text, got)
		}
		if clean, n := s.Text(text); n != len(s.findSecrets(text)) || (n == 0) != (clean == text) && !strings.Contains(text, Mark) {
			t.Fatalf("%q became %q, with %d of %d", text, clean, n, len(s.findSecrets(text)))
		}
	})
}
