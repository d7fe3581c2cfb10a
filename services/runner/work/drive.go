package work

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// drive is one session of the agent of an execution.
type drive struct {
	exec     *execution
	request  *agent.Request // nil once the agent is asked
	id       string         // of its session
	resumed  bool           // the session was there
	can      agent.Capabilities
	opening  []*wire.Event     // stored in one commit with agent:start
	first    string            // message to give as soon as the agent runs
	message  string            // what it is told, in case it has to begin afresh
	again    []wire.InboxEntry // likewise: messages that were given to a session that isn't there
	seen     []wire.Raw        // inputs of its earlier calls
	attaches bool              // to an agent that is at work, which is left or interrupted if the execution is halted
	lenient  bool              // that the agent doesn't know the session is no failure

	live    context.Context //nolint:containedctx // ends with the session, or ends it
	kill    context.CancelCauseFunc
	tasks   sync.WaitGroup // end with it
	unended func() bool    // it isn't to be ended early any more
	session agent.Session
	outcome agent.Outcome
	start   *wire.AgentStart  // what the agent is asked
	files   *files            // nil until it has named one
	given   []wire.InboxEntry // of giveMessage
	late    []wire.InboxEntry // of these, those for which the agent, which had ended its turn, took no message any more
	rest    *rest
	calls   *calls
	waits   waits
	backlog backlog
}

var (
	// errForced ends an agent that doesn't come to a safe point by itself.
	errForced = errors.New("the agent did not stop in time")
	// errParked ends an agent that only waits for the answer to a question: interrupted, it
	// would take the question back. The worker that goes on waits for the answer.
	errParked = errors.New("the agent waits for an answer")
	// errSessionNotFound says that the agent doesn't know the session.
	errSessionNotFound = errors.New("session not found")
	// errLate says that a message came when the agent had ended its turn, and had no input any more.
	errLate = errors.New("a message came behind the agent's last turn")
)

// interruptGrace is how long an agent may take to come to a safe point.
const interruptGrace = 10 * time.Second

// begin has the agent begin to serve the request, or returns the events that end the
// execution and why.
func (d *drive) begin(ctx context.Context, in *agentInput) ([]*wire.Event, error) {
	if d.exec.halt.isTold() && !d.attaches {
		return nil, d.exec.endHalted()
	}
	if events, err := d.startSession(ctx, in); err != nil {
		return events, err
	}
	live, kill := context.WithCancelCause(ctx)
	d.live, d.kill = live, kill
	// What rarely happens has no goroutine before it does: they are most of what an agent that waits costs the runner.
	d.tasks.Add(1)
	d.unended = context.AfterFunc(live, func() {
		defer d.tasks.Done()
		d.endEarly(ctx)
	})
	d.exec.halt.onTold(func() { d.tasks.Go(d.interruptAgent) })
	d.beginPassing()
	return nil, nil
}

// end ends the session behind its events, of which last and err are the end, and returns the events that end the
// execution; none that is an outcome if the agent came to a safe point.
func (d *drive) end(ctx context.Context, last []*wire.Event, err error) ([]*wire.Event, error) {
	if failed := d.backlog.wait(); err == nil {
		err = failed
	}
	d.closeSession()
	if d.unended() {
		d.tasks.Done()
	}
	d.kill(nil)
	d.exec.post.shut()
	d.exec.halt.onTold(nil)
	d.tasks.Wait()
	if d.outcome.Error() == nil && d.outcome.Paused() == nil {
		_ = d.exec.seat.setResting(ctx, false) // else the execution is being ended
	}
	if d.files != nil {
		d.files.close()
	}
	return d.concludeSession(ctx, errors.Is(context.Cause(d.live), errForced), last, err) //nolint:contextcheck // it is of ctx
}

