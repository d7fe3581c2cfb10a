package intake

import (
	"testing"

	"code.wake.dev/wake/services/runner/internal/registry"
)

// Runs that another runner took over are not remembered for ever.
func TestAttemptsAreForgotten(t *testing.T) {
	a := newAttempts()
	a.noteFailure("r1")
	a.noteFailure("r2")
	a.keepRuns([]registry.Registration{{Run: "r2"}, {Run: "r3"}})
	if _, kept := a.next["r2"]; !kept || len(a.next) != 1 {
		t.Errorf("remembered: %v", a.next)
	}
}
