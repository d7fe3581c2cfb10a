package history_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// Of the runs below one, those are asked that may have a later snapshot of the folder than what is known: not each of thousands.
func TestLastKeptAsksFew(t *testing.T) {
	s := &wire.State{RunID: "r", Workspace: "w", Folder: &wire.FolderSnapshot{ID: "own", Position: 50}, Nodes: map[string]wire.NodeState{
		"before": {Type: "flow", Exec: "before#1", Scheduled: 1, Started: 2, Ended: 40},
		"behind": {Type: "flow", Exec: "behind#1", Scheduled: 41, Started: 42, Ended: 60},
		"early":  {Type: "flow", Exec: "early#1", Scheduled: 41, Started: 42, Ended: 55},
		"open":   {Type: "flow", Exec: "open#2", Scheduled: 61, Started: 62, Ended: 45},
	}}
	kept := map[string]*wire.FolderSnapshot{"r.behind#1": {ID: "behind", Position: 58}, "r.early#1": {ID: "early", Position: 51}}
	var asked []string
	last, err := history.LastKept(t.Context(), s, history.FlowsBelow, func(_ context.Context, id string) (*wire.State, error) {
		asked = append(asked, id)
		return &wire.State{RunID: id, Workspace: "w", Folder: kept[id]}, nil
	})
	if err != nil || last == nil || last.ID != "behind" {
		t.Errorf("%+v, %v", last, err)
	}
	if diff := cmp.Diff([]string{"r.open#2", "r.behind#1"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	asked = nil
	for i := range 3000 {
		node := fmt.Sprintf("many/%d", i)
		s.Nodes[node] = wire.NodeState{Type: "flow", Exec: node + "#1", Scheduled: 1, Started: 2, Ended: 40}
	}
	if _, err := history.LastKept(t.Context(), s, history.FlowsBelow, func(_ context.Context, id string) (*wire.State, error) {
		asked = append(asked, id)
		return &wire.State{RunID: id}, nil
	}); err != nil || slices.Contains(asked, "r.many/7#1") {
		t.Errorf("asked %d, %v", len(asked), err)
	}
}
