package document

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	File      string
	Line, Col int    // from 1; 0 if it didn't come from a file
	Field     string // such as nodes[2].policy.timeoutMs
	Message   string // what is wrong, and what would be right
}

// String returns "<file>:<line>:<col>: <field>: <message>".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Col)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	return b.String() + p.Message
}

// Error is everything that is wrong with a file, in the order of the file.
type Error struct{ Problems []Problem }

// Error returns a problem a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems is how many are told: more don't help the user.
const maxProblems = 100

// Problems collects what is wrong with a file.
type Problems struct {
	File string
	list []Problem
}

// Count returns how many problems there are.
func (ps *Problems) Count() int { return len(ps.list) }

// Add notes what is wrong with a field, which may be "".
func (ps *Problems) Add(at Place, field, format string, args ...any) {
	ps.list = append(ps.list, Problem{
		File: ps.File, Line: at.Line, Col: at.Col, Field: field, Message: fmt.Sprintf(format, args...),
	})
}

// AddWithin notes the problems of what is within a field.
func (ps *Problems) AddWithin(field string, of *Problems) {
	for _, p := range of.list {
		p.Field = strings.TrimSuffix(field+"."+p.Field, ".")
		ps.list = append(ps.list, p)
	}
}

// Err returns an [*Error] of what was noted, in the order of the file; nil if nothing was.
func (ps *Problems) Err() error {
	if len(ps.list) == 0 {
		return nil
	}
	slices.SortStableFunc(ps.list, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
	return &Error{Problems: ps.list[:min(len(ps.list), maxProblems)]}
}

// SuggestName returns `; did you mean "x"?` if one of the names is close to what was
// written.
func SuggestName(written string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if d := editDistance(strings.ToLower(written), strings.ToLower(name)); d < distance && d < max(len(name), 3)-1 {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is the number of insertions, deletions, replacements and swaps of
// neighbours that make a of b. Long words are never close.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
