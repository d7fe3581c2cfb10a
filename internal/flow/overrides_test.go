package flow_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// Options of a node are those of its agent.
func TestOverridesOfNode(t *testing.T) {
	def, err := flow.Parse("x.yaml", []byte("name: x\nnodes:\n  - {id: a, type: agent, input: {prompt: Go.}}\n  - {id: w, type: exec, input: {command: ls}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{
		"a": "",
		"w": "node w is of type exec, and only agents have options",
		"x": `"x" is neither an option of agents nor a node with options`,
	} {
		err := flow.CheckOverrides(def, wire.RawOf(map[string]any{node: map[string]any{"model": "opus"}}))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", node, err, want)
		}
	}
}
