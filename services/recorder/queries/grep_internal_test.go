package queries

import (
	"strings"
	"testing"
)

// A pattern that a reader could have match for minutes is refused; usual ones aren't.
func TestPatternSteps(t *testing.T) {
	for _, text := range []string{strings.Repeat("x{0,999}", 2), strings.Repeat("(a|b){0,99}", 20) + "☃"} {
		if _, err := newPattern(text); err == nil || !strings.Contains(err.Error(), "steps") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{`error|fail(ed|ure)?`, `\w{3,40}@[a-z0-9.-]{1,60}\.[a-z]{2,8}`, `\b\d{1,3}(\.\d{1,3}){3}\b`, strings.Repeat("x", maxPattern)} {
		if _, err := newPattern(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
