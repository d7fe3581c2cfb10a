package runner

import (
	"context"
	"errors"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

var errLeaseLost = errors.New("lease lost")

// watch follows the run while a worker executes one of its nodes: it ends the
// work when it is withdrawn or somebody else may do it, and passes on messages
// to the agent.
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
		passed := map[string]bool{}
		for {
			if !w.stillWanted() {
				cancel(errWithdrawn)
				return
			}
			// Nobody may be there to take a message; the rest goes on.
			next, waiting := w.inbox(passed)
			messages := wt.messages
			if !waiting {
				messages = nil
			}
			select {
			case messages <- next:
				passed[next.ID] = true
			case <-w.view.more():
				if err := w.view.follow(ctx); err != nil {
					cancel(err)
					return
				}
			case <-w.lease.Lost():
				cancel(errLeaseLost)
				return
			case <-w.writer.Fenced():
				cancel(eventlog.ErrFenced)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return wt
}

func (wt *watch) wait() { <-wt.done }

// stillWanted reports whether the owner still wants the execution. A paused run
// begins nothing new; what it has begun goes on.
func (w *worker) stillWanted() bool {
	s := w.view.state
	n := s.Nodes[w.offer.NodeID]
	return !ended(s.Status) && n.Exec == w.offer.ExecID && n.Open()
}

// inbox returns the next message to this execution that has not been passed on.
func (w *worker) inbox(passed map[string]bool) (m wire.InboxEntry, ok bool) {
	for _, m := range w.view.state.Inbox {
		kind, _ := m.Command.Get("type").Text()
		mine := kind == "send" && m.Node == w.offer.NodeID && (m.Exec == "" || m.Exec == w.offer.ExecID)
		if mine && !passed[m.ID] {
			return m, true
		}
	}
	return m, false
}
