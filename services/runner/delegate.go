package runner

import (
	"context"
	"errors"
	"fmt"

	"wake/internal/agent"
	"wake/internal/flow"
	"wake/pkg/wire"
)

// subAgentNode is the node of a run that a call of an agent has started.
const subAgentNode = "agent"

// subAgentName is the name of its flow.
const subAgentName = "sub-agent"

// calledRun names the run that a call of an agent starts. Whoever asks again, in whatever
// process, waits for the same one.
func calledRun(run, exec, call string) string { return childID(run, exec+"."+call) }

// callKey is how the state of a run names an open call.
func callKey(exec, call string) string { return exec + "/" + call }

// delegate has an agent with the settings of this one work on a prompt, in a run of its
// own, and returns its answer.
func (w *worker) delegate(ctx context.Context, n wire.NodeState, call, prompt string) (agent.Part, error) {
	p, s, err := w.part(ctx, call, func() (r wire.RunRequest, err error) {
		workspace := ""
		if w.def.Workspace == flow.WorkspaceShared {
			workspace = flow.WorkspaceShared
		}
		r.Overrides = inherited(w.state.Overrides, w.def, w.offer.NodeID)
		r.Definition, r.Input, err = subAgentFlow(n.Input, w.def.HooksOf(w.node), prompt, workspace)
		return r, err
	})
	if s != nil {
		answer, _ := s.Outputs[subAgentNode].Get("text").Text()
		p.Output = wire.RawString(answer)
	}
	return p, err
}

// runFlow runs one of the flows that the agent may start on an input.
func (w *worker) runFlow(ctx context.Context, call, name string, input wire.Raw) (agent.Part, error) {
	p, s, err := w.part(ctx, call, func() (r wire.RunRequest, err error) {
		r.Input, r.Overrides = input, inherited(w.state.Overrides, w.def, "")
		for _, c := range w.node.Flows {
			if c.Name != name {
				continue
			}
			if c.Node != "" {
				r.State = w.state.State
			}
			r.Definition, err = w.def.ChildFlow(c)
			return r, err
		}
		return r, fmt.Errorf("there is no flow %q", name)
	})
	if s != nil {
		p.Output, err = outcomeOf(s)
	}
	return p, err
}

// part waits for the run of a call, which it starts unless that is done, and returns the
// run's last state. What becomes of the run if nobody waits for it any more is the owner's
// business; a worker that only stops leaves it at work.
func (w *worker) part(ctx context.Context, call string, ask func() (wire.RunRequest, error)) (p agent.Part, s *wire.State, err error) {
	defer w.seat.lend(ctx)()
	id := calledRun(w.offer.RunID, w.offer.ExecID, call)
	v, err := w.runner.open(ctx, id)
	if err != nil {
		return p, nil, err
	}
	defer v.close()
	if v.state.Status == wire.RunIdle {
		if err := w.startPart(ctx, id, call, ask); err != nil {
			return p, nil, err
		}
	}
	for !ended(v.state.Status) {
		select {
		case <-v.more():
		case <-ctx.Done():
			return p, nil, context.Cause(ctx)
		}
		if err := v.follow(ctx); err != nil {
			return p, nil, err
		}
	}
	if s, err = v.whole(ctx); err != nil {
		return p, nil, err
	}
	p.Run = id
	if usd := min(s.Usage.CostUsd+s.Usage.ChildCostUsd, wire.MaxCostUsd); usd > 0 {
		p.CostUsd = &usd
	}
	switch {
	case s.Status == wire.RunAborted:
		p.Failed = fmt.Sprintf("Run %s was aborted: %s", id, orElse(s.Reason, "nobody said why"))
	case s.Result == wire.FlowStatusFailed:
		p.Failed = fmt.Sprintf("Run %s failed: %s", id, orElse(s.Error, "nothing says why"))
	}
	return p, s, nil
}

// startPart asks for the run of a call. Asking twice does no harm. The call is on record
// before: a run whose call isn't open is wanted by nobody.
func (w *worker) startPart(ctx context.Context, id, call string, ask func() (wire.RunRequest, error)) error {
	r, err := ask()
	if err != nil {
		return err
	}
	if _, err := flow.FromRaw(r.Definition); err != nil {
		return err // else the request would be refused, and nobody told
	}
	if err := w.recorded(ctx, call); err != nil {
		return err
	}
	r.V, r.RunID, r.Limits, r.Fixtures = wire.Version, id, w.state.Limits, w.state.Fixtures
	r.ParentRun, r.ParentNode, r.ParentCall = w.offer.RunID, w.offer.NodeID, callKey(w.offer.ExecID, call)
	r.Workspace = w.workdir.path
	if w.def.Workspace != flow.WorkspaceShared {
		r.WorkspaceAt = w.runner.cfg.ID
	}
	return w.runner.request(ctx, r)
}

// recorded waits until the log has a call, for a bounded time.
func (w *worker) recorded(ctx context.Context, call string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.runner.cfg.PersistTimeout, errors.New("the call isn't on record yet: the log is away"))
	defer cancel()
	v, err := w.runner.open(ctx, w.offer.RunID)
	if err != nil {
		return err
	}
	defer v.close()
	for {
		if _, open := v.state.Tools[callKey(w.offer.ExecID, call)]; open {
			return nil
		}
		select {
		case <-v.more():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := v.follow(ctx); err != nil {
			return err
		}
	}
}

// request asks for a run. It fails with a [failure] for one that no server takes.
func (r *Runner) request(ctx context.Context, request wire.RunRequest) error {
	data, err := wire.Marshal(request)
	if err != nil {
		return err
	}
	_, err = r.log.Send(ctx, r.names.QueueRun(), data)
	switch {
	case tooLarge(err):
		return &failure{message: fmt.Sprintf("flow, input and state of the child run are %d bytes, more than the server takes", len(data)), kind: "input"}
	case err != nil:
		return fmt.Errorf("start child run %s: %w", request.RunID, err)
	}
	return nil
}

// subAgentFlow is a flow of one agent with the settings and the hooks of another one. The
// settings come as the run's input: what a model or a file has said is no expression.
func subAgentFlow(settings wire.Raw, hooks []flow.Hook, prompt, workspace string) (definition, input wire.Raw, err error) {
	var given map[string]wire.Raw
	if err := wire.Unmarshal(settings, &given); err != nil {
		return nil, nil, fmt.Errorf("settings of the agent: %w", err)
	}
	options := map[string]any{}
	node := map[string]any{"provider": nativeProvider, "prompt": "{{ input.prompt }}"}
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
