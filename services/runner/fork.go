package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	slash "path"
	"path/filepath"
	"slices"
	"strconv"

	"wake/internal/bookmark"
	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// pointName is the name of the n-th point at which a run can be forked.
func pointName(n int) string { return "sfp-" + strconv.Itoa(n) }

// fork asks for a run that begins as a copy of this one.
func (j *judge) fork(ctx context.Context) error {
	id, err := j.owner.runner.fork(ctx, j.state, j.cmd, j.id)
	j.fields["newId"] = id
	return err
}

// forkEnded is [judge.fork] for a run that has ended.
func (r *Runner) forkEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	repeated, err := r.forkedBefore(ctx, s, record)
	if err != nil {
		return err
	}
	if repeated {
		return reject(codeDuplicate, "command %s is on record already", record.CommandID)
	}
	id, err := r.fork(ctx, s, cmd, record.CommandID)
	if err != nil {
		return err
	}
	j := judge{fields: map[string]any{"newId": id, "runId": s.RunID}}
	record.Command, err = j.record(record.Command)
	return err
}

// forkedBefore reports whether another command of the same id was obeyed by the
// run, while it lived or since.
func (r *Runner) forkedBefore(ctx context.Context, s *wire.State, record *wire.CommandReceived) (bool, error) {
	if slices.Contains(s.CommandIDs, record.CommandID) {
		return true, nil
	}
	none, err := r.stateOf(ctx, subjects.NoRun)
	if err != nil || !slices.Contains(none.CommandIDs, record.CommandID) {
		return false, err
	}
	query := eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}
	for e, err := range r.log.Read(ctx, query) {
		if err != nil {
			return false, err
		}
		p, ok := recordOf(e)
		if !ok || !p.Accepted || p.CommandID != record.CommandID || p.AtPos == record.AtPos {
			continue
		}
		if run, _ := p.Command.Get("runId").Text(); run == s.RunID {
			return true, nil
		}
	}
	return false, nil
}

// fork asks for a fork of a run and returns its id. Asked twice for the same
// command, there is one: the id follows from the command's.
func (r *Runner) fork(ctx context.Context, s *wire.State, cmd wire.Command, command string) (id string, err error) {
	if err := checkOverrides(cmd.Overrides, s); err != nil {
		return "", err
	}
	if id = cmd.NewID; id == "" {
		id = forkID(s.RunID, command)
	}
	if err := subjects.CheckID(id); err != nil {
		return "", reject(wire.CodeBadRequest, "newId: %v", err)
	}
	point, _, err := bookmark.Find(ctx, r.log, s.RunID, cmd.At)
	if err != nil {
		return "", told(err)
	}
	if err := r.unused(ctx, id, point, cmd.NewID == ""); err != nil {
		return "", err
	}
	request, err := wire.Marshal(wire.RunRequest{V: wire.Version, RunID: id, Fork: &wire.ForkRequest{
		ParentRun: point.Run, ParentPos: point.Position, Label: point.Label, Message: cmd.Message, Overrides: cmd.Overrides,
	}})
	if err != nil {
		return "", err
	}
	_, err = r.log.Send(ctx, r.names.QueueRun(), request)
	switch {
	case tooLarge(err):
		return "", reject(wire.CodeTooLarge, "message and overrides of the fork are more than the server takes")
	case err != nil:
		return "", fmt.Errorf("ask for run %s: %w", id, err)
	}
	return id, nil
}

// forkID names a fork that nobody has named.
func forkID(run, command string) string {
	sum := sha256.Sum256([]byte(run + "\x00" + command))
	return "fork-" + hex.EncodeToString(sum[:10])
}

// told makes an error that says what is wrong with a request a [rejection].
func told(err error) error {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return reject(e.Code, "%s", e.Message)
	}
	return err
}

// unused fails with a [rejection] if a run has the id, other than the fork itself:
// that at the point, or any if the id is the command's own. An owner that died over
// the command may have asked for it, and its successor finds the run elsewhere.
func (r *Runner) unused(ctx context.Context, id string, p bookmark.Point, own bool) error {
	s, err := r.stateOf(ctx, id)
	if err != nil || s.Status == wire.RunIdle {
		return err
	}
	if len(s.Lineage) > 0 && s.Lineage[0].RunID == p.Run && (own || s.Lineage[0].Position == p.Position) {
		return nil
	}
	return reject(wire.CodeCommandRejected, "a run with the id %s exists", id)
}

