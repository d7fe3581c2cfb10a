package work

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// What the flow itself refers to is replaced, in variables and in what MCP servers get;
// what a binding or an agent has put there isn't.
func TestOptionSecrets(t *testing.T) {
	t.Parallel()
	input, err := wire.Marshal(map[string]any{
		"env": map[string]any{"OWN": "${secret.TOKEN}", "BOUND": "{{ a.text }}", "PLAIN": "x"},
		"mcpServers": map[string]any{"git": map[string]any{
			"headers": map[string]any{"Authorization": "Bearer ${secret.TOKEN}"}, "env": map[string]any{"K": "${secret.TOKEN}-${secret.OTHER}"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &execution{
		cfg:  &Config{ID: "r1", Secrets: map[string]string{"TOKEN": "correct-horse", "OTHER": "battery"}},
		node: &flow.Node{ID: "b", Input: input},
	}
	given := map[string]string{"OWN": "${secret.TOKEN}", "BOUND": "${secret.TOKEN}", "PLAIN": "x", "ADDED": "${secret.TOKEN}"}
	o := agent.Options{Env: given, MCPServers: map[string]agent.MCPServer{"git": {
		Headers: map[string]string{"Authorization": "Bearer ${secret.TOKEN}"}, Env: map[string]string{"K": "${secret.TOKEN}-${secret.OTHER}"},
	}}}
	if err := x.optionSecrets(&o); err != nil {
		t.Fatal(err)
	}
	want := agent.Options{
		Env: map[string]string{"OWN": "correct-horse", "BOUND": "${secret.TOKEN}", "PLAIN": "x", "ADDED": "${secret.TOKEN}"},
		MCPServers: map[string]agent.MCPServer{"git": {
			Headers: map[string]string{"Authorization": "Bearer correct-horse"}, Env: map[string]string{"K": "correct-horse-battery"},
		}},
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Error(diff)
	}
	if given["OWN"] != "${secret.TOKEN}" {
		t.Error("the input of the node was changed")
	}
	delete(x.cfg.Secrets, "OTHER")
	o.MCPServers["git"] = agent.MCPServer{Env: map[string]string{"K": "${secret.TOKEN}-${secret.OTHER}"}}
	if err := x.optionSecrets(&o); err == nil || !strings.Contains(err.Error(), "--secret OTHER") || strings.Contains(err.Error(), "horse") {
		t.Errorf("without one of them: %v", err)
	}
}
