package work

import (
	"context"
	"fmt"
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
	if x.node.Type != flow.TypeAgent || x.node.Policy == nil || x.node.Policy.Retry == nil || !x.node.Policy.Retry.GoesOn() {
		return ids
	}
	for n := 1; n < x.entry.Attempt; n++ {
		ids[run.ExecID(x.offer.NodeID, x.entry.Execs-n)] = true
	}
	return ids
}

// retryAgent has an agent go on whose last attempt failed: in its session, with a notice of what
// failed and what has become of its calls.
func (r resumption) retryAgent(ctx context.Context, c *continuation) error {
	var a run.Attempts
	for e, err := range r.pastEvents(ctx) {
		if err != nil {
			return err
		}
		a.Take(e)
	}
	c.session, c.prompt, c.seen, c.worked = a.Session, a.Prompt(r.newFolder()), a.Inputs, a.Worked
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

// checkRetryWait fails if the agent is to wait longer for its model than its policy lets it.
func (d *drive) checkRetryWait(e *wire.Event) error {
	p, ok := e.Payload.(*wire.AgentError)
	if !ok || p.RetryDelayMs == nil || d.exec.node.Policy == nil || d.exec.node.Policy.MaxRetryWaitMs == 0 {
		return nil
	}
	if limit := d.exec.node.Policy.MaxRetryWaitMs; *p.RetryDelayMs > float64(limit) {
		wait := time.Duration(*p.RetryDelayMs * float64(time.Millisecond))
		return &failure{
			message: fmt.Sprintf("%s; it would be asked again in %s, and policy.maxRetryWaitMs is %d", p.Message, wait, limit), kind: p.ErrorType,
		}
	}
	return nil
}
