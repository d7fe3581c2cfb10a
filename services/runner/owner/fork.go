package owner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/view"
)

// forks asks for runs that begin as copies of others.
type forks struct {
	log      *eventlog.Log
	runs     *view.Runs
	queue    *queue.Queue
	commands *command.Stream
}

// pointName is the name of the n-th point at which a run can be forked.
func pointName(n int) string { return "sfp-" + strconv.Itoa(n) }

// judgeFork asks for a run that begins as a copy of this one.
func (j *judge) judgeFork(ctx context.Context) error {
	id, err := j.forks.askFork(ctx, j.state, j.cmd, j.id)
	j.fields["newId"] = id
	return err
}

// askEnded is [judge.judgeFork] for a run that has ended.
func (f forks) askEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	repeated, err := f.askedBefore(ctx, s, record)
	if err != nil {
		return err
	}
	if repeated {
		return command.Reject(command.CodeDuplicate, "command %s is on record already", record.CommandID)
	}
	id, err := f.askFork(ctx, s, cmd, record.CommandID)
	if err != nil {
		return err
	}
	j := judge{fields: map[string]any{"newId": id, "runId": s.RunID}}
	record.Command, err = j.recordedCommand(record.Command)
	return err
}

// askedBefore reports whether another command of the same id was obeyed by the
// run, while it lived or since.
func (f forks) askedBefore(ctx context.Context, s *wire.State, record *wire.CommandReceived) (bool, error) {
	if slices.Contains(s.CommandIDs, record.CommandID) {
		return true, nil
	}
	none, err := f.commands.Unobeyed(ctx, 1)
	if err != nil || !none.HasID(record.CommandID) {
		return false, err
	}
	query := eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}
	for e, err := range f.log.Read(ctx, query) {
		if err != nil {
			return false, err
		}
		p, ok := command.RecordOf(e)
		if !ok || !p.Accepted || p.CommandID != record.CommandID || p.AtPos == record.AtPos {
			continue
		}
		if p.Command.TextAt("runId") == s.RunID {
			return true, nil
		}
	}
	return false, nil
}

// askFork asks for a fork of a run and returns its id. Asked twice for the same
// command, there is one: the id follows from the command's.
func (f forks) askFork(ctx context.Context, s *wire.State, cmd wire.Command, commandID string) (id string, err error) {
	if err := checkOverrides(cmd.Overrides, s); err != nil {
		return "", err
	}
	if id = cmd.NewID; id == "" {
		id = forkID(s.RunID, commandID)
	}
	if err := subjects.CheckID(id); err != nil {
		return "", command.Reject(wire.CodeBadRequest, "newId: %v", err)
	}
	point, state, err := bookmark.FindFork(ctx, f.log, s.RunID, cmd.At, cmd.Message)
	if err == nil && namedFolder(cmd.Overrides) == "" {
		err = bookmark.CheckFolder(state)
	}
	if err != nil {
		return "", asRejection(err)
	}
	if err := f.checkUnused(ctx, id, point, cmd.NewID == ""); err != nil {
		return "", err
	}
	err = f.queue.AskRun(ctx, wire.RunRequest{V: wire.Version, RunID: id, By: cmd.By, Fork: &wire.ForkRequest{
		ParentRun: point.Run, ParentPos: point.Position, Label: point.Label, Message: cmd.Message, Overrides: cmd.Overrides,
	}})
	switch {
	case errors.As(err, new(*queue.TooLargeError)):
		return "", command.Reject(wire.CodeTooLarge, "message and overrides of the fork are more than the server takes")
	case err != nil:
		return "", fmt.Errorf("ask for run %s: %w", id, err)
	}
	return id, nil
}

// findPoint finds a point of a run at which it can be forked, the name of that, and its position. It fails with a [rejection].
func (f forks) findPoint(ctx context.Context, runID, at string) (name string, position uint64, err error) {
	point, state, err := bookmark.Find(ctx, f.log, runID, at)
	switch {
	case err != nil:
		return "", 0, asRejection(err)
	case point.Run != runID:
		return "", 0, command.Reject(wire.CodeCommandRejected, "position %d is of run %s: wake bookmark %[2]s --at %[1]d", point.Position, point.Run)
	}
	position = state.Position.Seq // texts behind it change nothing
	return cmp.Or(point.Label, fmt.Sprintf("pos-%d", position)), position, nil
}

