// Package redact takes secrets out of what is about to be stored: values that the
// process knows, and what has the form of a key, a token or a password.
//
// Most texts have none, so all depends on seeing that soon: one pass over an encoded
// event tells that nothing in it can belong to a secret, by blocks of 64 bytes ([scan]) or, where
// the processor can't, by every third pair of bytes ([filter]).
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"

	"code.wake.dev/wake/internal/visible"
	"code.wake.dev/wake/pkg/wire"
)

// Mark stands for a secret.
const Mark = "[redacted]"

// Level says what is taken for a secret.
type Level string

// The levels.
const (
	Off   Level = "off"   // nothing
	Known Level = "known" // values that the process knows, and forms that nothing but secrets have
	All   Level = "all"   // values of names like password, too
)

// Levels lists the levels.
func Levels() []Level { return []Level{Off, Known, All} }

// MinValue is the length in bytes from which a value that the process knows
// counts as a secret: a shorter one occurs by chance.
const MinValue = 8

// MaxHeld bounds what [Set.Held] keeps back, in bytes. A longer secret that comes
// in pieces is found as far as it fits.
const MaxHeld = 16 << 10

// Set finds secrets. A nil Set finds none. It may be used by many goroutines.
type Set struct {
	rules  []rule
	values []string // known ones in their spellings, the longest first
	words  filter   // of all values and keywords
	scan   *scan    // tells the same sooner; nil where there is none
	begin  *beginnings
}

// New returns the secrets of a level. Values are those that the process knows;
// those shorter than [MinValue] are left out. It is nil for [Off], and fails for a
// level that there isn't.
func New(level Level, values []string) (*Set, error) {
	s := &Set{}
	switch level {
	case Off:
		return nil, nil
	case Known:
		s.rules = certainRules()
	case All:
		s.rules = append(certainRules(), likelyRules()...)
	default:
		return nil, fmt.Errorf("redact: there is no level %q", level)
	}
	for _, v := range values {
		if len(v) >= MinValue {
			s.values = append(s.values, spellingsOf(v)...)
		}
	}
	slices.SortFunc(s.values, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	s.values = slices.Compact(s.values)
	words, short := slices.Clone(s.values), []string(nil)
	anywhere := slices.DeleteFunc(slices.Clone(s.values), isRun)
	for _, r := range s.rules {
		for _, k := range r.keywords {
			if len(k) < block {
				short = append(short, k)
				continue
			}
			words = append(words, k)
			if !r.run {
				anywhere = append(anywhere, k)
			}
		}
	}
	s.words = newFilter(words)
	s.scan = newScan(anywhere, &s.words)
	s.begin = newBeginnings(append(words, short...))
	return s, nil
}

// spellingsOf are the forms in which a value occurs: as it is, as a string of JSON,
// in an address, in hexadecimal, in base64, alone or as a part of something.
func spellingsOf(v string) []string {
	out := []string{v, url.QueryEscape(v), url.PathEscape(v), percentEncode(v), strings.ToLower(percentEncode(v)), hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v)))}
	out = append(out, lowerPercent(url.QueryEscape(v)), lowerPercent(url.PathEscape(v)))
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		out = append(out, enc.EncodeToString([]byte(v)))
		out = append(out, base64Parts(enc, v)...)
	}
	out = append(out, jsonSpellings(v)...)
	if trimmed := strings.TrimSpace(v); len(trimmed) >= MinValue {
		out = append(out, trimmed)
	}
	return out
}

// jsonSpellings are the ways in which a value is written in a string of JSON: encoders
// differ in whether they escape <, > and &, slashes, and what isn't ASCII.
func jsonSpellings(v string) []string {
	var b bytes.Buffer
	plain := json.NewEncoder(&b)
	plain.SetEscapeHTML(false)
	if plain.Encode(v) != nil {
		return nil
	}
	text := strings.TrimSuffix(b.String(), "\n")
	text = text[1 : len(text)-1]
	var ascii strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80:
			ascii.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	out := []string{text, ascii.String(), strings.ReplaceAll(text, "/", `\/`), strings.ReplaceAll(ascii.String(), "/", `\/`)}
	if html, err := json.Marshal(v); err == nil {
		out = append(out, string(html[1:len(html)-1]))
	}
	return out
}

