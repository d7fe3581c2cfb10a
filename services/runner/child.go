package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// children are the runs that the flow nodes of a run have started.
type children struct {
	owner  *owner
	news   chan struct{}     // holds a token when a child has had an event
	kids   map[string]*child // of flow nodes, by execution
	called map[string]*child // of agents, by call
}

// child is the run of an open execution, or call.
type child struct {
	run    string
	like   string        // the node whose agent's settings it has; "": none's
	sub    *subscription // of those of flow nodes
	paused uint64        // the parent's pause that it was told of and not of its end; 0: none
}

func newChildren(o *owner) *children {
	return &children{owner: o, news: make(chan struct{}, 1), kids: map[string]*child{}, called: map[string]*child{}}
}

// childInput is the input of a flow node.
type childInput struct {
	Flow   wire.Raw          `json:"flow"`
	Input  wire.Raw          `json:"input"`
	State  wire.Raw          `json:"state"`
	Labels map[string]string `json:"labels"`
}

// hashedChild is the beginning of an id that is a hash.
const hashedChild = "child-"

// childID names the run of an execution. It is the same whoever computes it, so
// that a child isn't started twice. One that would be too long for an id is a hash.
func childID(run, exec string) string {
	id := run + "." + exec
	if len(id) <= subjects.MaxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hashedChild + hex.EncodeToString(sum[:])
}

// update starts the children that are wanted, records the ends of those that
// have ended, aborts those that are wanted no more, and tells the others whether
// the run is paused.
func (c *children) update(ctx context.Context) error {
	s := c.owner.view.state
	for node, n := range s.Nodes {
		if n.Type != string(flow.TypeFlow) || !n.Open() || n.Started < n.Scheduled {
			continue
		}
		if err := c.follow(ctx, node, n); err != nil {
			return err
		}
	}
	for exec, kid := range c.kids {
		n := s.Nodes[nodeOf(exec)]
		current := n.Exec == exec
		if current && n.Open() && !ended(s.Status) {
			continue
		}
		kid.sub.close()
		delete(c.kids, exec)
		if !current || n.Open() || n.ErrorType == "cancelled" {
			c.withdraw(ctx, kid.run)
		}
	}
	return c.updateCalled(ctx)
}

func nodeOf(exec string) string {
	node, _, _ := strings.Cut(exec, "#")
	return node
}

