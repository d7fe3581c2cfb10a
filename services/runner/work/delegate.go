package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
	"code.wake.dev/wake/services/runner/internal/view"
)

// subAgentNode is the node of a run that a call of an agent has started.
const subAgentNode = "agent"

// subAgentName is the name of its flow.
const subAgentName = "sub-agent"

// parts are the runs that the agent of an execution has do parts of its work.
type parts struct{ exec *execution }

// delegatePrompt has an agent of the same provider, with the settings of this one, work on a
// prompt, in a run of its own, and returns its answer.
func (ps parts) delegatePrompt(ctx context.Context, provider, call, prompt string) (agent.Part, error) {
	p, s, err := ps.awaitPart(ctx, call, func() (r wire.RunRequest, err error) {
		workspace := ""
		if ps.exec.def.Workspace == flow.WorkspaceShared {
			workspace = flow.WorkspaceShared
		}
		r.Overrides = child.Inherited(ps.exec.origin.overrides, ps.exec.def, ps.exec.offer.NodeID)
		r.Definition, r.Input, err = subAgentFlow(provider, ps.exec.entry.Input, ps.exec.def.HooksOf(ps.exec.node), prompt, workspace)
		return r, err
	})
	if s != nil {
		answer := s.Outputs[subAgentNode].TextAt("text")
		p.Output = wire.RawString(answer)
	}
	return p, err
}

// runFlow runs one of the flows that the agent may start on an input.
func (ps parts) runFlow(ctx context.Context, call, name string, input wire.Raw) (agent.Part, error) {
	p, s, err := ps.awaitPart(ctx, call, func() (r wire.RunRequest, err error) {
		r.Input, r.Overrides = input, child.Inherited(ps.exec.origin.overrides, ps.exec.def, "")
		for _, c := range ps.exec.node.Flows {
			if c.Name != name {
				continue
			}
			if c.Node != "" {
				r.State = ps.exec.origin.values
			}
			r.Definition, err = ps.exec.def.ChildFlow(c)
			return r, err
		}
		return r, fmt.Errorf("there is no flow %q", name)
	})
	if s != nil {
		p.Output, err = child.Outcome(s)
	}
	return p, err
}

// awaitPart waits for the run of a call, which it starts unless that is done, and returns the
// run's last state. What becomes of the run if no call waits for it any more is the owner's
// business; a worker that only stops leaves it at work.
func (ps parts) awaitPart(ctx context.Context, call string, ask func() (wire.RunRequest, error)) (p agent.Part, s *wire.State, err error) {
	defer ps.exec.seat.lendPlace(ctx)()
	id := child.CallID(ps.exec.offer.RunID, ps.exec.offer.ExecID, call)
	var v *view.View
	if err := ps.retryUntilDone(ctx, call, func() (err error) { v, err = ps.exec.cfg.Runs.Open(ctx, id); return err }); err != nil {
		return p, nil, err
	}
	defer v.Close()
	if v.State().Status == wire.RunIdle {
		if err := ps.startPart(ctx, id, call, ask); err != nil {
			return p, nil, err
		}
	}
	offer := ps.exec.offer
	isForeign := func() bool {
		s := v.State()
		return s.Status != wire.RunIdle && !child.IsOf(s, offer.RunID, offer.NodeID, child.CallKey(offer.ExecID, call))
	}
	for !v.State().Status.Ended() && !isForeign() {
		select {
		case <-v.More():
		case <-ctx.Done():
			return p, nil, context.Cause(ctx)
		}
		if err := v.Follow(ctx); err != nil {
			return p, nil, err
		}
	}
	if isForeign() { // it may never end
		p.Failed = child.TakenText(v.State())
		return p, nil, nil
	}
	if err := ps.retryUntilDone(ctx, call, func() (err error) { s, err = v.Whole(ctx); return err }); err != nil {
		return p, nil, err
	}
	p.Run = id
	spent := ledger.Spent(s.Usage)
	if p.Tokens = spent.Tokens; spent.Usd > 0 {
		p.CostUsd = &spent.Usd
	}
	p.Failed = child.Failure(s)
	return p, s, nil
}

