package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// parcel is an event on its way from a call to the consumer.
type parcel struct {
	event *wire.Event
	taken chan error
}

// callTools runs the calls of the last message that have no result, in the model's order:
// neighbours that only read run at once, as do neighbours that start agents or flows. A call
// that may change something runs alone: after all before it, and before all after it.
func (s *session) callTools() error {
	ctx, done := s.workContext()
	defer done()
	for _, k := range s.conv.openCalls() {
		if k.state != "" {
			continue
		}
		if err := s.emit(s.intentEvent(k)); err != nil {
			return err
		}
	}
	parcels := make(chan parcel)
	var calls sync.WaitGroup
	var before, beside []<-chan struct{} // the ends of calls
	var last effect
	for i, k := range s.conv.openCalls() {
		t := s.findTool(k.tool)
		if e := t.callEffect(); i == 0 || e != last || e == changes {
			before, beside, last = slices.Concat(before, beside), nil, e
		}
		p := performance{
			session: s, call: *k, index: slices.Index(s.conv.calls, k), tool: t, parcels: parcels,
			before: before, done: make(chan struct{}),
		}
		beside = append(beside, p.done)
		if !s.enterCall() {
			break
		}
		calls.Go(func() {
			defer s.calls.Done()
			p.run(ctx)
		})
	}
	over := make(chan struct{})
	go func() { // ends with the calls
		calls.Wait()
		close(over)
	}()
	return s.collectParcels(parcels, over, done)
}

// collectParcels emits what calls report, until all of them have come to their end.
func (s *session) collectParcels(parcels <-chan parcel, over <-chan struct{}, abandon func()) (err error) {
	for {
		select {
		case p := <-parcels:
			if err == nil {
				if err = s.emit(p.event); err != nil {
					abandon()
				}
			}
			p.taken <- err
		case <-over:
			if err == nil && s.isLost() {
				return agent.ErrLost
			}
			if err != nil || s.isHalting() {
				return err
			}
			return s.dropCalls()
		}
	}
}

