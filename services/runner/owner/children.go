package owner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/view"
)

// children are the runs that the flow nodes of a run have started.
type children struct {
	owner  *owner
	news   chan struct{}        // holds a token when a child has had an event; nil: there was none yet
	kids   map[string]*childRun // of flow nodes, by execution
	called map[string]*childRun // of agents, by call
}

// childRun is the run of an open execution, or call.
type childRun struct {
	run    string
	asked  bool               // the run of a flow node is asked for, or needn't be
	seen   bool               // its state was looked up: what happens from then on is followed
	failed bool               // no run can have its input
	ended  bool               // its end is that of its node
	told   bool               // the owner has told it to end: the next execution of its node waits for that
	over   bool               // it has ended since it was told
	like   string             // the node with the agent settings it has; "": none
	sub    *view.Subscription // of those of flow nodes
	paused uint64             // the parent's pause that it was told of and not of its end; 0: none
}

func newChildren(o *owner) *children {
	return &children{owner: o}
}

// childInput is the input of a flow node.
type childInput struct {
	Flow   wire.Raw          `json:"flow"`
	Input  wire.Raw          `json:"input"`
	State  wire.Raw          `json:"state"`
	Labels map[string]string `json:"labels"`
}

// updateChildren aborts the children that are wanted no more, starts those that are
// wanted, records the ends of those that have ended, and tells the others whether the
// run is paused.
func (c *children) updateChildren(ctx context.Context) error {
	s := c.owner.view.State()
	for exec, kid := range c.kids {
		if n := s.Nodes[nodeOf(exec)]; n.Exec != exec || !n.Open() || s.Status.Ended() {
			c.leaveChild(ctx, exec, kid, n)
		}
	}
	if s.Status.Ended() {
		return c.updateCalled(ctx)
	}
	var ends []*wire.Event
	for more := true; more && len(ends) == 0; {
		var err error
		if ends, more, err = c.startChildren(ctx); err != nil {
			return err
		}
	}
	for exec, kid := range c.kids {
		if node := nodeOf(exec); isWanted(s.Nodes[node], exec) && len(ends) < maxEnds {
			end, err := c.followChild(ctx, node, kid)
			if err != nil {
				return err
			}
			ends = append(ends, end...)
		}
	}
	if len(ends) > 0 {
		if err := c.owner.appendEvents(ctx, ends); err != nil {
			return err
		}
	}
	return c.updateCalled(ctx)
}

// leaveChild forgets a child whose node has come to the end of the execution. If the child's own end wasn't that, the child is told to end, and
// followed until no worker acts for it: the next execution of the node has to wait for that.
func (c *children) leaveChild(ctx context.Context, exec string, kid *childRun, n wire.NodeState) {
	if !kid.ended && (n.Exec != exec || n.Open() || isWithdrawn(n)) {
		kid.told = kid.told || c.withdrawChild(ctx, kid.run)
		kid.over = kid.over || !c.isActive(kid.run) || slices.ContainsFunc(kid.sub.Take(), endsRun)
		if !c.owner.view.State().Status.Ended() && (!kid.told || !kid.over || !c.isStill(ctx, kid.run)) {
			return
		}
	}
	kid.sub.Close()
	delete(c.kids, exec)
}

// sharesLeft reports whether processes may be at work in the run's folder for a child that was told to end: what begins in there waits for that.
func (c *children) sharesLeft() bool {
	if !c.owner.isBound() && c.owner.def.Workspace != flow.WorkspaceShared {
		return false
	}
	for _, kid := range c.kids {
		if kid.told {
			return true
		}
	}
	return false
}

// isStill reports whether no process acts for a node of a run any more, nor of those that it has begun, as far as this one has seen.
func (c *children) isStill(ctx context.Context, id string) bool {
	cfg := c.owner.cfg
	s, err := cfg.Runs.State(ctx, id)
	if err != nil || len(cfg.Registry.Called(id)) > 0 {
		return false
	}
	for node, n := range s.Nodes {
		key := lease.Key{Run: id, Node: node}
		if node != wire.RunNode && n.Holder != "" && !cfg.Leases.Free(key, lease.Claimant{Runner: n.Runner, Process: n.Holder}) {
			return false
		}
		below := run.ChildID(id, n.Exec)
		if isFlow := n.Type == string(flow.TypeFlow); isFlow && (n.Open() || isWithdrawn(n)) && (c.isActive(below) || !c.isStill(ctx, below)) {
			return false
		}
	}
	return true
}

