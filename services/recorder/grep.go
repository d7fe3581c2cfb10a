package recorder

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// Bounds of a pattern.
const (
	maxPattern = 1000 // bytes
	maxWords   = 16   // words that stand in for it
)

// toolUse is what a tool call is called in an agent's own stream. As a pattern
// it selects tool lines, as in the example of seeds/004.
const toolUse = "tool_use"

// pattern selects lines by their text. It ignores case, as its origin does;
// (?-i) turns that off.
type pattern struct {
	re    *regexp.Regexp
	words []string // a line that matches has one of them; none: unknown
	exact bool     // one that has one of them matches
	tools bool     // it means tool lines
	lower []byte   // a line in lower case
}

func newPattern(text string) (*pattern, error) {
	if len(text) > maxPattern {
		return nil, badRequest("grep must have at most %d bytes", maxPattern)
	}
	re, err := regexp.Compile("(?i)" + text)
	if err != nil {
		return nil, badPattern(text)
	}
	p := &pattern{re: re}
	if tree, err := syntax.Parse("(?i)"+text, syntax.Perl); err == nil {
		p.words = words(tree)
		p.exact = len(p.words) > 0 && literal(tree)
	}
	whole := *re
	whole.Longest()
	p.tools = len(whole.FindString(toolUse)) == len(toolUse)
	return p, nil
}

// badPattern says what is wrong with a pattern, in its own terms.
func badPattern(text string) error {
	why := "it is no regular expression"
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		why = err.Error()
	}
	return &wire.APIError{
		Code: wire.CodeBadRegex, Message: "grep: " + timeline.Line(why, 200),
		Hint: "RE2 syntax; a character that is meant literally needs a backslash",
	}
}

// matches reports whether a line is selected, by the text that its reader sees.
func (p *pattern) matches(text string) bool {
	text = timeline.Sanitize(text)
	if len(p.words) > 0 && p.fold(text) {
		if has := p.hasWord(); p.exact || !has {
			return has
		}
	}
	return p.re.MatchString(text)
}

// The letters that aren't ASCII and are a letter of ASCII in another case.
const (
	longS  = "\u017f"
	kelvin = "\u212a"
)

// fold makes p.lower of text, in which words in lower case are found as the
// expression finds them, if there is none of the letters that it can't deal with.
func (p *pattern) fold(text string) bool {
	if cap(p.lower) < len(text) {
		p.lower = make([]byte, 2*len(text))
	}
	p.lower = p.lower[:len(text)]
	odd := false
	for i := range len(text) {
		c := text[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		odd = odd || c == longS[0] || c == kelvin[0]
		p.lower[i] = c
	}
	return !odd || !strings.Contains(text, longS) && !strings.Contains(text, kelvin)
}

// hasWord is a much faster test than the expression itself.
func (p *pattern) hasWord() bool {
	for _, w := range p.words {
		if bytes.Contains(p.lower, []byte(w)) {
			return true
		}
	}
	return false
}

// literal reports whether an expression that ignores case stands for its words,
// and nothing else.
func literal(re *syntax.Regexp) bool {
	switch re.Op { //nolint:exhaustive // the others are more than a word
	case syntax.OpLiteral:
		return re.Flags&syntax.FoldCase != 0
	case syntax.OpCapture:
		return literal(re.Sub[0])
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !literal(sub) })
	}
	return false
}

// ascii reports whether text is plain ASCII.
func ascii(text string) bool {
	for i := range len(text) {
		if c := text[i]; c >= 0x7f || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// words returns words, in lower case, one of which every match contains. It
// returns none if it can't tell.
func words(re *syntax.Regexp) []string {
	switch re.Op { //nolint:exhaustive // the others promise no word
	case syntax.OpLiteral:
		w := strings.ToLower(string(re.Rune))
		if len(w) < 2 || !ascii(w) {
			return nil
		}
		return []string{w}
	case syntax.OpCapture, syntax.OpPlus:
		return words(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return words(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if w := words(sub); len(w) > 0 && (best == nil || shortest(w) > shortest(best)) {
				best = w
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			w := words(sub)
			if len(w) == 0 || len(all)+len(w) > maxWords {
				return nil
			}
			all = append(all, w...)
		}
		return all
	}
	return nil
}

func shortest(list []string) int {
	n := len(list[0])
	for _, w := range list {
		n = min(n, len(w))
	}
	return n
}
