package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"wake/internal/eventlog"
	"wake/internal/run"
	"wake/pkg/wire"
)

var errLeaseLost = errors.New("lease lost")

// watch follows the run while a worker executes one of its nodes: it ends the
// work when it is withdrawn or somebody else may do it, tells the agent to come to a
// safe point when the run is paused or the runner ends, and passes on messages and
// decisions to the agent.
type watch struct {
	messages chan wire.InboxEntry
	done     chan struct{}
}

// watch begins to watch until ctx ends. It is the only one that folds the
// worker's view meanwhile.
func (w *worker) watch(ctx context.Context, cancel context.CancelCauseFunc) *watch {
	wt := &watch{messages: make(chan wire.InboxEntry), done: make(chan struct{})}
	go func() {
		defer close(wt.done)
		defer close(wt.messages)
		if err := w.follow(ctx, wt.messages); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	return wt
}

func (wt *watch) wait() { <-wt.done }

// follow returns why the work is to end, nil if ctx has ended.
func (w *worker) follow(ctx context.Context, messages chan<- wire.InboxEntry) error {
	passed := map[string]bool{}
	anchor, stop := w.anchors()
	defer stop()
	draining := w.runner.draining
	for {
		if w.replaced() {
			return eventlog.ErrFenced
		}
		if !w.stillWanted() {
			return errWithdrawn
		}
		if reason := interrupts(w.view.state); reason != "" {
			w.halt.tell(reason)
		}
		w.asked.look(w.view.state.Inbox, w.offer.NodeID, w.offer.ExecID)
		// Nobody may be there to take a message; the rest goes on.
		next, to := w.inbox(passed), messages
		if next == nil || w.halt.is() {
			next, to = &wire.InboxEntry{}, nil
		}
		select {
		case to <- *next:
			kind, _ := next.Command.Get("type").Text()
			if err := w.passedOn(ctx, passed, next.ID, kind == run.CommandNotice); err != nil {
				return err
			}
		case <-w.view.more():
			if err := w.view.follow(ctx); err != nil {
				return err
			}
		case <-draining:
			draining = nil
			w.halt.tell(pauseShutdown)
		case <-anchor:
			w.anchor(ctx)
		case <-w.lease.Lost():
			return errLeaseLost
		case <-w.writer.Fenced():
			return eventlog.ErrFenced
		case <-ctx.Done():
			return nil
		}
	}
}

// replaced reports whether somebody has claimed the node since. A lease that nobody
// holds any more doesn't tell, and who writes nothing isn't told by the log.
func (w *worker) replaced() bool {
	return w.view.state.Nodes[w.offer.NodeID].Epoch > w.writer.Epoch()
}

// stillWanted reports whether the owner still wants the execution.
func (w *worker) stillWanted() bool {
	s := w.view.state
	n := s.Nodes[w.offer.NodeID]
	return !ended(s.Status) && n.Exec == w.offer.ExecID && n.Open()
}

// inbox returns the next message to this execution that has not been passed on,
// nil if there is none.
func (w *worker) inbox(passed map[string]bool) *wire.InboxEntry {
	for _, m := range w.view.state.Inbox {
		kind, _ := m.Command.Get("type").Text()
		mine := kind == "send" && m.Node == w.offer.NodeID && (m.Exec == "" || m.Exec == w.offer.ExecID)
		if mine && !passed[m.ID] {
			return &m
		}
	}
	if m := w.resumed(passed); m != nil {
		return m
	}
	return w.notices(passed)
}

// resumed returns the message of a flow:resumed that finds the agent at work:
// it was meant for agents that go on, and this one does.
func (w *worker) resumed(passed map[string]bool) *wire.InboxEntry {
	s := w.view.state
	n := s.Nodes[w.offer.NodeID]
	id := fmt.Sprintf("resume-%d", s.ResumedAt)
	if n.Resume == nil || n.Resume.Message == "" || n.Resume.Hold || s.ResumedAt <= w.state.Position.Seq || passed[id] {
		return nil
	}
	cmd, err := wire.Marshal(wire.Command{Type: "send", Message: n.Resume.Message})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: id, Node: w.offer.NodeID, Command: cmd}
}

// passedOn notes that the agent has been given a message. The message of a
// resumption is answered for on record, so that it isn't given again.
func (w *worker) passedOn(ctx context.Context, passed map[string]bool, id string, notice bool) error {
	passed[id] = true
	w.told = w.told || notice
	n := w.view.state.Nodes[w.offer.NodeID]
	if n.Resume == nil || id != fmt.Sprintf("resume-%d", w.view.state.ResumedAt) {
		return nil
	}
	e := &wire.Event{Payload: &wire.AgentResumed{Strategy: n.Resume.Strategy}}
	w.stamp(e)
	return w.writer.Enqueue(ctx, e)
}

// anchorParts is how often the node is anchored within the time that the stream
// keeps an event: a node whose last event is gone would be anybody's.
const anchorParts = 3

// anchors ticks when the node is to be anchored; never if events don't age.
func (w *worker) anchors() (<-chan time.Time, func()) {
	age := w.runner.maxAge
	if age <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(age / anchorParts)
	return t.C, t.Stop
}

// anchor stores a claim of the worker's own. It doesn't wait long: what isn't
// stored yet is when the server is back.
func (w *worker) anchor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := w.writer.Anchor(ctx, w.runner.cfg.ID); err != nil && !errors.Is(err, eventlog.ErrAmbiguous) && !gone(err) {
		w.runner.logger.Warn("node not anchored", "run", w.offer.RunID, "node", w.offer.NodeID, "error", err)
	}
}