// startPart asks for the run of a call. Asking twice does no harm. The call is on record
// before: no agent wants a run of a call that isn't open.
func (ps parts) startPart(ctx context.Context, id, call string, ask func() (wire.RunRequest, error)) error {
	r, err := ask()
	if err != nil {
		return err
	}
	def, err := flow.FromRaw(r.Definition)
	if err != nil {
		return err // else the request would be refused, and the agent not told
	}
	if err := ps.retryUntilDone(ctx, call, func() error { return ps.awaitRecorded(ctx, call) }); err != nil {
		return err
	}
	r.Labels = child.Labels(ps.exec.origin.labels, def, r.Labels)
	r.V, r.RunID, r.Limits, r.Fixtures = wire.Version, id, ledger.Inherited(ps.exec.origin.limits), ps.exec.origin.fixtures
	r.ParentRun, r.ParentNode, r.ParentCall = ps.exec.offer.RunID, ps.exec.offer.NodeID, child.CallKey(ps.exec.offer.ExecID, call)
	r.Workspace = ps.exec.workdir.path
	if ps.exec.def.Workspace != flow.WorkspaceShared {
		r.WorkspaceAt = ps.exec.cfg.ID
	}
	return ps.retryUntilDone(ctx, call, func() error { return child.Start(ctx, ps.exec.cfg.Queue, r) })
}

// retryUntilDone makes attempts until one succeeds, ctx ends, or the request for a run is refused.
// An outage is no result of a call: the agent would be told one that no run gave.
func (ps parts) retryUntilDone(ctx context.Context, call string, attempt func() error) error {
	for {
		err := attempt()
		switch {
		case err == nil, errors.As(err, new(*child.InputError)):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		ps.exec.cfg.Logger.Warn("run of a call waits for storage", "run", ps.exec.offer.RunID, "node", ps.exec.offer.NodeID, "call", call, "error", err)
		pull.Sleep(ctx, time.Second)
	}
}

// awaitRecorded waits until the log has a call.
func (ps parts) awaitRecorded(ctx context.Context, call string) error {
	v, err := ps.exec.cfg.Runs.Open(ctx, ps.exec.offer.RunID)
	if err != nil {
		return err
	}
	defer v.Close()
	for {
		if _, open := v.State().Tools[child.CallKey(ps.exec.offer.ExecID, call)]; open {
			return nil
		}
		select {
		case <-v.More():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := v.Follow(ctx); err != nil {
			return err
		}
	}
}

// subAgentFlow is a flow of one agent of a provider, with the settings and the hooks of another one. The
// settings come as the run's input: what a model or a file has said is no expression.
func subAgentFlow(provider string, settings wire.Raw, hooks []flow.Hook, prompt, workspace string) (definition, input wire.Raw, err error) {
	var given map[string]wire.Raw
	if err := wire.Unmarshal(settings, &given); err != nil {
		return nil, nil, fmt.Errorf("settings of the agent: %w", err)
	}
	options := map[string]any{}
	node := map[string]any{"provider": provider, "prompt": "{{ input.prompt }}"}
	for name, value := range given {
		switch name {
		case "provider", "prompt", "messages", "outputSchema":
			continue
		}
		options[name] = value
		node[name] = "{{ input.options." + name + " }}"
	}
	fields := map[string]any{
		"name":  subAgentName,
		"nodes": []any{map[string]any{"id": subAgentNode, "type": string(flow.TypeAgent), "input": node}},
	}
	if workspace != "" {
		fields["workspace"] = workspace
	}
	if len(hooks) > 0 {
		fields["hooks"] = hooks
	}
	definition, err = wire.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	if _, err := flow.FromRaw(definition); err != nil {
		return nil, nil, fmt.Errorf("settings of the agent: %w", err)
	}
	input, err = wire.Marshal(map[string]any{"prompt": prompt, "options": options})
	return definition, input, err
}
