// Package bookmark finds the points at which a run can be forked.
//
// Behind every message to an agent and every result of a tool is one, sfp-<n>;
// no event says so: the fold counts them, and whoever wants to know where one is
// folds the log. Labelled ones are checkpoint events, whose states the snapshotter
// keeps in WAKE_BOOKMARKS, so that they outlive the log.
package bookmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/internal/snapshot"
	"wake/pkg/wire"
)

// Point is a place in the log behind which a run can be forked.
type Point struct {
	Run      string // the run that has it: an ancestor, if the run was forked behind it
	Label    string // sfp-<n>, or the user's; empty for a position
	Kind     wire.CheckpointKind
	Node     string
	Position uint64
	Time     int64  // Unix ms
	Note     string // what happened there: a tool, or the first words of a message; as it came
}

// List returns the fork points of a run in log order, those of its ancestors
// before the fork included. A label that was moved, or that an ancestor has too, is
// where it stands last. Automatic ones whose events the log has dropped are
// missing.
func List(ctx context.Context, log *eventlog.Log, runID string) ([]Point, error) {
	var points []Point
	last := map[string]uint64{} // where each label stands
	_, err := walk(ctx, log, runID, 0, func(p Point) bool {
		points = append(points, p)
		last[p.Label] = p.Position
		return true
	})
	return slices.DeleteFunc(points, func(p Point) bool { return last[p.Label] != p.Position }), err
}

