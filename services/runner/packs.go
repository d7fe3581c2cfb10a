package runner

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// servePacks answers clients that may see what is in the folders of runs: only runners read the object store.
func (r *Runner) servePacks(ctx context.Context, store *workspace.Store) error {
	return api.Service{Names: r.log.Names(), Name: "folders", Logger: r.logger, Tracer: r.log.Tracer(), Endpoints: []api.Endpoint{
		api.Hold(wire.VerbPack, func(ctx context.Context, q wire.PackRequest, f api.Form) (wire.PieceResponse, error) {
			return packPiece(ctx, store, q, f)
		}),
		api.Hold(wire.VerbWorkspace, func(ctx context.Context, q wire.WorkspaceRequest, f api.Form) (wire.WorkspaceResponse, error) {
			return r.listFolder(ctx, store, q, f)
		}).Bound(make(chan struct{}, 4)), // each answer holds a run's state and a folder's list
	}}.Run(ctx, r.log.Conn())
}

// listFolder returns as much of what is in the folder of a run, or of what differs in it, as fits.
func (r *Runner) listFolder(ctx context.Context, store *workspace.Store, q wire.WorkspaceRequest, f api.Form) (wire.WorkspaceResponse, error) {
	answer := wire.WorkspaceResponse{RunID: q.Run}
	from, of, err := readCursor(q.Cursor)
	if err != nil {
		return answer, err
	}
	if q.At == 0 {
		q.At = of.at // the present of the first page
	}
	folder, at, err := r.folderAt(ctx, q.Run, q.At)
	if err != nil {
		return answer, err
	}
	shown := folder.Snapshot.ID
	var sizes []int // of what is listed, as JSON at most
	if q.Diff == 0 {
		if err := folder.List(ctx, store.Reader); err != nil {
			return answer, err
		}
		answer.Snapshot, answer.Tree, answer.Content = folder.Snapshot, folder.Tree, folder.Content
		answer.Working = folder.Working[:min(len(folder.Working), maxWorking)]
		answer.WorkingMore = len(folder.Working) - len(answer.Working)
		for _, file := range folder.Content {
			sizes = append(sizes, sizeOf(&file))
		}
	} else {
		other, _, err := r.folderAt(ctx, q.Run, q.Diff)
		if err != nil {
			return answer, err
		}
		changes, err := history.CompareFolders(ctx, store.Reader, folder.Snapshot, other.Snapshot)
		if err != nil {
			return answer, err
		}
		shown += " " + other.Snapshot.ID
		answer.A, answer.B, answer.Changes = changes.A, changes.B, changes.Changes
		for _, c := range changes.Changes {
			sizes = append(sizes, 6*len(c.Path)+sizeOf(c.A)+sizeOf(c.B))
		}
	}
	if from > len(sizes) || q.Cursor != "" && of.shown != shown {
		return answer, errCursor
	}
	room := f.Limit - 64<<10 // the rest is for snapshots, which tell what was left out
	for _, node := range answer.Working {
		room -= len(node) + 3
	}
	to := from
	for ; to < len(sizes) && (room >= sizes[to] || to == from); to++ {
		room -= sizes[to]
	}
	if q.Diff == 0 {
		answer.Content = answer.Content[from:to]
	} else {
		answer.Changes = answer.Changes[from:to]
	}
	if to < len(sizes) {
		answer.Cursor = fmt.Sprint(to, " ", at, " ", shown)
	}
	return answer, nil
}

// maxWorking bounds the nodes at work that an answer names.
const maxWorking = 200

// errCursor is the answer to a cursor that isn't of this list.
var errCursor = &wire.APIError{Code: wire.CodeBadRequest, Message: "cursor is of another folder, or of what it was before", Hint: "begin with the first page"}

// listed is what the pages of a list are of: the run at a position, and the snapshots.
type listed struct {
	at    uint64
	shown string
}

// readCursor returns where the page of a cursor begins, and what it is of.
func readCursor(cursor string) (from int, of listed, err error) {
	if cursor == "" {
		return 0, of, nil
	}
	fields := strings.SplitN(cursor, " ", 3)
	if len(fields) < 3 {
		return 0, of, errCursor
	}
	of.shown = fields[2]
	if from, err = strconv.Atoi(fields[0]); err == nil {
		of.at, err = strconv.ParseUint(fields[1], 10, 64)
	}
	if err != nil || from < 0 {
		return 0, of, errCursor
	}
	return from, of, nil
}

// folderAt returns the folder of a run as of a position, 0 for the present, and that position.
func (r *Runner) folderAt(ctx context.Context, run string, at uint64) (history.Folder, uint64, error) {
	if err := subjects.CheckID(run); err != nil {
		return history.Folder{}, 0, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("run: %v", err)}
	}
	state, err := history.StateAt(ctx, r.log, run, at)
	if err == nil && state.Position.Seq == 0 {
		err = &wire.APIError{Code: wire.CodeRunNotFound, Message: "there is no run of this id, or it had not begun there", Hint: "see `wake runs` for the runs there are"}
	}
	if err != nil {
		return history.Folder{}, 0, err
	}
	folder, err := history.FolderOf(ctx, r.log, state)
	return folder, state.Position.Seq, err
}

// sizeOf is what a file takes in an answer at most: JSON writes a byte as up to six.
func sizeOf(f *wire.FolderFile) int {
	if f == nil {
		return 0
	}
	return 100 + 6*(len(f.Path)+len(f.Target))
}

// packPiece returns as much of a pack as fits. A pack is about as large as an answer.
func packPiece(ctx context.Context, store *workspace.Store, q wire.PackRequest, f api.Form) (wire.PieceResponse, error) {
	data, err := store.Stored(ctx, q.Name)
	switch {
	case errors.Is(err, workspace.ErrMissing):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeNotFound, Message: "pack " + q.Name + " isn't kept"}
	case errors.Is(err, workspace.ErrDamaged):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "name has to name a pack"}
	case err != nil:
		return wire.PieceResponse{}, err
	case q.Offset < 0 || q.Offset > int64(len(data)):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "offset is beyond the end"}
	}
	room := int64(f.Limit - 1<<10)
	if f.JSON {
		room = room / 4 * 3 // base64
	}
	return wire.PieceResponse{Size: int64(len(data)), Data: data[q.Offset:min(q.Offset+room, int64(len(data)))]}, nil
}
