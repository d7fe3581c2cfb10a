package work

import (
	"context"
	"errors"
	"sync"
	"time"

	"code.wake.dev/wake/internal/flow"
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
	recorded string    // the id of the last snapshot, or why there is none; "": there is nothing in the folder
	doubt    bool      // the log may say something else
	told     int       // how often there was something to say
	rest     time.Time // until then it isn't tried again
}

// maxKept is how many folders are remembered: one takes about 200 bytes per file. One that is forgotten is read anew.
const maxKept = 16

// open returns the folder of a run; recorded is what the log says of it, as far as the execution knows.
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
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubt = k.doubt || k.recorded != recorded // another node was at work, or what was recorded didn't get there
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

// rests reports whether it is too early to try again.
func (k *keptFolder) rests() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.rest)
}

// restAfter bounds what is spent on a folder that can't be kept, such as one that is too large: a twentieth of the time, until a
// minute is over.
func (k *keptFolder) restAfter(took time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rest = time.Now().Add(min(20*took, time.Minute))
}

// note notes that the log has what there was to say, unless there was more meanwhile: the log may have that before.
func (k *keptFolder) note(recorded string, told int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recorded, k.doubt = recorded, k.told != told
}

// keepTimeout bounds the time that a snapshot takes. Without one, the next is only more work.
const keepTimeout = 2 * time.Minute

// unknownFolder is what the log says of a folder before anything has.
const unknownFolder = "?"

// maxListed is how many files that a snapshot doesn't hold its event names.
const maxListed = 20

// hasFolder reports whether the execution works in a folder of which snapshots are taken.
func (x *execution) hasFolder() bool {
	return x.cfg.Kept != nil && (x.def.Workspace == "" || x.def.Workspace == "run") && x.workdir.path != "" && !x.log.isAway()
}

// keepsFolder reports whether the execution may change that folder.
func (x *execution) keepsFolder() bool {
	recorded := x.node.Type == flow.TypeAgent && x.state.Fixtures != "" && len(x.node.Audits) == 0
	return x.hasFolder() && !recorded
}

// keepFirst is [execution.keepFolder] before anything is at work. If there is nothing in the folder, its start says so.
func (x *execution) keepFirst(ctx context.Context, start *wire.NodeStart) (kept []*wire.Event, noteRecorded func()) {
	if x.state.Folder != nil && !x.keepsFolder() {
		return nil, func() {}
	}
	p, noteRecorded := x.takeSnapshot(ctx)
	if p == nil {
		return nil, noteRecorded
	}
	if x.state.Folder == nil && p.ID+p.Refused == "" {
		start.EmptyFolder = true
		return nil, noteRecorded
	}
	return []*wire.Event{{Payload: p}}, noteRecorded
}

// keepFolder returns the event of a snapshot of the run's folder, if the folder has changed since the last one; it is to be stored
// in one commit with what it belongs to, before that, and then noted as recorded. What can't be kept keeps nobody from working.
func (x *execution) keepFolder(ctx context.Context) (kept []*wire.Event, noteRecorded func()) {
	if !x.keepsFolder() {
		return nil, func() {}
	}
	p, noteRecorded := x.takeSnapshot(ctx)
	if p == nil {
		return nil, noteRecorded
	}
	return []*wire.Event{{Payload: p}}, noteRecorded
}

// takeSnapshot returns what there is to say of the folder, nil if nothing.
func (x *execution) takeSnapshot(ctx context.Context) (p *wire.WorkspaceSnapshot, noteRecorded func()) {
	none := func() {}
	if !x.hasFolder() {
		return nil, none
	}
	base, recorded := "", unknownFolder
	if s := x.state.Folder; s != nil {
		base, recorded = s.ID, s.ID+s.Refused
	}
	if x.kept == nil {
		x.kept = x.folders.open(x, recorded)
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	p, told, stored, err := x.kept.takeSnapshot(ctx, base)
	x.cfg.FolderBytes.Add(float64(stored))
	switch {
	case err != nil:
		x.cfg.Logger.Warn("the folder of the run isn't kept", "run", x.offer.RunID, "node", x.offer.NodeID, "folder", x.workdir.path, "error", err)
		return nil, none
	case p == nil:
		return nil, none
	}
	return p, func() { x.kept.note(p.ID+p.Refused, told) }
}

// takeSnapshot returns what there is to say of the folder, nil if that is on record, and how many bytes it took to store.
func (k *keptFolder) takeSnapshot(ctx context.Context, base string) (p *wire.WorkspaceSnapshot, told int, stored int64, err error) {
	if k.rests() {
		return nil, 0, 0, nil
	}
	begun := time.Now()
	snapshot, err := k.folder.Take(ctx, base)
	if err != nil {
		k.restAfter(time.Since(begun))
	}
	refused, isRefused := errors.AsType[*workspace.RefusedError](err)
	if err != nil && !isRefused {
		return nil, 0, 0, err
	}
	p = &wire.WorkspaceSnapshot{
		ID: snapshot.ID, Files: snapshot.Files, Bytes: snapshot.Bytes, Unstable: snapshot.Unstable,
		Omitted: snapshot.Omitted + max(0, len(snapshot.LeftOut)-maxListed),
	}
	for _, l := range snapshot.LeftOut[:min(len(snapshot.LeftOut), maxListed)] {
		p.LeftOut = append(p.LeftOut, l.Path+": "+l.Reason)
	}
	if isRefused {
		p.Refused = refused.Reason
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.doubt && p.ID+p.Refused == k.recorded {
		return nil, 0, snapshot.Stored, nil
	}
	k.told++
	k.doubt = true // until it is noted
	return p, k.told, snapshot.Stored, nil
}
