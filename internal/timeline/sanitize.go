package timeline

import (
	"strings"
	"unicode/utf8"
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

// Plain removes escape sequences, such as those of colours, and nothing else.
func Plain(s string) string {
	if !strings.ContainsRune(s, esc) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for s != "" {
		i := strings.IndexByte(s, esc)
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		n := sequence(s[i:])
		if n == 0 {
			b.WriteByte(esc)
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
	s = strings.TrimSpace(s)
	if enough := 16 * limit; len(s) > enough {
		s = strings.ToValidUTF8(s[:enough], "") + "…"
	}
	return cut(strings.Join(strings.Fields(Sanitize(s)), " "), limit)
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
	case r == esc, r >= 0x80 && r < 0xa0:
		if n := sequence(s[i:]); n > 0 {
			return n
		}
		b.WriteRune(picture(r))
	case r < ' ' && r != '\n' && r != '\t', r == 0x7f:
		b.WriteRune(picture(r))
	case isJoiner(r):
		if joins(s, i, size) {
			b.WriteRune(r)
		}
	case reorders(r):
		b.WriteRune(utf8.RuneError)
	case !isInvisible(r):
		b.WriteString(s[i : i+size])
	}
	return size
}

const esc = 0x1b

// sequence returns the length of the terminal control sequence that s begins
// with, or 0 if it begins with none. One that doesn't end is none, so that it
// can't swallow what follows.
func sequence(s string) int {
	intro, n := introducer(s)
	switch intro {
	case '[':
		return csi(s, n)
	case ']', 'P', 'X', '^', '_':
		return controlString(s, n)
	case 0:
		return 0
	}
	switch {
	case intro >= ' ' && intro <= '/': // such as ESC ( B
		for n < len(s) && s[n] >= ' ' && s[n] <= '/' {
			n++
		}
		if n < len(s) && s[n] >= '0' && s[n] <= '~' {
			return n + 1
		}
		return 0
	case intro >= '0' && intro <= '~': // such as ESC c
		return n
	}
	return 0
}

// introducer returns the character that, behind ESC, begins the same sequence,
// and where its parameters begin.
func introducer(s string) (c byte, n int) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r != esc:
		c = byte(r - 0x80 + '@') // C1
		switch c {
		case '[', ']', 'P', 'X', '^', '_':
			return c, size
		}
		return 0, 0
	case len(s) > 1:
		return s[1], 2
	}
	return 0, 0
}

// csi returns the end of a control sequence whose parameters begin at n.
func csi(s string, n int) int {
	for ; n < len(s); n++ {
		switch c := s[n]; {
		case c >= '@' && c <= '~':
			return n + 1
		case c < ' ' || c > '?':
			return 0
		}
	}
	return 0
}

// controlString returns the end of a string (a title, a link, the clipboard)
// that begins at n and ends in BEL or ST on the same line.
func controlString(s string, n int) int {
	for ; n < len(s); n++ {
		switch {
		case s[n] == 0x07:
			return n + 1
		case s[n] == '\n':
			return 0
		case s[n] == esc:
			if strings.HasPrefix(s[n:], "\x1b\\") {
				return n + 2
			}
			return 0
		case strings.HasPrefix(s[n:], "\u009c"):
			return n + 2
		}
	}
	return 0
}

// picture returns the visible sign of a control character.
func picture(r rune) rune {
	switch {
	case r < ' ':
		return 0x2400 + r
	case r == 0x7f:
		return 0x2421
	}
	return utf8.RuneError
}

// reorders reports whether r changes the direction of what follows: text could
// then show something other than it says.
func reorders(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 ||
		r == 0x200e || r == 0x200f || r == 0x061c || r >= 0x206a && r <= 0x206f
}

// isInvisible reports whether r takes no room and means nothing, so that it
// serves only to hide or to tell apart what looks the same.
func isInvisible(r rune) bool {
	switch {
	case r == 0x00ad, r == 0x180e, r == 0x200b, r >= 0x2060 && r <= 0x2065, r == 0xfeff,
		r == 0x034f, r == 0x115f, r == 0x1160, r == 0x3164, r == 0xffa0, // fillers
		r >= 0xfff9 && r <= 0xfffb,   // interlinear annotation
		r >= 0xe0000 && r <= 0xe0fff: // tags and variation selectors beyond 16
		return true
	}
	return false
}

// isJoiner reports whether r is ZWNJ or ZWJ.
func isJoiner(r rune) bool { return r == 0x200c || r == 0x200d }

// joins reports whether the joiner at s[i:i+size] stands between characters of
// scripts, or emoji, that use it.
func joins(s string, i, size int) bool {
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

// cut shortens s to at most limit characters, the last of them an ellipsis.
func cut(s string, limit int) string {
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
