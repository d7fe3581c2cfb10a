package history

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/wire"
)

// Folder is what is kept of the folder of a run as of a point.
type Folder struct {
	RunID    string               `json:"runId"`
	At       string               `json:"at,omitempty"` // the point as it was named; "": the present
	Snapshot *wire.FolderSnapshot `json:"snapshot"`
	Tree     string               `json:"tree"`               // hash of all that is in it
	Working  []string             `json:"working,omitempty"`  // other nodes that were at work: what they had written may be in it
	Restored string               `json:"restored,omitempty"` // where to
	Content  []workspace.File     `json:"content,omitempty"`
}

// FolderChanges is what differs between two folders.
type FolderChanges struct {
	A       *wire.FolderSnapshot `json:"a"`
	B       *wire.FolderSnapshot `json:"b"`
	Changes []workspace.Change   `json:"changes"`
}

// FolderOf returns the last snapshot of the folder of a run in a state, or the first one, if nothing was at work before. It fails if
// none is kept.
func FolderOf(ctx context.Context, log eventlog.Reader, state *wire.State) (f Folder, err error) {
	f = Folder{RunID: state.RunID}
	if f.Snapshot, err = LastFolder(ctx, log, state, state.Position.Seq); err != nil {
		return f, err
	}
	if s := f.Snapshot; s == nil || s.Pending {
		first, err := FirstFolder(ctx, log, state.RunID, state.Position.Seq)
		if err != nil {
			return f, err
		}
		if first != nil || s == nil || s.Position == 0 {
			f.Snapshot = first
		}
	}
	switch s := f.Snapshot; {
	case s == nil:
		return f, &wire.APIError{
			Code: wire.CodeNotFound, Message: "there is no snapshot of the folder of run " + state.RunID,
			Hint: "snapshots are of runs with `workspace: run` whose runner has --workspace-snapshots; the first one may still be on its way",
		}
	case s.Refused != "":
		return f, &wire.APIError{
			Code: wire.CodeNotFound, Message: "the folder of run " + state.RunID + " isn't kept: " + s.Refused,
			Hint: "it is in " + state.Workspace + ", where the runner is",
		}
	}
	for _, node := range slices.Sorted(maps.Keys(state.Nodes)) {
		if n := state.Nodes[node]; node != f.Snapshot.Node && n.Open() && n.Started != 0 {
			f.Working = append(f.Working, node)
		}
	}
	return f, nil
}

// List adds what is in the folder.
func (f *Folder) List(ctx context.Context, packs *workspace.Reader) error {
	content, err := packs.List(ctx, f.Snapshot.ID)
	f.Tree, f.Content = content.Tree, content.Files
	return FolderError(err)
}

// CompareFolders returns what differs in folder b from a.
func CompareFolders(ctx context.Context, packs *workspace.Reader, a, b *wire.FolderSnapshot) (FolderChanges, error) {
	changes, err := packs.Compare(ctx, a.ID, b.ID)
	return FolderChanges{a, b, append([]workspace.Change{}, changes...)}, FolderError(err)
}

// FolderError says what to do about a snapshot that can't be read.
func FolderError(err error) error {
	switch {
	case errors.Is(err, workspace.ErrMissing):
		return &wire.APIError{Code: wire.CodeNotFound, Message: err.Error(), Hint: "the run, or the one that it was forked from, has been removed, or its snapshots were dropped as all of them took too much (--retain-folders)"}
	case errors.Is(err, workspace.ErrDamaged):
		return &wire.APIError{Code: wire.CodeCorruptedData, Message: err.Error(), Hint: "take an earlier point"}
	}
	return err
}

// FirstFolder returns the first snapshot of a run's folder from a position on, nil if none was taken before something was at work
// that may have changed it: a point before the first one has the folder of that.
func FirstFolder(ctx context.Context, log eventlog.Reader, runID string, from uint64) (*wire.FolderSnapshot, error) {
	return firstFolder(Read(ctx, log, folderQuery(runID, from)))
}

// AwaitFolder is [FirstFolder] of a run that goes on while its snapshot is being taken.
func AwaitFolder(ctx context.Context, log eventlog.Reader, runID string, from uint64) (*wire.FolderSnapshot, error) {
	return firstFolder(log.Follow(ctx, folderQuery(runID, from)))
}

func folderQuery(runID string, from uint64) eventlog.Query {
	return eventlog.Query{Run: runID, From: from, Kinds: []wire.Kind{wire.TypeWorkspaceSnapshot.Kind(), wire.TypeNodeStart.Kind(), wire.TypeToolIntent.Kind()}}
}

func firstFolder(events iter.Seq2[eventlog.Entry, error]) (*wire.FolderSnapshot, error) {
	for e, err := range events {
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
		case *wire.ExecStart:
			return nil, nil
		case *wire.ToolIntent:
			if !p.Idempotent {
				return nil, nil
			}
		}
	}
	return nil, nil
}

// FlowRun is a run that a node of another one has begun.
type FlowRun struct {
	ID    string
	Ended uint64 // where the node has ended, which is behind the run; 0: it goes on
}

// LastKept returns the last snapshot of the folder of a run: its own, or that of a run below it which works in the same folder. below names
// those of a run, and stateOf returns their states, as of when s is: it is asked for those alone that may have a later one.
func LastKept(ctx context.Context, s *wire.State, below func(*wire.State) []FlowRun, stateOf func(ctx context.Context, run string) (*wire.State, error)) (*wire.FolderSnapshot, error) {
	last, flows := s.Folder, below(s)
	slices.SortFunc(flows, func(a, b FlowRun) int { return cmp.Compare(b.Ended-1, a.Ended-1) }) // those that go on first
	for _, f := range flows {
		if last != nil && f.Ended != 0 && f.Ended < last.Position {
			break
		}
		state, err := stateOf(ctx, f.ID)
		if err != nil {
			return nil, err
		}
		if state.Workspace == "" || state.Workspace != s.Workspace {
			continue
		}
		kept, err := LastKept(ctx, state, below, stateOf)
		if err != nil {
			return nil, err
		}
		if kept != nil && (last == nil || kept.Position > last.Position) {
			last = kept
		}
	}
	return last, nil
}

// LastFolder is [LastKept] by the log, as of a position.
func LastFolder(ctx context.Context, log eventlog.Reader, s *wire.State, at uint64) (*wire.FolderSnapshot, error) {
	return LastKept(ctx, s, FlowsBelow, func(ctx context.Context, id string) (*wire.State, error) { return StateAt(ctx, log, id, at) })
}

// FlowsBelow are the runs that flow nodes of a run have begun.
func FlowsBelow(s *wire.State) (flows []FlowRun) {
	for _, n := range s.Nodes {
		if n.Type != nodeOfFlow || n.Exec == "" || n.Started == 0 {
			continue
		}
		f := FlowRun{ID: run.ChildID(s.RunID, n.Exec), Ended: n.Ended}
		if n.Open() {
			f.Ended = 0
		}
		flows = append(flows, f)
	}
	return flows
}

// nodeOfFlow is the type of a node that begins a run.
const nodeOfFlow = "flow"
