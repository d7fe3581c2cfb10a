package alerter

import (
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// Each question that a fork has taken over from its parent is an alert of its own.
func TestInheritedQuestions(t *testing.T) {
	state, err := wire.Marshal(wire.State{
		RunID: "fork", Status: wire.RunRunning,
		NodeStatus: map[string]wire.NodeStatus{"a": wire.NodeRunning, "b": wire.NodeRunning},
		Nodes:      map[string]wire.NodeState{"a": {Scheduled: 1, PromptID: "p1", Exec: "a#1"}, "b": {Scheduled: 1, PromptID: "p2", Exec: "b#1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, f := range inheritedQuestions(finding{Kind: kindWaiting, Armed: 74}, &wire.RunForked{State: state}) {
		keys[f.key()] = true
	}
	if len(keys) != 2 || !keys["waiting-74"] {
		t.Errorf("keys %v", keys)
	}
}
