package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"wake/internal/agent"
	"wake/internal/ask"
	"wake/internal/flow"
	"wake/internal/hook"
	"wake/pkg/wire"
)

// parcel is an event on its way from a call to the consumer.
type parcel struct {
	event *wire.Event
	taken chan error
}

// callTools runs the calls of the last message that have no result. Those that only
// read run at once; the others one after the other, in the model's order, beside them.
func (s *session) callTools() error {
	ctx, done := s.work()
	defer done()
	for _, k := range s.conv.open() {
		if k.state != "" {
			continue
		}
		if err := s.emit(s.intent(k)); err != nil {
			return err
		}
	}
	parcels := make(chan parcel)
	var calls sync.WaitGroup
	var before chan struct{}
	for i, k := range s.conv.calls {
		if k.result != nil {
			continue
		}
		p := performance{session: s, call: *k, index: i, tool: s.tool(k.tool), parcels: parcels, after: before}
		if p.tool == nil || !p.tool.again() {
			p.done = make(chan struct{})
			before = p.done
		}
		if !s.enter() {
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
	return s.collect(parcels, over, done)
}

// collect emits what calls report, until all of them have come to their end.
func (s *session) collect(parcels <-chan parcel, over <-chan struct{}, abandon func()) (err error) {
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
			if err != nil || s.halted() {
				return err
			}
			return s.drop()
		}
	}
}

