package graph_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/graph"
	"code.wake.dev/wake/pkg/wire"
)

// A node says which agent it is, where the flow tells.
func TestProviders(t *testing.T) {
	def, err := wire.Marshal(map[string]any{"name": "f", "nodes": []any{
		map[string]any{"id": "plain", "type": "agent", "input": map[string]any{"prompt": "p"}},
		map[string]any{"id": "named", "type": "agent", "input": map[string]any{"prompt": "p", "provider": "codex", "agent": "gemini"}},
		map[string]any{"id": "acp", "type": "agent", "input": map[string]any{"prompt": "p", "provider": "acp", "agent": "gemini"}},
		map[string]any{"id": "bound", "type": "agent", "input": map[string]any{"prompt": "p", "provider": "{{ input.provider }}"}},
		map[string]any{"id": "build", "type": "exec", "input": map[string]any{"command": []any{"make"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flow.FromRaw(def); err != nil { // it is a flow
		t.Fatal(err)
	}
	for fixtures, want := range map[string]string{"": "agent claude,agent codex,agent gemini,agent,exec", "recorded": "agent,agent,agent,agent,exec"} {
		p := graph.Draw(&wire.State{Definition: def, Fixtures: fixtures})
		if p == nil {
			t.Fatal("there is no picture")
		}
		var types []string
		for _, n := range p.Nodes {
			types = append(types, n.Type)
		}
		if got := strings.Join(types, ","); got != want {
			t.Errorf("with fixtures %q: %s, not %s", fixtures, got, want)
		}
	}
	if of := graph.Providers(&wire.State{Definition: def}); of["plain"] != "claude" || of["named"] != "codex" || of["acp"] != "gemini" || len(of) != 3 {
		t.Errorf("%v", of)
	}
	bound, err := wire.Marshal(map[string]any{"name": "f", "nodes": []any{map[string]any{"id": "a", "type": "agent", "input": map[string]any{"prompt": "p", "provider": "acp", "agent": "{{ input.agent }}"}}}})
	if of := graph.Providers(&wire.State{Definition: bound}); err != nil || of["a"] != "acp" {
		t.Errorf("of a binding: %v, %v", of, err)
	}
	if of := graph.Providers(&wire.State{}); len(of) > 0 {
		t.Errorf("without a flow: %v", of)
	}
}
