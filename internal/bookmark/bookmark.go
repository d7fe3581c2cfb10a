// Package bookmark finds the points at which a run can be forked.
//
// Behind the prompt of an agent, every further message to it and every result of a
// tool is one, sfp-<n>; no event says so: the fold counts them, and a reader that wants
// to know where one is folds the log. So are the start of each execution of a node, <exec>:start, behind which it
// begins anew, and its end, <exec>:end: that of an agent is behind its last word, and it can be told more there.
// Labelled ones are checkpoint events; the snapshotter keeps their states
// in WAKE_BOOKMARKS, so that they outlive the log.
package bookmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// Point is a place in the log behind which a run can be forked.
type Point = wire.ForkPoint

// List returns the fork points of a run in log order, those of its ancestors
// before the fork included. A label that was moved, or that an ancestor has too, is
// where it stands last. Automatic ones are missing if the stream has dropped their events, and the recorder
// doesn't have them. It fails with a [*wire.APIError] if there is no such run.
func List(ctx context.Context, log eventlog.Reader, runID string) ([]Point, error) {
	present, err := foldTo(ctx, log, runID, 0)
	if err != nil {
		return nil, err
	}
	if present.Position.Seq == 0 {
		return nil, unknownRun(runID)
	}
	var points []Point
	last := map[string]uint64{} // where each label stands
	_, err = walkForkPoints(ctx, log, runID, 0, func(p Point, _ *wire.State) bool {
		points = append(points, p)
		last[p.Label] = p.Position
		return true
	})
	for _, b := range present.Bookmarks {
		if _, seen := last[b.Label]; !seen { // the log has dropped it
			points = append(points, bookmarkPoint(runID, b))
			last[b.Label] = b.Position
		}
	}
	return standingPoints(points, last), err
}

// standingPoints returns the fork points that still have their label, in log order: no later point of the log has taken it. Last has
// the last position of each label; standingPoints empties it.
func standingPoints(points []Point, last map[string]uint64) []Point {
	points = slices.DeleteFunc(points, func(p Point) bool {
		stands := last[p.Label] == p.Position
		if stands {
			delete(last, p.Label) // the same point may have been labelled by its own name
		}
		return !stands
	})
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Position, b.Position) })
	return points
}

// walkForkPoints folds a run and its ancestors up to a position, 0 for all of it, and tells its fork points
// and the state behind each, of labelled ones that where the label was given, until found wants no more of them; then it reports
// false. The state is valid until found returns true.
func walkForkPoints(ctx context.Context, log eventlog.Reader, runID string, to uint64, found func(Point, *wire.State) bool) (bool, error) {
	return walkOn(ctx, log, run.New(runID), to, found, func(p *wire.RunForked) (bool, error) {
		return walkForkPoints(ctx, log, p.ParentRun, p.ParentPos, found)
	})
}

// knownAncestors are the runs whose points a fork lists besides its own. An imported fork has none: the position at which its owner forked it
// is one of another log.
func knownAncestors(s *wire.State) []wire.Ancestor {
	if s.Imported == wire.ImportedCopy {
		return nil
	}
	return s.Lineage
}

