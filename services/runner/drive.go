package runner

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"wake/internal/agent"
	"wake/internal/lease"
	"wake/internal/run"
	"wake/internal/tracing"
	"wake/pkg/wire"
)

// drive is one session of the agent of an execution.
type drive struct {
	*worker
	request  agent.Request
	messages <-chan wire.InboxEntry
	opening  []*wire.Event     // stored in one commit with agent:start
	first    string            // message to give as soon as the agent runs
	again    []wire.InboxEntry // likewise: messages that were given to a session that isn't there
	seen     []wire.Raw        // inputs of its earlier calls
	lenient  bool              // that the agent doesn't know the session is no failure

	session agent.Session
	outcome agent.Outcome
	start   *wire.AgentStart  // what the agent is asked
	files   *files            // nil until it has named one
	given   []wire.InboxEntry // of pass, until run ends
	rest    *rest
}

var (
	// errForced ends an agent that doesn't come to a safe point by itself.
	errForced = errors.New("the agent did not stop in time")
	// errParked ends an agent that only waits for the answer to a question: interrupted, it
	// would take the question back. Whoever goes on waits for the answer.
	errParked = errors.New("the agent waits for an answer")
	// errSessionNotFound says that the agent doesn't know the session.
	errSessionNotFound = errors.New("session not found")
)

// interruptGrace is how long an agent may take to come to a safe point.
const interruptGrace = 10 * time.Second

// run has the agent serve the request and returns the events that end the
// execution; none that is an outcome if the agent came to a safe point.
func (d *drive) run(ctx context.Context, in agentInput) ([]*wire.Event, error) {
	if d.halt.is() {
		return nil, errHalted
	}
	id := d.request.SessionID
	d.runner.metrics.agents.WithLabelValues(in.name).Inc()
	var err error
	if d.session, err = in.provider.Start(ctx, d.request); err != nil {
		d.runner.metrics.agentFailures.WithLabelValues(in.name).Inc()
		failed := &wire.Event{SessionID: id, Payload: &wire.AgentError{
			ErrorType: wire.ErrorStartFailed, Message: err.Error(), Severity: wire.SeverityError, Phase: "lifecycle",
		}}
		return append(d.opening, failed), &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	d.outcome.SessionID = id
	d.rest = restOf(d.state, d.request, in.name == nativeProvider && (d.request.Resume || d.request.ForkOf != ""))
	d.start = &wire.AgentStart{
		Model: in.Model, Prompt: d.request.Prompt, Task: task(d.request.Prompt), Provider: in.name, Cwd: in.Cwd,
	}
	live, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	defer context.AfterFunc(live, func() { _ = d.session.Close() })() // Events ends, then Close below reports
	tending, stopTending := context.WithCancel(live)
	defer stopTending()
	var tasks sync.WaitGroup
	tasks.Go(func() { d.pass(tending) })
	tasks.Go(func() { d.interrupt(tending, kill) })
	last, err := d.consume(live)
	if err := d.session.Close(); err != nil { // what it said counts all the same
		d.runner.logger.Warn("agent not ended properly", "run", d.offer.RunID, "node", d.offer.NodeID, "error", err)
	}
	stopTending()
	tasks.Wait()
	if d.outcome.Error() == nil && d.outcome.Paused() == nil {
		_ = d.seat.rest(ctx, false) // else the execution is being ended
	}
	if d.files != nil {
		d.files.close()
	}
	return d.conclude(ctx, errors.Is(context.Cause(live), errForced), last, err)
}

// conclude makes of the end of a session that of the execution.
func (d *drive) conclude(ctx context.Context, forced bool, last []*wire.Event, err error) ([]*wire.Event, error) {
	completed := d.outcome.Error() == nil && d.outcome.Paused() == nil
	switch {
	case gone(err):
		return nil, err
	case ctx.Err() != nil && !completed:
		return last, err // whoever ended it knows why
	case !completed && (forced || d.halt.is()):
		if !d.begun {
			return nil, errHalted
		}
		return d.paused(forced, last), nil
	case err != nil:
		return last, err
	}
	if failed := d.outcome.Error(); failed != nil {
		if d.lenient && failed.ErrorType == wire.ErrorSessionNotFound {
			return last, errSessionNotFound
		}
		d.runner.metrics.agentFailures.WithLabelValues(d.start.Provider).Inc()
		return last, &failure{message: failed.Message, kind: failed.ErrorType}
	}
	output, err := d.outcome.Output()
	if err != nil {
		return last, err
	}
	return append(last, d.completed(output)), nil
}

// paused says on record why the agent came to a safe point, or was ended before.
func (d *drive) paused(forced bool, last []*wire.Event) []*wire.Event {
	reason := d.halt.reason
	if forced {
		reason = pauseForced
	}
	for _, e := range last {
		if p, ok := e.Payload.(*wire.AgentPaused); ok {
			p.Reason = reason
			return last
		}
	}
	return append(last, &wire.Event{SessionID: d.outcome.SessionID, Payload: &wire.AgentPaused{Reason: reason}})
}

// consume records the events of the session. The terminal one is returned
// instead, to be stored in one commit with the end of the node.
func (d *drive) consume(ctx context.Context) (last []*wire.Event, err error) {
	for e, err := range d.session.Events() {
		if err != nil {
			return last, &failure{message: err.Error(), kind: wire.ErrorException}
		}
		if e.SessionID == "" {
			e.SessionID = d.outcome.SessionID
		}
		d.outcome.Observe(e)
		if terminal(e) {
			last = append(last, e)
			continue
		}
		if ctx.Err() != nil {
			continue // it is being ended: only how it ends matters
		}
		for _, e := range append(last, e) {
			if err := d.take(ctx, e); err != nil {
				return nil, err
			}
		}
		last = nil
	}
	return last, nil
}

// take records an event of the agent, and lets the agent go on when it may.
func (d *drive) take(ctx context.Context, e *wire.Event) error {
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		return d.begin(ctx, e, p)
	case *wire.AgentError:
		if d.lenient && p.ErrorType == wire.ErrorSessionNotFound {
			p.Severity = wire.SeverityWarning
		}
	}
	if err := d.record(ctx, e); err != nil {
		return err
	}
	d.watchFiles(ctx, e)
	if rests, tells := d.rest.observe(e); tells {
		_ = d.seat.rest(ctx, rests) // else it is being ended, or comes to a safe point
	}
	if begins(e) {
		return d.mayBegin(ctx)
	}
	return nil
}

