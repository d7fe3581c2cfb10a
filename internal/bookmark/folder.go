package bookmark

import (
	"context"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// FirstFolder returns the first snapshot of a run's folder from a position on, nil if none was taken: a point before the first one
// has the folder of that, as nothing had been at work.
func FirstFolder(ctx context.Context, log eventlog.Reader, runID string, from uint64) (*wire.FolderSnapshot, error) {
	query := eventlog.Query{Run: runID, From: from, Kinds: []wire.Kind{wire.TypeWorkspaceSnapshot.Kind(), wire.TypeNodeStart.Kind()}}
	for e, err := range log.Read(ctx, query) {
		if err != nil {
			return nil, err
		}
		if e.Event == nil {
			continue
		}
		switch p := e.Event.Payload.(type) {
		case *wire.NodeStart:
			if p.EmptyFolder {
				return &wire.FolderSnapshot{Position: e.Pos, Node: e.NodeID}, nil
			}
		case *wire.WorkspaceSnapshot:
			return &wire.FolderSnapshot{ID: p.ID, Position: e.Pos, Node: e.NodeID, Files: p.Files, Bytes: p.Bytes, Refused: p.Refused}, nil
		}
	}
	return nil, nil //nolint:nilnil // as it says
}