// startSession begins the session, or returns the events that end the execution.
func (d *drive) startSession(ctx context.Context, in *agentInput) (failed []*wire.Event, err error) {
	d.id, d.resumed = d.request.SessionID, d.request.Resume
	d.request.Stored = func() bool { return d.backlog.isEmpty() && d.exec.log.isStored() }
	d.exec.cfg.Agents.WithLabelValues(in.name).Inc()
	d.session, err = in.provider.Start(ctx, *d.request)
	switch {
	case err == nil:
	case d.attaches && d.exec.leaveForced(ctx):
		return nil, errLeft
	case errors.Is(err, process.ErrGone):
		return nil, agent.ErrLost
	case errors.Is(err, errHalted): // while its program waited for room
		return nil, errHalted
	default:
		d.exec.cfg.AgentFailures.WithLabelValues(in.name).Inc()
		failed := &wire.Event{SessionID: d.id, Payload: &wire.AgentError{
			ErrorType: wire.ErrorStartFailed, Message: err.Error(), Severity: wire.SeverityError, Phase: "lifecycle",
		}}
		return append(d.opening, failed), &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	d.outcome.SessionID = d.id
	d.calls = newCalls(d.exec.state, d.request)
	d.exec.log.whole = in.can.ResumesFromLog
	d.waits = openWaits(d.exec.state, d.request.NodeID, d.request.ExecID)
	d.rest = restOf(d.exec.state, d.request, in.can, in.can.ResumesFromLog && (d.request.Resume || d.request.ForkOf != ""))
	d.start = &wire.AgentStart{
		Model: in.Model, Prompt: d.request.Prompt, Task: taskLine(d.request.Prompt), Provider: in.name, Cwd: in.Cwd,
	}
	d.request, d.exec.state = nil, nil // what they hold is many times what is needed from here on
	return nil, nil
}

// endEarly ends the session before its agent has, or leaves the agent to its keeper. Its events end then.
func (d *drive) endEarly(ctx context.Context) {
	if leaver, ok := d.session.(agent.Leaver); ok && d.exec.leaveForced(ctx) {
		leaver.Leave()
		return
	}
	_ = d.session.Close() // that of end reports
}

// closeSession has the agent end. What it said counts, however it does.
func (d *drive) closeSession() {
	if err := d.session.Close(); err != nil {
		d.exec.cfg.Logger.Warn("agent not ended properly", "run", d.exec.offer.RunID, "node", d.exec.offer.NodeID, "error", err)
	}
}

// concludeSession makes of the end of a session that of the execution.
func (d *drive) concludeSession(ctx context.Context, forced bool, last []*wire.Event, err error) ([]*wire.Event, error) {
	completed := d.outcome.Error() == nil && d.outcome.Paused() == nil
	switch {
	case tenure.Over(err):
		return nil, err
	case !completed && d.exec.hold.isLeft():
		return nil, errLeft
	case ctx.Err() != nil && !completed:
		if d.isWithdrawn() {
			last = append(last, d.exec.openEnds(ctx, d.outcome.SessionID, last)...)
		}
		return last, err // end of the execution says why
	case !completed && (forced || d.exec.halt.isTold()):
		if !d.exec.begun {
			return nil, errHalted
		}
		return d.markPaused(forced, last), nil
	case err != nil: // a lost agent too: what it had said is on record
		return last, err
	}
	failed := d.outcome.Error()
	if failed != nil && d.lenient && failed.ErrorType == wire.ErrorSessionNotFound {
		return last, errSessionNotFound
	}
	if compared := d.compareSession(ctx, last); compared != nil {
		last = append(last, compared)
	}
	if failed != nil {
		d.exec.cfg.AgentFailures.WithLabelValues(d.start.Provider).Inc()
		return last, d.exec.agentFailure(failed)
	}
	if len(d.late) > 0 {
		return nil, errLate
	}
	output, err := d.outcome.Output()
	if err != nil {
		return last, err
	}
	return append(last, d.exec.completeEvent(output)), nil
}

// isTo reports whether an entry of a run's inbox is a message to an execution.
func isTo(m wire.InboxEntry, of *wire.NodeOffer) bool {
	return m.Command.TextAt("type") == "send" && m.Node == of.NodeID && (m.Exec == "" || m.Exec == of.ExecID)
}

// markPaused says on record why the agent came to a safe point, or was ended before.
func (d *drive) markPaused(forced bool, last []*wire.Event) []*wire.Event {
	reason := d.exec.halt.reason
	if forced {
		reason = run.CauseForced
	}
	for _, e := range last {
		if p, ok := e.Payload.(*wire.AgentPaused); ok {
			p.Reason = reason
			return last
		}
	}
	return append(last, &wire.Event{SessionID: d.outcome.SessionID, Payload: &wire.AgentPaused{Reason: reason}})
}

// recordEvents records the events of the session. The terminal one is returned
// instead, to be stored in one commit with the end of the node.
func (d *drive) recordEvents() (last []*wire.Event, err error) {
	for e, err := range d.session.Events() {
		if errors.Is(err, agent.ErrLost) {
			return last, err
		}
		if err != nil {
			return last, &failure{message: err.Error(), kind: wire.ErrorException}
		}
		if e.SessionID == "" {
			e.SessionID = d.outcome.SessionID
		}
		d.outcome.Observe(e)
		if isTerminal(e) {
			last = append(last, e)
			continue
		}
		if d.live.Err() != nil { // it is being ended
			if d.isWithdrawn() && !beginsSomething(e) && len(last) < lastRoom(e) {
				skipped, err := d.exec.hold.skipRecorded(d.exec.outer, e)
				if err == nil && !skipped {
					last = append(last, e)
				}
			}
			continue
		}
		for _, e := range append(last, e) {
			if err := d.takeEvent(d.live, e); err != nil {
				return nil, err
			}
		}
		last = nil
	}
	return last, nil
}

// maxLast bounds the events that are recorded with the end of a session that was withdrawn.
const maxLast = 900

// lastRoom is how many of these there may be before an event that is one, too: pieces of text leave room for what ends something.
func lastRoom(e *wire.Event) int {
	if e.Type().Kind() == wire.KindDelta {
		return maxLast / 2
	}
	return maxLast
}

// isWithdrawn reports whether the session was ended for good: the execution doesn't go on, so nothing else tells what was left open.
func (d *drive) isWithdrawn() bool {
	cause := context.Cause(d.live)
	return errors.Is(cause, errWithdrawn) || errors.Is(cause, errTimeLimit)
}

// openEnds returns ends of the calls that a session has left open, for one that doesn't go on.
func (x *execution) openEnds(ctx context.Context, session string, last []*wire.Event) (ends []*wire.Event) {
	ctx, cancel := tenure.Rest(ctx)
	defer cancel()
	err := x.log.writer.Flush(ctx)
	var calls []wire.ToolCall
	if err == nil {
		calls, err = x.openCalls(ctx)
	}
	if err != nil {
		x.cfg.Logger.Warn("calls of an agent that was withdrawn stay open", "run", x.offer.RunID, "node", x.offer.NodeID, "error", err)
		return nil
	}
	for _, c := range calls {
		if slices.ContainsFunc(last, func(e *wire.Event) bool { return e.CallID == c.CallID && e.Type() == wire.TypeAgentTool }) {
			continue
		}
		input, err := x.cfg.Runs.Inline(ctx, x.offer.RunID, c.Input)
		if err != nil {
			input = wire.Null
		}
		ends = append(ends, &wire.Event{SessionID: session, CallID: c.CallID, Parent: c.Parent, Payload: &wire.AgentTool{
			ToolName: c.Tool, ToolInput: input, ToolOutput: wire.Null, Error: wire.CallInterrupted, DurationMs: new(max(0, time.Now().UnixMilli()-c.Since)),
		}})
	}
	return ends
}

// openCalls returns the open calls of the execution, also if it was cancelled, with which the state has forgotten them.
func (x *execution) openCalls(ctx context.Context) ([]wire.ToolCall, error) {
	s, err := x.cfg.Runs.State(ctx, x.offer.RunID)
	if err != nil {
		return nil, err
	}
	if n := s.Nodes[x.offer.NodeID]; n.Exec == x.offer.ExecID && !n.Open() {
		if s, err = x.cfg.Runs.Uncancelled(ctx, x.offer.RunID, x.offer.NodeID, n.Ended); err != nil {
			return nil, err
		}
	}
	return run.OpenCalls(s, x.offer.NodeID, x.offer.ExecID), nil
}

// beginsSomething reports whether an event tells what an agent is about to do, or asks for.
func beginsSomething(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.ToolIntent, *wire.ToolState, *wire.PermissionRequired:
		return true
	}
	return false
}

