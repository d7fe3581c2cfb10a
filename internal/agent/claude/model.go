package claude

import (
	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// modelOf returns the model that a session is to have: what the request names, else what
// the agent said at first that it had. The program itself takes the model of a session that
// goes on from the session's file, where models are named as the API names them: without a
// suffix such as [1m].
func modelOf(r agent.Request) (string, error) {
	if r.Options.Model != "" || baseSession(r) == "" || r.History == nil {
		return r.Options.Model, nil
	}
	for e, err := range r.History {
		if err != nil {
			return "", err
		}
		if p, ok := e.Payload.(*wire.AgentInit); ok && e.Parent == "" {
			return p.Model, nil
		}
	}
	return "", nil
}
