package owner

import (
	"context"
	"fmt"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
	"code.wake.dev/wake/services/runner/internal/view"
)

// Agents have runs of their own do parts of their work. The worker of the agent starts
// such a run and takes its result. The owner of the agent's run pauses it, lets it go on,
// and ends it when no agent waits for it any more: when its call isn't open.

// callsRun reports whether an agent waits for a run of a call.
func callsRun(s *wire.State, c wire.ToolCall) bool {
	starts := c.Tool == agent.ToolAgent || c.Tool == agent.ToolRunFlow
	return starts && c.State == wire.ToolExecuting && c.Parent == "" && s.Fixtures == ""
}

// isAwaited reports whether an agent of the run waits for a call, by its key.
func isAwaited(s *wire.State, key string) bool {
	_, open := s.Tools[key]
	return open && !view.Ended(s.Status)
}

// updateCalled tells the runs that agents wait for whether the run is paused, and ends those
// that were waited for.
func (c *children) updateCalled(ctx context.Context) error {
	s := c.owner.view.State
	for key, call := range s.Tools {
		id := child.CallID(c.owner.runID, call.Exec, call.CallID)
		if !callsRun(s, call) || view.Ended(s.Status) || !c.isActive(id) {
			continue
		}
		kid := c.called[key]
		if kid == nil {
			kid = &childRun{run: id}
			if call.Tool == agent.ToolAgent {
				kid.like = call.Node
			}
			if s.PausedAt != 0 || s.ResumedAt != 0 { // an earlier owner may have told it
				state, err := c.owner.cfg.Runs.State(ctx, id)
				if err != nil {
					return err
				}
				if kid.paused, err = c.pausedBy(ctx, state); err != nil {
					return err
				}
			}
			c.called[key] = kid
		}
		c.tellChild(ctx, id, kid)
	}
	for key, kid := range c.called {
		if isAwaited(s, key) {
			continue
		}
		delete(c.called, key)
		if c.isActive(kid.run) {
			if err := c.endCalled(ctx, kid.run); err != nil {
				return err
			}
		}
	}
	return nil
}

// endLeftCalled ends the runs that no call waits for any more, and that an earlier owner may
// not have come to end.
func (c *children) endLeftCalled(ctx context.Context) error {
	s := c.owner.view.State
	left := map[string]bool{}
	for _, call := range s.Tools { // the request for one may be on its way
		if view.Ended(s.Status) && callsRun(s, call) {
			left[child.CallID(c.owner.runID, call.Exec, call.CallID)] = true
		}
	}
	for _, reg := range c.owner.cfg.Registry.Called(c.owner.runID) {
		if !isAwaited(s, reg.Call) {
			left[reg.Run] = true
		}
	}
	for id := range left {
		if err := c.endCalled(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// endCalled aborts a run, unless it has ended.
func (c *children) endCalled(ctx context.Context, id string) error {
	s, err := c.owner.cfg.Runs.State(ctx, id)
	switch {
	case err != nil:
		return err
	case view.Over(s):
	case !c.withdrawChild(ctx, id):
		return fmt.Errorf("run %s is not told that its parent no longer waits for it", id)
	}
	return nil
}

// isAbandoned reports whether the call that asked for this run waits for it no more.
func (o *owner) isAbandoned(ctx context.Context) (bool, error) {
	if o.request.ParentCall == "" {
		return false, nil
	}
	parent, err := o.cfg.Runs.State(ctx, o.request.ParentRun)
	if err != nil || parent.Status == wire.RunIdle {
		return false, err
	}
	return !isAwaited(parent, o.request.ParentCall), nil
}