// takeEvent records an event of the agent, and lets the agent go on when it may.
func (d *drive) takeEvent(ctx context.Context, e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		return d.storeStart(ctx, e, p)
	case *wire.AgentError:
		if d.lenient && p.ErrorType == wire.ErrorSessionNotFound {
			p.Severity = wire.SeverityWarning
		}
		d.noteLimit(e, p)
	case *wire.AgentTool:
		d.waits.noteResult(e, p, time.Now())
	}
	begun := time.Now()
	skipped, err := d.exec.hold.skipRecorded(ctx, e)
	if err == nil && !skipped {
		err = d.recordEvent(ctx, e)
	}
	if err != nil {
		return err
	}
	if err := d.checkRetryWait(e); err != nil {
		return err
	}
	d.watchFiles(ctx, e)
	d.calls.observeEvent(e)
	if rests, tells := d.rest.observeEvent(e); tells {
		_ = d.exec.seat.setResting(ctx, rests) // else it is being ended, or comes to a safe point
	}
	if isBeginning(e) && !skipped {
		err = d.mayBegin(ctx)
		d.waits.noteStored(e, begun, time.Now())
	}
	d.waits.noteDecision(e, begun)
	return err
}

// recordEvent records an event of the agent. The result of a call comes behind a snapshot of what the call has left in the folder.
// While that is taken the agent goes on, but for what waits for storage, such as a call that changes something.
func (d *drive) recordEvent(ctx context.Context, e *wire.Event) error {
	_, isIntent := e.Payload.(*wire.ToolIntent)
	_, isResult := e.Payload.(*wire.AgentTool)
	if isIntent && mustStore(e) {
		if err := d.exec.awaitFirst(ctx); err != nil {
			return err
		}
	}
	// While the first snapshot is taken, only calls that change nothing have begun.
	takes := isResult && !d.can.Recorded && !d.exec.isTakingFirst() && d.exec.keepsFolder()
	if !takes && !d.exec.log.isAwaited(e) && d.backlog.holdEvent(e) {
		return nil
	}
	if err := d.backlog.wait(); err != nil {
		return err
	}
	if !takes {
		return d.exec.log.recordEvents(ctx, e)
	}
	d.backlog.openBacklog(func() error {
		if kept, noteKept := d.exec.keepFolder(ctx); len(kept) > 0 {
			if err := d.exec.log.recordEvents(ctx, kept...); err != nil {
				return err
			}
			noteKept()
		}
		return d.exec.log.recordEvents(ctx, e)
	}, func(e *wire.Event) error { return d.exec.log.recordEvents(ctx, e) })
	if d.exec.log.whole {
		return d.backlog.wait()
	}
	return nil
}