// forkID names a fork that was asked for without an id.
func forkID(run, command string) string {
	sum := sha256.Sum256([]byte(run + "\x00" + command))
	return "fork-" + hex.EncodeToString(sum[:10])
}

// asRejection makes an error that says what is wrong with a request a [rejection].
func asRejection(err error) error {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return command.Reject(e.Code, "%s", e.Message)
	}
	return err
}

// checkUnused fails with a [rejection] if a run has the id, other than the fork itself:
// that at the point, or any if the id is the command's own. An owner that died over
// the command may have asked for it, and its successor finds the run elsewhere.
func (f forks) checkUnused(ctx context.Context, id string, p bookmark.Point, own bool) error {
	s, err := f.runs.State(ctx, id)
	if err != nil || s.Status == wire.RunIdle {
		return err
	}
	if len(s.Lineage) > 0 && s.Lineage[0].RunID == p.Run && (own || s.Lineage[0].Position == p.Position) {
		return nil
	}
	return command.Reject(wire.CodeCommandRejected, "a run with the id %s exists", id)
}

// startFork begins the run as a copy of another one. What was paused there runs
// here. It fails with a [rejection] if there is nothing to copy.
func (o *owner) startFork(ctx context.Context) error {
	fork := o.asked().Fork
	point := bookmark.Point{Run: fork.ParentRun, Position: fork.ParentPos, Label: fork.Label}
	parent, err := bookmark.State(ctx, o.cfg.Log, point)
	if err != nil {
		return asRejection(err)
	}
	if o.def, err = o.cfg.Runs.Definition(parent.Definition); err != nil {
		return command.Reject(wire.CodeNotResumable, "run %s has no flow that could go on: %v", fork.ParentRun, err)
	}
	if err := checkOverrides(fork.Overrides, parent); err != nil {
		return err
	}
	if parent.Imported != "" {
		adoptImported(parent, o.def)
	}
	if o.isBound() || o.def.Workspace == flow.WorkspaceShared {
		if !o.lease.Valid() { // reading took long: another runner may be at work in the folder
			return tenure.ErrLeaseLost
		}
		parent.Workspace, err = o.forkFolder(ctx, parent)
	} else { // only the flows that its nodes begin work there
		parent.Workspace, err = o.cfg.newFolders().createFolder(o.runID, "")
	}
	if err != nil {
		return o.forkWithoutFolder(ctx, err, parent)
	}
	events, err := o.forkEvents(parent)
	if err != nil {
		return err
	}
	return o.appendEvents(ctx, events)
}

// adoptImported makes of the state of a run that was only recorded one that is executed. What was taken in as
// it came has executions that no owner has placed, without input. Where a copy was forked from its own parents are positions of another log.
func adoptImported(s *wire.State, d *flow.Definition) {
	if s.Imported == wire.ImportedCopy {
		s.Lineage = nil
	}
	s.Imported = ""
	for id, n := range s.Nodes {
		def := d.Node(id)
		if def == nil || !n.Open() {
			continue
		}
		n.Type = cmp.Or(n.Type, string(def.Type))
		n.Pool = cmp.Or(n.Pool, def.Pool, d.Pool, subjects.DefaultPool)
		if n.Input == nil {
			n.Input = def.Input
		}
		s.Nodes[id] = n
	}
}

// forkEvents are the events that begin the run as a copy of a state.
func (o *owner) forkEvents(parent *wire.State) ([]*wire.Event, error) {
	fork := o.asked().Fork
	state, err := wire.Marshal(parent)
	if err != nil {
		return nil, err
	}
	return []*wire.Event{
		{Payload: &wire.RunForked{ParentRun: fork.ParentRun, ParentPos: fork.ParentPos, Label: fork.Label, State: state, By: o.asked().By}},
		{Payload: &wire.FlowResumed{Strategy: command.StrategyCrash, Message: fork.Message, Overrides: fork.Overrides}},
	}, nil
}

// forkWithoutFolder is [owner.withoutFolder] for a fork: what was open in its parent
// is withdrawn here.
func (o *owner) forkWithoutFolder(ctx context.Context, problem error, parent *wire.State) error {
	parent.Workspace = "" // which is the parent's
	events, err := o.forkEvents(parent)
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

func (c *Config) newForks() forks { return forks{c.Log, c.Runs, c.Queue, c.Commands} }
