package recorder

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A question waits for what will soon be recorded, and not where there is more than that.
func TestWaitsForLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for behind, want := range map[uint64]time.Duration{0: 0, 1: maxCatchUp, maxBehind: maxCatchUp, maxBehind + 1: 0} {
			p := progress{pos: 7}
			ctx, cancel := context.WithTimeout(t.Context(), maxCatchUp)
			began := time.Now()
			p.awaitPos(ctx, 7+behind)
			cancel()
			if took := time.Since(began); took != want {
				t.Errorf("%d events behind it waited for %v, want %v", behind, took, want)
			}
		}
	})
}
