package kahn

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// secrets are the forms of what is not to be passed on. What is in the first
// and second group stays.
var secrets = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+`),
		regexp.MustCompile(`()\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,})`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}`),
		regexp.MustCompile(`([a-z][a-z0-9+.-]*://[^/\s:@"]*:)[^/\s@"]+(@)`),
		regexp.MustCompile(`(?i)((?:api[_-]?key|secret|token|password|passwd|credential)s?\\?["']?\s*[:=]\s*\\?["']?)[^\s"',;&\\\[]{6,}`),
	}
})

// Redacted stands for a secret.
const Redacted = "[redacted]"

// Redact replaces what looks like a secret: keys and tokens of well-known forms,
// private keys, passwords in addresses, values of names like password.
func Redact(s string) string {
	for _, pattern := range secrets() {
		s = pattern.ReplaceAllString(s, "${1}"+Redacted+"${2}")
	}
	return s
}

// maxExamined is how much of a text is looked at, in bytes: a summary needs no more
// than 8 KiB of it, and what is taken out leaves room for what follows.
const maxExamined = 64 << 10

// Summary makes a summary of a text: its first [MaxSummary] characters, after
// what looks like a secret has been taken out.
func Summary(s string) string {
	s = Redact(strings.ToValidUTF8(cutText(s, maxExamined), "\uFFFD"))
	n := 0
	for i := range s {
		if n == MaxSummary {
			return s[:i]
		}
		n++
	}
	return s
}

// cutText returns the first bytes of s, whole characters only.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// summaryOf is a summary of a value: a text as it is, anything else as JSON; nil
// of nothing.
func summaryOf(v wire.Raw) *string {
	if len(v) == 0 || string(v) == string(wire.Null) {
		return nil
	}
	s, ok := v.Text()
	if !ok {
		b, err := wire.AppendJSON(nil, v)
		if err != nil {
			return nil
		}
		s = string(b)
	}
	return new(Summary(s))
}

// secretNames are the names of what is a secret whatever it looks like.
var secretNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(?:api[_-]?key|secret|token|password|passwd|credential)s?$`)
})

// evidenceOf is what an audit has shown, less what looks like a secret; nil of
// anything but an object.
func evidenceOf(v wire.Raw) json.RawMessage {
	fields, ok := v.Any().(map[string]any)
	if !ok {
		return nil
	}
	raw, err := wire.Marshal(redactValue(fields))
	if err != nil {
		return nil
	}
	b, err := wire.AppendJSON(nil, raw)
	if err != nil {
		return nil
	}
	return b
}

func redactValue(v any) any {
	switch v := v.(type) {
	case string:
		return Redact(v)
	case []any:
		for i := range v {
			v[i] = redactValue(v[i])
		}
	case map[string]any:
		for name, value := range v {
			if _, text := value.(string); text && secretNames().MatchString(name) {
				v[name] = Redacted
			} else {
				v[name] = redactValue(value)
			}
		}
	}
	return v
}
