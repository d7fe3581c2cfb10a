package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/turn"
	"code.wake.dev/wake/services/runner/internal/view"
)

// watch follows the run while a worker executes one of its nodes: it ends the
// work when it is withdrawn or another worker may do it, tells the agent to come to a
// safe point when the run is paused or the runner ends, and passes on messages and
// decisions to the agent. While nothing happens it holds no goroutine.
type watch struct {
	cfg      *Config
	offer    *wire.NodeOffer
	log      *nodeLog
	halt     *halt
	asked    *approvals
	post     *post
	view     *view.View // that only the watch folds meanwhile
	claimed  uint64     // position of the state at the claim
	informed bool       // the agent has been given notices
	trial    *offerTrial

	loop     *turn.Loop
	ctx      context.Context //nolint:containedctx // the watch lasts as long as its context
	cancel   context.CancelCauseFunc
	passed   map[string]bool // messages, by their ids
	told     bool            // that the runner ends
	anchorAt time.Time       // when the node is to be anchored; zero: never
	packAt   time.Time       // when the state is packed, if nothing happens before; zero: it is packed
	timer    *time.Timer     // has the loop look at its times; nil: there was none yet
}

func newWatch(x *execution, v *view.View, t *offerTrial) *watch {
	return &watch{
		cfg: x.cfg, offer: x.offer, log: x.log, halt: &x.halt, asked: &x.asked, post: &x.post, view: v, claimed: x.state.Position.Seq, trial: t,
	}
}

// begin begins to watch until ctx ends.
func (w *watch) begin(ctx context.Context, cancel context.CancelCauseFunc) {
	w.ctx, w.cancel = ctx, cancel
	if w.cfg.AnchorEvery > 0 {
		w.anchorAt = time.Now().Add(w.cfg.AnchorEvery)
	}
	w.loop = turn.NewLoop(w.takeTurn)
	w.callLoop(w.loop.Call)
	w.cfg.Draining.Add(w.loop)
	w.loop.Call()
}

