package queries

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Bounds of a pattern.
const (
	maxPattern = 1000 // bytes
	maxWords   = 16   // words that stand in for it
	maxSteps   = 2000 // of its program: a text takes time in proportion to that, and nothing ends a match
)

// pattern selects lines by their text. It ignores case, as its origin does;
// (?-i) turns that off.
type pattern struct {
	re    *regexp.Regexp
	words []string // a line that matches has one of them; none: unknown
	exact bool     // a line that has one of them matches
	tools bool     // it means tool lines
	lower []byte   // a line in lower case
}

func newPattern(text string) (*pattern, error) {
	if len(text) > maxPattern {
		return nil, request.Bad("grep must have at most %d bytes", maxPattern)
	}
	re, err := regexp.Compile("(?i)" + text)
	if err != nil {
		return nil, badPattern(text)
	}
	p := &pattern{re: re}
	if tree, err := syntax.Parse("(?i)"+text, syntax.Perl); err == nil {
		if program, err := syntax.Compile(tree.Simplify()); err == nil && len(program.Inst) > maxSteps {
			return nil, request.Bad("grep repeats too much: its pattern comes to %d steps, at most %d are taken", len(program.Inst), maxSteps)
		}
		p.words = requiredWords(tree)
		p.exact = len(p.words) > 0 && isLiteral(tree)
	}
	p.tools = timeline.MeansTools(re)
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

// matchesLine reports whether a line is selected, by the text that its reader sees.
func (p *pattern) matchesLine(text string) bool {
	text = timeline.Sanitize(text)
	if len(p.words) > 0 && p.lowerText(text) {
		if has := p.hasWord(); p.exact || !has {
			return has
		}
	}
	return p.re.MatchString(text)
}

// partMark stands between what a call was given and what it answered.
const partMark = "\ue002"

// matchesCall reports whether the line of a call is selected by the call's input or
// output, if it has any.
func (p *pattern) matchesCall(call any) bool {
	text, ok := call.(string)
	if !ok {
		return false
	}
	input, output, _ := strings.Cut(text, partMark)
	return p.matchesLine(input) || p.matchesLine(output)
}

// excerptAround is how much of a text is shown before and behind what matches.
const excerptAround = 80 // bytes

// excerptOf returns the lines of a text in which the first match is, or the part of
// them that is around it; "" if nothing matches.
func (p *pattern) excerptOf(text string) string {
	text = timeline.Sanitize(text)
	at := p.re.FindStringIndex(text)
	if at == nil {
		return ""
	}
	from, to := at[0], min(at[1], at[0]+4*excerptAround)
	before, after := text[max(0, from-excerptAround):from], text[to:min(len(text), to+excerptAround)]
	if i := strings.LastIndexByte(before, '\n'); i >= 0 {
		before = before[i+1:]
	} else if from > excerptAround {
		before = "…" + before
	}
	after, _, whole := strings.Cut(after, "\n")
	if !whole && to+excerptAround < len(text) {
		after += "…"
	}
	return strings.ToValidUTF8(before+text[from:to]+after, "")
}

// The letters that aren't ASCII and are a letter of ASCII in another case.
const (
	longS  = "\u017f"
	kelvin = "\u212a"
)

// lowerText makes p.lower of text, in which words in lower case are found as the
// expression finds them, if there is none of the letters that it can't deal with.
func (p *pattern) lowerText(text string) bool {
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

// isLiteral reports whether an expression that ignores case stands for its words,
// and nothing else.
func isLiteral(re *syntax.Regexp) bool {
	switch re.Op { //nolint:exhaustive // the others are more than a word
	case syntax.OpLiteral:
		return re.Flags&syntax.FoldCase != 0
	case syntax.OpCapture:
		return isLiteral(re.Sub[0])
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !isLiteral(sub) })
	}
	return false
}

// isASCII reports whether text is plain ASCII.
func isASCII(text string) bool {
	for i := range len(text) {
		if c := text[i]; c >= 0x7f || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// requiredWords returns words, in lower case, one of which every match contains. It
// returns none if it can't tell.
func requiredWords(re *syntax.Regexp) []string {
	switch re.Op { //nolint:exhaustive // the others promise no word
	case syntax.OpLiteral:
		w := strings.ToLower(string(re.Rune))
		if len(w) < 2 || !isASCII(w) {
			return nil
		}
		return []string{w}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredWords(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return requiredWords(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if w := requiredWords(sub); len(w) > 0 && (best == nil || shortestWord(w) > shortestWord(best)) {
				best = w
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			w := requiredWords(sub)
			if len(w) == 0 || len(all)+len(w) > maxWords {
				return nil
			}
			all = append(all, w...)
		}
		return all
	}
	return nil
}

func shortestWord(list []string) int {
	n := len(list[0])
	for _, w := range list {
		n = min(n, len(w))
	}
	return n
}
