//go:build linux

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/oracle"
)

// What the simulation adds to what the oracle judges.
const (
	FolderIsKept     oracle.Invariant = "the folder behind a snapshot has what the calls before it made"
	FolderIsRestored oracle.Invariant = "a restored folder has what its snapshot has, and nothing else"
	FolderIsShared   oracle.Invariant = "a flow works in the folder of the run that began it, where that stays with its folder"
)

// disk is where a runner's machine has the folders of runs. It is there as long as the runner is: other machines don't see it.
func (p *process) disk() string { return filepath.Join(p.w.dir, p.name, "runs") }

func (p *process) mountDisk() error {
	dir := filepath.Join(p.w.dir, p.name, "disk")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	p.unmountDisk() // of a life that was only just over
	return os.Symlink(dir, p.disk())
}

// unmountDisk takes the disk away with its machine, and what a process that is dead has made in its place.
func (p *process) unmountDisk() {
	if os.Remove(p.disk()) != nil {
		_ = os.RemoveAll(p.disk())
	}
}

// isMobile says that the world is about runs that go from machine to machine.
func (w *world) isMobile() bool { return w.seed%2 == 0 && !w.keepers }

// grace is how long a runner may be away before its runs go on in their folders elsewhere; 0: the default, for which few are.
func (w *world) grace() time.Duration {
	if w.isMobile() {
		return 3 * time.Second
	}
	return 0
}

// sight is a folder as the first agent has found it that works there.
type sight struct {
	run, dir string
	at       int64 // Unix ms
	content  map[string]string
}

// noteFolder notes what is in a folder before an agent begins, if none has before. One that is restored is another one.
func (w *world) noteFolder(id, dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := os.Stat(dir)
	if err != nil {
		return // it is gone with its runner
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || w.seen[stat.Ino] {
		return
	}
	w.seen[stat.Ino] = true
	content := map[string]string{}
	for _, name := range listNames(dir) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return
		}
		content[name] = string(text)
	}
	w.sights = append(w.sights, sight{id, dir, time.Now().UnixMilli(), content})
}

func listNames(dir string) (names []string) {
	list, _ := os.ReadDir(dir) // one that is gone has none
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// makeFile makes the file of a call in the folder that its agent works in.
func (s *session) makeFile(call string) {
	dir := s.request.Options.Cwd
	if !s.life.alive() {
		return
	}
	switch err := os.WriteFile(filepath.Join(dir, subjects.Escape(call)), []byte(call), 0o600); {
	case err == nil:
		s.w.noteWrite(s.request.RunID, call)
	case !errors.Is(err, fs.ErrNotExist): // a folder may be gone with its runner
		panic(err)
	}
}

// restored is a folder that was made of a snapshot.
type restored struct {
	at       int64 // Unix ms
	snapshot string
}

// folderOf is the folder of a run as its log tells of it.
type folderOf struct {
	state *wire.State
	bound bool                 // it is the run's own
	made  map[string]bool      // files of calls whose results are in the log, since it was last restored
	cut   map[string]bool      // calls that were cut off: what they made may be lost
	dirs  map[string]restored  // by path
	kept  *wire.FolderSnapshot // that its folder was last made of
}

// folderJudge compares the folders of runs with the log.
type folderJudge struct {
	w      *world
	ctx    context.Context //nolint:containedctx // it lives as long as the judging
	store  *workspace.Store
	report *oracle.Report
	runs   map[string]*folderOf
	epochs map[[2]string]uint64
}

// judgeFolders compares folders with the log: behind a snapshot the folder has the file of each call whose result lies before it, unless the
// run went on elsewhere since, in the folder as of an earlier one; and what was restored was found to be what the log says that it was then.
func (w *world) judgeFolders(report *oracle.Report) error {
	store, err := workspace.Open(w.t.Context(), w.js, w.names, nil)
	if err != nil {
		return err
	}
	j := folderJudge{w: w, ctx: w.t.Context(), store: store, report: report, runs: map[string]*folderOf{}, epochs: map[[2]string]uint64{}}
	for e, err := range w.log.Read(j.ctx, eventlog.Query{}) {
		if err != nil {
			return err
		}
		if e.Event == nil || e.Event.Epoch < j.epochs[[2]string{e.RunID, e.NodeID}] {
			continue // of a process that isn't its writer
		}
		if e.Event, err = w.log.Inline(j.ctx, e.Event); err != nil { // large fields
			return err
		}
		if err := j.judge(e); err != nil {
			return err
		}
	}
	return j.judgeSights()
}

func (j *folderJudge) judge(e eventlog.Entry) error {
	f := j.runs[e.RunID]
	if f == nil {
		f = &folderOf{state: run.New(e.RunID), made: map[string]bool{}, cut: map[string]bool{}, dirs: map[string]restored{}}
		j.runs[e.RunID] = f
	}
	before := f.state.Workspace
	_ = run.Apply(f.state, wire.Position{Incarnation: j.w.log.Incarnation(), Seq: e.Pos}, e.Event) // what is refused is left out
	switch p := e.Event.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		j.epochs[[2]string{e.RunID, e.NodeID}] = e.Event.Epoch
	case *wire.FlowStart:
		f.bound = isBound(p.Definition)
	case *wire.RunForked:
		f.bound = isBound(f.state.Definition)
		for _, below := range j.runs {
			if below.state.ParentRun == p.ParentRun { // whose snapshot, as of the point, may be the last one
				f.made = map[string]bool{}
				return nil
			}
		}
		return j.takeRestored(f, f.state.Folder, e.Event.Timestamp)
	case *wire.FlowResumed:
		if _, moved := p.Overrides.Get("workspace").Text(); moved {
			j.report.Restored++
			s := j.lastKept(f, before)
			if p := j.parentOf(f); p != nil && p.state.Workspace == f.state.Workspace {
				s = p.kept
			}
			return j.takeRestored(f, s, e.Event.Timestamp)
		}
	case *wire.WorkspaceSnapshot:
		j.report.Folders++
		return j.check(f, e)
	case *wire.AgentStart:
		j.compareWithParent(f, e)
	case *wire.ToolSealed:
		f.cut[e.Event.CallID] = true
	case *wire.AgentTool:
		if f.bound && !f.cut[e.Event.CallID] && j.w.wrote(e.RunID, e.Event.CallID) {
			f.made[subjects.Escape(e.Event.CallID)] = true // while storage is away, no snapshot is before it
		}
	}
	return nil
}

