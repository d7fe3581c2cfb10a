package replay_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What reads a run again can't act: neither directly nor by way of others does it
// import what starts processes or agents.
func TestNothingToActWith(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "code.wake.dev/wake/internal/replay", "code.wake.dev/wake/internal/timeline", "code.wake.dev/wake/internal/history").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "code.wake.dev/wake/pkg/wire") {
		t.Fatalf("listed are %v", deps)
	}
	for _, dep := range deps {
		for _, actor := range []string{"os/exec", "code.wake.dev/wake/internal/agent", "code.wake.dev/wake/internal/process", "code.wake.dev/wake/services"} {
			if dep == actor || strings.HasPrefix(dep, actor+"/") {
				t.Errorf("it imports %s", dep)
			}
		}
	}
}