// isWithdrawn reports whether an execution that is over was ended by its run's owner, and not by what it has come to.
func isWithdrawn(n wire.NodeState) bool {
	return n.ErrorType == wire.ErrorCancelled || n.ErrorType == wire.ErrorTimeout
}

func nodeOf(exec string) string {
	node, _, _ := strings.Cut(exec, "#")
	return node
}

// isWanted reports whether a node is a flow node, and an execution the one that it is at.
func isWanted(n wire.NodeState, exec string) bool {
	return n.Type == string(flow.TypeFlow) && n.Exec == exec && n.Open() && n.Started >= n.Scheduled
}

// Bounds of what is done for children at once.
const (
	maxEnds   = 64 // ends that are stored together: the others follow when these are folded
	maxStarts = 64 // children that are asked for
	maxAsking = 16 // requests under way
)

// childStart is a child that is asked for.
type childStart struct {
	exec    string
	request wire.RunRequest
	err     error
}

// startChildren asks for children that aren't followed yet, and follows them. It returns the ends of nodes that can't have one, and whether
// there may be more. Of a run that is paused the children begin when it goes on.
func (c *children) startChildren(ctx context.Context) (ends []*wire.Event, more bool, err error) {
	s := c.owner.view.State()
	running := s.Status == wire.RunRunning
	if c.sharesLeft() {
		return nil, false, nil
	}
	leaving := map[string]bool{} // nodes with an earlier child that was told to end
	for exec, kid := range c.kids {
		if kid.told {
			leaving[nodeOf(exec)] = true
		}
	}
	var starts []*childStart
	for node, n := range s.Nodes {
		id := run.ChildID(c.owner.runID, n.Exec)
		if kid := c.kids[n.Exec]; !isWanted(n, n.Exec) || kid != nil && kid.asked || leaving[node] || !running && !c.isActive(id) {
			continue
		}
		if more = len(starts) == maxStarts; more {
			break
		}
		c.subscribeChild(n.Exec, id).asked = true
		start := &childStart{exec: n.Exec}
		start.request, start.err = c.childRequest(ctx, node, id)
		starts = append(starts, start)
	}
	var asking sync.WaitGroup
	for first := range min(maxAsking, len(starts)) {
		asking.Go(func() {
			for i := first; i < len(starts); i += maxAsking {
				if start := starts[i]; start.err == nil {
					start.err = child.Start(ctx, c.owner.cfg.Queue, start.request)
				}
			}
		})
	}
	asking.Wait()
	for _, start := range starts {
		var bad *child.InputError
		switch {
		case errors.As(start.err, &bad) && running:
			failed := &wire.NodeError{Target: nodeOf(start.exec), Error: bad.Problem, ErrorType: "input"}
			ends = append(ends, &wire.Event{ExecID: start.exec, Payload: failed})
			c.kids[start.exec].failed = true
		case start.err != nil && !errors.As(start.err, &bad):
			return nil, false, start.err
		}
	}
	return ends, more, nil
}

// takeUp takes up the children of an earlier owner, and the ends of those that have ended, before their nodes' time may be found to be
// over: a child that is followed is told to end then.
func (c *children) takeUp(ctx context.Context) error {
	s := c.owner.view.State()
	for _, n := range s.Nodes {
		if id := run.ChildID(c.owner.runID, n.Exec); isWanted(n, n.Exec) && (s.Status == wire.RunRunning || c.isActive(id)) {
			c.subscribeChild(n.Exec, id)
		}
	}
	if len(c.kids) == 0 || s.Status.Ended() {
		return nil
	}
	return c.updateChildren(ctx)
}

// subscribeChild has the owner called when something happens in a child.
func (c *children) subscribeChild(exec, id string) *childRun {
	if kid := c.kids[exec]; kid != nil {
		return kid
	}
	if c.kids == nil {
		c.news, c.kids = make(chan struct{}, 1), map[string]*childRun{}
	}
	kid := &childRun{run: id, sub: c.owner.cfg.Runs.Subscribe(id, c.news)}
	kid.sub.OnMore(c.owner.loop.Call)
	c.kids[exec] = kid
	return kid
}

