package document_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/document"
)

type settings struct {
	Name   string             `yaml:"name"`
	Count  int                `yaml:"count"`
	Share  float64            `yaml:"share"`
	On     bool               `yaml:"on"`
	Span   time.Duration      `yaml:"span"`
	Words  []string           `yaml:"words"`
	Prices map[string]float64 `yaml:"prices"`
	Deeper *settings          `yaml:"deeper"`
}

func decode(src string, into *settings) error {
	ps := &document.Problems{File: "f"}
	v := document.Read(ps, []byte(src), 1<<10)
	ps.Decode(v, into)
	return ps.Err()
}

// TestDecode reads every kind of field, and leaves what the file doesn't name.
func TestDecode(t *testing.T) {
	t.Parallel()
	base := settings{Name: "default", Count: 7, Words: []string{"a", "b"}}
	for src, want := range map[string]settings{
		"":               base,
		"---":            base,
		"name:\nspan: 0": base,
		"{\"count\": 8}": {Name: "default", Count: 8, Words: base.Words},
		"name: n\ncount: 3\nshare: 1\non: true\nspan: 1h30m\nwords: [c]\nprices: {m: 0.5, n: 2}\ndeeper: {name: d}": {
			Name: "n", Count: 3, Share: 1, On: true, Span: 90 * time.Minute, Words: []string{"c"}, Prices: map[string]float64{"m": 0.5, "n": 2}, Deeper: &settings{Name: "d"},
		},
		"deeper: &x {count: 1, on: true}\nname: n":                         {Name: "n", Count: 7, Words: base.Words, Deeper: &settings{Count: 1, On: true}},
		"deeper:\n  deeper: &x {count: 1, on: true}\n  <<: *x\n  count: 2": {Name: "default", Count: 7, Words: base.Words, Deeper: &settings{Count: 2, On: true, Deeper: &settings{Count: 1, On: true}}},
	} {
		got := base
		if err := decode(src, &got); err != nil {
			t.Errorf("%q: %v", src, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", src, d)
		}
	}
}

// TestDecodeProblems says what doesn't fit, where, and without the text.
func TestDecodeProblems(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"name: 5":                        "f:1:7: name: must be a text; numbers and such need quotes",
		"count: secret":                  "f:1:8: count: must be a whole number",
		"count: 1.5":                     "f:1:8: count: must be a whole number",
		"share: [1]":                     "f:1:8: share: must be a number",
		"on: 1":                          "f:1:5: on: must be true or false",
		"span: 3x":                       "f:1:7: span: must be a span of time such as 90s, 5m or 24h",
		"span: 5":                        "f:1:7: span: must be a span of time such as 90s, 5m or 24h",
		"words: {a: 1}":                  "f:1:9: words: must be a list",
		"words: [a, [b]]":                "f:1:12: words[1]: must be a text; numbers and such need quotes",
		"prices: [1]":                    "f:1:9: prices: must be an object",
		"prices: {m: x}":                 "f:1:13: prices.m: must be a number",
		"deeper: x":                      "f:1:9: deeper: must be an object",
		"deeper:\n  names: x":            "f:2:3: deeper.names: unknown field; did you mean \"name\"?",
		"hidden: 1":                      "f:1:1: hidden: unknown field",
		"- a":                            "f:1:1: must be an object",
		"name: a\nname: b":               "f:2:1: mapping key \"name\" already defined at [1:1]",
		"name: a\ndeeper: {on: 2, q: 1}": "f:2:14: deeper.on: must be true or false\nf:2:17: deeper.q: unknown field",
	} {
		var got settings
		err := decode(src, &got)
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v", src, err)
		}
	}
}
