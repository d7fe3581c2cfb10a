package claude_test

import (
	"testing"

	"code.wake.dev/wake/internal/agent/claude"
)

// BenchmarkRest makes the state of a resting point of a session with more calls, messages and lines than are kept.
func BenchmarkRest(b *testing.B) {
	size := claude.BenchState(2000)
	for b.Loop() {
		size()
	}
	b.ReportMetric(float64(size()), "bytes")
}