// compareWithParent compares the folder that an agent works in with that of the run which began its run.
func (j *folderJudge) compareWithParent(f *folderOf, e eventlog.Entry) {
	p := j.parentOf(f)
	if p == nil || f.state.Workspace == p.state.Workspace {
		return
	}
	j.report.Violations = append(j.report.Violations, oracle.Violation{
		Invariant: FolderIsShared, Run: e.RunID, Node: e.NodeID, Position: e.Pos, Text: f.state.Workspace + ", not " + p.state.Workspace,
	})
}

// parentOf is the run that began a run and has the folder that both work in; nil: there is none.
func (j *folderJudge) parentOf(f *folderOf) *folderOf {
	if p := j.runs[f.state.ParentRun]; p != nil && f.bound && p.bound {
		return p
	}
	return nil
}

// lastKept is the last snapshot of a folder, that of a run or of one below it.
func (j *folderJudge) lastKept(f *folderOf, dir string) *wire.FolderSnapshot {
	last := f.state.Folder
	for _, below := range j.runs {
		if below.state.ParentRun != f.state.RunID || below.state.Workspace != dir {
			continue
		}
		if s := j.lastKept(below, dir); s != nil && (last == nil || s.Position > last.Position) {
			last = s
		}
	}
	return last
}

// takeRestored takes in that the folder of the run is made of a snapshot.
func (j *folderJudge) takeRestored(f *folderOf, s *wire.FolderSnapshot, at int64) error {
	f.kept = s
	if s == nil || s.Pending || s.Refused != "" {
		return nil
	}
	kept, err := j.list(s.ID)
	f.made = maps.Clone(kept)
	f.dirs[f.state.Workspace] = restored{at, s.ID}
	return err
}

// check compares the folder as of a point with the calls before it.
func (j *folderJudge) check(f *folderOf, e eventlog.Entry) error {
	s := f.state.Folder
	if s != nil && s.Refused != "" {
		return nil
	}
	kept := map[string]bool{}
	if s != nil {
		var err error
		if kept, err = j.list(s.ID); err != nil {
			return err
		}
	}
	for name := range f.made {
		if !kept[name] {
			j.report.Violations = append(j.report.Violations, oracle.Violation{Invariant: FolderIsKept, Run: e.RunID, Node: e.NodeID, Position: e.Pos, Text: "it lacks " + name})
		}
	}
	return nil
}

// judgeSights compares the folders that agents have found with the snapshots of which they were made.
func (j *folderJudge) judgeSights() error {
	for _, s := range j.w.sights {
		f := j.runs[s.run]
		if f == nil {
			continue
		}
		r, ok := f.dirs[s.dir]
		if !ok || s.at < r.at {
			continue // it wasn't restored, or was again since
		}
		kept, err := j.list(r.snapshot)
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for name, text := range s.content {
			found[name] = subjects.Escape(text) == name
		}
		j.report.Found++
		if !maps.Equal(found, kept) {
			j.report.Violations = append(j.report.Violations, oracle.Violation{
				Invariant: FolderIsRestored, Run: s.run, Text: fmt.Sprintf("%s has %v, its snapshot %v", s.dir, found, kept),
			})
		}
	}
	return nil
}

func (j *folderJudge) list(id string) (map[string]bool, error) {
	content, err := j.store.List(j.ctx, id)
	names := map[string]bool{}
	for _, f := range content.Files {
		names[f.Path] = true
	}
	return names, err
}

// isBound reports whether a run has a folder of its own.
func isBound(definition wire.Raw) bool {
	d, err := flow.FromRaw(definition)
	return err == nil && d.IsBound()
}

// noteWrite notes that a call has made its file.
func (w *world) noteWrite(run, call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written[[2]string{run, call}] = true
}

func (w *world) wrote(run, call string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written[[2]string{run, call}]
}
