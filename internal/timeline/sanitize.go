package timeline

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"code.wake.dev/wake/internal/visible"
	"code.wake.dev/wake/pkg/wire"
)

// Sanitize makes text safe for a terminal and for the eye. Escape sequences are
// removed; other control characters, characters that change the direction of
// text and invalid UTF-8 are replaced by a visible sign; characters that take no
// room are removed, except where scripts and emoji need them; carriage returns
// become line feeds. Line feeds and tabs stay.
//
// Sanitizing twice is sanitizing once.
func Sanitize(s string) string {
	i := firstUnsafe(s)
	if i == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:i])
	for i < len(s) {
		if n := firstUnsafe(s[i:]); n > 0 {
			b.WriteString(s[i : i+n])
			i += n
			continue
		}
		i += sanitizeNext(&b, s, i)
	}
	return b.String()
}

// Spell makes text safe for a terminal, and leaves nothing out: what [Sanitize] removes or replaces stands there as a sign or by its number, as
// `\u200b`. Line feeds and tabs stay.
func Spell(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch joins := r == 0x200c || r == 0x200d; {
		case r < ' ' && r != '\n' && r != '\t', r == 0x7f:
			b.WriteRune(visibleSign(r))
		case r >= 0x80 && r < 0xa0, r == 0x2028, r == 0x2029, visible.Reorders(r), visible.Hidden(r), joins && !joinerBelongs(s, i, utf8.RuneLen(r)):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Plain removes escape sequences, such as those of colours, and shows NUL, at which a text ends for some. All else stays.
func Plain(s string) string {
	s = strings.ReplaceAll(s, "\x00", "\u2400")
	if !strings.ContainsRune(s, visible.Escape) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for s != "" {
		i := strings.IndexByte(s, visible.Escape)
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		n := visible.Sequence(s[i:])
		if n == 0 {
			b.WriteByte(visible.Escape)
			n = 1
		}
		s = s[i+n:]
	}
	b.WriteString(s)
	return b.String()
}

// Line is [Sanitize] for what has to fit on one line: runs of white space
// become one space, and what is longer than limit characters is cut.
func Line(s string, limit int) string {
	if len(s) <= limit && isLine(s) {
		return s
	}
	s = strings.TrimSpace(s)
	if enough := 16 * limit; len(s) > enough {
		s = strings.ToValidUTF8(s[:enough], "") + "…"
	}
	return cutText(strings.Join(strings.Fields(Sanitize(s)), " "), limit)
}

// isLine reports whether a text is ASCII that fits on a line as it is, as most are of which [Line] is asked.
func isLine(s string) bool {
	space := s != ""
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c >= 0x7f || c == ' ' && space {
			return false
		}
		space = c == ' '
	}
	return !space
}

// firstUnsafe returns the index from which s needs a closer look.
func firstUnsafe(s string) int {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return i
		}
	}
	return len(s)
}

// sanitizeNext writes what becomes of the character at s[i:] and returns the
// number of bytes it dealt with.
func sanitizeNext(b *strings.Builder, s string, i int) int {
	r, size := utf8.DecodeRuneInString(s[i:])
	switch {
	case r == utf8.RuneError:
		b.WriteRune(utf8.RuneError)
	case r == 0x2028, r == 0x2029:
		b.WriteByte('\n')
	case r == '\r':
		if !strings.HasPrefix(s[i+1:], "\n") {
			b.WriteByte('\n')
		}
	case r == visible.Escape, r >= 0x80 && r < 0xa0:
		if n := visible.Sequence(s[i:]); n > 0 {
			return n
		}
		b.WriteRune(visibleSign(r))
	case r < ' ' && r != '\n' && r != '\t', r == 0x7f:
		b.WriteRune(visibleSign(r))
	case r == 0x200c || r == 0x200d: // ZWNJ, ZWJ
		if joinerBelongs(s, i, size) {
			b.WriteRune(r)
		}
	case visible.Reorders(r):
		b.WriteRune(utf8.RuneError)
	case !visible.Hidden(r):
		b.WriteString(s[i : i+size])
	}
	return size
}

// visibleSign returns the visible sign of a control character.
func visibleSign(r rune) rune {
	switch {
	case r < ' ':
		return 0x2400 + r
	case r == 0x7f:
		return 0x2421
	}
	return utf8.RuneError
}

// joinerBelongs reports whether the joiner at s[i:i+size] stands between characters of
// scripts, or emoji, that use it.
func joinerBelongs(s string, i, size int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:i])
	after, _ := utf8.DecodeRuneInString(s[i+size:])
	return usesJoiners(before) && usesJoiners(after)
}

// usesJoiners reports whether r belongs to Arabic, Syriac, an Indic script,
// Mongolian, or is an emoji or its modifier.
func usesJoiners(r rune) bool {
	return r >= 0x0620 && r <= 0x08ff || r >= 0x0900 && r <= 0x0dff || r >= 0x1820 && r <= 0x18af ||
		r >= 0x2190 && r <= 0x2bff || r == 0xfe0f || r >= 0x1f000 && r <= 0x1faff
}

// Cut returns at most limit bytes of a text, whole characters, and how many are left out.
func Cut(s string, limit int) (kept string, left int) {
	if len(s) <= limit {
		return s, 0
	}
	end := max(0, limit)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end], len(s) - end
}

// cutText shortens s to at most limit characters, the last of them an ellipsis.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n, last := 0, 0
	for i := range s {
		if n == limit-1 {
			last = i
		}
		if n++; n > limit {
			return s[:last] + "…"
		}
	}
	return s
}

// PlainLine returns the text of a line for pages, whose readers may have no font for the pictures that lines begin with: calls have a tick or
// a cross, other lines nothing. What agents said stays as it is.
func PlainLine(t wire.LineType, text string) string {
	if t == wire.LineSystem {
		return trimPicture(text)
	}
	if t != wire.LineTool {
		return text
	}
	if rest, is := strings.CutPrefix(text, FailedCall); is {
		return "✗ " + rest
	}
	if rest, is := strings.CutPrefix(text, DoneCall); is {
		return "✓ " + rest
	}
	return text
}

// PlainAlert returns the text of an alert for pages, which show its node and its kind beside it.
func PlainAlert(text string) string {
	if rest, is := strings.CutPrefix(text, "[subagent:"); is {
		if _, after, is := strings.Cut(rest, "] "); is {
			text = after
		}
	}
	return strings.TrimSuffix(strings.Replace(trimPicture(text), " passed ✅ (", " passed (", 1), " ✅")
}

// trimPicture cuts off the picture that a text begins with.
func trimPicture(text string) string {
	return strings.TrimLeftFunc(text, func(r rune) bool { return unicode.Is(unicode.So, r) || r == '\ufe0f' || r == ' ' })
}

// NodeName returns how pages name a node: that of the run itself is the run.
func NodeName(id string) string {
	if id == wire.RunNode {
		return "run"
	}
	return id
}
