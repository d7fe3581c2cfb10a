//go:build linux

package sim_test

import (
	"maps"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/oracle"
)

// FolderIsKept is what the simulation adds to what the oracle judges.
const FolderIsKept oracle.Invariant = "a snapshot of a folder has what the calls before it made"

// folderOf is the folder of a run as its log tells of it.
type folderOf struct {
	bound bool            // it is the run's own
	made  map[string]bool // files of calls whose results are in the log, since it was last restored
	kept  map[string]bool // what the last snapshot has
}

// judgeFolders compares each snapshot of a folder with the log before it: it has the file of each call whose result is there, unless
// the run went on elsewhere since, in the folder as of an earlier one.
func (w *world) judgeFolders(report *oracle.Report) error {
	store, err := workspace.Open(w.t.Context(), w.js, w.names, nil)
	if err != nil {
		return err
	}
	runs, epochs := map[string]*folderOf{}, map[[2]string]uint64{}
	list := func(id string) (map[string]bool, error) {
		content, err := store.List(w.t.Context(), id)
		names := map[string]bool{}
		for _, f := range content.Files {
			names[f.Path] = true
		}
		return names, err
	}
	for e, err := range w.log.Read(w.t.Context(), eventlog.Query{}) {
		if err != nil {
			return err
		}
		if e.Event == nil || e.Event.Epoch < epochs[[2]string{e.RunID, e.NodeID}] {
			continue // of somebody who isn't its writer
		}
		if runs[e.RunID] == nil {
			runs[e.RunID] = &folderOf{made: map[string]bool{}, kept: map[string]bool{}}
		}
		f := runs[e.RunID]
		if e.Event, err = w.log.Inline(w.t.Context(), e.Event); err != nil { // large fields
			return err
		}
		switch p := e.Event.Payload.(type) {
		case *wire.RunClaimed, *wire.NodeClaimed:
			epochs[[2]string{e.RunID, e.NodeID}] = e.Event.Epoch
		case *wire.FlowStart:
			f.bound = isBound(p.Definition)
		case *wire.RunForked:
			var state wire.State
			if err := wire.Unmarshal(p.State, &state); err != nil {
				return err
			}
			f.bound = isBound(state.Definition)
			if s := state.Folder; s != nil && !s.Pending && s.Refused == "" {
				if f.kept, err = list(s.ID); err != nil {
					return err
				}
				f.made = maps.Clone(f.kept)
			}
		case *wire.FlowResumed:
			if _, moved := p.Overrides.Get("workspace").Text(); moved {
				f.made = maps.Clone(f.kept)
				report.Restored++
			}
		case *wire.AgentTool:
			if f.bound && w.wrote(e.RunID, e.Event.CallID) {
				f.made[subjects.Escape(e.Event.CallID)] = true
			}
		case *wire.WorkspaceSnapshot:
			if p.Refused != "" {
				continue
			}
			if f.kept, err = list(p.ID); err != nil {
				return err
			}
			report.Folders++
			for name := range f.made {
				if !f.kept[name] {
					report.Violations = append(report.Violations, oracle.Violation{Invariant: FolderIsKept, Run: e.RunID, Node: e.NodeID, Position: e.Pos, Text: "it lacks " + name})
				}
			}
		}
	}
	return nil
}

// isBound reports whether a run has a folder of its own.
func isBound(definition wire.Raw) bool {
	d, err := flow.FromRaw(definition)
	return err == nil && (d.Workspace == "" || d.Workspace == "run")
}

// noteWrite notes that a call has made its file.
func (w *world) noteWrite(run, call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written == nil {
		w.written = map[[2]string]bool{}
	}
	w.written[[2]string{run, call}] = true
}

func (w *world) wrote(run, call string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written[[2]string{run, call}]
}
