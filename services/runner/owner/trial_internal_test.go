package owner

import (
	"testing"

	"code.wake.dev/wake/internal/logtest"
)

// TestPanicStaysAlone has a run panic that is tried alone: until the process has ended no other may be tried, or it
// would be taken for the culprit, too.
func TestPanicStaysAlone(t *testing.T) {
	alone := make(chan struct{}, 1)
	alone <- struct{}{}
	o := &owner{cfg: &Config{Log: logtest.Start(t)}, trial: runTrial{count: 2, leave: func() { <-alone }}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it doesn't panic")
			}
		}()
		_ = o.takeRun(t.Context()) // there is no registry
	}()
	select {
	case alone <- struct{}{}:
		t.Error("another run may be tried while a panic ends the process")
	default:
	}
}
