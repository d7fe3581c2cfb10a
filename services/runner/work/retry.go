package work

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// attemptIDs are the executions that share a session, by their ids: this one, and the failed ones
// that it is a retry of, unless the policy wants a new session for each.
func (x *execution) attemptIDs() map[string]bool {
	ids := map[string]bool{x.offer.ExecID: true}
	if p := x.node.Policy; x.node.Type != flow.TypeAgent || p != nil && p.Retry != nil && !p.Retry.GoesOn() {
		return ids
	}
	for n := 1; n < x.entry.Attempt+x.entry.Waits; n++ {
		ids[run.ExecID(x.offer.NodeID, x.entry.Execs-n)] = true
	}
	return ids
}

// retryAgent has an agent go on after a failed attempt: in its session, with a notice of what
// failed and what has become of its calls. What another run has of the session goes on as a copy.
func (r resumption) retryAgent(ctx context.Context, c *continuation) error {
	a := run.Attempts{Late: r.in.can.KeepsLate}
	for e, err := range r.pastEvents(ctx) {
		if err != nil {
			return err
		}
		a.Take(e)
	}
	c.prompt, c.seen, c.worked = a.Prompt(r.newFolder()), a.Inputs, a.Worked
	switch {
	case a.Run == r.exec.offer.RunID:
		c.session = a.Session
	case a.Worked: // the parent run goes on in that session
		c.fork = &wire.AgentPoint{Session: a.Session, Point: a.Point}
	}
	for _, f := range a.Facts() {
		c.facts = append(c.facts, agent.Fact(f))
	}
	return nil
}

// eventKinds are what an agent that goes on has to know of its attempts: if there were several, how
// they ended too.
func eventKinds(attempts map[string]bool) []wire.Kind {
	kinds := []wire.Kind{wire.KindAgent, wire.KindTool}
	if len(attempts) > 1 {
		kinds = append(kinds, wire.KindFlow)
	}
	return kinds
}

// checkRetryWait ends an agent that is to wait for its model longer than its policy lets it, or for so long that its node
// waits instead.
func (d *drive) checkRetryWait(e *wire.Event) error {
	p, ok := e.Payload.(*wire.AgentError)
	if !ok || p.RetryDelayMs == nil || d.can.Recorded {
		return nil
	}
	wait := time.Duration(min(*p.RetryDelayMs, longestDelay) * float64(time.Millisecond))
	if bound := d.exec.retryBound(); bound > 0 && wait > bound {
		return &failure{
			message: fmt.Sprintf("%s; it would be asked again in %s, and policy.maxRetryWaitMs is %d", p.Message, wait, bound.Milliseconds()), kind: p.ErrorType,
		}
	}
	at := saidAt(e).Add(wait)
	if time.Until(at) <= longestHeldWait {
		return nil
	}
	return d.exec.agentFailure(&wire.AgentError{ErrorType: p.ErrorType, Message: p.Message, ResetsAt: at.UnixMilli()})
}

// saidAt is when the agent has told of an event: long ago, if it had no runner then.
func saidAt(e *wire.Event) time.Time {
	if e.Timestamp == 0 {
		return time.Now()
	}
	return time.UnixMilli(e.Timestamp)
}

// longestDelay is what is made of longer ones, in ms: a year.
const longestDelay = 365 * 24 * 60 * 60 * 1000

// longestHeldWait is how long an agent waits for its model itself: for longer its node waits, which needs neither a process nor
// a place. Models keep the prompts that they cache for as long.
const longestHeldWait = 5 * time.Minute

// noteLimit notes when a limit is over that has ended an agent and that only words tell of.
func (d *drive) noteLimit(e *wire.Event, p *wire.AgentError) {
	fatal := p.Severity != wire.SeverityWarning && p.Severity != wire.SeverityInfo
	if !fatal || p.ResetsAt != 0 || d.can.Recorded || p.ErrorType != wire.ErrorRateLimit && p.ErrorType != agent.ErrorBilling {
		return
	}
	if at, ok := agent.LimitReset(p.Message, saidAt(e)); ok {
		p.ResetsAt = at.UnixMilli()
	}
}

// agentFailure is the outcome of a node after its agent failed. If a limit of its model is over at a time that is known, the
// node is tried again then, unless its policy is against it.
func (x *execution) agentFailure(p *wire.AgentError) *failure {
	f := &failure{message: p.Message, kind: p.ErrorType}
	if policy := x.node.Policy; p.ResetsAt == 0 || policy != nil && policy.Retry != nil && slices.Contains(policy.Retry.Except, p.ErrorType) {
		return f
	}
	wait := limitWait(time.Until(time.UnixMilli(p.ResetsAt)), x.entry.Waits)
	switch bound := x.retryBound(); {
	case bound > 0 && wait > bound:
		f.message += fmt.Sprintf("; it could go on in %s, and policy.maxRetryWaitMs is %d", wait.Round(time.Second), bound.Milliseconds())
	case wait <= longestLimit:
		f.retryAt = time.Now().Add(wait + rand.N(limitSpread)).UnixMilli() // it only spreads load
	}
	return f
}

// longestLimit is how far away the end of a limit may be to be believed: those of subscriptions last a week.
const longestLimit = 8 * 24 * time.Hour

// limitSpread is the time over which nodes are tried again that wait for the same limit.
const limitSpread = 30 * time.Second

// limitWait is how long a node waits for a limit that is over after a time, and for which it has waited so often: a minute at
// least, and twice that each time up to an hour, since what an API says of its limits may be wrong.
func limitWait(resets time.Duration, waits int) time.Duration {
	return max(resets, min(time.Minute<<min(waits, 6), time.Hour))
}

// retryBound is how long the node's agent may wait for its model; 0 is no bound.
func (x *execution) retryBound() time.Duration {
	if x.node.Policy == nil {
		return 0
	}
	return time.Duration(x.node.Policy.MaxRetryWaitMs) * time.Millisecond
}
