package jsonata

import (
	"errors"
	"fmt"
	"strings"

	"github.com/blues/jsonata-go/jparse"
)

// The operators that JSONata has since 2.1, and that the library's parser doesn't know. It is given
// x ?? y as x ~> $⁇(y): ~> binds as tightly as they do, and an argument reaches as far as their right side.
const (
	coalesce = "⁇" // x ?? y is x, or y if there is no x
	elvis    = "⁈" // x ?: y is x, or y if x counts as false
)

// Parse returns the syntax tree of an expression.
func Parse(src string) (node jparse.Node, err error) {
	if err := checkPatterns(src); err != nil {
		return nil, err
	}
	if src, err = rewriteTokens(src); err != nil {
		return nil, err
	}
	defer func() { // a defect of the library's parser doesn't end the process
		if recover() != nil {
			node, err = nil, errors.New("syntax error")
		}
	}()
	return jparse.Parse(src)
}

// Fallback returns y if the node is x ?? y or x ?: y; LHS is x.
func Fallback(n *jparse.FunctionApplicationNode) (y jparse.Node, ok bool) {
	call, ok := n.RHS.(*jparse.FunctionCallNode)
	if !ok || len(call.Args) != 1 {
		return nil, false
	}
	v, ok := call.Func.(*jparse.VariableNode)
	if !ok || v.Name != coalesce && v.Name != elvis {
		return nil, false
	}
	return call.Args[0], true
}

// evalFallback evaluates y of x ?? y and x ?: y only if it is wanted.
func (m *machine) evalFallback(n *jparse.FunctionApplicationNode, y jparse.Node, at any, f *frame) (any, error) {
	x, err := m.eval(n.LHS, at, f)
	if err != nil {
		return nil, err
	}
	if n.RHS.(*jparse.FunctionCallNode).Func.(*jparse.VariableNode).Name == coalesce && !isAbsent(x) || m.isTrue(x) {
		return x, nil
	}
	return m.eval(y, at, f)
}

// symbols are the bytes that end a name.
const symbols = "[]{}().,;:?+-*/%|=<>^&!~ \t\n\r\v"

// rewriter copies the tokens of an expression and writes ?? and ?: in the parser's words.
type rewriter struct {
	src     string
	at      int
	out     strings.Builder
	open    []byte // brackets, ( of parameters as f, ? of a condition, and the operator of a right side as o
	operand bool   // the last token ended an operand
	last    string // token
}

// rewriteTokens returns an expression without ?? and ?:. It refuses ! and ~ alone, which the library takes for
// names of no length: in the types of a function it would never come to the end.
func rewriteTokens(src string) (string, error) {
	w := &rewriter{src: src}
	for w.at < len(src) {
		if err := w.copyToken(); err != nil {
			return "", err
		}
	}
	if err := w.endOperands(); err != nil {
		return "", err
	}
	return w.out.String(), nil
}

// copyToken copies the next token, or writes what stands for it.
func (w *rewriter) copyToken() error {
	rest := w.src[w.at:]
	switch c := rest[0]; {
	case strings.IndexByte(" \t\n\r\v", c) >= 0:
		w.copyBytes(1)
		return nil
	case strings.IndexByte("\"'`", c) >= 0:
		w.copyOperand(quotedSize(rest))
	case c == '/' && !w.operand:
		w.copyOperand(patternSize(rest))
	case c >= '0' && c <= '9':
		w.copyOperand(len(rest) - len(strings.TrimLeft(rest, "0123456789")))
	case strings.IndexByte(symbols, c) < 0:
		w.copyName(rest)
	case c == '!' && !strings.HasPrefix(rest, "!=") || c == '~' && !strings.HasPrefix(rest, "~>"):
		return fmt.Errorf("there is no operator %c", c)
	case strings.HasPrefix(rest, "??"):
		return w.writeFallback(coalesce)
	case strings.HasPrefix(rest, "?:"):
		return w.writeFallback(elvis)
	default:
		return w.copySymbol(rest)
	}
	return nil
}

