package work

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/wire"
)

// folders are the folders of runs that are worked in here, as far as their snapshots are concerned.
type folders struct {
	mu    sync.Mutex
	byRun map[string]*keptFolder
	clock uint64
}

// keptFolder is the folder of a run and what the log says of it last, as far as this process knows.
type keptFolder struct {
	folder *workspace.Folder
	path   string
	used   uint64 // guarded by the folders' mu

	mu       sync.Mutex
	recorded string // the id of the last snapshot, or why there is none
}

// maxKept is how many folders are remembered: one takes about 200 bytes per file. One that is forgotten is read anew.
const maxKept = 16

// open returns the folder of a run; recorded is what the log says of it.
func (f *folders) open(x *execution, recorded string) *keptFolder {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock++
	k := f.byRun[x.offer.RunID]
	if k == nil || k.path != x.workdir.path {
		if f.byRun == nil {
			f.byRun = map[string]*keptFolder{}
		}
		if len(f.byRun) >= maxKept {
			f.forgetOldest()
		}
		k = &keptFolder{
			folder: x.cfg.Kept.Folder(x.offer.RunID, x.workdir.path, workspace.Limits{}, x.cfg.Private...), path: x.workdir.path, recorded: recorded,
		}
		f.byRun[x.offer.RunID] = k
	}
	k.used = f.clock
	return k
}

func (f *folders) forgetOldest() {
	oldest, used := "", f.clock
	for run, k := range f.byRun {
		if k.used < used {
			oldest, used = run, k.used
		}
	}
	delete(f.byRun, oldest)
}

func (k *keptFolder) note(recorded string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recorded = recorded
}

// keepTimeout bounds the time that a snapshot takes. Without one, the next is only more work.
const keepTimeout = 2 * time.Minute

// maxListed is how many files that a snapshot doesn't hold its event names.
const maxListed = 20

// keepFolder returns the events behind that of a snapshot of the run's folder, if the folder has changed since the last one; they
// are to be stored in one commit, and noted as recorded. What can't be kept keeps nobody from working.
func (x *execution) keepFolder(ctx context.Context, events ...*wire.Event) (whole []*wire.Event, noteRecorded func()) {
	none := func() {}
	if x.cfg.Kept == nil || x.def.Workspace != "" && x.def.Workspace != "run" || x.workdir.path == "" || x.log.isAway() {
		return events, none
	}
	base, recorded := "", ""
	if s := x.state.Folder; s != nil {
		base, recorded = s.ID, s.ID+s.Refused
	}
	k := x.folders.open(x, recorded)
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	p, err := k.takeSnapshot(ctx, base)
	switch {
	case err != nil:
		x.cfg.Logger.Warn("the folder of the run isn't kept", "run", x.offer.RunID, "node", x.offer.NodeID, "folder", x.workdir.path, "error", err)
		return events, none
	case p == nil:
		return events, none
	}
	return slices.Concat([]*wire.Event{{Payload: p}}, events), func() { k.note(p.ID + p.Refused) }
}

// takeSnapshot returns what there is to say of the folder, nil if that is on record.
func (k *keptFolder) takeSnapshot(ctx context.Context, base string) (*wire.WorkspaceSnapshot, error) {
	k.mu.Lock()
	recorded := k.recorded
	k.mu.Unlock()
	snapshot, err := k.folder.Take(ctx, base)
	refused, isRefused := errors.AsType[*workspace.RefusedError](err)
	switch {
	case isRefused && refused.Reason != recorded:
		return &wire.WorkspaceSnapshot{Refused: refused.Reason}, nil
	case isRefused:
		return nil, nil //nolint:nilnil // as it says
	case err != nil:
		return nil, err
	case snapshot.ID == recorded, recorded == "" && snapshot.Files == 0 && len(snapshot.LeftOut) == 0:
		return nil, nil //nolint:nilnil // as it says
	}
	p := &wire.WorkspaceSnapshot{
		ID: snapshot.ID, Files: snapshot.Files, Bytes: snapshot.Bytes, Unstable: snapshot.Unstable,
		Omitted: snapshot.Omitted + max(0, len(snapshot.LeftOut)-maxListed),
	}
	for _, l := range snapshot.LeftOut[:min(len(snapshot.LeftOut), maxListed)] {
		p.LeftOut = append(p.LeftOut, l.Path+": "+l.Reason)
	}
	return p, nil
}
