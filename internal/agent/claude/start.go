package claude

import (
	"cmp"
	"context"
	"errors"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
)

// Start checks the request. The program is started by the session's Events,
// once its agent:start has been taken care of.
func (p *Provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	switch {
	case r.SessionID == "":
		return nil, errors.New("claude: a session id is required")
	case r.Resume && r.ForkOf != "" && r.ForkOf != r.SessionID:
		return nil, errors.New("claude: a session is either resumed or a fork of another one")
	case r.ForkAt != "" && baseSession(r) == "":
		return nil, errors.New("claude: a new session has no message to go back to")
	}
	prompts, err := promptContents(r.Prompt)
	if err != nil {
		return nil, err
	}
	if r.Host == nil {
		r.Host = process.Direct{}
	}
	d := p.withDefaults(r)
	r.StartTimeout = cmp.Or(r.StartTimeout, startTimeout)
	if r.Options.Model, err = modelOf(r); err != nil {
		d.Logger.Warn("model of the session not known: the program chooses it", "error", err)
	}
	return newSession(ctx, d, r, prompts), nil
}

// Capabilities implements [agent.Provider].
func (p *Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{Recover: p.recoverCalls, SubAgents: p.subAgents}
}