// begins reports whether the agent begins something once e has been taken.
func begins(e *wire.Event) bool {
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		return true
	case *wire.ToolState:
		return p.To == wire.ToolExecuting
	}
	return false
}

// begin stores agent:start, and what is to be stored with it. It comes first:
// the session is stored before the agent gets its prompt, so that a crash from
// then on can go on with it.
func (d *drive) begin(ctx context.Context, e *wire.Event, p *wire.AgentStart) error {
	p.Model = cmp.Or(p.Model, d.start.Model)
	p.Task = cmp.Or(p.Task, d.start.Task)
	p.Provider = cmp.Or(p.Provider, d.start.Provider)
	p.Cwd = cmp.Or(p.Cwd, d.start.Cwd)
	p.Resumed = p.Resumed || d.request.Resume
	if p.Prompt == nil {
		p.Prompt = d.start.Prompt
	}
	if err := d.mayBegin(ctx); err != nil {
		return err
	}
	if err := d.record(ctx, append(d.opening, e)...); err != nil {
		return err
	}
	d.opening, d.begun = nil, true
	d.span.SetAttributes(tracing.Provider(d.start.Provider))
	d.span.End()
	for _, input := range d.seen {
		d.watchFiles(ctx, &wire.Event{Payload: &wire.AgentTool{ToolInput: input}})
	}
	return nil
}