// dropCalls closes calls that a message has interrupted before they began.
func (s *session) dropCalls() error {
	for _, k := range s.conv.openCalls() {
		e := &wire.Event{CallID: k.id, Payload: &wire.AgentTool{
			ToolName: k.tool, ToolInput: k.input, Error: wire.CallNotExecuted, Denied: true,
			ToolOutput: wire.RawString("The call was not executed: a message has interrupted it."),
		}}
		if err := s.emit(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) findTool(name string) *tool {
	for _, t := range s.tools {
		if t.name == name {
			return t
		}
	}
	return nil
}

// intentEvent is the event that says that a call is about to be made.
func (s *session) intentEvent(k *call) *wire.Event {
	t := s.findTool(k.tool)
	return &wire.Event{CallID: k.id, Payload: &wire.ToolIntent{
		ToolName: logName(k.tool), ToolInput: k.input, InputHash: hashOf(k.input),
		Idempotent: t != nil && t.isRepeatable(), Batch: fmt.Sprintf("turn-%d", s.conv.turns),
	}}
}

// logName returns a name for the log, which wants one.
func logName(tool string) string {
	if tool == "" {
		return "unknown"
	}
	return tool
}

// performance is a call that is being made.
type performance struct {
	session *session
	call    call // as it was at the beginning
	index   int  // within its message
	tool    *tool
	parcels chan<- parcel
	before  []<-chan struct{} // closed when the calls that it comes after have come to their end
	done    chan struct{}     // closed when this one has
}

// recordEvent has an event recorded, and returns when it is.
func (p *performance) recordEvent(payload wire.Payload) error {
	taken := make(chan error, 1)
	e := &wire.Event{CallID: p.call.id, Payload: payload}
	if _, ok := payload.(*wire.UserMessage); ok {
		e.CallID = ""
	}
	over := p.session.context().Done()
	select {
	case p.parcels <- parcel{e, taken}:
	case <-over:
		return errLeft
	}
	select {
	case err := <-taken:
		return err
	case <-over:
		return errLeft
	}
}

// run makes the call, from where it was left.
func (p *performance) run(ctx context.Context) {
	defer close(p.done)
	started := time.Now()
	if since := cmp.Or(p.call.begun, p.call.started); since > 0 {
		started = time.UnixMilli(since)
	}
	if !p.isPermitted(ctx, started) {
		return
	}
	for _, end := range p.before {
		select {
		case <-end:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return // it hasn't begun
	}
	if p.call.state != wire.ToolExecuting {
		started = time.Now() // what it has waited for isn't its time
		if p.recordEvent(&wire.ToolState{From: p.call.state, To: wire.ToolExecuting}) != nil {
			return
		}
	}
	p.session.log.Debug("tool call", "tool", p.call.tool, "call_id", p.call.id, "input", string(jsonOf(p.call.input)))
	r, err := p.executeTool(ctx)
	if errors.Is(err, agent.ErrLost) {
		p.session.loseHost()
		return
	}
	if ctx.Err() != nil {
		if p.tool.isRepeatable() && !errors.Is(context.Cause(ctx), errMessage) {
			return // it is run again when the agent goes on
		}
		p.recordInterruption(started)
		return
	}
	for _, told := range r.told {
		if p.recordEvent(told) != nil {
			return
		}
	}
	if p.recordResult(r, "", started) {
		p.askPostHooks(ctx, r)
	}
}

// askHooks asks the hooks about the call. It reports false if the session ends, or the
// call is interrupted.
func (p *performance) askHooks(ctx context.Context, e hook.Event) (hook.Outcome, bool) {
	e.Tool, e.ToolUseID, e.Turn = p.call.tool, p.call.id, p.session.turn
	o, err := p.session.askHooks(ctx, e, p.recordEvent)
	return o, err == nil && ctx.Err() == nil
}

// askPostHooks asks the hooks about what the call has come to.
func (p *performance) askPostHooks(ctx context.Context, r result) {
	e := hook.Event{Name: flow.HookPostToolUse, Input: p.call.input, Result: r.output}
	if r.failed {
		e.Name, e.Error, e.Result = flow.HookPostToolUseFailure, firstLines(r.output.TextAt()), nil
	}
	p.askHooks(ctx, e) // if that fails, the session ends
}

// executeTool runs the tool within its time limit. It fails if the host of the session is gone.
func (p *performance) executeTool(ctx context.Context) (result, error) {
	if p.tool.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, p.tool.timeout)
		defer cancel()
		ctx = limited
	}
	r, err := p.tool.run(ctx, p.call.id, p.call.input)
	switch {
	case errors.Is(err, agent.ErrLost):
		return r, err
	case err != nil:
		return failureResult(err), nil
	}
	return cutResult(r), nil
}

// recordResult records the result of the call, and the point to resume from.
func (p *performance) recordResult(r result, problem string, started time.Time) bool {
	if problem == "" && r.failed {
		problem = firstLines(r.output.TextAt())
		p.session.log.Warn("tool call failed", "tool", p.call.tool, "call_id", p.call.id, "error", problem)
	}
	e := &wire.AgentTool{
		ToolName: logName(p.call.tool), ToolInput: p.call.input, ToolOutput: r.output, Structured: r.structured,
		DurationMs: new(max(0, time.Since(started).Milliseconds())), Error: problem, Point: p.call.id,
		ChildRun: r.child, ChildCostUsd: r.childCost, ChildTokens: r.childTokens,
	}
	if !p.endCall(e) {
		return false
	}
	if host := p.session.request.Host; host != nil { // the result is on record: what its command has said isn't needed any more
		host.Forget(agent.CallProgram(p.call.id))
	}
	return true
}

// recordInterruption records that the call was running when it was given up.
func (p *performance) recordInterruption(started time.Time) {
	r := textResult("The call was interrupted while it was running; its outcome is unknown.")
	r.failed = true
	p.recordResult(r, wire.CallInterrupted, started)
}

// endCall records the result. It reports false if the session ends.
func (p *performance) endCall(e *wire.AgentTool) bool {
	return p.recordEvent(e) == nil && p.recordEvent(&wire.Checkpoint{Kind: wire.CheckpointSubturn, SubIdx: new(p.index)}) == nil
}

// maxError is how much of a failed call's output is told as its error, in bytes.
const maxError = 500

func firstLines(s string) string {
	if s == "" {
		return "failed"
	}
	return runeCut(s[:min(len(s), maxError)], false)
}

// isPermitted reports whether the call may be executed. If not, it has its result, or
// waits for a decision still, or the session ends.
func (p *performance) isPermitted(ctx context.Context, started time.Time) bool {
	problem := ""
	switch {
	case p.tool == nil:
		problem = "Tool not found: " + p.call.tool
	case inputProblem(p.call.input) != "":
		problem = inputProblem(p.call.input)
	case askProblem(p.call.tool, p.call.input) != "":
		problem = askProblem(p.call.tool, p.call.input)
	case p.call.state != wire.ToolExecuting:
		problem = p.session.tooMany(p.call)
	}
	switch {
	case problem != "":
		p.recordResult(failureResult(errors.New(problem)), "", started)
		return false
	case p.call.state == wire.ToolDenied:
		p.recordDenial(p.call.note)
		return false
	case p.call.state == wire.ToolExecuting && !p.tool.isRepeatable() && p.session.atWork[p.call.id].IsZero(): // what it has done may not be known
		p.recordInterruption(started)
		return false
	case p.call.state == wire.ToolExecuting, p.call.state == wire.ToolApproved:
		return true
	}
	return p.judgeCall(ctx)
}

// judgeCall applies the rules, and asks for a decision where they leave it open.
func (p *performance) judgeCall(ctx context.Context) bool {
	o := p.session.request.Options
	switch {
	case p.call.state != wire.ToolApprovalRequired:
		p.call.state = wire.ToolPending
		r := ruleOnCall(o, p.session.mode, p.tool)
		if r.decision == wire.DecisionDeny {
			return p.recordDecision(agent.Verdict{By: "rule", Note: r.note})
		}
		h, ok := p.askHooks(ctx, hook.Event{Name: flow.HookPreToolUse, Input: p.call.input})
		switch {
		case !ok:
			return false
		case h.Decision == hook.Deny:
			return p.recordDecision(agent.Verdict{By: "hook", Note: h.Reason})
		case h.Decision == hook.Modify:
			p.session.log.Debug("input changed by a hook", "tool", p.call.tool, "call_id", p.call.id, "input", string(jsonOf(h.Input)))
		}
		switch {
		case h.Decision == hook.Modify && r.decision == wire.DecisionAllow:
			return p.recordDecision(agent.Verdict{Allow: true, By: "hook", Note: h.Reason, UpdatedInput: h.Input})
		case h.Decision == hook.Modify && p.call.tool == ask.Tool && ask.Answered(h.Input):
			return p.recordDecision(agent.Verdict{Allow: true, By: "hook", Note: h.Reason, UpdatedInput: h.Input})
		case h.Decision == hook.Modify:
			p.call.input = h.Input
		case p.call.tool == ask.Tool: // to allow a question is no answer
		case h.Decision == hook.Allow && r.decision != wire.DecisionAllow: // Decide isn't called
			return p.recordDecision(agent.Verdict{Allow: true, By: "hook", Note: h.Reason})
		}
		if r.decision == wire.DecisionAllow {
			return true
		}
		if !p.askPerson() {
			return false
		}
	case !p.call.asked: // but in the run that this one was forked from
		if !p.askPerson() {
			return false
		}
	}
	if o.Decide == nil {
		return p.recordDecision(agent.Verdict{By: "policy", Note: "no approver is set"})
	}
	v := o.Decide(ctx, agent.Permission{CallID: p.call.id, ToolName: p.call.tool, Input: p.call.input})
	return ctx.Err() == nil && p.recordDecision(v) // else it waits still
}

// askPerson records that the call waits for a decision.
func (p *performance) askPerson() bool {
	return p.recordEvent(&wire.PermissionRequired{ToolName: p.call.tool, ToolInput: p.call.input}) == nil
}

// recordDecision records a decision, and reports whether it allows the call. One that is denied
// has its result by it.
func (p *performance) recordDecision(v agent.Verdict) bool {
	d := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: toValidUTF8(v.By), Note: toValidUTF8(v.Note)}
	if v.Allow {
		d.Decision, d.UpdatedInput = wire.DecisionAllow, v.UpdatedInput
	}
	if p.recordEvent(d) != nil {
		return false
	}
	if !v.Allow {
		p.recordDenial(d.Note)
		return false
	}
	p.call.state = wire.ToolApproved
	if len(v.UpdatedInput) > 0 {
		p.call.input = v.UpdatedInput
	}
	return true
}

// recordDenial records that the call isn't executed.
func (p *performance) recordDenial(note string) {
	p.session.log.Warn("tool call denied", "tool", p.call.tool, "call_id", p.call.id, "note", note)
	message := "Permission denied for tool: " + p.call.tool
	if note != "" {
		message += ": " + note
	}
	p.endCall(&wire.AgentTool{
		ToolName: logName(p.call.tool), ToolInput: p.call.input, ToolOutput: wire.RawString(message),
		Error: message, Denied: true, Point: p.call.id,
	})
}