// walkOn folds the events of a run behind a state, which it changes, and asks forked about its beginning as a fork; see [walkForkPoints].
func walkOn(
	ctx context.Context, log eventlog.Reader, s *wire.State, to uint64, found func(Point, *wire.State) bool, forked func(*wire.RunForked) (bool, error),
) (bool, error) {
	if to > 0 && s.Position.Seq >= to {
		return true, nil
	}
	query := eventlog.Query{Run: s.RunID, Kinds: snapshot.Kinds, To: to}
	if s.Position.Seq > 0 {
		query.From = s.Position.Seq + 1
	}
	for e, err := range history.ReadStored(ctx, log, query) {
		if err != nil {
			return false, err
		}
		before, void := s.ForkPoints, s.VoidEvents
		if err := snapshot.Apply(ctx, log, s, e); snapshot.Refused(err) || s.VoidEvents > void {
			continue
		} else if err != nil {
			return false, err
		}
		more := true
		switch p := e.Event.Payload.(type) {
		case *wire.RunForked:
			if len(knownAncestors(s)) > 0 && p.ParentPos > 0 && p.ParentPos < e.Pos { // else it would be its own ancestor
				more, err = forked(p)
			}
		case *wire.Checkpoint:
			point := pointOf(e, p.Label, p.Kind)
			point.Position = cmp.Or(p.AtPos, e.Pos)
			more = p.Label == "" || found(point, s)
		default:
			if s.ForkPoints > before {
				more = found(pointOf(e, sfp+strconv.Itoa(s.ForkPoints), wire.CheckpointSFP), s)
			} else if node, edge := nodeEdge(e, s); edge != "" {
				point := pointOf(e, s.Nodes[node].Exec+edge, Node)
				point.Node = node
				more = found(point, s)
			}
		}
		if err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// Node is the kind of a point that is the start or the end of an execution: no checkpoint is of it.
const Node = wire.CheckpointNode

// sfp begins the label of an automatic point; the others end those of nodes.
const (
	sfp       = "sfp-"
	nodeStart = ":start"
	nodeEnd   = ":end"
)

// nodeEdge tells whether an event that was just folded starts or ends the latest execution of a
// node: it returns the node, and which edge it is; "" if it is none.
func nodeEdge(e eventlog.Entry, s *wire.State) (node, edge string) {
	node = e.NodeID
	switch p := e.Event.Payload.(type) {
	case *wire.NodeScheduled:
		if n := s.Nodes[p.Target]; n.Scheduled == e.Pos && n.Open() {
			return p.Target, nodeStart
		}
	case *wire.AgentComplete: // what follows ends the node, and its agent can be told no more
		if n := s.Nodes[node]; node != wire.RunNode && e.Event.Parent == "" && n.Open() && n.Exec == e.Event.ExecID {
			return node, nodeEnd
		}
	case *wire.NodeComplete:
		node = cmp.Or(p.Target, node)
		if n := s.Nodes[node]; n.Ended == e.Pos && n.Type != "agent" {
			return node, nodeEnd
		}
	case *wire.NodeError:
		node = cmp.Or(p.Target, node)
		if n := s.Nodes[node]; n.Ended == e.Pos && n.Type != "agent" {
			return node, nodeEnd
		}
	}
	return "", ""
}

func pointOf(e eventlog.Entry, label string, kind wire.CheckpointKind) Point {
	p := Point{Run: e.RunID, Label: label, Kind: kind, Position: e.Pos, Time: e.Event.Timestamp}
	if e.NodeID != wire.RunNode {
		p.Node = e.NodeID
	}
	switch v := e.Event.Payload.(type) {
	case *wire.AgentStart:
		p.Note, _ = v.Prompt.Text()
	case *wire.UserMessage:
		p.Note = v.Content
	case *wire.AgentTool:
		p.Note = v.ToolName
	case *wire.NodeScheduled:
		p.Note = "begins"
	case *wire.NodeComplete, *wire.AgentComplete:
		p.Note = "is complete"
	case *wire.NodeError:
		p.Note = "failed"
	}
	if r := []rune(p.Note); len(r) > maxNote {
		p.Note = string(r[:maxNote-1]) + "…"
	}
	return p
}

// maxNote bounds a note in runes.
const maxNote = 60

// bookmarkPoint is the point of a bookmark in the state of a run.
func bookmarkPoint(runID string, b wire.Bookmark) Point {
	return Point{Run: cmp.Or(b.Run, runID), Label: b.Label, Kind: b.Kind, Node: b.Node, Position: b.Position}
}

// Find finds the point that at names, and the state of the run there: a label, sfp-<n>, <exec>:start, <exec>:end, or a position
// in the log. Empty, it is the present of a run that goes on, and of one that has ended the last message or result of a tool before
// its end, or else the last point at which a node is at work. It fails with a [*wire.APIError].
func Find(ctx context.Context, log eventlog.Reader, runID, at string) (Point, *wire.State, error) {
	p, s, err := resolvePoint(ctx, log, runID, at)
	switch {
	case err != nil:
		return Point{}, nil, err
	case s == nil:
		s, err = State(ctx, log, p)
	case s.Status.Ended():
		err = endedError(runID, s)
	}
	return p, s, err
}

// FindFork is [Find] of the point at which a fork begins that tells agents a message, or none. Where an agent has told its end, only a message
// has it go on; without one a fork from there begins behind the end of its node. A message that nobody could be told is refused.
func FindFork(ctx context.Context, log eventlog.Reader, runID, at, message string) (Point, *wire.State, error) {
	p, s, err := Find(ctx, log, runID, at)
	if err == nil && message != "" && !hasAgent(s) {
		return p, s, &wire.APIError{
			Code: wire.CodeBadRequest, Message: "no agent of run " + runID + " is at work at " + cmp.Or(p.Label, at) + " that the message could be told",
			Hint: "fork at a point of an agent, such as wake bookmarks " + runID + " lists, or without a message",
		}
	}
	if err != nil || at == "" || message != "" || p.Kind != Node || !s.Nodes[p.Node].Open() || !strings.HasSuffix(p.Label, nodeEnd) {
		return p, s, err
	}
	q := eventlog.Query{Run: p.Run, Node: p.Node, From: p.Position + 1, Kinds: []wire.Kind{wire.KindFlow}}
	for e, err := range history.Read(ctx, log, q) {
		if err != nil {
			return p, s, err
		}
		if e.Event == nil || e.Event.ExecID != s.Nodes[p.Node].Exec {
			continue
		}
		switch e.Event.Payload.(type) {
		case *wire.NodeComplete, *wire.NodeError:
			p.Position, p.Time = e.Pos, e.Event.Timestamp
			s, err := State(ctx, log, p)
			return p, s, err
		}
	}
	return p, s, nil
}

// hasAgent reports whether an agent has begun that goes on in a fork.
func hasAgent(s *wire.State) bool {
	for _, n := range s.Nodes {
		if n.Open() && n.Started >= n.Scheduled && (n.Type == "agent" || n.Session != "") {
			return true
		}
	}
	return false
}

// CheckFolder fails if the folder of a run that has a state couldn't be kept: a fork from there has none.
func CheckFolder(s *wire.State) error {
	if s.Folder == nil || s.Folder.Refused == "" {
		return nil
	}
	return FolderError(s.RunID, s.Folder.Refused)
}

// FolderError says why a fork from a point of a run has no folder.
func FolderError(runID, reason string) error {
	return &wire.APIError{
		Code: wire.CodeNotResumable, Message: "there is no folder of run " + runID + " as of the point: " + reason,
		Hint: "`wake fork --without-workspace` begins with an empty one",
	}
}

// resolvePoint also returns the state behind the point if it came by it.
func resolvePoint(ctx context.Context, log eventlog.Reader, runID, at string) (Point, *wire.State, error) {
	present, err := foldTo(ctx, log, runID, 0)
	if err != nil {
		return Point{}, nil, err
	}
	switch {
	case present.Position.Seq == 0:
		return Point{}, nil, unknownRun(runID)
	case present.Definition == nil:
		return Point{}, nil, &wire.APIError{
			Code: wire.CodeNotResumable, Message: fmt.Sprintf("run %s was recorded, not executed: it has no flow that could go on", runID),
		}
	case at == "" && !present.Status.Ended():
		return Point{Run: runID, Position: present.Position.Seq, Time: present.UpdatedAt}, present, nil
	case at == "":
		return lastOf(ctx, log, present)
	}
	for _, b := range present.Bookmarks {
		if b.Label == at {
			p, err := withTime(ctx, log, bookmarkPoint(runID, b))
			return p, nil, err
		}
	}
	if n, ok := strings.CutPrefix(at, sfp); ok {
		if n, err := strconv.Atoi(n); err == nil && n >= 1 && n <= present.ForkPoints {
			return findAutomatic(ctx, log, present, at)
		}
	}
	if strings.HasSuffix(at, nodeStart) || strings.HasSuffix(at, nodeEnd) {
		return findAutomatic(ctx, log, present, at)
	}
	if pos, err := strconv.ParseUint(at, 10, 64); err == nil && pos > 0 {
		p, err := positionPoint(ctx, log, present, pos)
		return p, nil, err
	}
	return Point{}, nil, missingPoint(runID, at)
}

// findAutomatic finds sfp-<n>, or the start or the end of an execution.
func findAutomatic(ctx context.Context, log eventlog.Reader, present *wire.State, at string) (named Point, behind *wire.State, err error) {
	_, err = walkForkPoints(ctx, log, present.RunID, 0, func(p Point, s *wire.State) bool {
		if p.Label != at || p.Kind == wire.CheckpointLabelled {
			return true
		}
		named, behind = p, s
		return false
	})
	if err != nil {
		return Point{}, nil, err
	}
	if named.Label == "" { // the log has dropped it
		return Point{}, nil, missingPoint(present.RunID, at)
	}
	return named, behind, nil
}

// lastOf finds the last sfp-<n> of a run that has ended, or else the last point at which a node is at work. Its
// agents may have finished a call after that.
func lastOf(ctx context.Context, log eventlog.Reader, present *wire.State) (last Point, behind *wire.State, err error) {
	_, err = walkForkPoints(ctx, log, present.RunID, 0, func(p Point, s *wire.State) bool {
		if !s.Status.Ended() && (p.Kind == wire.CheckpointSFP || p.Kind == Node && last.Kind != wire.CheckpointSFP && isAtWork(s)) {
			last = p
		}
		return true // a run that had failed may have gone on
	})
	if err == nil && last.Label == "" {
		err = endedError(present.RunID, present)
	}
	return last, nil, err
}

// withTime completes a point by what its event says, if the log has it.
func withTime(ctx context.Context, log eventlog.Reader, p Point) (Point, error) {
	for e, err := range history.ReadStored(ctx, log, eventlog.Query{Run: p.Run, From: p.Position, To: p.Position}) {
		if err != nil {
			return Point{}, err
		}
		if e.Event != nil {
			p.Time = e.Event.Timestamp
		}
	}
	return p, nil
}

func unknownRun(runID string) error {
	return &wire.APIError{
		Code: wire.CodeRunNotFound, Message: fmt.Sprintf("there is no run %s", runID), Hint: "see `wake runs` for the runs there are",
	}
}

func missingPoint(runID, at string) error {
	return &wire.APIError{
		Code: wire.CodeNotFound, Message: fmt.Sprintf("run %s has no fork point %q", runID, at), Hint: "wake bookmarks " + ask.ShellWord(runID),
	}
}

func isAtWork(s *wire.State) bool {
	for _, n := range s.Nodes {
		if n.Open() {
			return true
		}
	}
	return false
}

func endedError(runID string, s *wire.State) error {
	return &wire.APIError{
		Code:    wire.CodeNotResumable,
		Message: fmt.Sprintf("run %s is %s at that point: nothing would go on", runID, s.Status),
		Hint:    "fork at an earlier point: wake bookmarks " + runID,
	}
}

// positionPoint checks a position that the caller gave. One before the run began is an
// ancestor's.
func positionPoint(ctx context.Context, log eventlog.Reader, present *wire.State, pos uint64) (Point, error) {
	if pos > present.Position.Seq {
		_, last, err := log.Bounds(ctx)
		if err != nil {
			return Point{}, err
		}
		if pos > last {
			return Point{}, &wire.APIError{
				Code: wire.CodeNotFound, Message: fmt.Sprintf("position %d is beyond the end of the log", pos),
				Hint: "wake bookmarks " + present.RunID,
			}
		}
	}
	p := Point{Run: present.RunID, Position: pos}
	for _, a := range knownAncestors(present) {
		if pos <= a.Position {
			p.Run = a.RunID
		}
	}
	return p, nil
}

// State returns the folded state behind a point, with that position or a lower
// one: events of text move no state. It fails with a [*wire.APIError] if the run
// had not begun or has ended there, or the log has lost its events.
func State(ctx context.Context, log eventlog.Reader, p Point) (*wire.State, error) {
	s, lost, err := labelledState(ctx, log, p)
	if err != nil {
		return nil, err
	}
	if s == nil || s.Position.Incarnation != log.Incarnation() {
		folded, err := foldTo(ctx, log, p.Run, p.Position)
		switch {
		case err != nil:
			return nil, err
		case folded.Status != wire.RunIdle || s == nil:
			s = folded
		}
	}
	switch {
	case s.Status == wire.RunIdle && lost != nil:
		return nil, &wire.APIError{Code: wire.CodeCorruptedData, Message: lost.Error(), Hint: "wake bookmarks " + p.Run}
	case s.Status == wire.RunIdle:
		return nil, &wire.APIError{
			Code: wire.CodeNotFound, Message: fmt.Sprintf("the log has no state of run %s at position %d", p.Run, p.Position),
			Hint: "wake bookmarks " + p.Run,
		}
	case s.Status.Ended():
		return nil, endedError(p.Run, s)
	}
	return s, nil
}

// labelledState returns the state that was kept of a labelled point, nil if none was.
// lost says why there is one that can't be used.
func labelledState(ctx context.Context, log eventlog.Reader, p Point) (s *wire.State, lost, err error) {
	if p.Label == "" {
		return nil, nil, nil
	}
	s, err = snapshot.Kept(ctx, log, p.Run, p.Label)
	switch {
	case errors.Is(err, snapshot.ErrUnusable):
		return nil, err, nil
	case errors.Is(err, snapshot.ErrNotFound):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	case s.Position.Seq != p.Position: // the label was elsewhere, or is by now
		return nil, nil, nil
	}
	return s, nil, nil
}

// foldTo returns the state of a run at a position, 0 for the present: from its
// snapshot if that isn't beyond it.
func foldTo(ctx context.Context, log eventlog.Reader, runID string, to uint64) (*wire.State, error) {
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
	if to == 0 && found { // what the stream has dropped is in the snapshot
		return s, snapshot.Fold(ctx, log, s, 0)
	}
	return s, history.Fold(ctx, log, s, to)
}

// MaxPoints bounds the fork points of a page.
const MaxPoints = 10_000

// firstWindow is in how many positions of the log points are looked for at first, and then in twice as many before them.
const firstWindow = 1024

// ListBefore returns the last fork points of a run that are before a position, in log order, and the position before which there may be
// more, 0 if there are none. Before is 0 for the end. What it reads is in proportion to what lies between the points and that position,
// not to the run.
func ListBefore(ctx context.Context, log eventlog.Reader, runID string, before uint64, limit int) (points []Point, cursor uint64, err error) {
	stateAt := func(ctx context.Context, runID string, pos uint64) (*wire.State, error) {
		return history.StateAt(ctx, log, runID, pos)
	}
	return ListKept(ctx, log, stateAt, runID, before, limit)
}

// StateAt returns the state of a run behind a position, 0 for the present, which is its caller's to change; the position of one that had
// not begun is 0.
type StateAt func(ctx context.Context, runID string, pos uint64) (*wire.State, error)

// ListKept is [ListBefore] with states of its caller's.
func ListKept(ctx context.Context, log eventlog.Reader, stateAt StateAt, runID string, before uint64, limit int) (points []Point, cursor uint64, err error) {
	if limit < 1 || limit > MaxPoints {
		return nil, 0, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("limit must be between 1 and %d", MaxPoints)}
	}
	present, err := stateAt(ctx, runID, 0)
	if err != nil {
		return nil, 0, err
	}
	if present.Position.Seq == 0 {
		return nil, 0, unknownRun(runID)
	}
	p := pointPage{log: log, stateAt: stateAt, present: present}
	line := append([]wire.Ancestor{{RunID: runID, Position: present.Position.Seq}}, knownAncestors(present)...)
	for i, a := range line {
		end := a.Position
		if before > 0 {
			end = min(end, before-1)
		}
		older, err := p.lastOf(ctx, a.RunID, end, limit-len(points))
		if err != nil {
			return nil, 0, err
		}
		points = append(older, points...)
		if p.more || len(points) >= limit {
			// Of the run itself there may be more, or of its ancestors.
			if p.more || i+1 < len(line) {
				cursor = points[0].Position
			}
			break
		}
	}
	return points, cursor, nil
}

// pointPage looks for fork points from the end on.
type pointPage struct {
	log     eventlog.Reader
	stateAt StateAt
	present *wire.State
	more    bool // what was read last has more, or wasn't read to its beginning
}

// lastOf returns the last fork points of one run up to a position.
func (p *pointPage) lastOf(ctx context.Context, runID string, end uint64, limit int) (points []Point, err error) {
	for window := uint64(firstWindow); ; window *= 2 {
		begin := run.New(runID)
		if end > window {
			s, err := p.stateAt(ctx, runID, end-window)
			switch {
			case err == nil:
				begin = s
			case !wire.HasCode(err, wire.CodeRunNotFound): // else it had not begun there
				return nil, err
			}
		}
		from := begin.Position.Seq
		older, err := p.collectPoints(ctx, begin, end)
		if err != nil {
			return nil, err
		}
		points, end = append(older, points...), from
		if len(points) >= limit || from == 0 {
			page := lastPoints(points, limit)
			p.more = from > 0 || len(points) > len(page)
			return page, nil
		}
	}
}

// lastPoints returns the last limit points, fewer rather than some of those that share a position: the next page ends before it. Where more
// share the last one, these are the page.
func lastPoints(points []Point, limit int) []Point {
	first := max(0, len(points)-limit)
	cut := func(i int) bool { return i > 0 && points[i-1].Position == points[i].Position }
	for i := first; i < len(points); i++ {
		if !cut(i) {
			return points[i:]
		}
	}
	for cut(first) {
		first--
	}
	return points[first:]
}

// collectPoints returns the fork points of a run behind a state, up to a position. A label is where it stands last.
func (p *pointPage) collectPoints(ctx context.Context, begin *wire.State, end uint64) (points []Point, err error) {
	if end == 0 {
		return nil, nil
	}
	from, runID := begin.Position.Seq, begin.RunID
	last := map[string]uint64{}
	_, err = walkOn(ctx, p.log, begin, end, func(found Point, _ *wire.State) bool {
		points = append(points, found)
		last[found.Label] = found.Position
		return true
	}, func(*wire.RunForked) (bool, error) { return true, nil })
	if err != nil {
		return nil, err
	}
	for _, b := range p.present.Bookmarks {
		if cmp.Or(b.Run, p.present.RunID) != runID {
			continue
		}
		if _, seen := last[b.Label]; !seen && b.Position > from && b.Position <= end { // the log has dropped it, or it was given later
			point, err := withTime(ctx, p.log, bookmarkPoint(p.present.RunID, b))
			if err != nil {
				return nil, err
			}
			points = append(points, point)
		}
		last[b.Label] = b.Position
	}
	points = slices.DeleteFunc(points, func(found Point) bool { return found.Position <= from || found.Position > end })
	return standingPoints(points, last), nil
}