// walk folds a run up to a position, 0 for all of it, and tells its fork points
// until found wants no more of them; then it reports false.
func walk(ctx context.Context, log *eventlog.Log, runID string, to uint64, found func(Point) bool) (bool, error) {
	s := run.New(runID)
	for e, err := range log.Read(ctx, eventlog.Query{Run: runID, Kinds: snapshot.Kinds, To: to}) {
		if err != nil {
			return false, err
		}
		before := s.ForkPoints
		if err := snapshot.Apply(ctx, log, s, e); snapshot.Refused(err) {
			continue
		} else if err != nil {
			return false, err
		}
		more := true
		switch p := e.Event.Payload.(type) {
		case *wire.RunForked:
			more, err = walk(ctx, log, p.ParentRun, p.ParentPos, found)
		case *wire.Checkpoint:
			more = p.Label == "" || found(point(e, p.Label, p.Kind))
		default:
			if s.ForkPoints > before {
				more = found(point(e, sfp+strconv.Itoa(s.ForkPoints), wire.CheckpointSFP))
			}
		}
		if err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// sfp begins the label of an automatic point.
const sfp = "sfp-"

func point(e eventlog.Entry, label string, kind wire.CheckpointKind) Point {
	p := Point{Run: e.RunID, Label: label, Kind: kind, Position: e.Pos, Time: e.Event.Timestamp}
	if e.NodeID != wire.RunNode {
		p.Node = e.NodeID
	}
	switch v := e.Event.Payload.(type) {
	case *wire.UserMessage:
		p.Note = v.Content
	case *wire.AgentTool:
		p.Note = v.ToolName
	}
	if r := []rune(p.Note); len(r) > maxNote {
		p.Note = string(r[:maxNote-1]) + "…"
	}
	return p
}

// maxNote bounds a note in runes.
const maxNote = 60

// Resolve finds the point that at names: a label, sfp-<n>, or a position in the
// log. Empty, it is the present of a run that goes on, and the last fork point of
// one that has ended. It fails with a [*wire.APIError].
func Resolve(ctx context.Context, log *eventlog.Log, runID, at string) (Point, error) {
	present, err := fold(ctx, log, runID, 0)
	if err != nil {
		return Point{}, err
	}
	if present.Position.Seq == 0 {
		return Point{}, &wire.APIError{
			Code: wire.CodeRunNotFound, Message: fmt.Sprintf("there is no run %s", runID), Hint: "see `wake runs` for the runs there are",
		}
	}
	if present.Definition == nil {
		return Point{}, &wire.APIError{
			Code: wire.CodeNotResumable, Message: fmt.Sprintf("run %s was recorded, not executed: it has no flow that could go on", runID),
		}
	}
	pos, err := strconv.ParseUint(at, 10, 64)
	switch {
	case at == "" && !ended(present):
		return Point{Run: runID, Position: present.Position.Seq, Time: present.UpdatedAt}, nil
	case at != "" && err == nil:
		return position(ctx, log, present, pos)
	}
	var named Point
	_, err = walk(ctx, log, runID, 0, func(p Point) bool {
		if p.Label == at || at == "" && p.Kind == wire.CheckpointSFP {
			named = p
		}
		return named.Label != at || named.Kind != wire.CheckpointSFP // a label may have been moved, a number never is
	})
	if err != nil || named.Label != "" {
		return named, err
	}
	for _, b := range present.Bookmarks { // of which the log has no event any more
		if b.Label == at {
			p := Point{Run: b.Run, Label: b.Label, Kind: b.Kind, Node: b.Node, Position: b.Position}
			if p.Run == "" {
				p.Run = runID
			}
			return p, nil
		}
	}
	if at == "" {
		return Point{}, over(runID, present)
	}
	return Point{}, &wire.APIError{
		Code: wire.CodeNotFound, Message: fmt.Sprintf("run %s has no fork point %q", runID, at), Hint: "wake bookmarks " + runID,
	}
}

func ended(s *wire.State) bool { return s.Status == wire.RunComplete || s.Status == wire.RunAborted }

func over(runID string, s *wire.State) error {
	return &wire.APIError{
		Code:    wire.CodeNotResumable,
		Message: fmt.Sprintf("run %s is %s at that point: nothing would go on", runID, s.Status),
		Hint:    "fork at an earlier point: wake bookmarks " + runID,
	}
}

// position checks a position that somebody gave.
func position(ctx context.Context, log *eventlog.Log, present *wire.State, pos uint64) (Point, error) {
	if pos > present.Position.Seq {
		if _, last, err := log.Bounds(ctx); err != nil || pos > last {
			return Point{}, errors.Join(err, &wire.APIError{
				Code: wire.CodeNotFound, Message: fmt.Sprintf("position %d is beyond the end of the log", pos),
				Hint: "wake bookmarks " + present.RunID,
			})
		}
	}
	return Point{Run: present.RunID, Position: pos}, nil
}

// State returns the folded state behind a point, with that position or a lower
// one: events of text move no state. It fails with a [*wire.APIError] if the run
// had not begun or has ended there, or the log has lost its events.
func State(ctx context.Context, log *eventlog.Log, p Point) (*wire.State, error) {
	s, err := fold(ctx, log, p.Run, p.Position)
	if err != nil {
		return nil, err
	}
	if s.Status == wire.RunIdle && p.Label != "" {
		switch kept, err := snapshot.Kept(ctx, log, p.Run, p.Label); {
		case err == nil:
			s = kept
		case errors.Is(err, snapshot.ErrUnusable):
			return nil, &wire.APIError{Code: wire.CodeCorruptedData, Message: err.Error()}
		case !errors.Is(err, snapshot.ErrNotFound):
			return nil, err
		}
	}
	switch {
	case s.Status == wire.RunIdle:
		return nil, &wire.APIError{
			Code: wire.CodeNotFound, Message: fmt.Sprintf("the log has no state of run %s at position %d", p.Run, p.Position),
			Hint: "wake bookmarks " + p.Run,
		}
	case ended(s):
		return nil, over(p.Run, s)
	}
	return s, nil
}

// fold returns the state of a run at a position, 0 for the present: from its
// snapshot if that isn't beyond it.
func fold(ctx context.Context, log *eventlog.Log, runID string, to uint64) (*wire.State, error) {
	s, found, err := snapshot.Load(ctx, log, runID)
	if err != nil && !errors.Is(err, snapshot.ErrUnusable) {
		return nil, err
	}
	if err != nil || !found || to != 0 && s.Position.Seq > to {
		s = run.New(runID)
	}
	if to != 0 && s.Position.Seq == to {
		return s, nil
	}
	return s, snapshot.Fold(ctx, log, s, to)
}
