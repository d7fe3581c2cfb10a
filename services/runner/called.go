package runner

import (
	"context"
	"fmt"

	"wake/internal/agent"
	"wake/pkg/wire"
)

// Agents have runs of their own do parts of their work. Whoever works on the agent starts
// such a run and takes its result. The owner of the agent's run pauses it, lets it go on,
// and ends it when nobody waits for it any more: when its call isn't open.

// callsRun reports whether an agent waits for a run of a call.
func callsRun(s *wire.State, c wire.ToolCall) bool {
	starts := c.Tool == agent.ToolAgent || c.Tool == agent.ToolRunFlow
	return starts && c.State == wire.ToolExecuting && c.Parent == "" && s.Fixtures == ""
}

// awaited reports whether an agent of the run waits for a call, by its key.
func awaited(s *wire.State, key string) bool {
	_, open := s.Tools[key]
	return open && !ended(s.Status)
}

// updateCalled tells the runs that agents wait for whether the run is paused, and ends those
// that were waited for.
func (c *children) updateCalled(ctx context.Context) error {
	s := c.owner.view.state
	for key, call := range s.Tools {
		id := calledRun(c.owner.runID, call.Exec, call.CallID)
		if !callsRun(s, call) || ended(s.Status) || !c.active(id) {
			continue
		}
		kid := c.called[key]
		if kid == nil {
			kid = &child{run: id}
			if call.Tool == agent.ToolAgent {
				kid.like = call.Node
			}
			if s.PausedAt != 0 || s.ResumedAt != 0 { // an earlier owner may have told it
				state, err := c.owner.runner.stateOf(ctx, id)
				if err != nil {
					return err
				}
				if kid.paused, err = c.pausedBy(ctx, state); err != nil {
					return err
				}
			}
			c.called[key] = kid
		}
		c.tell(ctx, id, kid)
	}
	for key, kid := range c.called {
		if awaited(s, key) {
			continue
		}
		delete(c.called, key)
		if c.active(kid.run) {
			if err := c.endCalled(ctx, kid.run); err != nil {
				return err
			}
		}
	}
	return nil
}

// endLeftCalled ends the runs that nobody waits for any more, and that an earlier owner may
// not have come to end.
func (c *children) endLeftCalled(ctx context.Context) error {
	s := c.owner.view.state
	left := map[string]bool{}
	for _, call := range s.Tools { // the request for one may be on its way
		if ended(s.Status) && callsRun(s, call) {
			left[calledRun(c.owner.runID, call.Exec, call.CallID)] = true
		}
	}
	for _, reg := range c.owner.runner.active.list() {
		if reg.Parent == c.owner.runID && reg.Call != "" && !awaited(s, reg.Call) {
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
	s, err := c.owner.runner.stateOf(ctx, id)
	switch {
	case err != nil:
		return err
	case over(s):
	case !c.withdraw(ctx, id):
		return fmt.Errorf("run %s is not told that nobody waits for it", id)
	}
	return nil
}

// unawaited reports whether nobody waits any more for the run that a call has asked for.
func (o *owner) unawaited(ctx context.Context) (bool, error) {
	if o.request.ParentCall == "" {
		return false, nil
	}
	parent, err := o.runner.stateOf(ctx, o.request.ParentRun)
	if err != nil || parent.Status == wire.RunIdle {
		return false, err
	}
	return !awaited(parent, o.request.ParentCall), nil
}