// stop ends the watch, after its context.
func (w *watch) stop() {
	w.cfg.Draining.Remove(w.loop)
	w.callLoop(nil)
	w.loop.Stop()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// callLoop says what is called when something has come that a turn takes.
func (w *watch) callLoop(call func()) {
	w.view.OnMore(call)
	w.log.lease.OnLost(call)
	w.log.writer.OnFenced(call)
	w.post.onReady(call)
}

func (w *watch) takeTurn() (over bool) {
	happened, err := w.followRun(w.ctx)
	switch {
	case w.ctx.Err() != nil:
		return true
	case err != nil:
		w.cancel(err)
		return true
	case !happened && isReached(w.packAt, time.Now()):
		w.packAt = time.Time{}
		w.view.Pack()
	case happened || w.packAt.IsZero():
		w.packAt = time.Now().Add(view.PackAfter)
	}
	w.setTimer()
	return false
}

// followRun takes what has come. It reports whether something has, and returns why the work is to end.
func (w *watch) followRun(ctx context.Context) (happened bool, err error) {
	for more := true; more; {
		if w.isReplaced() {
			return happened, eventlog.ErrFenced
		}
		if !w.stillWanted() {
			return happened, errWithdrawn
		}
		if reason := view.Interrupts(w.view.State()); reason != "" {
			w.halt.tellReason(reason)
		}
		if w.hasGotOn() {
			w.trial.leaveTrial()
		}
		w.asked.takeDecisions(w.view.State().Inbox, w.offer.NodeID, w.offer.ExecID)
		if more, err = w.takeNext(ctx); err != nil {
			return happened, err
		}
		happened = happened || more
	}
	return happened, nil
}

// takeNext takes one thing that has come. It reports false if there is none.
func (w *watch) takeNext(ctx context.Context) (taken bool, err error) {
	switch {
	case w.log.lease.IsLost():
		return false, tenure.ErrLeaseLost
	case w.log.writer.IsFenced():
		return false, eventlog.ErrFenced
	case ctx.Err() != nil:
		return false, nil //nolint:nilerr // takeTurn looks
	case w.view.HasMore():
		return true, w.view.Follow(ctx)
	}
	switch now := time.Now(); {
	case !w.told && w.cfg.Draining.IsGiven():
		w.told = true
		w.halt.tellReason(run.CauseShutdown)
	case isReached(w.anchorAt, now):
		w.anchorAt = now.Add(w.cfg.AnchorEvery)
		w.storeAnchor(ctx)
	case isReached(w.trial.over, now):
		w.passTrial(ctx)
	default:
		return w.passMessage(ctx)
	}
	return true, nil
}

// isReached reports whether a time has come; zero never does.
func isReached(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// setTimer has the loop called when the next of its times comes.
func (w *watch) setTimer() {
	next := w.anchorAt
	for _, at := range []time.Time{w.trial.over, w.packAt} {
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	switch {
	case next.IsZero() && w.timer != nil:
		w.timer.Stop()
		w.timer = nil
	case next.IsZero():
	case w.timer == nil:
		w.timer = time.AfterFunc(time.Until(next), w.loop.Take)
	default:
		w.timer.Reset(time.Until(next))
	}
}

// passMessage passes the next message on to the agent. There may be none that takes it; the rest goes on.
func (w *watch) passMessage(ctx context.Context) (passed bool, err error) {
	next := w.nextMessage(w.passed)
	if next == nil || w.halt.isTold() || !w.post.handOver(*next) {
		return false, nil
	}
	return true, w.passedOn(ctx, next.ID, next.Command.TextAt("type") == run.CommandNotice)
}

// isReplaced reports whether another claim of the node was stored since. A lease that isn't
// held any more doesn't tell, nor does the log tell a worker that writes nothing.
//
//go:noinline // a copy of the node's state would stay on the stack for as long as the agent works
func (w *watch) isReplaced() bool {
	return w.view.State().Nodes[w.offer.NodeID].Epoch > w.log.writer.Epoch()
}

// hasGotOn reports whether no process has ended at the execution since it got on.
//
//go:noinline // as isReplaced
func (w *watch) hasGotOn() bool { return w.view.State().Nodes[w.offer.NodeID].Trials == 0 }

// stillWanted reports whether the owner still wants the execution.
//
//go:noinline // as isReplaced
func (w *watch) stillWanted() bool {
	s := w.view.State()
	n := s.Nodes[w.offer.NodeID]
	return !s.Status.Ended() && n.Exec == w.offer.ExecID && n.Open()
}

// nextMessage returns the next message to this execution that has not been passed on,
// nil if there is none.
func (w *watch) nextMessage(passed map[string]bool) *wire.InboxEntry {
	for _, m := range w.view.State().Inbox {
		if isTo(m, w.offer) && !passed[m.ID] {
			return &m
		}
	}
	if m := w.resumeMessage(passed); m != nil {
		return m
	}
	return w.noticeMessage(passed)
}

// hasUnread reports whether a message to the agent has come that it wasn't given, and its owner still wants the execution. The watch has
// been stopped.
func (w *watch) hasUnread(ctx context.Context) bool {
	for w.view.HasMore() {
		if w.view.Follow(ctx) != nil {
			return false // the end can't be stored either
		}
	}
	return w.stillWanted() && slices.ContainsFunc(w.view.State().Inbox, func(m wire.InboxEntry) bool { return isTo(m, w.offer) && !w.passed[m.ID] })
}

// resumeMessage returns the message of a flow:resumed that finds the agent at work:
// it was meant for agents that go on, and this one does. A message that came before the worker's claim is told with its start.
func (w *watch) resumeMessage(passed map[string]bool) *wire.InboxEntry {
	r := w.view.State().Nodes[w.offer.NodeID].Resume
	if r == nil || r.Message == "" || r.Hold || r.MessageAt <= w.claimed || passed[resumptionID(r)] {
		return nil
	}
	cmd, err := wire.Marshal(wire.Command{Type: "send", Message: r.Message})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: resumptionID(r), Node: w.offer.NodeID, Command: cmd}
}

// resumptionID stands for the id of a command in the message of a resumption.
func resumptionID(r *wire.Resume) string { return fmt.Sprintf("resume-%d", r.MessageAt) }

// passedOn notes that the agent has been given a message. The message of a
// resumption is answered for on record, so that it isn't given again.
func (w *watch) passedOn(ctx context.Context, id string, notice bool) error {
	if w.passed == nil {
		w.passed = map[string]bool{}
	}
	w.passed[id] = true
	w.informed = w.informed || notice
	n := w.view.State().Nodes[w.offer.NodeID]
	if n.Resume == nil || id != resumptionID(n.Resume) {
		return nil
	}
	e := &wire.Event{Payload: &wire.AgentResumed{Strategy: n.Resume.Strategy}}
	return w.log.enqueueEvent(ctx, e)
}

// passTrial ends the trial: the process has lived with the execution. Without a valid lease it may be too late to say so.
func (w *watch) passTrial(ctx context.Context) {
	if !w.log.lease.Valid() {
		w.trial.over = time.Now().Add(trialTime)
		return
	}
	w.log.passTrial(ctx, w.trial)
}

// storeAnchor stores a claim of the worker's own. It doesn't wait long: what isn't
// stored yet is when the server is back.
func (w *watch) storeAnchor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := w.log.writer.Anchor(ctx, w.cfg.ID, w.cfg.Process); err != nil && !errors.Is(err, eventlog.ErrAmbiguous) && !tenure.Over(err) {
		w.cfg.Logger.Warn("node not anchored", "run", w.offer.RunID, "node", w.offer.NodeID, "error", err)
	}
}

// A run is told what its children's alerts say: each is a command of type notice
// to it, which waits in its inbox for an agent. What an agent has taken is on
// record, so that no other one is told again.

// The first lines of what an agent is told: at first what has queued up since an
// agent of the run was last told, then what comes.
const (
	noticesSince = "[Worker events since last session]"
	noticesNow   = "[Worker events]"
)

// noticeMessage returns the notices that haven't been passed on as one message with the id
// of the last one; nil if there are none or they are another agent's.
func (w *watch) noticeMessage(passed map[string]bool) *wire.InboxEntry {
	if w.noticedNode() != w.offer.NodeID {
		return nil
	}
	lines, last := []string{noticesSince}, ""
	for _, m := range w.view.State().Inbox {
		if m.Command.TextAt("type") != run.CommandNotice {
			continue
		}
		if passed[m.ID] {
			lines, last = []string{noticesNow}, ""
			continue
		}
		text := m.Command.TextAt("message")
		lines, last = append(lines, text), m.ID
	}
	if last == "" {
		return nil
	}
	if w.informed {
		lines[0] = noticesNow
	}
	if n := w.view.State().NoticesLost; n > 0 {
		lines[0] += fmt.Sprintf(" (%d older ones were dropped)", n)
	}
	cmd, err := wire.Marshal(wire.Command{Type: run.CommandNotice, Message: strings.Join(lines, "\n")})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: last, Node: w.offer.NodeID, Command: cmd}
}

// noticedNode returns the node of the agent that is told notices: of those at work the
// first that began. All workers come to the same one, and the next worker sees in
// the log what the one before was told.
func (w *watch) noticedNode() (node string) {
	var first uint64
	for id, n := range w.view.State().Nodes {
		atWork := n.Open() && n.Started >= n.Scheduled && n.Type == string(flow.TypeAgent)
		if atWork && (node == "" || n.Started < first) {
			node, first = id, n.Started
		}
	}
	return node
}
