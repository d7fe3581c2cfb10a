package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON is the same map in another notation: it is transcoded to and from
// msgpack, never described a second time.

// EncodeJSON returns the JSON form of e: one line, fields in wire order.
func EncodeJSON(e *Event) ([]byte, error) {
	b, err := Encode(e)
	if err != nil {
		return nil, err
	}
	return AppendJSON(make([]byte, 0, len(b)+len(b)/2), b)
}

// DecodeJSON reads an event in JSON. Errors are those of [Decode].
func DecodeJSON(b []byte) (*Event, error) {
	raw, err := parseJSON(b, maxDocument)
	if err != nil {
		return nil, err
	}
	return Decode(raw)
}

// AppendJSON appends the JSON form of one msgpack value to dst. Control
// characters and characters that change the direction of text are escaped, so
// that the output is safe on a terminal. Binary data becomes a base64 string.
func AppendJSON(dst, value []byte) ([]byte, error) {
	dst, rest, err := AppendFirstJSON(dst, value)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, ErrTrailing
	}
	return dst, nil
}

// AppendFirstJSON is [AppendJSON] for the first of several values; it returns
// what follows it.
func AppendFirstJSON(dst, values []byte) (out, rest []byte, err error) {
	return appendJSON(dst, values, 2*maxDocument)
}

func appendJSON(dst, b []byte, depth int) (out, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errEnd
	}
	c := b[0]
	switch {
	case c == codeNil:
		return append(dst, "null"...), b[1:], nil
	case c == codeTrue:
		return append(dst, "true"...), b[1:], nil
	case c == codeFalse:
		return append(dst, "false"...), b[1:], nil
	case isString(c):
		s, rest, err := readString(b)
		if err != nil {
			return nil, nil, err
		}
		return appendJSONString(dst, s), rest, nil
	case isBin(c):
		data, rest, err := readBin(b)
		if err != nil {
			return nil, nil, err
		}
		dst = base64.StdEncoding.AppendEncode(append(dst, '"'), data)
		return append(dst, '"'), rest, nil
	case isArray(c):
		return appendJSONArray(dst, b, depth)
	case isMap(c):
		return appendJSONObject(dst, b, depth)
	}
	n, rest, err := readNumber(b)
	switch {
	case errors.Is(err, errKind):
		return nil, nil, errExt
	case err != nil:
		return nil, nil, errEnd
	case n.class == 'u':
		return strconv.AppendUint(dst, n.u, 10), rest, nil
	case n.class == 'i':
		return strconv.AppendInt(dst, n.i, 10), rest, nil
	case !isFinite(n.x):
		return append(dst, "null"...), rest, nil
	}
	return appendJSONFloat(dst, n.x), rest, nil
}

// appendJSONFloat writes x as encoding/json does.
func appendJSONFloat(dst []byte, x float64) []byte {
	if abs := math.Abs(x); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, x, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, x, 'f', -1, 64)
}

func appendJSONArray(dst, b []byte, depth int) (out, rest []byte, err error) {
	n, rest, err := readArrayHeader(b)
	if err != nil {
		return nil, nil, err
	}
	if depth == 0 {
		return nil, nil, ErrDepth
	}
	dst = append(dst, '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, rest, err = appendJSON(dst, rest, depth-1); err != nil {
			return nil, nil, err
		}
	}
	return append(dst, ']'), rest, nil
}

func appendJSONObject(dst, b []byte, depth int) (out, rest []byte, err error) {
	n, rest, err := readMapHeader(b)
	if err != nil {
		return nil, nil, err
	}
	if depth == 0 {
		return nil, nil, ErrDepth
	}
	dst = append(dst, '{')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		var key []byte
		if key, rest, err = readString(rest); err != nil {
			return nil, nil, errKey
		}
		dst = append(appendJSONString(dst, key), ':')
		if dst, rest, err = appendJSON(dst, rest, depth-1); err != nil {
			return nil, nil, err
		}
	}
	return append(dst, '}'), rest, nil
}

const hexDigits = "0123456789abcdef"

func appendJSONString(dst, s []byte) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = appendEscape(dst, rune(c))
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && size == 1 || unsafeRune(r) {
			dst = appendEscape(append(dst, s[start:i]...), r)
			start = i + size
		}
		i += size
	}
	return append(append(dst, s[start:]...), '"')
}

// unsafeRune reports whether a terminal or an editor may take r for a command:
// C1 controls, line separators, bidirectional overrides and isolates.
func unsafeRune(r rune) bool {
	return r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 ||
		r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c
}

