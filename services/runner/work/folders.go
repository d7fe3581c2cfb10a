package work

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
	takes atomic.Int64 // snapshots so far
}

// keptFolder is the folder of a run and what the log says of it last, as far as this process knows.
type keptFolder struct {
	folder  *workspace.Folder
	path    string
	process string        // this one
	takes   *atomic.Int64 // those of the folders
	used    uint64        // guarded by the folders' mu
	users   int           // executions that work in it; guarded by the folders' mu

	taking chan struct{} // holds the token of the worker that takes a snapshot: snapshots are numbered in the order in which they are taken

	mu       sync.Mutex
	recorded string    // the id of the last snapshot, or why there is none; "": there is nothing in the folder
	by       *nodeLog  // which records it; nil: the log had it before
	doubt    bool      // the log may say something else
	told     int       // how often there was something to say
	rest     time.Time // until then it isn't tried again
}

// maxKept is how many folders are remembered: one takes about 200 bytes per file. One that is forgotten is read anew.
const maxKept = 16

// openFolder returns the folder of a run; recorded is what the log says of it, as far as the execution knows.
func (f *folders) openFolder(x *execution, recorded string) *keptFolder {
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
			process: x.cfg.Process, takes: &f.takes, taking: make(chan struct{}, 1),
		}
		f.byRun[x.offer.RunID] = k
	}
	k.used = f.clock
	k.users++
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubt = k.doubt || k.recorded != recorded // another node was at work, or what was recorded didn't get there
	return k
}

// forgetOldest forgets a folder that no execution works in: one at work has to see what others record of its folder.
func (f *folders) forgetOldest() {
	oldest, used := "", f.clock
	for run, k := range f.byRun {
		if k.users == 0 && k.used < used {
			oldest, used = run, k.used
		}
	}
	delete(f.byRun, oldest)
}

// leaveFolder notes that an execution works in a folder no longer.
func (f *folders) leaveFolder(k *keptFolder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k.users--
}