// followChild tells a child to pause and to go on with its parent, and returns the end of its node if it has ended.
func (c *children) followChild(ctx context.Context, node string, kid *childRun) (end []*wire.Event, err error) {
	o := c.owner
	if kid.failed || kid.seen && !slices.ContainsFunc(kid.sub.Take(), endsRun) {
		c.tellChild(ctx, kid)
		return nil, nil
	}
	v, err := o.cfg.Runs.Open(ctx, kid.run)
	if err != nil {
		return nil, err
	}
	v.Close()
	if s := v.State(); s.Status != wire.RunIdle && !child.IsOf(s, o.runID, node, "") {
		kid.failed = true
		n := o.view.State().Nodes[node]
		return []*wire.Event{{ExecID: n.Exec, Payload: &wire.NodeError{
			Target: node, Error: child.TakenText(s), ErrorType: "child", DurationMs: time.Now().UnixMilli() - n.StartedAt,
		}}}, nil
	}
	if !v.State().Status.Ended() {
		if !kid.seen {
			if kid.paused, err = c.pausedBy(ctx, v.State()); err != nil {
				return nil, err
			}
		}
		kid.seen = true
		c.tellChild(ctx, kid)
		return nil, nil
	}
	kid.seen, kid.ended = true, true
	state, err := v.Whole(ctx)
	if err != nil {
		return nil, err
	}
	outcome, err := c.childOutcome(node, o.view.State().Nodes[node], state)
	return []*wire.Event{outcome}, err
}

// isActive reports whether a child has begun and not ended.
func (c *children) isActive(id string) bool {
	_, ok := c.owner.cfg.Registry.Get(id)
	return ok
}