// mayBegin waits until the agent may begin something: no other runner can hold the lease, and
// the runner isn't ending. In that case the agent is left, or interrupted, before it may.
func (d *drive) mayBegin(ctx context.Context) error {
	if err := d.exec.log.mayBegin(ctx); err != nil || !d.exec.halt.isTold() || d.exec.halt.reason != run.CauseShutdown {
		return err
	}
	d.calls.awaitRelease(ctx)
	return nil
}

// storeStart stores agent:start, and what is to be stored with it. It comes first:
// the session is stored before the agent gets its prompt, so that a crash from
// then on can go on with it.
func (d *drive) storeStart(ctx context.Context, e *wire.Event, p *wire.AgentStart) error {
	p.Model = cmp.Or(p.Model, d.start.Model)
	p.Task = cmp.Or(p.Task, d.start.Task)
	p.Provider = cmp.Or(p.Provider, d.start.Provider)
	p.Cwd = cmp.Or(p.Cwd, d.start.Cwd)
	p.Resumed = p.Resumed || d.resumed
	if p.Prompt == nil {
		p.Prompt = d.start.Prompt
	}
	if err := d.exec.log.mayBegin(ctx); err != nil {
		return err
	}
	if err := d.exec.log.recordEvents(ctx, append(d.opening, e)...); err != nil {
		return err
	}
	d.opening, d.exec.begun = nil, true
	d.exec.span.SetAttributes(tracing.Provider.String(d.start.Provider))
	d.exec.span.End()
	for _, input := range d.seen {
		d.watchFiles(ctx, &wire.Event{Payload: &wire.AgentTool{ToolInput: input}})
	}
	return nil
}

// interruptAgent has the agent, which was told to, come to a safe point, and ends one
// that doesn't. When the runner ends, calls that are at work may end first, and an agent
// that can be left to its keeper is, but for one of which only calls go on there while it has none at work.
func (d *drive) interruptAgent() {
	ctx := d.live
	ending := d.exec.halt.reason == run.CauseShutdown
	if d.rest.isParked() && (!ending || !d.exec.hold.canLeave()) {
		d.kill(errParked)
		return
	}
	wait := min(interruptGrace, d.exec.cfg.DrainTimeout/2)
	if ending {
		wait = min(interruptGrace, d.exec.cfg.DrainTimeout/4)
		d.calls.awaitIdle(ctx, d.exec.cfg.DrainTimeout-2*wait)
		isIdle := d.exec.log.whole && d.calls.isIdle()
		if leaver, ok := d.session.(agent.Leaver); ok && !isIdle && d.exec.hold.canLeave() && ctx.Err() == nil {
			d.exec.hold.leaveKeeper()
			leaver.Leave()
			d.kill(errLeft)
			return
		}
	}
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := d.session.Interrupt(limit); err != nil && !errors.Is(err, agent.ErrEnded) && ctx.Err() == nil {
		d.exec.cfg.Logger.Warn("agent not interrupted", "run", d.exec.offer.RunID, "node", d.exec.offer.NodeID, "error", err)
	}
	d.calls.releaseWaiters()
	<-limit.Done()
	if ctx.Err() == nil {
		d.kill(errForced)
	}
}