// isResting reports whether it is too early to try again.
func (k *keptFolder) isResting() bool {
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

// noteRecorded notes that what there was to say is on its way to the log, unless there was more meanwhile, which counts.
func (k *keptFolder) noteRecorded(recorded string, by *nodeLog, told int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.told == told {
		k.recorded, k.by, k.doubt = recorded, by, false
	}
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
	recorded := x.node.Type == flow.TypeAgent && x.origin.fixtures != "" && len(x.node.Audits) == 0
	return x.hasFolder() && !recorded
}

// beginGrace is how long an agent that has nothing to lose by it waits for a snapshot before it begins.
const beginGrace = 50 * time.Millisecond

// taken is what there is to say of a folder, and whether the log doesn't have that yet.
type taken struct {
	snapshot *wire.WorkspaceSnapshot // nil: nothing
	isNews   bool
	note     func() // that the log has it
}

// keepFirst is [execution.keepFolder] before anything is at work. If there is nothing in the folder, its start says so. A large folder
// doesn't keep an agent that asks before it changes something from beginning: its start says that the snapshot follows.
func (x *execution) keepFirst(ctx context.Context, start *wire.NodeStart) (kept []*wire.Event, noteRecorded func()) {
	none := func() {}
	if !x.hasFolder() || x.isFolderKnown() && !x.keepsFolder() {
		return nil, none
	}
	begun, result := time.Now(), x.takeFirst(ctx)
	var grace <-chan time.Time
	if x.asksFirst() {
		grace = time.After(beginGrace)
	}
	select {
	case t := <-result:
		switch {
		case t.snapshot == nil || !t.isNews:
			return nil, none
		case !x.isFolderKnown() && t.snapshot.ID+t.snapshot.Refused == "":
			start.EmptyFolder = true
			return nil, t.note
		}
		return []*wire.Event{{Payload: t.snapshot}}, t.note
	case <-grace:
		start.FolderFollows = true
		return nil, func() { x.recordFirst(ctx, begun, result) }
	}
}

// keepPending takes the snapshot that a start has said follows, if its worker didn't get to it: nothing has been changed since.
func (x *execution) keepPending(ctx context.Context) {
	if x.origin.folder != nil && x.origin.folder.Pending && x.hasFolder() && x.asksFirst() {
		x.recordFirst(ctx, time.Now(), x.takeFirst(ctx))
	}
}

// isFolderKnown reports whether the log says what was in the folder before the execution.
func (x *execution) isFolderKnown() bool { return x.origin.folder != nil && !x.origin.folder.Pending }

// asksFirst reports whether the agent of the execution changes nothing before the intent of a call is stored.
func (x *execution) asksFirst() bool {
	if x.node.Type != flow.TypeAgent || !x.keepsFolder() {
		return false
	}
	in, err := x.agentInput()
	return err == nil && !in.can.TellsLate
}

// takeFirst takes a snapshot beside what goes on. That there is none is something to say, too.
func (x *execution) takeFirst(ctx context.Context) <-chan taken {
	result := make(chan taken, 1)
	x.openKept()
	x.beside.Go(func() {
		t, err := x.takeSnapshot(ctx, true)
		if err != nil && ctx.Err() == nil {
			x.warnUnkept(err)
			t = x.kept.refuseKeeping(err, x.log)
		}
		result <- t
	})
	return result
}

// recordFirst records a snapshot that is being taken. Until then the execution changes nothing. What others have changed meanwhile,
// such as hooks and servers of tools that begin with the agent, makes it unstable.
func (x *execution) recordFirst(ctx context.Context, begun time.Time, result <-chan taken) {
	recorded := make(chan struct{})
	x.recorded = recorded
	x.beside.Go(func() {
		defer close(recorded)
		t := <-result
		if t.snapshot == nil {
			return // the execution is being ended
		}
		t.snapshot.Unstable = t.snapshot.Unstable || x.kept.folder.HasChangedSince(ctx, begun)
		if err := x.log.enqueueEvent(ctx, &wire.Event{Payload: t.snapshot}); err != nil {
			x.warnUnkept(err)
			return
		}
		t.note()
	})
}

// isTakingFirst reports whether a snapshot is being taken that began before the agent did.
func (x *execution) isTakingFirst() bool {
	if x.recorded == nil {
		return false
	}
	select {
	case <-x.recorded:
		return false
	default:
		return true
	}
}

// awaitFirst waits for that snapshot.
func (x *execution) awaitFirst(ctx context.Context) error {
	if x.recorded != nil {
		select {
		case <-x.recorded:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// keepFolder returns the event of a snapshot of the run's folder, if the folder has changed since the last one; it is to be stored
// in one commit with what it belongs to, before that, and then noted as recorded. A folder that can't be kept stops no work.
func (x *execution) keepFolder(ctx context.Context) (kept []*wire.Event, noteRecorded func()) {
	if !x.keepsFolder() {
		return nil, func() {}
	}
	if !x.hasFolder() {
		return nil, func() {}
	}
	x.openKept()
	t, err := x.takeSnapshot(ctx, false)
	if err != nil {
		x.warnUnkept(err)
	}
	if t.snapshot == nil || !t.isNews {
		return nil, func() {}
	}
	return []*wire.Event{{Payload: t.snapshot}}, t.note
}

func (x *execution) openKept() {
	if x.kept != nil {
		return
	}
	recorded := unknownFolder
	if s := x.origin.folder; s != nil && (!s.Pending || s.ID+s.Refused != "") {
		recorded = s.ID + s.Refused
	}
	x.kept = x.folders.openFolder(x, recorded)
}

func (x *execution) warnUnkept(err error) {
	x.cfg.Logger.Warn("the folder of the run isn't kept", "run", x.offer.RunID, "node", x.offer.NodeID, "folder", x.workdir.path, "error", err)
}

// takeSnapshot returns what there is to say of the folder. The first time, it is tried in any case.
func (x *execution) takeSnapshot(ctx context.Context, first bool) (taken, error) {
	base := ""
	if s := x.origin.folder; s != nil {
		base = s.ID
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	if !first && x.kept.isResting() {
		return taken{}, nil
	}
	if first {
		if err := x.kept.folder.Recheck(ctx); err != nil {
			return taken{}, err
		}
	}
	t, stored, err := x.kept.takeSnapshot(ctx, base, x.log)
	x.cfg.FolderBytes.Add(float64(stored))
	return t, err
}

// takeSnapshot returns what there is to say of the folder, and how many bytes it took to store.
func (k *keptFolder) takeSnapshot(ctx context.Context, base string, log *nodeLog) (t taken, stored int64, err error) {
	select {
	case k.taking <- struct{}{}:
		defer func() { <-k.taking }()
	case <-ctx.Done():
		return taken{}, 0, ctx.Err()
	}
	begun := time.Now()
	snapshot, err := k.folder.Take(ctx, base)
	if err != nil {
		k.restAfter(time.Since(begun))
	}
	refused, isRefused := errors.AsType[*workspace.RefusedError](err)
	if err != nil && !isRefused {
		return taken{}, 0, err
	}
	p := &wire.WorkspaceSnapshot{
		ID: snapshot.ID, Files: snapshot.Files, Bytes: snapshot.Bytes, Unstable: snapshot.Unstable,
		Omitted: snapshot.Omitted + max(0, len(snapshot.LeftOut)-maxListed),
	}
	for _, l := range snapshot.LeftOut[:min(len(snapshot.LeftOut), maxListed)] {
		p.LeftOut = append(p.LeftOut, l.Path+": "+l.Reason)
	}
	if isRefused {
		p.Refused = refused.Reason
	}
	return k.tellSnapshot(p, log), snapshot.Stored, nil
}

// refuseKeeping says that the folder couldn't be kept.
func (k *keptFolder) refuseKeeping(err error, log *nodeLog) taken {
	return k.tellSnapshot(&wire.WorkspaceSnapshot{Refused: "it could not be kept: " + err.Error()}, log)
}

// tellSnapshot makes a snapshot something to say by a node, unless the log has it, or has it before what the node says next.
func (k *keptFolder) tellSnapshot(p *wire.WorkspaceSnapshot, by *nodeLog) taken {
	k.mu.Lock()
	defer k.mu.Unlock()
	onTheWay := k.by != nil && k.by != by && !k.by.isStored()
	t := taken{snapshot: p, isNews: k.doubt || onTheWay || p.ID+p.Refused != k.recorded}
	if t.isNews {
		k.told++
		k.doubt = true // until it is noted
	}
	p.Process, p.Order = k.process, k.takes.Add(1)
	told := k.told
	t.note = func() { k.noteRecorded(p.ID+p.Refused, by, told) }
	return t
}
