// Package visible tells what of a text people see: terminals obey control
// sequences, and some characters take no room.
package visible

import (
	"strings"
	"unicode/utf8"
)

// Escape begins most control sequences.
const Escape = 0x1b

// Leads are the bytes with which all that [Text] leaves out begins.
const Leads = "\x1b\xc2\xcd\xd8\xe1\xe2\xe3\xef\xf3"

// All reports whether people see all of a text. It is quick where they do, and may
// be asked about any bytes that have texts in them.
func All(s string) bool {
	for i := range len(Leads) {
		for at := 0; ; at++ {
			n := strings.IndexByte(s[at:], Leads[i])
			if n < 0 {
				break
			}
			at += n
			if BeginsUnseen(s[at:]) {
				return false
			}
		}
	}
	return true
}

// BeginsUnseen reports whether a text begins with a character that people don't see, or
// that may begin a control sequence.
func BeginsUnseen(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return isUnseen(r) || isCommandStart(r)
}

// Text returns what people see of a text, and where in it each byte of that stands.
// Control sequences are left out, and so are characters that take no room or change
// the direction of text. at has one place more, the end.
func Text(s string) (text string, at []int) {
	b := make([]byte, 0, len(s))
	at = make([]int, 0, len(s)+1)
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if isCommandStart(r) {
			if n := Sequence(s[i:]); n > 0 {
				i += n
				continue
			}
		}
		if !isUnseen(r) {
			for n := range size {
				at = append(at, i+n)
			}
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return string(b), append(at, len(s))
}

// isUnseen reports whether r can't be seen: it takes no room, joins its neighbours or
// turns the text around.
func isUnseen(r rune) bool { return r == 0x200c || r == 0x200d || Hidden(r) || Reorders(r) }

// isCommandStart reports whether a control sequence may begin with r.
func isCommandStart(r rune) bool { return r == Escape || r >= 0x80 && r < 0xa0 }

// maxOpen bounds a control sequence that has no end yet, in bytes.
const maxOpen = 4 << 10

// Open returns where a control sequence begins that a text which comes in pieces has
// not the end of yet, or the length of the text.
func Open(s string) int {
	i, rest := lastCommand(s)
	switch {
	case i < 0:
		return len(s)
	case rest == "" && strings.HasSuffix(s[:i], string(rune(Escape))): // which has ended what was open before
		return i
	case rest == "" && i > 0: // perhaps ESC \, the end of a string
		if before := Open(s[:i]); before < i {
			return before
		}
		return i
	case Sequence(s[i:]) > 0, strings.Contains(rest, "\n"):
		return len(s)
	case rest == "", strings.IndexByte("]PX^_", rest[0]) >= 0:
		return i
	case rest[0] == '[' && strings.Trim(rest[1:], "0123456789:;<=>? !\"#$%&'()*+,-./") == "":
		return i
	case strings.Trim(rest, " !\"#$%&'()*+,-./") == "":
		return i
	}
	return len(s)
}

// lastCommand returns where the last control sequence of a text may begin, and what
// follows ESC there, or would if it were written with that.
func lastCommand(s string) (at int, rest string) {
	from := max(0, len(s)-maxOpen)
	at = strings.LastIndexByte(s[from:], Escape)
	if at >= 0 {
		at += from
		rest = s[at+1:]
	}
	for _, c := range []byte("[]PX^_") {
		if i := strings.LastIndex(s[from:], string(rune(c-'@'+0x80))); i >= 0 && from+i > at {
			at, rest = from+i, string(c)+s[from+i+2:]
		}
	}
	return at, rest
}

// Sequence returns the length of the terminal control sequence that s begins
// with, or 0 if it begins with none. One that doesn't end is none, so that it
// can't swallow what follows.
func Sequence(s string) int {
	intro, n := parseIntroducer(s)
	switch intro {
	case '[':
		return csiEnd(s, n)
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

// parseIntroducer returns the character that, behind ESC, begins the same sequence,
// and where its parameters begin.
func parseIntroducer(s string) (c byte, n int) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r != Escape:
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

// csiEnd returns the end of a control sequence; its parameters begin at n.
func csiEnd(s string, n int) int {
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
// that begins at n and ends in BEL or ST on the same line. Another control sequence within it breaks it off, be it by ESC or by a
// C1 character; so a text is looked at once, however many begin in it.
func controlString(s string, n int) int {
	for ; n < len(s); n++ {
		switch {
		case s[n] == 0x07:
			return n + 1
		case s[n] == '\n':
			return 0
		case s[n] == Escape:
			if strings.HasPrefix(s[n:], "\x1b\\") {
				return n + 2
			}
			return 0
		case s[n] == 0xc2 && n+1 < len(s) && s[n+1] >= 0x80 && s[n+1] < 0xa0:
			if strings.HasPrefix(s[n:], "\u009c") {
				return n + 2
			}
			return 0
		}
	}
	return 0
}

// Reorders reports whether r changes the direction of what follows: text could
// then show something other than it says.
func Reorders(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 ||
		r == 0x200e || r == 0x200f || r == 0x061c || r >= 0x206a && r <= 0x206f
}

// Hidden reports whether r takes no room and means nothing, so that it
// serves only to hide or to tell apart what looks the same.
func Hidden(r rune) bool {
	switch {
	case r == 0x00ad, r == 0x180e, r == 0x200b, r >= 0x2060 && r <= 0x2065, r == 0xfeff,
		r == 0x034f, r == 0x115f, r == 0x1160, r == 0x3164, r == 0xffa0, // fillers
		r >= 0xfff9 && r <= 0xfffb,   // interlinear annotation
		r >= 0xe0000 && r <= 0xe0fff: // tags and variation selectors beyond 16
		return true
	}
	return false
}