// percentEncode returns a value with each of its bytes escaped as in an address.
func percentEncode(v string) string {
	var b strings.Builder
	for _, c := range []byte(v) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// lowerPercent writes the escapes of an address with small letters.
func lowerPercent(v string) string {
	b := []byte(v)
	for i := range b {
		if b[i] == '%' && i+2 < len(b) {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// base64Parts returns what stands for v in the base64 of any text that contains it, by
// how many bytes stand before it in its group of three: the characters that no byte
// around it has a part in.
func base64Parts(enc *base64.Encoding, v string) []string {
	var out []string
	for before, shared := range []int{0, 2, 3} {
		all := enc.EncodeToString(append(make([]byte, before), v...))
		out = append(out, all[shared:(before+len(v))*8/6])
	}
	return out
}

// Text returns a text without its secrets, and how many there were.
func (s *Set) Text(text string) (clean string, n int) {
	if s == nil || !s.isSuspect(text) {
		return text, 0
	}
	spans := s.findSecrets(text)
	if len(spans) == 0 {
		return text, 0
	}
	var b strings.Builder
	at := 0
	for _, p := range spans {
		b.WriteString(text[at:p.from])
		b.WriteString(Mark)
		at = p.to
	}
	b.WriteString(text[at:])
	return b.String(), len(spans)
}

// isSuspect reports whether a text may have a secret, which may be hidden by what
// people don't see.
func (s *Set) isSuspect(text string) bool {
	if s.scan != nil {
		return s.scan.isSuspect(text)
	}
	return s.filterSuspects(text)
}

// filterSuspects is isSuspect without a scan.
func (s *Set) filterSuspects(text string) bool {
	return s.words.containsWord(text) || !visible.All(text) || strings.IndexByte(text, '@') >= 0 && strings.Contains(text, "://")
}

// span is a part of a text.
type span struct{ from, to int }

// findSecrets returns the secrets of a text, in order: those that stand in it, and those
// that people see in it once a terminal has obeyed its control sequences, which then
// belong to the secret. Those that overlap are one.
func (s *Set) findSecrets(text string) []span {
	all := s.secretSpans(text)
	if !visible.All(text) {
		seen, at := visible.Text(text)
		for _, p := range s.secretSpans(seen) {
			all = append(all, span{at[p.from], at[p.to-1] + 1})
		}
	}
	return mergeSpans(all)
}

// secretSpans returns what in a text has the form of a secret.
func (s *Set) secretSpans(text string) []span {
	var all []span
	for _, v := range s.values {
		for at := 0; ; {
			i := strings.Index(text[at:], v)
			if i < 0 {
				break
			}
			all = append(all, span{at + i, at + i + len(v)})
			at += i + 1
		}
	}
	for _, r := range s.rules {
		if !r.hasKeyword(text) {
			continue
		}
		for _, m := range r.match.FindAllStringSubmatchIndex(text, -1) {
			if found := text[m[2]:m[3]]; !r.digit || strings.ContainsAny(found, digits) {
				all = append(all, span{m[2], m[3]})
			}
		}
	}
	return all
}

func (r *rule) hasKeyword(text string) bool {
	return slices.ContainsFunc(r.keywords, func(k string) bool { return strings.Contains(text, k) })
}

func mergeSpans(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return cmp.Or(a.from-b.from, a.to-b.to) })
	var out []span
	for _, p := range all {
		if n := len(out); n > 0 && p.from < out[n-1].to {
			out[n-1].to = max(out[n-1].to, p.to)
			continue
		}
		out = append(out, p)
	}
	return out
}

// Held returns how many bytes at the end of a text may be the beginning of a
// secret, at most [MaxHeld]: of a text that comes in pieces they have to wait for
// the next one, and so has a control sequence without its end.
func (s *Set) Held(text string) int {
	if s == nil {
		return 0
	}
	if visible.All(text) {
		return min(s.heldBytes(text), MaxHeld)
	}
	open := visible.Open(text)
	seen, at := visible.Text(text[:open])
	from := at[len(seen)-s.heldBytes(seen)]
	for _, p := range s.findSecrets(text[:open]) {
		if p.from < from && p.to > from {
			from = p.from
		}
	}
	return min(len(text)-from, MaxHeld)
}

// heldBytes is [Set.Held] of a text that people see all of.
func (s *Set) heldBytes(text string) int {
	from := s.beginsAt(text)
	if s.words.containsWord(text) || strings.Contains(text, "://") || strings.Contains(text, "sk-") {
		for _, r := range s.rules {
			if !r.hasKeyword(text) {
				continue
			}
			if m := r.open.FindStringIndex(text); m != nil {
				from = min(from, m[0])
			}
		}
		// What is whole and reaches into what is held is held as well.
		for _, p := range mergeSpans(s.secretSpans(text)) {
			if p.from < from && p.to > from {
				from = p.from
			}
		}
	}
	return len(text) - from
}

// beginsAt returns where a word begins that the text has only the first part of.
func (s *Set) beginsAt(text string) int {
	for i := max(0, len(text)-s.begin.most+1); i < len(text); i++ {
		left := len(text) - i
		if left >= s.begin.longest[text[i]] || left > 1 && !s.begin.pairs[uint16(text[i])|uint16(text[i+1])<<8] {
			continue
		}
		for _, w := range s.begin.words[text[i]] {
			if len(w) > left && strings.HasPrefix(w, text[i:]) {
				return i
			}
		}
	}
	return len(text)
}

// beginnings finds words by their first bytes.
type beginnings struct {
	words   [256][]string
	longest [256]int // length of the longest of words
	most    int      // length of the longest of all
	pairs   [1 << 16]bool
}

func newBeginnings(words []string) *beginnings {
	b := &beginnings{}
	for _, w := range words {
		b.words[w[0]] = append(b.words[w[0]], w)
		b.longest[w[0]] = max(b.longest[w[0]], len(w))
		b.most = max(b.most, len(w))
		b.pairs[uint16(w[0])|uint16(w[1])<<8] = true
	}
	return b
}

// Event returns the encoding of e, which is given, without the secrets of the
// payload; the redactions of the envelope count them. The envelope stays as it is,
// and so do the names in a definition and in a state, which the run needs. Without
// secrets the encoding is returned as it is. Of e nothing is changed.
func (s *Set) Event(e *wire.Event, encoded []byte) ([]byte, error) {
	if s == nil || !s.isSuspectBytes(encoded[min(envelopeSize(e), len(encoded)):]) {
		return encoded, nil
	}
	n := 0
	clean, err := wire.MapText(encoded, func(path []string, key bool, text string) string {
		if isName(path, key) {
			return text
		}
		text, found := s.Text(text)
		n += found
		return text
	})
	if err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	if n == 0 {
		return encoded, nil
	}
	clean.Redactions += n
	return wire.Encode(clean)
}

// Where returns the places in a payload that have a secret, in order: the names that
// lead there, with dots, without places in lists.
func (s *Set) Where(p wire.Payload) ([]string, error) {
	if s == nil {
		return nil, nil
	}
	encoded, err := wire.Encode(&wire.Event{RunID: "r", NodeID: "n", Seq: 1, Epoch: 1, Timestamp: 1, Payload: p})
	if err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	var places []string
	_, err = wire.MapText(encoded, func(path []string, key bool, text string) string {
		if _, n := s.Text(text); n > 0 && !isName(path, key) {
			places = append(places, strings.Join(path, "."))
		}
		return text
	})
	if err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	slices.Sort(places)
	return slices.Compact(places), nil
}

// envelopeSize returns a number of bytes at the beginning of an encoded event that are
// certainly of its envelope: ids, and the names of what every event has.
func envelopeSize(e *wire.Event) int {
	const names = len("v" + "type" + "runId" + "nodeId" + "seq" + "epoch" + "timestamp")
	return names + len(e.Type()) + len(e.RunID) + len(e.NodeID) + len(e.ExecID) + len(e.AgentID) + len(e.SessionID) +
		len(e.CallID) + len(e.Cause) + len(e.Parent)
}

// isName reports whether a text is a name on which a run depends.
func isName(path []string, key bool) bool {
	switch path[0] {
	case "definition", "state":
		if key {
			return true
		}
		switch path[len(path)-1] {
		case "id", "from", "to", "type", "exec", "status", "runId", "nodeId", "definitionHash":
			return true
		}
	case "target", "nodes", "edges", "edgeId", "from", "to", "definitionHash", "nonce", "runner", "parentRun", "parentNode",
		"promptId", "commandId", "oldSession", "newSession", "messageId", "inputHash", "sha256":
		return true
	}
	return false
}
