package runner

import (
	"cmp"
	"context"
	"sync"

	"wake/internal/agent"
	"wake/pkg/wire"
)

// approvals are the decisions on the calls of an execution, as the run's inbox has
// them. The zero value knows of none.
type approvals struct {
	mu    sync.Mutex
	given map[string]wire.Command // by call
	news  chan struct{}           // closed when there are more
}

// look takes the decisions from an inbox.
func (a *approvals) look(inbox []wire.InboxEntry, node, exec string) {
	given := decisions(inbox, node, exec)
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

// decisions returns the commands of an inbox that approve or deny a call of an
// execution, by call. The first one counts.
func decisions(inbox []wire.InboxEntry, node, exec string) map[string]wire.Command {
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

// get returns the decision on a call, or a channel that is closed when there
// are more decisions.
func (a *approvals) get(call string) (wire.Command, bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cmd, ok := a.given[call]
	if a.news == nil {
		a.news = make(chan struct{})
	}
	return cmd, ok, a.news
}

// decide waits until somebody approves or denies a call. A call that nobody has
// decided on when ctx ends isn't allowed.
func (a *approvals) decide(ctx context.Context, p agent.Permission) agent.Verdict {
	for {
		cmd, ok, news := a.get(p.CallID)
		if ok {
			return agent.Verdict{
				Allow: cmd.Type == "approve", By: decidedBy(cmd), Note: cmd.Note, UpdatedInput: cmd.UpdatedInput,
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return agent.Verdict{By: "wake", Note: "the agent was interrupted before anybody decided"}
		}
	}
}

func decidedBy(cmd wire.Command) string { return cmp.Or(cmd.By, "operator") }

// bypasses reports whether an agent with a permission mode may do everything.
func bypasses(mode string) bool { return mode == "" || mode == "bypassPermissions" }