// beginPassing gives the agent what it is to be told as soon as it runs, and messages then, as they come.
func (d *drive) beginPassing() {
	if d.first == "" && len(d.again) == 0 {
		d.passNext()
		return
	}
	d.tasks.Go(func() {
		if d.first != "" {
			_ = d.sendMessage(d.live, agent.Message{Content: d.first}) // it is told
		}
		for _, m := range d.again {
			d.giveMessage(d.live, m)
		}
		d.passNext()
	})
}

// passNext has the agent given the next message, on a goroutine that begins with it.
func (d *drive) passNext() {
	d.exec.post.open(d.live, func(m wire.InboxEntry) {
		d.tasks.Go(func() {
			d.giveMessage(d.live, m)
			d.passNext()
		})
	})
}

// giveMessage gives the agent a message of the run's inbox.
func (d *drive) giveMessage(ctx context.Context, m wire.InboxEntry) {
	d.given = append(d.given, m)
	var cmd wire.Command
	if err := wire.Unmarshal(m.Command, &cmd); err != nil {
		d.exec.cfg.Logger.Warn("message not readable", "run", d.exec.offer.RunID, "command", m.ID, "error", err)
		return
	}
	answers := m.Command.TextAt("answers")
	if d.exec.seat.setResting(ctx, false) != nil {
		return // the worker that goes on with the agent gives it
	}
	if cmd.Type != run.CommandNotice {
		d.rest.noteAnswer(answers)
	}
	err := d.sendMessage(ctx, agent.Message{
		CommandID: m.ID, Content: cmd.Message, Interrupt: cmd.Interrupt, Answers: answers, Notice: cmd.Type == run.CommandNotice,
	})
	if errors.Is(err, agent.ErrEnded) && d.can.Lingers && isTo(m, d.exec.offer) {
		d.late = append(d.late, m)
	}
}

func (d *drive) sendMessage(ctx context.Context, m agent.Message) error {
	err := d.session.Send(ctx, m)
	isLate := d.can.Lingers && errors.Is(err, agent.ErrEnded) // another session gives it
	if err != nil && !isLate && ctx.Err() == nil {
		d.exec.cfg.Logger.Warn("message not delivered", "run", d.exec.offer.RunID, "node", d.exec.offer.NodeID, "command", m.CommandID, "error", err)
	}
	return err
}

// watchFiles watches the file that a call names, if it is one of the agent's
// folder. Recorded agents touch none.
func (d *drive) watchFiles(ctx context.Context, e *wire.Event) {
	if d.can.Recorded {
		return
	}
	if d.files == nil {
		if !namesFile(e, d.start.Cwd) {
			return
		}
		files, err := watchFiles(d.start.Cwd, func(path, change string) { d.noteFileChange(ctx, path, change) })
		if err != nil {
			return // the system watches enough, or the folder is gone
		}
		d.files = files
	}
	d.files.observeEvent(e)
}

// namesFile reports whether a call names a file that may be below a folder.
func namesFile(e *wire.Event, dir string) bool {
	var input wire.Raw
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		input = p.ToolInput
	case *wire.AgentTool:
		input = p.ToolInput
	}
	for _, field := range []string{"file_path", "notebook_path", "path"} {
		if path := input.TextAt(field); path != "" {
			rel, err := filepath.Rel(dir, path)
			return !filepath.IsAbs(path) || err == nil && filepath.IsLocal(rel)
		}
	}
	return false
}

// noteFileChange tells of a file change that isn't the agent's.
func (d *drive) noteFileChange(ctx context.Context, path, change string) {
	e := &wire.Event{SessionID: d.id, Payload: &wire.FileChanged{Path: path, Change: change, External: true}}
	if err := d.exec.log.enqueueEvent(ctx, e); err != nil && ctx.Err() == nil && !tenure.Over(err) {
		d.exec.cfg.Logger.Warn("change of a file not recorded", "run", d.exec.offer.RunID, "node", d.exec.offer.NodeID, "error", err)
	}
}
