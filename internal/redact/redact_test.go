package redact_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
)

// example returns a made-up secret of n characters, so that no file has one.
func example(prefix, alphabet string, n int) string {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	var b strings.Builder
	b.WriteString(prefix)
	for range n {
		b.WriteByte(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	alnum   = letters + "0123456789"
	hexa    = "0123456789abcdef"
	base32  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// samples are secrets of each form, in a text around them.
func samples() map[string]string {
	pem := "-----BEGIN RSA " + "PRIVATE KEY-----\n" + example("", alnum, 64) + "\n" + example("", alnum, 64) + "\n-----END RSA " + "PRIVATE KEY-----"
	out := map[string]string{
		"anthropic":     example("sk-ant-api03-", alnum+"-_", 93),
		"openai":        example("sk-proj-", alnum+"-_", 120),
		"openai of old": example("sk-", alnum, 20) + "T3BlbkFJ" + example("", alnum, 20),
		"openrouter":    example("sk-or-v1-", hexa, 64),
		"groq":          example("gsk_", alnum, 52),
		"google":        example("AIza", alnum+"-_", 35),
		"hugging face":  example("hf_", letters, 34),
		"github":        example("ghp_", alnum, 36),
		"github app":    example("ghs_", alnum, 36),
		"github new":    example("github_pat_", alnum+"_", 82),
		"gitlab":        example("glpat-", alnum+"-_", 20),
		"aws":           example("AKIA", base32, 16),
		"slack":         example("xoxb-", "0123456789", 12) + example("-", alnum, 24),
		"stripe":        example("sk_live_", alnum, 24),
		"npm":           example("npm_", alnum, 36),
		"pypi":          example("pypi-AgEIcHlwaS5vcmc", alnum+"-_", 60),
		"digitalocean":  example("dop_v1_", hexa, 64),
		"vault":         example("hvs.", alnum+"_-", 95),
		"sendgrid":      example("SG.", alnum, 22) + example(".", alnum, 43),
		"jwt":           example("eyJhbGciOi", alnum, 20) + example(".eyJ", alnum, 40) + example(".", alnum+"-_", 43),
		"private key":   pem,
		"nats":          example("SUA", "ABCDEFGHIJKLMNOP", 1) + example("", base32, 54),
		"age":           example("AGE-SECRET-KEY-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
	}
	return out
}

func set(t testing.TB, level redact.Level, values ...string) *redact.Set {
	t.Helper()
	s, err := redact.New(level, values)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestForms(t *testing.T) {
	t.Parallel()
	s := set(t, redact.Known)
	for name, secret := range samples() {
		for _, text := range []string{"%s", "key: %s\n", `{"key":"%s"}`, "a=%s b"} {
			got, n := s.Text(fmt.Sprintf(text, secret))
			if want := fmt.Sprintf(text, redact.Mark); got != want || n != 1 {
				t.Errorf("%s: %q, %d", name, got, n)
			}
		}
	}
}

// What a terminal obeys and what takes no room hides no secret: people would see it
// once that is gone. Nor do they if the text comes in two pieces.
func TestHidden(t *testing.T) {
	t.Parallel()
	const value = "correct-horse-battery"
	s := set(t, redact.Known, value)
	secrets := samples()
	secrets["a value"] = value
	for name, secret := range secrets {
		for _, hidden := range []string{"\x1b[01;31m\x1b[K", "\x1b[m", "\u009b0m", "\u200b", "\u00ad", "\x1b]8;;u\x1b\\"} {
			for _, at := range []int{1, 4, len(secret) / 2, len(secret) - 1} {
				text := "a: " + secret[:at] + hidden + secret[at:] + "\x1b[0m b"
				got, n := s.Text(text)
				if name == "private key" && strings.HasSuffix(got, redact.Mark) {
					got += "\x1b[0m b" // to the end of the text: its own is hidden
				}
				if got != "a: [redacted]\x1b[0m b" || n != 1 {
					t.Errorf("%s with %q in it became %q, %d", name, hidden, got, n)
				}
				for cut := range len(text) {
					if name == "a value" && utf8.ValidString(text[:cut]) && inPieces(s, text[:cut], text[cut:]) != "a: [redacted]\x1b[0m b" {
						t.Errorf("%q and %q became %q", text[:cut], text[cut:], inPieces(s, text[:cut], text[cut:]))
					}
				}
			}
		}
	}
	for _, text := range []string{"\x1b[31mno secret\x1b[0m", "“quoted” — and \u200b so on"} {
		if got, n := s.Text(text); got != text || n != 0 {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// What stays around a secret, and what isn't one.
func TestText(t *testing.T) {
	t.Parallel()
	secret := example("", alnum, 24) + "7"
	known, all := set(t, redact.Known), set(t, redact.All)
	tests := []struct {
		s        *redact.Set
		in, want string
	}{
		{known, "clone https://ann:" + secret + "@git.example/x", "clone https://ann:[redacted]@git.example/x"},
		{known, "https://:" + secret + "@h", "https://:[redacted]@h"},
		{known, "curl -H 'Authorization: Bearer " + secret + "' u", "curl -H 'Authorization: Bearer [redacted]' u"},
		{known, `{"authorization":"Basic ` + secret + `"}`, `{"authorization":"Basic [redacted]"}`},
		{known, `{\"Authorization\": \"token ` + secret + `\"}`, `{\"Authorization\": \"token [redacted]\"}`},
		{known, "x-api-key: " + secret, "x-api-key: [redacted]"},
		{known, "bearer " + secret, "bearer [redacted]"},
		{all, "password=" + secret, "password=[redacted]"},
		{all, `API_KEY: "` + secret + `"`, `API_KEY: "[redacted]"`},

		{known, "password=" + secret, "password=" + secret},
		{known, "bearer responsibilities", "bearer responsibilities"},
		{known, "Authorization: required_by_the_server", "Authorization: required_by_the_server"},
		{known, "see https://example.org:8080/@ann and mail a@b.example", "see https://example.org:8080/@ann and mail a@b.example"},
		{known, "the sk-learn and hf_hub packages, eyJust", "the sk-learn and hf_hub packages, eyJust"},
		{known, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"},
		{known, "Authorization: [redacted] twice", "Authorization: [redacted] twice"},
	}
	for _, tt := range tests {
		if got, _ := tt.s.Text(tt.in); got != tt.want {
			t.Errorf("%q became\n%q, not\n%q", tt.in, got, tt.want)
		}
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	const value = `tr0ub4dor"&3 é`
	s := set(t, redact.Known, value, "short", "longer than the other", "longer than")
	for in, want := range map[string]string{
		"x" + value + "y":                                "x[redacted]y",
		`{"a":"tr0ub4dor\"\u00263 é"}`:                   `{"a":"[redacted]"}`,
		"?q=tr0ub4dor%22%263+%C3%A9":                     "?q=[redacted]",
		`{"a":"tr0ub4dor\"&3 é"}`:                        `{"a":"[redacted]"}`,
		`{"a":"tr0ub4dor\"&3 \u00e9"}`:                   `{"a":"[redacted]"}`,
		"?q=tr0ub4dor%22%263+%c3%a9":                     "?q=[redacted]",
		hex.EncodeToString([]byte(value)):                "[redacted]",
		fmt.Sprintf("%X", value):                         "[redacted]",
		base64.StdEncoding.EncodeToString([]byte(value)): "[redacted]",
		"short":                 "short",
		"longer than the other": "[redacted]",
		"longer than others":    "[redacted] others",
	} {
		if got, _ := s.Text(in); got != want {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
	for _, around := range []string{"", "a", "ab", "PASS=abc"} {
		for _, end := range []string{"", "\n", "\nB"} {
			for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
				got, _ := s.Text(enc.EncodeToString([]byte(around + value + end)))
				if before, after, ok := strings.Cut(got, redact.Mark); !ok || len(before) > len(around)*8/6+1 || len(after) > len("kKQg==") {
					t.Errorf("the base64 of %q became %q", around+value+end, got)
				}
			}
		}
	}
	if s, err := redact.New(redact.Off, []string{value}); s != nil || err != nil {
		t.Error("off finds something")
	}
	if got, n := (*redact.Set)(nil).Text(value); got != value || n != 0 {
		t.Error("a nil set finds something")
	}
	if _, err := redact.New("some", nil); err == nil {
		t.Error("a level that there isn't")
	}
}

// Of an event all texts of the payload are clean, whatever their depth, the number
// is in the envelope, and names that the run needs are as they were.
func TestEvent(t *testing.T) {
	t.Parallel()
	s := set(t, redact.Known, "postgres")
	definition := wire.RawOf(map[string]any{"nodes": map[string]any{"postgres": map[string]any{"id": "postgres", "prompt": "log in as postgres"}}})
	got := event(t, s, &wire.FlowStart{FlowName: "postgres", Definition: definition, DefinitionHash: "h"})
	want := &wire.FlowStart{
		FlowName: redact.Mark, DefinitionHash: "h",
		Definition: wire.RawOf(map[string]any{"nodes": map[string]any{"postgres": map[string]any{"id": "postgres", "prompt": "log in as [redacted]"}}}),
	}
	if d := cmp.Diff(want, got.Payload); d != "" || got.Redactions != 2 || got.RunID != "postgres" {
		t.Errorf("%d, run %s: %s", got.Redactions, got.RunID, d)
	}
	tool := event(t, s, &wire.AgentTool{ToolName: "sql", ToolInput: wire.RawOf(map[string]any{"postgres": []any{"xpostgresx", int64(3)}}), ToolOutput: wire.RawString("ok")})
	if d := cmp.Diff(wire.RawOf(map[string]any{redact.Mark: []any{"x[redacted]x", int64(3)}}), tool.Payload.(*wire.AgentTool).ToolInput); d != "" || tool.Redactions != 2 {
		t.Errorf("%d: %s", tool.Redactions, d)
	}
	end := set(t, redact.Known, "complete")
	if e := event(t, end, &wire.FlowComplete{FlowName: "complete it", Status: wire.FlowStatusComplete}); e.Redactions == 0 ||
		!cmp.Equal(e.Payload, &wire.FlowComplete{FlowName: "[redacted] it", Status: wire.FlowStatusComplete}) {
		t.Errorf("%+v", e.Payload)
	}
}

func event(t testing.TB, s *redact.Set, p wire.Payload) *wire.Event {
	t.Helper()
	in := &wire.Event{RunID: "postgres", NodeID: "n", Seq: 1, Epoch: 1, CallID: "c", Payload: p}
	data, err := wire.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	clean, err := s.Event(in, data)
	if err != nil {
		t.Fatal(err)
	}
	e, err := wire.Decode(clean)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// inPieces redacts a text that comes in pieces as a writer does.
func inPieces(s *redact.Set, pieces ...string) string {
	var out strings.Builder
	held := ""
	for _, p := range pieces {
		held += p
		cut := len(held) - s.Held(held)
		clean, _ := s.Text(held[:cut])
		out.WriteString(clean)
		held = held[cut:]
	}
	clean, _ := s.Text(held)
	return out.String() + clean
}

// A secret is found wherever a text is split in two, and what is around it stays.
func TestSplitAnywhere(t *testing.T) {
	t.Parallel()
	const value = "correct horse battery staple"
	s := set(t, redact.Known, value)
	all := samples()
	all["known"] = value
	for name, secret := range all {
		text := "before it: " + secret + " and after"
		for i := range len(text) + 1 {
			if got := inPieces(s, text[:i], text[i:]); got != "before it: [redacted] and after" {
				t.Fatalf("%s, split at %d: %q", name, i, got)
			}
		}
		if got := inPieces(s, strings.Split(text, "")...); got != "before it: [redacted] and after" {
			t.Errorf("%s, byte by byte: %q", name, got)
		}
	}
	for _, text := range []string{"curl -H 'Authorization: Bearer abcdefgh12345678' u", "see https://ann:hunter22@h/ now", "a bearer abcdefgh12345678."} {
		want, _ := s.Text(text)
		if got := inPieces(s, strings.Split(text, "")...); got != want {
			t.Errorf("%q in pieces is %q, at once %q", text, got, want)
		}
	}
}

// What may begin a secret waits, and no more than that.
func TestHeld(t *testing.T) {
	t.Parallel()
	s := set(t, redact.Known, "swordfish!")
	for text, want := range map[string]int{
		"": 0, "nothing here.": 0, "a sword": 5, "a swore.": 0, "swordfish!": 0, "a gh": 2, "x ghp_abc": 7, "ghp_abc ": 0,
		"https://exam": 7, "https://example.org/": 0,
		strings.Repeat("ghp_", 1) + strings.Repeat("a", 20<<10): redact.MaxHeld,
	} {
		if got := s.Held(text); got != want {
			t.Errorf("%.20q holds %d, not %d", text, got, want)
		}
	}
}

// However texts and pieces are made, no known value comes through.
func TestProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.StringMatching(`[ab-]{8,14}`), 1, 3).Draw(t, "values")
		s, err := redact.New(redact.Known, values)
		if err != nil {
			t.Fatal(err)
		}
		part := rapid.OneOf(rapid.SampledFrom(values), rapid.StringMatching(`[ab -]{0,6}`))
		text := strings.Join(rapid.SliceOfN(part, 0, 8).Draw(t, "text"), "")
		cuts := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 40).Draw(t, "cuts")
		var pieces []string
		rest := text
		for _, n := range cuts {
			n = min(n, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		got := inPieces(s, append(pieces, rest)...)
		for _, v := range values {
			if strings.Contains(got, v) {
				t.Fatalf("%q is in %q, made of %q", v, got, append(pieces, rest))
			}
		}
	})
}

func FuzzText(f *testing.F) {
	for _, secret := range samples() {
		f.Add("x "+secret+" y", 9, "swordfish")
	}
	f.Add("://a:b@c Authorization: bearer -----BEGIN PRIVATE KEY-----", 3, "\x00\x01\x02\x03\x04\x05\x06\x07")
	f.Fuzz(func(t *testing.T, text string, at int, value string) {
		s := set(t, redact.All, value)
		clean, n := s.Text(text)
		if (n == 0) != (clean == text) && !strings.Contains(text, redact.Mark) {
			t.Fatalf("%d secrets, and %q", n, clean)
		}
		at = max(0, min(at, len(text)))
		pieces := inPieces(s, text[:at], text[at:])
		if len(value) >= redact.MinValue && !strings.Contains(redact.Mark, value) && !strings.Contains(value, redact.Mark) {
			if strings.Contains(clean, value) && !borders(value) || strings.Contains(pieces, value) && !borders(value) {
				t.Fatalf("%q is in %q or %q", value, clean, pieces)
			}
		}
		if n := s.Held(text); n < 0 || n > len(text) || n > redact.MaxHeld {
			t.Fatalf("held: %d of %d", n, len(text))
		}
	})
}

// borders reports whether a value may come about where a mark meets what is
// around it.
func borders(value string) bool { return strings.ContainsAny(value, "[]") }

func BenchmarkEvent(b *testing.B) {
	s := set(b, redact.Known, "correct horse battery staple")
	text := strings.Repeat("The tests pass now; I have changed main.go and its doc comment. ", 30)
	for _, p := range []wire.Payload{
		&wire.AgentTextDelta{Content: "have changed main.go and"},
		&wire.AgentText{Content: text[:200]},
		&wire.AgentTool{ToolName: "Read", ToolInput: wire.RawOf(map[string]any{"path": "a.go"}), ToolOutput: wire.RawString(text)},
	} {
		e := &wire.Event{RunID: "01jd2v5c3x9m8q7w6e5r4t3y2z", NodeID: "coder", Seq: 17, Epoch: 2, Timestamp: 1767400000000, ExecID: "coder#1", Turn: 3, CallID: "toolu_01A", Payload: p}
		data, err := wire.Encode(e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/%d/encode", p.Type(), len(data)), func(b *testing.B) {
			for b.Loop() {
				if _, err := wire.Encode(e); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("%s/%d/redact", p.Type(), len(data)), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Event(e, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("held", func(b *testing.B) {
		for b.Loop() {
			s.Held("have changed main.go and")
		}
	})
}
