package runner

import "testing"

// Runs that somebody else took over are not remembered for ever.
func TestAttemptsAreForgotten(t *testing.T) {
	a := newAttempts()
	a.failed("r1")
	a.failed("r2")
	a.keep([]registration{{Run: "r2"}, {Run: "r3"}})
	if _, kept := a.next["r2"]; !kept || len(a.next) != 1 {
		t.Errorf("remembered: %v", a.next)
	}
}
