package compare_test

import (
	"fmt"
	"testing"

	"code.wake.dev/wake/internal/compare"
	"code.wake.dev/wake/pkg/wire"
)

// BenchmarkAlign puts two runs side by side that have no step in common. The cost of a step is the same however many there are.
func BenchmarkAlign(b *testing.B) {
	for _, n := range []int{10_000, 40_000} {
		side := func(node string) []compare.Step {
			all := make([]compare.Step, n)
			for i := range all {
				all[i], _ = compare.StepOf(uint64(i), &wire.Event{NodeID: node, Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString(fmt.Sprint(node, i))}})
			}
			return all
		}
		x, y := side("coder"), side("agent")
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				compare.Align(x, y)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/step")
		})
	}
}
