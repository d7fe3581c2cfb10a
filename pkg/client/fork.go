package client

import (
	"cmp"
	"context"
	"errors"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// Point is a place in the log behind which a run can be forked.
type Point = wire.ForkPoint

// Bookmarks returns the points at which a run can be forked, in log order.
func (c *Client) Bookmarks(ctx context.Context, runID string) ([]Point, error) {
	return bookmark.List(ctx, c.reader, runID)
}

// BookmarksBefore returns the last points, at most limit, 1 to 10 000, that are before a position, 0 for the end, in log order, and
// the position to ask with for those before them, 0 if there are none. It takes no longer in a long run.
func (c *Client) BookmarksBefore(ctx context.Context, runID string, before uint64, limit int) (points []Point, cursor uint64, err error) {
	return bookmark.ListBefore(ctx, c.reader, runID, before, limit)
}

// ForkRequest says what to fork.
type ForkRequest struct {
	RunID     string
	At        string   // a label, sfp-<n> or a position; empty: the present, or the last fork point of a run that has ended
	NewID     string   // of the fork; empty: a new one
	Message   string   // to the agents that were at work there; empty: "continue"
	Overrides wire.Raw // see [wire.FlowResumed]

	By               string // who asks for it; empty: "client"
	WithoutWorkspace bool   // it begins with an empty folder, not with that of the point
}

// ForkResult is a fork.
type ForkResult struct {
	RunID    string `json:"runId"`
	Parent   string `json:"parent"` // the run that has the point
	Position uint64 `json:"position"`
	Label    string `json:"label,omitempty"`
	Recorded bool   `json:"recorded"` // it has begun; false: it waits for a runner
}

// Resolve returns the point at which a fork of a run begins that tells its agents nothing, and the state there.
func (c *Client) Resolve(ctx context.Context, runID, at string) (Point, *wire.State, error) {
	return bookmark.FindFork(ctx, c.reader, runID, at, "")
}

// Fork begins a new run that goes on from a point of another one. The parent is
// left alone.
func (c *Client) Fork(ctx context.Context, r ForkRequest) (ForkResult, error) {
	p, state, err := bookmark.FindFork(ctx, c.reader, r.RunID, r.At, r.Message)
	if err != nil {
		return ForkResult{}, err
	}
	if err := checkOverrides(state, r.Overrides); err != nil {
		return ForkResult{}, err
	}
	if !r.WithoutWorkspace && r.Overrides.TextAt("workspace") == "" {
		if err := c.checkFolder(ctx, state); err != nil {
			return ForkResult{}, err
		}
	}
	r.NewID = cmp.Or(r.NewID, NewID())
	result := ForkResult{RunID: r.NewID, Parent: p.Run, Position: p.Position, Label: p.Label}
	if _, taken, err := c.reader.Last(ctx, r.NewID, wire.RunNode); err != nil {
		return result, err
	} else if taken {
		return result, &wire.APIError{Code: wire.CodeBadRequest, Message: "there is a run " + r.NewID + " already", Hint: "choose another id"}
	}
	_, last, err := c.reader.Bounds(ctx)
	if err != nil {
		return result, err
	}
	request := wire.RunRequest{RunID: r.NewID, By: r.By, Fork: &wire.ForkRequest{
		ParentRun: p.Run, ParentPos: p.Position, Label: p.Label, Message: r.Message, Overrides: r.Overrides,
		WithoutWorkspace: r.WithoutWorkspace,
	}}
	if err := c.Start(ctx, request); err != nil {
		return result, err
	}
	result.Recorded = c.awaitFork(ctx, r.NewID, last+1)
	return result, ctx.Err()
}

// checkFolder fails if there is no folder of a run as of a state, or a runner says that its snapshot isn't kept: the run is imported,
// or was removed. Where nobody says so, the fork does when it begins.
func (c *Client) checkFolder(ctx context.Context, s *wire.State) error {
	if err := bookmark.CheckFolder(s); err != nil {
		return err
	}
	kept, err := history.LastFolder(ctx, c.reader, s, s.Position.Seq)
	if _, away := errors.AsType[*wire.APIError](err); away {
		return nil
	} else if err != nil || kept == nil || kept.Pending || kept.ID == "" {
		return err
	}
	if def, err := flow.FromRaw(s.Definition); err == nil && def.Workspace == flow.WorkspaceShared {
		return nil // it goes by the folder that is there
	}
	ctx, stop := context.WithTimeout(ctx, c.wait)
	defer stop()
	_, err = api.Call[wire.PieceResponse](ctx, c.reader.Conn(), c.reader.Names(), wire.VerbPack, wire.PackRequest{Name: kept.ID})
	if wire.HasCode(err, wire.CodeNotFound) {
		return bookmark.FolderError(s.RunID, "its snapshot isn't kept")
	}
	return nil
}

func checkOverrides(s *wire.State, overrides wire.Raw) error {
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		def = nil // the runner says what is wrong with it
	}
	if err := flow.CheckOverrides(def, overrides); err != nil {
		return &wire.APIError{Code: wire.CodeBadRequest, Message: err.Error()}
	}
	return nil
}

// awaitFork waits for the first event of a fork.
func (c *Client) awaitFork(ctx context.Context, runID string, from uint64) bool {
	ctx, stop := context.WithTimeout(ctx, c.wait)
	defer stop()
	q := eventlog.Query{Run: runID, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: from}
	for e, err := range c.reader.Follow(ctx, q) {
		if err != nil {
			return false
		}
		if e.Event != nil && e.Event.Type() == wire.TypeRunForked {
			return true
		}
	}
	return false
}
