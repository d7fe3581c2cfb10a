package redact

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// matching makes expressions such that examples can be made: with letters as in keywords, and
// without what stands around.
var matching = strings.NewReplacer(`\b`, "", `|\z`, "|", `(?i)`, "")

// secretTexts draws texts with secrets of all kinds in them: whole, cut, hidden, and in
// all places of blocks.
func secretTexts(s *Set) *rapid.Generator[string] {
	parts := []*rapid.Generator[string]{
		rapid.SampledFrom(s.values), rapid.StringMatching(`[a-zA-Z0-9 _.:/@=-]{0,70}`), rapid.String(),
		rapid.SampledFrom([]string{"\x1b[31m", "\x1b", "\u200b", "\u00ad", "\xe2", "—", "ü", "://", "@", "://a:", "earer ", "EARER ", "Bearer\t\n ", "\xd9", "\x00"}),
		rapid.Map(rapid.IntRange(0, 2*maxText), func(n int) string { return strings.Repeat("no secret. ", n)[:n] }),
	}
	for _, r := range s.rules {
		parts = append(parts, rapid.SampledFrom(r.keywords), rapid.StringMatching(matching.Replace(r.match.String())))
	}
	return rapid.Custom(func(t *rapid.T) string {
		texts := rapid.SliceOfN(rapid.OneOf(parts...), 1, 5).Draw(t, "parts")
		if i := rapid.IntRange(0, len(texts)-1).Draw(t, "which"); len(texts[i]) > 0 && rapid.Bool().Draw(t, "changed") {
			at := rapid.IntRange(0, len(texts[i])-1).Draw(t, "at")
			other := rapid.SampledFrom([]string{"", " ", "\x1b[m", "\u200b", "\n", "\"", "*", "+", "\x7f", "\x80"}).Draw(t, "other")
			texts[i] = texts[i][:at] + other + texts[i][at+rapid.IntRange(0, 1).Draw(t, "less"):]
		}
		return strings.Join(texts, rapid.SampledFrom([]string{"", " ", "\n", ":", "\xa4", "0123456789abcde"}).Draw(t, "between"))
	})
}

// maxText is how much is scanned in one go, at least.
const maxText = 2048

var knownValues = []string{"correct horse", "tr0ub4dor&3", "swordfish!", "pä\u00dfword-für-alle", "0123456789abcdefXYZ", "line one\nline two"}

// What the careful look finds, neither the scan nor the filter takes for nothing.
func TestNothingMissed(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{Known, All} {
		s, err := New(level, knownValues)
		if err != nil {
			t.Fatal(err)
		}
		texts := secretTexts(s)
		rapid.Check(t, func(t *rapid.T) {
			text := texts.Draw(t, "text")
			found := len(s.findSecrets(text)) > 0
			if found && !s.isSuspect(text) {
				t.Fatalf("the scan sees nothing in %q", text)
			}
			if found && !s.filterSuspects(text) {
				t.Fatalf("the filter sees nothing in %q", text)
			}
		})
	}
}

// Each spelling and a secret of each rule is seen wherever in a block it is.
func TestAnywhere(t *testing.T) {
	t.Parallel()
	s, err := New(All, knownValues)
	if err != nil {
		t.Fatal(err)
	}
	secrets := slices.Clone(s.values)
	for _, r := range s.rules {
		match := rapid.StringMatching(matching.Replace(r.match.String()))
		for seed := range 200 {
			if text := match.Example(seed); len(s.findSecrets(text)) > 0 {
				secrets = append(secrets, text)
				break
			}
			if seed == 199 {
				t.Fatalf("no example of %s", r.match)
			}
		}
	}
	for _, secret := range secrets {
		for _, before := range []int{0, maxText - 70} {
			for more := range 140 {
				for _, after := range []string{"", " ", strings.Repeat(". ", 70)} {
					text := strings.Repeat(" ", before+more) + secret + after
					if !s.isSuspect(text) {
						t.Fatalf("%q behind %d and before %d bytes isn't seen", secret, before+more, len(after))
					}
				}
			}
		}
	}
}

// Of texts without secrets few are suspect: that is all that a scan is for.
func TestUnsuspected(t *testing.T) {
	t.Parallel()
	s, err := New(Known, knownValues)
	if err != nil {
		t.Fatal(err)
	}
	if s.scan == nil {
		t.Skip("the filter suspects more")
	}
	for _, text := range []string{
		"", "a", "The tests pass now; I have changed main.go and its doc comment. ", `{"path":"services/runner/internal/work/claim.go","limit":2000}`,
		"see https://example.org/a/long/path?with=parameters, and mail to ann@example.org", "— “quoted” … für alle, 日本語, Ελληνικά",
		"-rw-r--r-- 1 root root 12345 x-y organize privately --Tabs", "4f2a9c0d1e8b7a6f5e4d3c2b1a09f8e7d6c5b4a3",
	} {
		for _, text := range []string{text, strings.Repeat(text, 100)} {
			if s.isSuspect(text) {
				t.Errorf("%.80q is suspect", text)
			}
		}
	}
}