// appendEscape appends \uXXXX; all runes that are escaped are below 0x10000.
func appendEscape(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// RawFromJSON returns the canonical form of one JSON value. Of a key that
// occurs twice the last value counts, as in every common parser. Integers
// beyond 64 bits become floats; each byte that isn't UTF-8 and each lone
// surrogate becomes U+FFFD.
func RawFromJSON(b []byte) (Raw, error) { return parseJSON(b, MaxDepth) }

func parseJSON(b []byte, depth int) (Raw, error) {
	return packWith(func(out *packer) error {
		p := jsonParser{in: b, out: out}
		if err := p.parseValue(depth); err != nil {
			return err
		}
		p.skipSpace()
		if p.at < len(p.in) {
			return p.errorf("unexpected text after the value")
		}
		return nil
	})
}

// JSONError says where JSON is malformed. It is an [ErrSyntax].
type JSONError struct {
	Offset  int // in bytes
	Problem string
}

// Error returns the problem and its place.
func (e *JSONError) Error() string {
	return fmt.Sprintf("wire: malformed JSON at byte %d: %s", e.Offset, e.Problem)
}

// Is makes it an [ErrSyntax].
func (*JSONError) Is(target error) bool { return target == ErrSyntax }

type jsonParser struct {
	in  []byte
	at  int
	out *packer
}

func (p *jsonParser) errorf(format string, args ...any) error {
	return &JSONError{Offset: p.at, Problem: fmt.Sprintf(format, args...)}
}

func (p *jsonParser) skipSpace() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// parseValue appends the next value.
func (p *jsonParser) parseValue(depth int) error {
	p.skipSpace()
	if p.at == len(p.in) {
		return p.errorf("unexpected end")
	}
	switch c := p.in[p.at]; {
	case depth == 0 && (c == '{' || c == '['):
		return ErrDepth
	case c == '{':
		return p.parseObject(depth)
	case c == '[':
		return p.parseArray(depth)
	case c == '"':
		s, err := p.parseString()
		if err != nil {
			return err
		}
		p.out.putText(s)
	case c == '-' || c >= '0' && c <= '9':
		return p.parseNumber()
	case p.skipWord("null"):
		p.out.putNil()
	case p.skipWord("true"):
		p.out.putBool(true)
	case p.skipWord("false"):
		p.out.putBool(false)
	default:
		return p.errorf("unexpected %q", c)
	}
	return nil
}

func (p *jsonParser) skipWord(w string) bool {
	if !bytes.HasPrefix(p.in[p.at:], []byte(w)) {
		return false
	}
	p.at += len(w)
	return true
}

// parseNumber appends a number: JSON's grammar, checked before strconv is asked.
func (p *jsonParser) parseNumber() error {
	start := p.at
	if p.in[p.at] == '-' {
		p.at++
	}
	integer := true
	switch whole := p.skipDigits(); {
	case whole == 0, whole > 1 && p.in[p.at-whole] == '0':
		return p.errorf("malformed number")
	}
	if p.at < len(p.in) && p.in[p.at] == '.' {
		p.at++
		if integer = false; p.skipDigits() == 0 {
			return p.errorf("malformed number")
		}
	}
	if p.at < len(p.in) && (p.in[p.at] == 'e' || p.in[p.at] == 'E') {
		p.at++
		if p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		if integer = false; p.skipDigits() == 0 {
			return p.errorf("malformed number")
		}
	}
	text := string(p.in[start:p.at])
	if integer {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			p.out.putInt(i)
			return nil
		}
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			p.out.putUint(u)
			return nil
		}
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.at = start
		return p.errorf("number out of range")
	}
	p.out.putNumber(x)
	return nil
}

func (p *jsonParser) skipDigits() (n int) {
	for p.at < len(p.in) && p.in[p.at] >= '0' && p.in[p.at] <= '9' {
		p.at++
		n++
	}
	return n
}

func (p *jsonParser) parseArray(depth int) error {
	p.at++ // [
	at, n := p.out.leaveRoom(), 0
	for p.skipSpace(); ; n++ {
		if p.at < len(p.in) && p.in[p.at] == ']' && n == 0 {
			break
		}
		if err := p.parseValue(depth - 1); err != nil {
			return err
		}
		p.skipSpace()
		if p.at < len(p.in) && p.in[p.at] == ',' {
			p.at++
			continue
		}
		if p.at < len(p.in) && p.in[p.at] == ']' {
			n++
			break
		}
		return p.errorf("expected , or ]")
	}
	p.at++ // ]
	start := len(p.out.buf)
	p.out.putArrayLen(n)
	p.out.insertHeader(at, start)
	return nil
}

