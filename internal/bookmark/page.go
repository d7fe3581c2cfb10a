package bookmark

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// MaxPoints bounds the fork points of a page.
const MaxPoints = 10_000

// firstWindow is in how many positions of the log points are looked for at first.
const firstWindow = 4096

// ListBefore returns the last fork points of a run that are before a position, in log order, and the position before which there may be
// more, 0 if there are none. Before is 0 for the end. What it reads is in proportion to what lies between the points and that position,
// not to the run.
func ListBefore(ctx context.Context, log eventlog.Reader, runID string, before uint64, limit int) (points []Point, cursor uint64, err error) {
	if limit < 1 || limit > MaxPoints {
		return nil, 0, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("limit must be between 1 and %d", MaxPoints)}
	}
	present, err := history.StateAt(ctx, log, runID, 0)
	if err != nil {
		return nil, 0, err
	}
	if present.Position.Seq == 0 {
		return nil, 0, unknownRun(runID)
	}
	p := pointPage{log: log, present: present}
	line := append([]wire.Ancestor{{RunID: runID, Position: present.Position.Seq}}, present.Lineage...)
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
	present *wire.State
	more    bool // what was read last has more, or wasn't read to its beginning
}

// lastOf returns the last fork points of one run up to a position.
func (p *pointPage) lastOf(ctx context.Context, runID string, end uint64, limit int) ([]Point, error) {
	for window := uint64(firstWindow); ; window *= 4 {
		begin := run.New(runID)
		if end > window {
			s, err := history.StateAt(ctx, p.log, runID, end-window)
			switch {
			case err == nil:
				begin = s
			case !wire.HasCode(err, wire.CodeRunNotFound): // else it had not begun there
				return nil, err
			}
		}
		from := begin.Position.Seq
		points, err := p.between(ctx, begin, end)
		if err != nil {
			return nil, err
		}
		if len(points) >= limit || from == 0 {
			p.more = from > 0 || len(points) > limit
			return lastPoints(points, limit), nil
		}
	}
}

// lastPoints returns the last limit points, fewer rather than some of those that share a position: the next page ends before it.
func lastPoints(points []Point, limit int) []Point {
	first := max(0, len(points)-limit)
	for i := first; first > 0 && i < len(points); i++ {
		if points[i].Position != points[first-1].Position {
			return points[i:]
		}
	}
	return points[first:]
}

// between returns the fork points of a run behind a state, up to a position. A label is where it stands last.
func (p *pointPage) between(ctx context.Context, begin *wire.State, end uint64) (points []Point, err error) {
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
	points = slices.DeleteFunc(points, func(found Point) bool {
		return last[found.Label] != found.Position || found.Position <= from || found.Position > end
	})
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Position, b.Position) })
	return points, nil
}