// mayBegin waits until nobody else can hold the lease.
func (w *worker) mayBegin(ctx context.Context) error {
	err := w.lease.Await(ctx)
	if errors.Is(err, lease.ErrLost) {
		return errLeaseLost
	}
	return err
}

func terminal(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
		return true
	}
	return false
}

// interrupt has the agent come to a safe point when it is told to, and ends one
// that doesn't.
func (d *drive) interrupt(ctx context.Context, kill context.CancelCauseFunc) {
	select {
	case <-d.halt.told:
	case <-ctx.Done():
		return
	}
	if d.rest.parked() {
		kill(errParked)
		return
	}
	limit, cancel := context.WithTimeout(ctx, min(interruptGrace, d.runner.cfg.DrainTimeout/2))
	defer cancel()
	if err := d.session.Interrupt(limit); err != nil && !errors.Is(err, agent.ErrEnded) && ctx.Err() == nil {
		d.runner.logger.Warn("agent not interrupted", "run", d.offer.RunID, "node", d.offer.NodeID, "error", err)
	}
	<-limit.Done()
	if ctx.Err() == nil {
		kill(errForced)
	}
}

// pass gives messages to the agent until ctx ends.
func (d *drive) pass(ctx context.Context) {
	if d.first != "" {
		d.send(ctx, agent.Message{Content: d.first})
	}
	for _, m := range d.again {
		d.give(ctx, m)
	}
	for {
		select {
		case m, ok := <-d.messages:
			if !ok {
				return
			}
			d.give(ctx, m)
		case <-ctx.Done():
			return
		}
	}
}

// give gives the agent a message of the run's inbox.
func (d *drive) give(ctx context.Context, m wire.InboxEntry) {
	d.given = append(d.given, m)
	var cmd wire.Command
	if err := wire.Unmarshal(m.Command, &cmd); err != nil {
		d.runner.logger.Warn("message not readable", "run", d.offer.RunID, "command", m.ID, "error", err)
		return
	}
	answers, _ := m.Command.Get("answers").Text()
	if d.seat.rest(ctx, false) != nil {
		return // whoever goes on with the agent gives it
	}
	if cmd.Type != run.CommandNotice {
		d.rest.answered(answers)
	}
	d.send(ctx, agent.Message{
		CommandID: m.ID, Content: cmd.Message, Interrupt: cmd.Interrupt, Answers: answers, Notice: cmd.Type == run.CommandNotice,
	})
}

func (d *drive) send(ctx context.Context, m agent.Message) {
	if err := d.session.Send(ctx, m); err != nil && ctx.Err() == nil {
		d.runner.logger.Warn("message not delivered", "run", d.offer.RunID, "node", d.offer.NodeID, "command", m.CommandID, "error", err)
	}
}

// watchFiles watches the file that a call names, if it is one of the agent's
// folder. Recorded agents touch none.
func (d *drive) watchFiles(ctx context.Context, e *wire.Event) {
	if d.start.Provider == fixtureProvider {
		return
	}
	if d.files == nil {
		if !namesFile(e, d.start.Cwd) {
			return
		}
		files, err := watchFiles(d.start.Cwd, func(path, change string) { d.changed(ctx, path, change) })
		if err != nil {
			return // the system watches enough, or the folder is gone
		}
		d.files = files
	}
	d.files.observe(e)
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
		if path, _ := input.Get(field).Text(); path != "" {
			rel, err := filepath.Rel(dir, path)
			return !filepath.IsAbs(path) || err == nil && filepath.IsLocal(rel)
		}
	}
	return false
}

// changed tells of a file that somebody else than the agent has changed.
func (d *drive) changed(ctx context.Context, path, change string) {
	e := &wire.Event{SessionID: d.request.SessionID, Payload: &wire.FileChanged{Path: path, Change: change, External: true}}
	d.stamp(e)
	if err := d.writer.Enqueue(ctx, e); err != nil && ctx.Err() == nil && !gone(err) {
		d.runner.logger.Warn("change of a file not recorded", "run", d.offer.RunID, "node", d.offer.NodeID, "error", err)
	}
}