func (p *jsonParser) parseObject(depth int) error {
	p.at++ // {
	at := p.out.leaveRoom()
	var ends []int
	var last []byte
	sorted := true
	for p.skipSpace(); ; {
		if p.at < len(p.in) && p.in[p.at] == '}' && len(ends) == 0 {
			break
		}
		p.skipSpace()
		if p.at == len(p.in) || p.in[p.at] != '"' {
			return p.errorf("expected a key")
		}
		key, err := p.parseString()
		if err != nil {
			return err
		}
		p.skipSpace()
		if p.at == len(p.in) || p.in[p.at] != ':' {
			return p.errorf("expected :")
		}
		p.at++
		sorted = sorted && (len(ends) == 0 || bytes.Compare(last, key) < 0)
		last = key
		p.out.putText(key)
		if err := p.parseValue(depth - 1); err != nil {
			return err
		}
		ends = append(ends, len(p.out.buf))
		p.skipSpace()
		if p.at < len(p.in) && p.in[p.at] == ',' {
			p.at++
			continue
		}
		if p.at < len(p.in) && p.in[p.at] == '}' {
			break
		}
		return p.errorf("expected , or }")
	}
	p.at++ // }
	n := len(ends)
	if !sorted {
		var b []byte
		b, n = lastOfEach(p.out.buf[at+1:], ends, at+1)
		p.out.buf = append(p.out.buf[:at+1], b...)
	}
	start := len(p.out.buf)
	p.out.putMapLen(n)
	p.out.insertHeader(at, start)
	return nil
}

// parseString parses a string. The result may be a part of the input.
func (p *jsonParser) parseString() ([]byte, error) {
	p.at++ // "
	start := p.at
	for ; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; {
		case c == '"':
			s := p.in[start:p.at]
			p.at++
			return validBytes(s), nil
		case c == '\\':
			return p.parseEscaped(start)
		case c < ' ':
			return nil, p.errorf("control character in a string")
		}
	}
	return nil, p.errorf("unexpected end of a string")
}

// validBytes is [validString] for bytes.
func validBytes(s []byte) []byte {
	if utf8.Valid(s) {
		return s
	}
	return []byte(string([]rune(string(s))))
}

// parseEscaped goes on with a string that has escapes.
func (p *jsonParser) parseEscaped(start int) ([]byte, error) {
	s := append([]byte(nil), p.in[start:p.at]...)
	for p.at < len(p.in) {
		c := p.in[p.at]
		p.at++
		switch {
		case c == '"':
			return validBytes(s), nil
		case c < ' ':
			p.at--
			return nil, p.errorf("control character in a string")
		case c != '\\':
			s = append(s, c)
			continue
		}
		if p.at == len(p.in) {
			break
		}
		c = p.in[p.at]
		p.at++
		switch c {
		case '"', '\\', '/':
			s = append(s, c)
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			r, err := p.parseHex()
			if err != nil {
				return nil, err
			}
			if utf16.IsSurrogate(r) {
				r = p.parseSurrogate(r)
			}
			s = utf8.AppendRune(s, r)
		default:
			p.at--
			return nil, p.errorf("unknown escape")
		}
	}
	return nil, p.errorf("unexpected end of a string")
}

// parseSurrogate combines high with the escape that follows, if that is its other
// half.
func (p *jsonParser) parseSurrogate(high rune) rune {
	if !bytes.HasPrefix(p.in[p.at:], []byte(`\u`)) {
		return utf8.RuneError
	}
	mark := p.at
	p.at += 2
	low, err := p.parseHex()
	if err == nil {
		if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
			return r
		}
	}
	p.at = mark
	return utf8.RuneError
}

func (p *jsonParser) parseHex() (rune, error) {
	if len(p.in)-p.at < 4 {
		return 0, p.errorf("malformed \\u escape")
	}
	n, err := strconv.ParseUint(string(p.in[p.at:p.at+4]), 16, 16)
	if err != nil {
		return 0, p.errorf("malformed \\u escape")
	}
	p.at += 4
	return rune(n), nil
}

// MarshalJSON returns the value as JSON; null if it is absent.
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return AppendJSON(nil, r)
}

// UnmarshalJSON takes a JSON value.
func (r *Raw) UnmarshalJSON(b []byte) error {
	v, err := RawFromJSON(b)
	if err != nil {
		return err
	}
	*r = v
	return nil
}

var (
	_ json.Marshaler   = Raw(nil)
	_ json.Unmarshaler = (*Raw)(nil)
)

// ParseAny reads a message that is JSON if its first byte is '{', else msgpack,
// as commands and requests are.
func ParseAny(b []byte) (value Raw, isJSON bool, err error) {
	if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		value, err = RawFromJSON(t)
		return value, true, err
	}
	if len(b) == 0 {
		return nil, false, errors.New("wire: empty message")
	}
	value, err = Canonical(b)
	return value, false, err
}

// Plain returns a string as it is, and any other value as JSON; "" of an absent or
// malformed one.
func (r Raw) Plain() string {
	if s, ok := r.Text(); ok || len(r) == 0 {
		return s
	}
	b, err := AppendJSON(nil, r)
	if err != nil {
		return ""
	}
	return string(b)
}
