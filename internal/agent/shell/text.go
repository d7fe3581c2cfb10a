package shell

import (
	"strings"
	"unicode/utf8"
)

// toValidUTF8 returns s in UTF-8.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// textDecoder cuts a stream of bytes into text without cutting characters.
// Invalid bytes become U+FFFD.
type textDecoder struct{ held []byte }

// decode returns the text of the next bytes, less a character that hasn't ended.
func (d *textDecoder) decode(b []byte) string {
	b = append(d.held, b...)
	cut := len(b) - incompleteBytes(b)
	d.held = append([]byte(nil), b[cut:]...)
	return toValidUTF8(string(b[:cut]))
}

// takeRest returns what is held at the end of the stream.
func (d *textDecoder) takeRest() string {
	s := toValidUTF8(string(d.held))
	d.held = nil
	return s
}

// incompleteBytes returns how many bytes at the end begin a character that more
// bytes may complete.
func incompleteBytes(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		c := b[len(b)-n]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}