// follow starts a child, tells it to pause and to go on with its parent, and
// looks whether it has ended.
func (c *children) follow(ctx context.Context, node string, n wire.NodeState) error {
	o := c.owner
	id := childID(o.runID, n.Exec)
	running := o.view.state.Status == wire.RunRunning
	kid, known := c.kids[n.Exec]
	if !known {
		if !running && !c.active(id) {
			return nil // it begins when the run goes on
		}
		kid = &child{run: id, sub: o.runner.events.subscribeInto(id, c.news)}
		c.kids[n.Exec] = kid
		var bad *failure
		if err := c.start(ctx, node, id); errors.As(err, &bad) {
			if !running {
				return nil
			}
			e := &wire.Event{ExecID: n.Exec, Payload: &wire.NodeError{Target: node, Error: bad.message, ErrorType: bad.kind}}
			return o.append(ctx, []*wire.Event{e})
		} else if err != nil {
			return err
		}
	}
	if known && !slices.ContainsFunc(kid.sub.take(), endsRun) {
		c.tell(ctx, id, kid)
		return nil
	}
	v, err := o.runner.open(ctx, id)
	if err != nil {
		return err
	}
	v.close()
	if !ended(v.state.Status) {
		if !known {
			if kid.paused, err = c.pausedBy(ctx, v.state); err != nil {
				return err
			}
		}
		c.tell(ctx, id, kid)
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

// active reports whether a child has begun and not ended.
func (c *children) active(id string) bool {
	_, ok := c.owner.runner.active.get(id)
	return ok
}

// tell pauses a child with its parent, and lets it go on with it. A pause that
// lets agents finish lets children go on too.
func (c *children) tell(ctx context.Context, id string, kid *child) {
	s := c.owner.view.state
	switch {
	case ended(s.Status):
	case interrupts(s) != "" && kid.paused != s.PausedAt:
		if c.command(ctx, wire.Command{Type: "pause", ID: pauseID(s.PausedAt), RunID: id, Reason: "the parent run is paused"}) {
			kid.paused = s.PausedAt
		}
	case s.Status == wire.RunRunning && kid.paused != 0:
		if c.command(ctx, wire.Command{Type: "resume", ID: resumeID(kid.paused), RunID: id, Overrides: inherited(s.Overrides, c.owner.def, kid.like)}) {
			kid.paused = 0
		}
	}
}

// The commands of a parent have ids that its owners agree about, so that they act
// once. They name the pause by its position.
const (
	pauseByParent  = "parent-pause-"
	resumeByParent = "parent-resume-" // rejected by a child that was paused by itself
)

func pauseID(pos uint64) string  { return pauseByParent + strconv.FormatUint(pos, 10) }
func resumeID(pos uint64) string { return resumeByParent + strconv.FormatUint(pos, 10) }

// pausedBy returns the pause of the parent that a child was told of and not of
// its end, by an earlier owner; 0 if there is none.
func (c *children) pausedBy(ctx context.Context, s *wire.State) (uint64, error) {
	ids := slices.Clone(s.CommandIDs)
	waiting, err := c.owner.runner.readCommands(ctx, s.RunID, s.CommandPos)
	if err != nil {
		return 0, err
	}
	if len(waiting) > 0 {
		rejected, err := c.owner.runner.recordsOfNone(ctx)
		if err != nil {
			return 0, err
		}
		for _, e := range waiting {
			if _, cmd, err := parseCommand(e); err == nil && !rejected[e.Pos] {
				ids = append(ids, cmd.ID)
			}
		}
	}
	for _, id := range slices.Backward(ids) {
		digits, ok := strings.CutPrefix(id, pauseByParent)
		if !ok {
			continue
		}
		pos, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || slices.Contains(ids, resumeID(pos)) {
			return 0, nil
		}
		return pos, nil
	}
	return 0, nil
}

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
	s := c.owner.view.state
	request := wire.RunRequest{
		V: wire.Version, RunID: id, Definition: in.Flow, Input: in.Input, State: in.State, Labels: in.Labels,
		ParentRun: c.owner.runID, ParentNode: node,
		Limits: s.Limits, Overrides: inherited(s.Overrides, c.owner.def, ""), Fixtures: s.Fixtures, Workspace: s.Workspace,
	}
	if c.owner.bound() {
		request.WorkspaceAt = c.owner.folder.holder
	}
	return c.owner.runner.request(ctx, request)
}

// outcome is the end of the node that a child's end is.
func (c *children) outcome(node string, n wire.NodeState, s *wire.State) (*wire.Event, error) {
	took := time.Now().UnixMilli() - n.StartedAt
	output, err := outcomeOf(s)
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

// outcomeOf is what a child run is to who has started it.
func outcomeOf(s *wire.State) (wire.Raw, error) {
	return wire.Marshal(map[string]any{"runId": s.RunID, "status": string(s.Status), "outputs": s.Outputs, "state": s.State})
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// withdraw ends a child. One that has ended rejects it. It reports whether the command is
// stored.
func (c *children) withdraw(ctx context.Context, id string) bool {
	return c.command(ctx, wire.Command{Type: "abort", ID: "parent-" + id, RunID: id, Reason: "the parent run withdrew it"})
}

// abortLeft ends the children that are wanted no more and that an earlier owner of
// the run may not have come to end. The request for one may still be on its way: it
// finds the command when it begins.
func (c *children) abortLeft(ctx context.Context) error {
	s := c.owner.view.state
	for _, n := range s.Nodes {
		withdrawn := n.Open() && ended(s.Status) || n.ErrorType == "cancelled"
		if n.Type != string(flow.TypeFlow) || !withdrawn {
			continue
		}
		id := childID(c.owner.runID, n.Exec)
		child, err := c.owner.runner.stateOf(ctx, id)
		switch {
		case err != nil:
			return err
		case over(child):
		case !c.withdraw(ctx, id):
			return fmt.Errorf("child run %s is not told that it was withdrawn", id)
		}
	}
	return c.endLeftCalled(ctx)
}

// command reports whether a command to a child is stored. Sent twice it acts
// once.
func (c *children) command(ctx context.Context, cmd wire.Command) bool {
	r := c.owner.runner
	cmd.By = "parent"
	data, err := wire.Marshal(cmd)
	if err == nil {
		_, err = r.log.Send(ctx, r.names.Command(cmd.RunID), data)
	}
	if err != nil && ctx.Err() == nil {
		r.logger.Warn("child run not told", "run", cmd.RunID, "command", cmd.Type, "error", err)
	}
	return err == nil
}

// close stops following. Children go on by themselves.
func (c *children) close() {
	for _, kid := range c.kids {
		kid.sub.close()
	}
}
