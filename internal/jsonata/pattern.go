package jsonata

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Patterns are those of package regexp: its time grows with the length of the text times the
// size of the pattern. Counted repetitions make a small pattern large.

// maxPattern bounds the size of a pattern: its length times all that it repeats.
const maxPattern = 100_000

var repetition = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{(\d+)(?:,(\d*))?\}`) })

// patternWeight is the size of a pattern, or of a text with patterns in it.
func patternWeight(src string) int {
	size := len(src) + 1
	for _, found := range repetition().FindAllStringSubmatch(src, -1) {
		times := 1
		for _, digits := range found[1:] {
			if n, err := strconv.Atoi(digits); err == nil {
				times = max(times, n)
			}
		}
		if size *= times; size > maxPattern || times > maxPattern {
			return maxPattern + 1
		}
	}
	return size
}

// checkPatterns refuses an expression with patterns that are too large to compile. It looks at the
// text before the parser does, which compiles them.
func checkPatterns(src string) error {
	if strings.Contains(src, "/") && patternWeight(src) > maxPattern {
		return errors.New("a pattern repeats too much")
	}
	return nil
}

// match is where a pattern was found: its place, and what its groups have found.
type match struct {
	from, to int
	groups   []any
}

// findMatches finds a pattern in s, or a text.
func (m *machine) findMatches(s string, pattern any, limit int) ([]match, error) {
	if text, ok := pattern.(string); ok {
		return m.findText(s, text, limit)
	}
	re := pattern.(*function).pattern
	if re == nil {
		return nil, errors.New("a pattern is a text or stands between slashes")
	}
	m.countSteps(len(s) * min(patternWeight(re.String()), maxPattern) >> 6)
	price := 160 + 48*re.NumSubexp()
	most := m.bytes/price + 1
	if limit >= 0 {
		most = min(most, limit)
	}
	var out []match
	for _, at := range re.FindAllStringSubmatchIndex(s, most) {
		m.countBytes(price)
		one := match{from: at[0], to: at[1], groups: make([]any, re.NumSubexp())}
		for i := range one.groups {
			one.groups[i] = ""
			if from := at[2*i+2]; from >= 0 {
				one.groups[i] = s[from:at[2*i+3]]
			}
		}
		out = append(out, one)
	}
	return out, nil
}

func (m *machine) findText(s, text string, limit int) ([]match, error) {
	m.countSteps(len(s) >> 6)
	var out []match
	for at := 0; limit < 0 || len(out) < limit; {
		width := max(len(text), 1)
		if text == "" {
			if _, width = utf8.DecodeRuneInString(s[at:]); at+width >= len(s) {
				break
			}
			out = append(out, match{from: at + width, to: at + width})
		} else {
			i := strings.Index(s[at:], text)
			if i < 0 {
				break
			}
			at += i
			out = append(out, match{from: at, to: at + width})
		}
		m.countBytes(48)
		at += width
	}
	return out, nil
}

// limitOf is how many matches a function wants, or -1.
func limitOf(v any) (int, error) {
	if isAbsent(v) {
		return -1, nil
	}
	if integerOf(v) < 0 {
		return 0, errors.New("the limit must be a positive number")
	}
	return integerOf(v), nil
}

func (m *machine) containsMatch(a []any) (any, error) {
	if text, ok := a[1].(string); ok {
		m.countSteps(len(a[0].(string)) >> 6)
		return strings.Contains(a[0].(string), text), nil
	}
	found, err := m.findMatches(a[0].(string), a[1], 1)
	return len(found) > 0, err
}

func (m *machine) splitText(a []any) (any, error) {
	s := a[0].(string)
	limit, err := limitOf(a[2])
	if err != nil {
		return nil, err
	}
	found, err := m.findMatches(s, a[1], -1)
	if err != nil {
		return nil, err
	}
	out, at := []any{}, 0
	for _, one := range found {
		out = append(out, s[at:one.from])
		at = one.to
	}
	if s != "" || a[1] != "" {
		out = append(out, s[at:])
	}
	m.countBytes(32 * len(out))
	if limit >= 0 && limit < len(out) {
		out = out[:limit]
	}
	return out, nil
}

// describeMatch is a match as expressions see it.
func (m *machine) describeMatch(s string, one match) map[string]any {
	m.countBytes(200)
	return map[string]any{"match": s[one.from:one.to], "index": float64(one.from), "groups": one.groups}
}

func (m *machine) describeMatches(a []any) (any, error) {
	limit, err := limitOf(a[2])
	if err != nil {
		return nil, err
	}
	found, err := m.findMatches(a[0].(string), a[1], limit)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(found))
	for i, one := range found {
		out[i] = m.describeMatch(a[0].(string), one)
	}
	return out, nil
}

func (m *machine) replaceMatches(a []any) (any, error) {
	s := a[0].(string)
	limit, err := limitOf(a[3])
	if err != nil {
		return nil, err
	}
	text, isText := a[2].(string)
	if a[1] == "" {
		return nil, errors.New("second argument of function replace can't be an empty string")
	}
	if _, literal := a[1].(string); literal && !isText {
		return nil, errors.New("third argument of function replace must be a string when pattern is a string")
	}
	found, err := m.findMatches(s, a[1], limit)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	at := 0
	for _, one := range found {
		with := text
		switch _, literal := a[1].(string); {
		case !isText:
			if with, err = m.callReplacement(a[2].(*function), s, one); err != nil {
				return nil, err
			}
		case !literal:
			with = m.expandGroups(text, s, one)
		}
		m.countBytes(one.from - at + len(with))
		out.WriteString(s[at:one.from] + with)
		at = one.to
	}
	m.countBytes(len(s) - at)
	out.WriteString(s[at:])
	return out.String(), nil
}

func (m *machine) callReplacement(f *function, s string, one match) (string, error) {
	v, err := m.callFunction(f, []any{m.describeMatch(s, one)}, nothing{})
	if err != nil {
		return "", err
	}
	with, ok := v.(string)
	if !ok {
		return "", errors.New("third argument of function replace must be a function that returns a string")
	}
	return with, nil
}

// expandGroups replaces $0 by the match, $1, $2 and so on by its groups, and $$ by a dollar. Of the digits
// behind a dollar, as many count as make the number of a group, at least one.
func (m *machine) expandGroups(text, s string, one match) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		m.countBytes(len(before))
		out.WriteString(before)
		if !found {
			return out.String()
		}
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case digits == 0:
			out.WriteByte('$')
			text = rest
		case rest[0] == '0':
			m.countBytes(one.to - one.from)
			out.WriteString(s[one.from:one.to])
			text = rest[1:]
		default:
			group, used := groupOf(rest[:digits], one.groups)
			m.countBytes(len(group))
			out.WriteString(group)
			text = rest[used:]
		}
	}
}

func groupOf(digits string, groups []any) (group string, used int) {
	for used = min(len(digits), 4); used > 0; used-- {
		if n, _ := strconv.Atoi(digits[:used]); n >= 1 && n <= len(groups) {
			return fmt.Sprint(groups[n-1]), used
		}
	}
	return "", 1
}