// startFork begins the run as a copy of another one. What was paused there runs
// here. It fails with a [rejection] if there is nothing to copy.
func (o *owner) startFork(ctx context.Context) error {
	fork := o.request.Fork
	point := bookmark.Point{Run: fork.ParentRun, Position: fork.ParentPos, Label: fork.Label}
	parent, err := bookmark.State(ctx, o.runner.log, point)
	if err != nil {
		return told(err)
	}
	if o.def, err = flow.FromRaw(parent.Definition); err != nil {
		return reject(wire.CodeNotResumable, "run %s has no flow that could go on: %v", fork.ParentRun, err)
	}
	if err := checkOverrides(fork.Overrides, parent); err != nil {
		return err
	}
	if o.bound() {
		if !o.lease.Valid() { // reading took long: somebody else may be at work in the folder
			return errLeaseLost
		}
		if parent.Workspace, err = o.runner.copyWorkspace(o.runID, parent.Workspace); err != nil {
			return o.forkWithoutFolder(ctx, err, parent)
		}
	}
	events, err := o.forked(parent)
	if err != nil {
		return err
	}
	return o.append(ctx, events)
}

// forked are the events that begin the run as a copy of a state.
func (o *owner) forked(parent *wire.State) ([]*wire.Event, error) {
	fork := o.request.Fork
	state, err := wire.Marshal(parent)
	if err != nil {
		return nil, err
	}
	return []*wire.Event{
		{Payload: &wire.RunForked{ParentRun: fork.ParentRun, ParentPos: fork.ParentPos, Label: fork.Label, State: state}},
		{Payload: &wire.FlowResumed{Strategy: strategyCrash, Message: fork.Message, Overrides: fork.Overrides}},
	}, nil
}

// forkWithoutFolder is [owner.withoutFolder] for a fork: what was open in its parent
// is withdrawn here.
func (o *owner) forkWithoutFolder(ctx context.Context, problem error, parent *wire.State) error {
	parent.Workspace = "" // which is the parent's
	events, err := o.forked(parent)
	if err != nil {
		return err
	}
	for _, node := range slices.Sorted(maps.Keys(parent.Nodes)) {
		if n := parent.Nodes[node]; n.Open() {
			events = append(events, &wire.Event{ExecID: n.Exec, Payload: &wire.NodeCancelled{Target: node, Reason: problem.Error()}})
		}
	}
	return o.withoutFolder(ctx, problem, events)
}

// copyWorkspace makes the folder of a forked run: a copy of its parent's, if that
// is to be seen here, else an empty one.
func (r *Runner) copyWorkspace(run, parent string) (string, error) {
	dir := filepath.Join(r.cfg.Workspaces, subjects.Escape(run))
	// Somebody may have died over it. Nothing works in it before the run has begun.
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		r.logger.Warn("the forked run begins with an empty folder: that of its parent isn't here", "run", run, "parent_folder", parent)
		return r.makeWorkspace(run, "")
	}
	if err := os.CopyFS(dir, r.folderFS(parent)); err != nil {
		return "", fmt.Errorf("copy the workspace %s: %w", parent, err)
	}
	return dir, nil
}

// folderFS are the files of a folder that can be copied: without sockets, pipes and
// devices, and without the folders of runs that may be below it, as a copy must not
// contain itself.
func (r *Runner) folderFS(dir string) fs.FS {
	files, ok := os.DirFS(dir).(linkFS)
	if !ok {
		return os.DirFS(dir)
	}
	w := without{linkFS: files}
	if below, err := filepath.Rel(dir, r.cfg.Workspaces); err == nil && filepath.IsLocal(below) {
		w.hidden = filepath.ToSlash(below)
	}
	return w
}

type linkFS interface {
	fs.ReadDirFS
	fs.ReadLinkFS
}

// without hides a folder, and what is neither file, folder nor link.
type without struct {
	linkFS

	hidden string
}

// ReadDir implements [fs.ReadDirFS].
func (w without) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := w.linkFS.ReadDir(name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return e.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 || slash.Join(name, e.Name()) == w.hidden
	}), err
}
