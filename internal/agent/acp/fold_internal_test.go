package acp

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/internal/agent"
)

// Calls that have ended are remembered up to a bound, recovered ones too.
func TestEndedIsBounded(t *testing.T) {
	f := newFold(agent.Request{SessionID: "ours"})
	for i := range 2 * maxEnded {
		f.openCall(fmt.Sprint(i))
	}
	f.recoverCalls()
	if len(f.Ended) != maxEnded || f.Ended[maxEnded-1] != fmt.Sprint(2*maxEnded-1) {
		t.Errorf("it remembers %d calls, at last %s", len(f.Ended), f.Ended[len(f.Ended)-1])
	}
}
