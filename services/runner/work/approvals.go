package work

import (
	"cmp"
	"context"
	"sync"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// approvals are the decisions on the calls of an execution, as the run's inbox has
// them. The zero value knows of none.
type approvals struct {
	mu    sync.Mutex
	given map[string]wire.Command // by call
	news  chan struct{}           // closed when there are more
}

// takeDecisions takes the decisions from an inbox.
func (a *approvals) takeDecisions(inbox []wire.InboxEntry, node, exec string) {
	given := callDecisions(inbox, node, exec)
	a.mu.Lock()
	defer a.mu.Unlock()
	more := false
	for call := range given {
		_, known := a.given[call]
		more = more || !known
	}
	a.given = given
	if more && a.news != nil {
		close(a.news)
		a.news = nil
	}
}

// callDecisions returns the commands of an inbox that approve or deny a call of an
// execution, by call. The first one counts.
func callDecisions(inbox []wire.InboxEntry, node, exec string) map[string]wire.Command {
	given := map[string]wire.Command{}
	for _, m := range inbox {
		var cmd wire.Command
		if wire.Unmarshal(m.Command, &cmd) != nil || cmd.Type != "approve" && cmd.Type != "deny" || cmd.CallID == "" {
			continue
		}
		if m.Node != "" && m.Node != node || m.Exec != "" && m.Exec != exec {
			continue
		}
		if _, known := given[cmd.CallID]; !known {
			given[cmd.CallID] = cmd
		}
	}
	return given
}

// decisionOf returns the decision on a call, or a channel that is closed when there
// are more decisions.
func (a *approvals) decisionOf(call string) (wire.Command, bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cmd, ok := a.given[call]
	if a.news == nil {
		a.news = make(chan struct{})
	}
	return cmd, ok, a.news
}

// awaitDecision waits until a call is approved or denied. A call that is undecided
// when ctx ends isn't allowed.
func (a *approvals) awaitDecision(ctx context.Context, p agent.Permission) agent.Verdict {
	for {
		cmd, ok, news := a.decisionOf(p.CallID)
		if ok {
			return agent.Verdict{
				Allow: cmd.Type == "approve", By: decidedBy(cmd), Note: cmd.Note, UpdatedInput: cmd.UpdatedInput,
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return agent.Verdict{By: "wake", Note: "the agent was interrupted before a decision"}
		}
	}
}

func decidedBy(cmd wire.Command) string { return cmp.Or(cmd.By, "operator") }

// bypassesApproval reports whether an agent with a permission mode may do everything.
func bypassesApproval(mode string) bool { return mode == "" || mode == "bypassPermissions" }

// awaitDecision waits until a call is decided, and until the agent has its place again.
func (x *execution) awaitDecision(ctx context.Context, p agent.Permission) agent.Verdict {
	v := x.asked.awaitDecision(ctx, p)
	_ = x.seat.setResting(ctx, false) // else the agent is being ended
	return v
}
