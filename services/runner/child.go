package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/pkg/wire"
)

// children are the runs that the flow nodes of a run have started.
type children struct {
	owner *owner
	news  chan struct{}            // holds a token when a child has had an event
	subs  map[string]*subscription // by execution
}

func newChildren(o *owner) *children {
	return &children{owner: o, news: make(chan struct{}, 1), subs: map[string]*subscription{}}
}

// childInput is the input of a flow node.
type childInput struct {
	Flow   wire.Raw          `json:"flow"`
	Input  wire.Raw          `json:"input"`
	State  wire.Raw          `json:"state"`
	Labels map[string]string `json:"labels"`
}

// childID names the run of an execution. It is the same whoever computes it, so
// that a child isn't started twice.
func childID(run, exec string) string {
	return run + "." + exec
}

// update starts the children that are wanted, records the ends of those that
// have ended, and aborts those that are wanted no more.
func (c *children) update(ctx context.Context) error {
	s := c.owner.view.state
	if s.Status == wire.RunRunning {
		for node, n := range s.Nodes {
			if n.Type != string(flow.TypeFlow) || !n.Open() || n.Started < n.Scheduled {
				continue
			}
			if err := c.follow(ctx, node, n); err != nil {
				return err
			}
		}
	}
	for exec, sub := range c.subs {
		n := s.Nodes[nodeOf(exec)]
		current := n.Exec == exec
		if current && n.Open() && !ended(s.Status) {
			continue
		}
		sub.close()
		delete(c.subs, exec)
		if !current || n.Open() || n.ErrorType == "cancelled" {
			c.abort(ctx, exec)
		}
	}
	return nil
}

func nodeOf(exec string) string {
	node, _, _ := strings.Cut(exec, "#")
	return node
}

// follow starts a child or looks whether it has ended.
func (c *children) follow(ctx context.Context, node string, n wire.NodeState) error {
	o := c.owner
	id := childID(o.runID, n.Exec)
	sub, known := c.subs[n.Exec]
	if !known {
		sub = o.runner.events.subscribeInto(id, c.news)
		c.subs[n.Exec] = sub
		var bad *failure
		if err := c.start(ctx, node, id); errors.As(err, &bad) {
			e := &wire.Event{ExecID: n.Exec, Payload: &wire.NodeError{Target: node, Error: bad.message, ErrorType: bad.kind}}
			return o.append(ctx, []*wire.Event{e})
		} else if err != nil {
			return err
		}
	}
	if known && !slices.ContainsFunc(sub.take(), endsRun) {
		return nil
	}
	v, err := o.runner.open(ctx, id)
	if err != nil {
		return err
	}
	v.close()
	if !ended(v.state.Status) {
		return nil
	}
	state, err := v.whole(ctx)
	if err != nil {
		return err
	}
	e, err := c.outcome(node, n, state)
	if err != nil {
		return err
	}
	return o.append(ctx, []*wire.Event{e})
}

// endsRun reports whether an entry may be the end of a run.
func endsRun(e eventlog.Entry) bool {
	if e.Event == nil {
		return false
	}
	t := e.Event.Type()
	return t == wire.TypeFlowComplete || t == wire.TypeFlowAborted
}

// start asks for the child run. Asking twice does no harm. It fails with a
// [failure] for an input that no child run can have.
func (c *children) start(ctx context.Context, node, id string) error {
	input, err := c.owner.view.input(ctx, node)
	if err != nil && !errors.Is(err, errMissing) {
		return err
	}
	var in childInput
	if err == nil {
		err = wire.Unmarshal(input, &in)
	}
	if err != nil {
		return &failure{message: fmt.Sprintf("input of the node: %v", err), kind: "input"}
	}
	request, err := wire.Marshal(wire.RunRequest{
		V: wire.Version, RunID: id, Definition: in.Flow, Input: in.Input, State: in.State, Labels: in.Labels,
		ParentRun: c.owner.runID, ParentNode: node,
		Fixtures: c.owner.view.state.Fixtures, Workspace: c.owner.view.state.Workspace,
	})
	if err != nil {
		return err
	}
	r := c.owner.runner
	if _, err := r.log.JetStream().Publish(ctx, r.names.QueueRun(), request); err != nil {
		return fmt.Errorf("start child run %s: %w", id, err)
	}
	return nil
}

// outcome is the end of the node that a child's end is.
func (c *children) outcome(node string, n wire.NodeState, s *wire.State) (*wire.Event, error) {
	took := time.Now().UnixMilli() - n.StartedAt
	output, err := wire.Marshal(map[string]any{
		"runId": s.RunID, "status": string(s.Status), "outputs": s.Outputs, "state": s.State,
	})
	if err != nil {
		return nil, err
	}
	e := &wire.Event{ExecID: n.Exec, Payload: &wire.NodeComplete{Target: node, Output: output, DurationMs: took}}
	if s.Status == wire.RunAborted || s.Result == wire.FlowStatusFailed {
		e.Payload = &wire.NodeError{
			Target: node, Error: fmt.Sprintf("child run %s: %s", s.RunID, orElse(s.Error, string(s.Status))),
			ErrorType: "child", Output: output, DurationMs: took,
		}
	}
	return e, nil
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// abort ends the child of an execution that was withdrawn. One that has ended
// rejects it.
func (c *children) abort(ctx context.Context, exec string) {
	r := c.owner.runner
	id := childID(c.owner.runID, exec)
	command, err := wire.Marshal(wire.Command{Type: "abort", ID: "parent-" + id, RunID: id, Reason: "the parent run withdrew it", By: "parent"})
	if err == nil {
		_, err = r.log.JetStream().Publish(ctx, r.names.Command(id), command)
	}
	if err != nil && ctx.Err() == nil {
		r.logger.Warn("child run not aborted", "run", id, "error", err)
	}
}

// close stops following. Children go on by themselves.
func (c *children) close() {
	for _, sub := range c.subs {
		sub.close()
	}
}
