package queries

import (
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// A node that no worker has taken yet says for what it waits.
func TestWaitsForWorker(t *testing.T) {
	t.Parallel()
	const want = "waiting for a worker of pool gpu"
	for what, test := range map[string]struct {
		status wire.RunStatus
		node   wire.NodeState
	}{
		want:      {wire.RunRunning, wire.NodeState{Scheduled: 5, Pool: "gpu"}},
		"taken":   {wire.RunRunning, wire.NodeState{Scheduled: 5, Started: 6, Pool: "gpu"}},
		"paused":  {wire.RunPaused, wire.NodeState{Scheduled: 5, Pool: "gpu"}},
		"over":    {wire.RunRunning, wire.NodeState{Scheduled: 5, Ended: 6, Pool: "gpu"}},
		"owner's": {wire.RunRunning, wire.NodeState{Scheduled: 5}},
	} {
		s := &wire.State{Status: test.status, Nodes: map[string]wire.NodeState{"a": test.node}}
		if got := nodeStatus(&table.Node{Node: "a"}, s, 1, false).LastActivity; (got == want) != (what == want) {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// What was cut short isn't going on.
func TestLastActivity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ state, activity, want string }{
		{"active", "running sleep 9", "running sleep 9"},
		{statePaused, "running sleep 9", "was running sleep 9"},
		{stateAborted, "waiting until noon", "was waiting until noon"},
		{stateFailed, "waiting until noon", "was waiting until noon"},
		{stateFailed, "failed: no luck", "failed: no luck"},
		{stateFailed, "done", "done"},
		{stateComplete, "done", "done"},
		{stateFailed, "", ""},
	} {
		if got := lastActivity(test.state, test.activity); got != test.want {
			t.Errorf("%s, %q: %q, want %q", test.state, test.activity, got, test.want)
		}
	}
}