// drop closes calls that a message has interrupted before they began.
func (s *session) drop() error {
	for _, k := range s.conv.open() {
		e := &wire.Event{CallID: k.id, Payload: &wire.AgentTool{
			ToolName: k.tool, ToolInput: k.input, Error: "not executed", Denied: true,
			ToolOutput: wire.RawString("The call was not executed: a message has interrupted it."),
		}}
		if err := s.emit(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) tool(name string) *tool {
	for _, t := range s.tools {
		if t.name == name {
			return t
		}
	}
	return nil
}

// intent is the event that says that a call is about to be made.
func (s *session) intent(k *call) *wire.Event {
	t := s.tool(k.tool)
	return &wire.Event{CallID: k.id, Payload: &wire.ToolIntent{
		ToolName: named(k.tool), ToolInput: k.input, InputHash: hashOf(k.input),
		Idempotent: t != nil && t.again(), Batch: fmt.Sprintf("turn-%d", s.conv.turns),
	}}
}

// named returns a name for the log, which wants one.
func named(tool string) string {
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
	after   <-chan struct{} // closed when the call before has come to its end; nil: none
	done    chan struct{}   // of this one; nil: nobody waits for it
}

// say has an event recorded, and returns when it is.
func (p *performance) say(payload wire.Payload) error {
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
	if p.done != nil {
		defer close(p.done)
	}
	started := time.Now()
	if p.call.started > 0 {
		started = time.UnixMilli(p.call.started)
	}
	if !p.permitted(ctx, started) {
		return
	}
	if p.after != nil && !p.tool.again() {
		select {
		case <-p.after:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return // it hasn't begun
	}
	if p.call.state != wire.ToolExecuting {
		if p.say(&wire.ToolState{From: p.call.state, To: wire.ToolExecuting}) != nil {
			return
		}
	}
	p.session.log.Debug("tool call", "tool", p.call.tool, "call_id", p.call.id, "input", string(jsonOf(p.call.input)))
	r := p.execute(ctx)
	if ctx.Err() != nil {
		if p.tool.again() && !errors.Is(context.Cause(ctx), errMessage) {
			return // it is run again when the agent goes on
		}
		p.interrupted(started)
		return
	}
	for _, told := range r.told {
		if p.say(told) != nil {
			return
		}
	}
	if p.finish(r, "", started) {
		p.reflect(ctx, r)
	}
}

// asked asks the hooks about the call. It reports false if the session ends, or the
// call is interrupted.
func (p *performance) asked(ctx context.Context, e hook.Event) (hook.Outcome, bool) {
	e.Tool, e.ToolUseID, e.Turn = p.call.tool, p.call.id, p.session.turn
	o, err := p.session.askHooks(ctx, e, p.say)
	return o, err == nil && ctx.Err() == nil
}

// reflect asks the hooks about what the call has come to.
func (p *performance) reflect(ctx context.Context, r result) {
	e := hook.Event{Name: flow.HookPostToolUse, Input: p.call.input, Result: r.output}
	if r.failed {
		e.Name, e.Error, e.Result = flow.HookPostToolUseFailure, firstLines(textIn(r.output)), nil
	}
	p.asked(ctx, e) // if that fails, the session ends
}

func textIn(output wire.Raw) string {
	s, _ := output.Text()
	return s
}

// execute runs the tool within its time limit.
func (p *performance) execute(ctx context.Context) result {
	if p.tool.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, p.tool.timeout)
		defer cancel()
		ctx = limited
	}
	r, err := p.tool.run(ctx, p.call.id, p.call.input)
	if err != nil {
		return failure(err)
	}
	return cutResult(r)
}

// finish records the result of the call, and the point to resume from.
func (p *performance) finish(r result, problem string, started time.Time) bool {
	if problem == "" && r.failed {
		problem = firstLines(textIn(r.output))
		p.session.log.Warn("tool call failed", "tool", p.call.tool, "call_id", p.call.id, "error", problem)
	}
	e := &wire.AgentTool{
		ToolName: named(p.call.tool), ToolInput: p.call.input, ToolOutput: r.output, Structured: r.structured,
		DurationMs: new(max(0, time.Since(started).Milliseconds())), Error: problem, Point: p.call.id,
		ChildRun: r.child, ChildCostUsd: r.childCost,
	}
	return p.end(e)
}

// interrupted records that the call was running when it was given up.
func (p *performance) interrupted(started time.Time) {
	r := text("The call was interrupted while it was running; its outcome is unknown.")
	r.failed = true
	p.finish(r, wire.CallInterrupted, started)
}

// end records the result. It reports false if the session ends.
func (p *performance) end(e *wire.AgentTool) bool {
	return p.say(e) == nil && p.say(&wire.Checkpoint{Kind: wire.CheckpointSubturn, SubIdx: new(p.index)}) == nil
}

// maxError is how much of a failed call's output is told as its error, in bytes.
const maxError = 500

func firstLines(s string) string {
	if s == "" {
		return "failed"
	}
	return runeCut(s[:min(len(s), maxError)], false)
}

// permitted reports whether the call may be executed. If not, it has its result, or
// waits for a decision still, or the session ends.
func (p *performance) permitted(ctx context.Context, started time.Time) bool {
	problem := ""
	switch {
	case p.tool == nil:
		problem = "Tool not found: " + p.call.tool
	case malformed(p.call.input) != "":
		problem = malformed(p.call.input)
	case askable(p.call.tool, p.call.input) != "":
		problem = askable(p.call.tool, p.call.input)
	case p.call.state != wire.ToolExecuting:
		problem = p.session.tooMany(p.call)
	}
	switch {
	case problem != "":
		p.finish(failure(errors.New(problem)), "", started)
		return false
	case p.call.state == wire.ToolDenied:
		p.deny(p.call.note)
		return false
	case p.call.state == wire.ToolExecuting && !p.tool.again(): // nobody may know what it has done
		p.interrupted(started)
		return false
	case p.call.state == wire.ToolExecuting, p.call.state == wire.ToolApproved:
		return true
	}
	return p.judge(ctx)
}

// judge applies the rules, and asks for a decision where they leave it open.
func (p *performance) judge(ctx context.Context) bool {
	o := p.session.request.Options
	if p.call.state != wire.ToolApprovalRequired {
		p.call.state = wire.ToolPending
		r := rule(o, p.session.mode, p.tool)
		if r.decision == wire.DecisionDeny {
			return p.decided(agent.Verdict{By: "rule", Note: r.note})
		}
		h, ok := p.asked(ctx, hook.Event{Name: flow.HookPreToolUse, Input: p.call.input})
		switch {
		case !ok:
			return false
		case h.Decision == hook.Deny:
			return p.decided(agent.Verdict{By: "hook", Note: h.Reason})
		case h.Decision == hook.Modify:
			p.session.log.Debug("input changed by a hook", "tool", p.call.tool, "call_id", p.call.id, "input", string(jsonOf(h.Input)))
		}
		switch {
		case h.Decision == hook.Modify && r.decision == wire.DecisionAllow:
			return p.decided(agent.Verdict{Allow: true, By: "hook", Note: h.Reason, UpdatedInput: h.Input})
		case h.Decision == hook.Modify && p.call.tool == ask.Tool && ask.Answered(h.Input):
			return p.decided(agent.Verdict{Allow: true, By: "hook", Note: h.Reason, UpdatedInput: h.Input})
		case h.Decision == hook.Modify:
			p.call.input = h.Input
		case p.call.tool == ask.Tool: // to allow a question is no answer
		case h.Decision == hook.Allow && r.decision != wire.DecisionAllow: // nobody else is asked
			return p.decided(agent.Verdict{Allow: true, By: "hook", Note: h.Reason})
		}
		if r.decision == wire.DecisionAllow {
			return true
		}
		if p.say(&wire.PermissionRequired{ToolName: p.call.tool, ToolInput: p.call.input}) != nil {
			return false
		}
	}
	if o.Decide == nil {
		return p.decided(agent.Verdict{By: "policy", Note: "nobody is there to decide"})
	}
	v := o.Decide(ctx, agent.Permission{CallID: p.call.id, ToolName: p.call.tool, Input: p.call.input})
	return ctx.Err() == nil && p.decided(v) // else it waits still
}

// decided records a decision, and reports whether it allows the call. One that is denied
// has its result by it.
func (p *performance) decided(v agent.Verdict) bool {
	d := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: valid(v.By), Note: valid(v.Note)}
	if v.Allow {
		d.Decision, d.UpdatedInput = wire.DecisionAllow, v.UpdatedInput
	}
	if p.say(d) != nil {
		return false
	}
	if !v.Allow {
		p.deny(d.Note)
		return false
	}
	p.call.state = wire.ToolApproved
	if len(v.UpdatedInput) > 0 {
		p.call.input = v.UpdatedInput
	}
	return true
}

// deny records that the call isn't executed.
func (p *performance) deny(note string) {
	p.session.log.Warn("tool call denied", "tool", p.call.tool, "call_id", p.call.id, "note", note)
	message := "Permission denied for tool: " + p.call.tool
	if note != "" {
		message += ": " + note
	}
	p.end(&wire.AgentTool{
		ToolName: named(p.call.tool), ToolInput: p.call.input, ToolOutput: wire.RawString(message),
		Error: message, Denied: true, Point: p.call.id,
	})
}
