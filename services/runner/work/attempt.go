package work

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
)

// beginNode begins the work of the node, or returns the events that end it. Of an
// execution that has begun it is a continuation, without a second node:start.
func (x *execution) beginNode(ctx context.Context, missing error) ([]*wire.Event, error) {
	n := &x.entry
	again := n.Started != 0
	var unusable *failure
	if err := x.openWorkdir(ctx); err != nil && !errors.As(err, &unusable) {
		return nil, err
	}
	if x.isHalted() && !x.isHoldOnly() && !x.isKept() {
		return nil, errHalted
	}
	if x.node.Type == flow.TypeExec && missing == nil && unusable == nil {
		if err := x.holdCommand(ctx); err != nil && !errors.As(err, &unusable) {
			return nil, err
		}
	}
	if !again {
		start := &wire.NodeStart{NodeType: string(x.node.Type), Attempt: n.Attempt, Iteration: n.Iteration, Input: n.Input}
		kept, noteKept := x.keepFirst(ctx, start)
		begin := &wire.Event{Payload: start}
		if err := x.log.beginEvents(ctx, append(kept, begin)...); err != nil {
			return nil, err
		}
		n.StartedAt = begin.Timestamp
		noteKept()
	} else {
		x.keepPending(ctx)
	}
	if x.hold == nil || !x.hold.inherited {
		x.beginTime(process.Uptime())
	}
	switch {
	case missing != nil:
		return nil, &failure{message: fmt.Sprintf("input of the node: %v", missing), kind: wire.ErrorStartFailed}
	case unusable != nil:
		return nil, unusable
	case x.node.Type == flow.TypeAgent:
		return x.beginAgent(ctx)
	case x.node.Type == flow.TypeExec:
		x.isDue = true
		return nil, nil
	}
	return nil, &failure{message: fmt.Sprintf("a worker can't execute a node of type %q", x.node.Type), kind: wire.ErrorStartFailed}
}

// endNode returns the events that end the node, when its agent isn't at work any more.
func (x *execution) endNode(ctx context.Context) ([]*wire.Event, error) {
	defer x.beside.Wait()
	if x.isDue {
		x.events, x.err = x.runCommand(ctx)
	}
	return x.runAudits(ctx, x.events, x.err)
}

// recordEnd records the end of the execution: its last events and its outcome in one
// commit. What had an outcome before it was interrupted keeps it; what was
// interrupted has none and stays open: the node is given back, unless processes of it may be at work. It reports whether
// the log says that the worker doesn't act any more.
func (x *execution) recordEnd(ctx context.Context, cause error, events []*wire.Event, err error) (told bool, _ error) {
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(tenure.GiveBack, x.cfg.PersistTimeout))
	defer cancel()
	switch {
	case tenure.Over(cause):
		return true, cause // another worker may be at work: write nothing
	case tenure.Over(err):
		return true, err
	case errors.Is(err, errLeft):
		events = nil // its processes live on
	case err == nil && slices.ContainsFunc(events, isOutcome), errors.Is(err, errHalted):
	case errors.Is(cause, errWithdrawn):
		if x.state != nil && x.node.Type == flow.TypeAgent { // it had no session yet, which would have told
			events = append(events, x.openEnds(final, x.state.ExecSessions[x.entry.Exec], events)...)
		}
		if x.begun && !slices.ContainsFunc(events, isTerminal) {
			events = append(events, &wire.Event{Payload: &wire.AgentAborted{Reason: "cancelled"}})
		}
	case ctx.Err() != nil: // the time to come to a safe point is over
		if x.begun && !slices.ContainsFunc(events, isTerminal) {
			events = append(events, &wire.Event{Payload: &wire.AgentPaused{Reason: run.CauseForced}})
		}
	case errors.Is(cause, errTimeLimit):
		events = append(events, x.errorEvent(&failure{message: fmt.Sprintf("time limit of %s exceeded", x.timeLimit()), kind: wire.ErrorTimeout}))
	case err != nil:
		var failure *failure
		if !errors.As(err, &failure) {
			return false, err
		}
		events = append(events, x.errorEvent(failure))
	}
	if failed := x.log.storageFailure(); failed != nil {
		events = append([]*wire.Event{failed}, events...)
	}
	if told = slices.ContainsFunc(events, isOutcome); !told && !x.hold.isLeft() && !x.cfg.keeperLives(ctx, x.offer) {
		events = append(events, &wire.Event{Payload: x.cfg.emptyClaim(x.unbegun)})
		told = true
	}
	if len(events) > 0 {
		kept, noteKept := x.keepFolder(final)
		if x.lingered && cause == nil && slices.ContainsFunc(events, isCompletion) && x.watch.hasUnread(final) {
			// The worker that goes on with the agent gives it the message.
			events = []*wire.Event{{Payload: x.cfg.emptyClaim(false)}}
		}
		x.timeOutcome(events)
		err := x.log.appendEvents(final, slices.Concat(kept, events)...)
		if errors.As(err, new(*wire.FieldError)) {
			err = x.log.appendEvents(final, append(kept, x.setEndAside(final, events, err))...)
		}
		if err != nil {
			return tenure.Over(err), err
		}
		noteKept()
	}
	if !told && !x.hold.isLeft() {
		return false, nil // the writer is still to give the node back
	}
	return told, x.log.writer.Close(final)
}

// emptyClaim is the claim that gives a node back; see [wire.NodeState] for unbegun.
func (cfg *Config) emptyClaim(unbegun bool) *wire.NodeClaimed {
	return &wire.NodeClaimed{Runner: cfg.ID, Nonce: rand.Text(), Unbegun: unbegun}
}

// timeOutcome says in the end of the execution how long it took, from node:start on, whichever workers it had.
func (x *execution) timeOutcome(events []*wire.Event) {
	now := time.Now().UnixMilli()
	took := max(0, now-cmp.Or(x.entry.StartedAt, now)) // 0: it ended before it had begun
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.NodeComplete:
			e.Timestamp, p.DurationMs = now, took
		case *wire.NodeError:
			e.Timestamp, p.DurationMs = now, took
		}
	}
}

// setEndAside sets the end of an execution aside that can't be stored, and returns
// another: without one the agent would be started again, for ever.
func (x *execution) setEndAside(ctx context.Context, events []*wire.Event, reason error) *wire.Event {
	for _, e := range events {
		x.log.setAside(ctx, e, reason)
	}
	end := &wire.Event{Payload: &wire.NodeError{Error: "its end can't be stored: " + reason.Error(), ErrorType: wire.ErrorException}}
	x.timeOutcome([]*wire.Event{end})
	return end
}