// tellChild pauses a child with its parent, and lets it go on with it. A pause that
// lets agents finish lets children go on too.
func (c *children) tellChild(ctx context.Context, kid *childRun) {
	s := c.owner.view.State()
	switch {
	case s.Status.Ended():
	case view.Interrupts(s) != "" && kid.paused != s.PausedAt:
		if c.sendCommand(ctx, wire.Command{Type: "pause", ID: pauseID(s.PausedAt), RunID: kid.run, Reason: "the parent run is paused"}) {
			kid.paused = s.PausedAt
		}
	case s.Status == wire.RunRunning && kid.paused != 0:
		if c.sendCommand(ctx, wire.Command{Type: "resume", ID: resumeID(kid.paused), RunID: kid.run, Overrides: child.Inherited(s.Overrides, c.owner.def, kid.like)}) {
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
	waiting, err := c.owner.cfg.Commands.Read(ctx, s.RunID, s.CommandPos)
	if err != nil {
		return 0, err
	}
	if len(waiting) > 0 {
		rejected, err := c.owner.cfg.Commands.Unobeyed(ctx, waiting[0].Pos)
		if err != nil {
			return 0, err
		}
		for _, e := range waiting {
			if _, cmd, err := command.Record(e); err == nil && !rejected.Has(e.Pos) {
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

// childRequest returns the request for the run of a node. It fails with a [child.InputError] for an input that no run can have.
func (c *children) childRequest(ctx context.Context, node, id string) (wire.RunRequest, error) {
	input, err := c.owner.view.Input(ctx, node)
	if err != nil && !errors.Is(err, view.ErrMissing) {
		return wire.RunRequest{}, err
	}
	var in childInput
	if err == nil {
		err = wire.Unmarshal(input, &in)
	}
	if err != nil {
		return wire.RunRequest{}, &child.InputError{Problem: fmt.Sprintf("input of the node: %v", err)}
	}
	s := c.owner.view.State()
	def, _ := c.owner.cfg.Runs.Definition(in.Flow) // the owner that begins the child says what is wrong with it
	request := wire.RunRequest{
		V: wire.Version, RunID: id, Definition: in.Flow, Input: in.Input, State: in.State, Labels: child.Labels(s.Labels, def, in.Labels),
		ParentRun: c.owner.runID, ParentNode: node,
		Limits: ledger.Inherited(s.Limits), Overrides: child.Inherited(s.Overrides, c.owner.def, ""), Fixtures: s.Fixtures,
	}
	switch {
	case c.owner.isBound():
		request.Workspace, request.WorkspaceAt = s.Workspace, c.owner.folder.holder
	case c.owner.def.Workspace == flow.WorkspaceShared:
		request.Workspace = s.Workspace
	} // else each execution has a folder of its own
	return request, nil
}

// childOutcome is the end of the node that a child's end is.
func (c *children) childOutcome(node string, n wire.NodeState, s *wire.State) (*wire.Event, error) {
	took := time.Now().UnixMilli() - n.StartedAt
	output, err := child.Outcome(s)
	if err != nil {
		return nil, err
	}
	e := &wire.Event{ExecID: n.Exec, Payload: &wire.NodeComplete{Target: node, Output: output, DurationMs: took}}
	if s.Status == wire.RunAborted || s.Result == wire.FlowStatusFailed {
		e.Payload = &wire.NodeError{
			Target: node, Error: fmt.Sprintf("child run %s: %s", s.RunID, cmp.Or(s.Error, string(s.Status))),
			ErrorType: "child", Output: output, DurationMs: took,
		}
	}
	return e, nil
}

// withdrawChild ends a child. One that has ended rejects it. It reports whether the command is
// stored.
func (c *children) withdrawChild(ctx context.Context, id string) bool {
	return c.sendCommand(ctx, wire.Command{Type: "abort", ID: "parent-" + id, RunID: id, Reason: "the parent run withdrew it"})
}

// abortLeft ends the children that are wanted no more and that an earlier owner of
// the run may not have come to end. The request for one may still be on its way: it
// finds the command when it begins.
func (c *children) abortLeft(ctx context.Context) error {
	s := c.owner.view.State()
	for node, n := range s.Nodes {
		if n.Type != string(flow.TypeFlow) {
			continue
		}
		var left []string
		for i := 1; i < n.Execs; i++ {
			if exec := run.ExecID(node, i); c.isActive(run.ChildID(c.owner.runID, exec)) {
				left = append(left, exec)
			}
		}
		if n.Open() && s.Status.Ended() || !n.Open() && isWithdrawn(n) {
			left = append(left, n.Exec)
		}
		for _, exec := range left {
			id := run.ChildID(c.owner.runID, exec)
			if err := c.endCalled(ctx, id); err != nil {
				return err
			}
			if c.isActive(id) || !c.isStill(ctx, id) {
				c.subscribeChild(exec, id).told = true
			}
		}
	}
	return c.endLeftCalled(ctx)
}

// sendCommand reports whether a command to a child is stored. Sent twice it acts
// once.
func (c *children) sendCommand(ctx context.Context, cmd wire.Command) bool {
	cfg := c.owner.cfg
	cmd.By = "parent"
	data, err := wire.Marshal(cmd)
	if err == nil {
		_, err = cfg.Log.Send(ctx, cfg.subjectNames().Command(cmd.RunID), data)
	}
	if err != nil && ctx.Err() == nil {
		cfg.Logger.Warn("child run not told", "run", cmd.RunID, "command", cmd.Type, "error", err)
	}
	return err == nil
}

// close stops following. Children go on by themselves.
func (c *children) close() {
	for _, kid := range c.kids {
		kid.sub.Close()
	}
}

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
	return open && !s.Status.Ended()
}

// updateCalled tells the runs that agents wait for whether the run is paused, and ends those
// that were waited for.
func (c *children) updateCalled(ctx context.Context) error {
	s := c.owner.view.State()
	for key, call := range s.Tools {
		id := child.CallID(c.owner.runID, call.Exec, call.CallID)
		if !callsRun(s, call) || s.Status.Ended() || !c.isActive(id) {
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
			if c.called == nil {
				c.called = map[string]*childRun{}
			}
			c.called[key] = kid
		}
		c.tellChild(ctx, kid)
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
	s := c.owner.view.State()
	left := map[string]bool{}
	for _, call := range s.Tools { // the request for one may be on its way
		if s.Status.Ended() && callsRun(s, call) {
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
	if o.asked().ParentCall == "" {
		return false, nil
	}
	parent, err := o.cfg.Runs.State(ctx, o.asked().ParentRun)
	if err != nil || parent.Status == wire.RunIdle {
		return false, err
	}
	return !isAwaited(parent, o.asked().ParentCall), nil
}