func (w *rewriter) copyBytes(n int) {
	w.out.WriteString(w.src[w.at : w.at+n])
	w.at += n
}

func (w *rewriter) copyOperand(n int) {
	w.last = w.src[w.at : w.at+n]
	w.operand = true
	w.copyBytes(n)
}

func (w *rewriter) copyName(rest string) {
	n := strings.IndexAny(rest, symbols)
	if n < 0 {
		n = len(rest)
	}
	infix := w.operand && (rest[:n] == "and" || rest[:n] == "or" || rest[:n] == "in")
	w.copyOperand(n)
	w.operand = !infix
}

func (w *rewriter) writeFallback(name string) error {
	if !w.operand {
		return fmt.Errorf("%s has nothing on its left", w.src[w.at:w.at+2])
	}
	w.at += 2
	w.out.WriteString(" ~> $" + name + "(")
	w.open = append(w.open, 'o')
	w.operand, w.last = false, ""
	return nil
}

// copySymbol copies an operator or a bracket.
func (w *rewriter) copySymbol(rest string) error {
	c, size := rest[0], 1
	wildcard := c == '*' && !w.operand
	if strings.HasPrefix(rest, "..") || strings.HasPrefix(rest, "**") || strings.IndexByte(":!<>", c) >= 0 && strings.HasPrefix(rest[1:], "=") || c == '~' {
		size = 2
	}
	token := rest[:size]
	switch token {
	case "(", "[", "{":
		if c == '(' && (w.last == "function" || w.last == "λ") {
			c = 'f'
		}
		w.open = append(w.open, c)
	case ")", "]", "}", ",", ";", "|", "..", ":":
		if err := w.endOperands(); err != nil {
			return err
		}
	case "?":
		w.open = append(w.open, '?')
	}
	w.copyBytes(size)
	w.operand, w.last = wildcard || strings.Contains(")]}", token), token
	switch token {
	case ":":
		w.closeTop('?')
	case ")", "]", "}":
		if w.closeTop('f') {
			w.copyBytes(signatureSize(w.src[w.at:]))
		} else if len(w.open) > 0 {
			w.open = w.open[:len(w.open)-1]
		}
	}
	return nil
}

// endOperands ends the right sides that end here. Conditions end with them, unless it is with their colon.
func (w *rewriter) endOperands() error {
	colon := w.at < len(w.src) && w.src[w.at] == ':'
	for n := len(w.open); n > 0; n = len(w.open) {
		switch {
		case w.open[n-1] == 'o' && !w.operand:
			return errors.New("?? or ?: has nothing on its right")
		case w.open[n-1] == 'o':
			w.out.WriteByte(')')
		case w.open[n-1] != '?' || colon:
			return nil
		}
		w.open = w.open[:n-1]
	}
	return nil
}

func (w *rewriter) closeTop(c byte) bool {
	n := len(w.open)
	if n == 0 || w.open[n-1] != c {
		return false
	}
	w.open = w.open[:n-1]
	return true
}

// quotedSize is the length of the text, or the name, between quotes at the beginning of s.
func quotedSize(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return i + 1
		case s[i] == '\\' && s[0] != '`':
			i++
		}
	}
	return len(s)
}

// patternSize is the length of the pattern between slashes at the beginning of s, without its flags. A slash
// within brackets doesn't end it.
func patternSize(s string) int {
	depth := 0
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '/':
			if depth == 0 {
				return i + 1
			}
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case '\\':
			i++
		}
	}
	return len(s)
}

// signatureSize is the length of the types of a function at the beginning of s, such as <n?:n>.
func signatureSize(s string) int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '<':
			depth++
		case '>':
			depth--
		case '!', '~':
			return 0
		case ' ', '\t', '\n', '\r', '\v':
			continue
		}
		if depth == 0 {
			if s[i] == '>' {
				return i + 1
			}
			return 0
		}
	}
	return 0
}
