package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"wake/internal/flow"
	"wake/pkg/wire"
)

// subAgentNode is the node of a run that a call of an agent has started.
const subAgentNode = "agent"

// subAgentName is the name of its flow.
const subAgentName = "sub-agent"

// delegate has an agent with the settings of this one work on a prompt, in a run of its
// own, and returns its answer. The run's id follows from the call: whoever asks again
// waits for the same one. If this execution is withdrawn, so is the run; a worker that
// only stops leaves it at work.
func (w *worker) delegate(ctx context.Context, n wire.NodeState, call, prompt string) (string, error) {
	defer w.lend()()
	id := childID(w.offer.RunID, w.offer.ExecID+"."+call)
	v, err := w.runner.open(ctx, id)
	if err != nil {
		return "", err
	}
	defer v.close()
	if v.state.Status == wire.RunIdle {
		if err := w.startSubAgent(ctx, n, id, prompt); err != nil {
			return "", err
		}
	}
	for !ended(v.state.Status) {
		select {
		case <-v.more():
		case <-ctx.Done():
			w.withdraw(ctx, id)
			return "", context.Cause(ctx)
		}
		if err := v.follow(ctx); err != nil {
			return "", err
		}
	}
	s, err := v.whole(ctx)
	if err != nil {
		return "", err
	}
	if s.Status == wire.RunAborted || s.Result == wire.FlowStatusFailed {
		return "", fmt.Errorf("the agent (run %s) failed: %s", id, orElse(s.Error, string(s.Status)))
	}
	answer, _ := s.Outputs[subAgentNode].Get("text").Text()
	return answer, nil
}

// startSubAgent asks for the run of a call. Asking twice does no harm.
func (w *worker) startSubAgent(ctx context.Context, n wire.NodeState, id, prompt string) error {
	definition, input, err := subAgentFlow(n.Input, w.def.HooksOf(w.node), prompt)
	if err != nil {
		return err
	}
	request, err := wire.Marshal(wire.RunRequest{
		V: wire.Version, RunID: id, Definition: definition, Input: input,
		ParentRun: w.offer.RunID, ParentNode: w.offer.NodeID, Workspace: w.workdir.path,
	})
	if err != nil {
		return err
	}
	_, err = w.runner.log.JetStream().Publish(ctx, w.runner.names.QueueRun(), request)
	switch {
	case tooLarge(err):
		return fmt.Errorf("the prompt and the settings of the agent are %d bytes, more than the server takes", len(request))
	case err != nil:
		return fmt.Errorf("start run %s: %w", id, err)
	}
	return nil
}

// subAgentFlow is a flow of one agent with the settings and the hooks of another one. The
// settings come as the run's input: what a model or a file has said is no expression. It
// starts no agents.
func subAgentFlow(settings wire.Raw, hooks []flow.Hook, prompt string) (definition, input wire.Raw, err error) {
	var given map[string]wire.Raw
	if err := wire.Unmarshal(settings, &given); err != nil {
		return nil, nil, fmt.Errorf("settings of the agent: %w", err)
	}
	var disallowed []string
	if given["disallowedTools"] != nil {
		if err := wire.Unmarshal(given["disallowedTools"], &disallowed); err != nil {
			return nil, nil, fmt.Errorf("settings of the agent: %w", err)
		}
	}
	options := map[string]any{"disallowedTools": append(disallowed, "agent")}
	node := map[string]any{"provider": nativeProvider, "prompt": "{{ input.prompt }}", "disallowedTools": "{{ input.options.disallowedTools }}"}
	for name, value := range given {
		switch name {
		case "provider", "prompt", "messages", "outputSchema", "disallowedTools":
			continue
		}
		options[name] = value
		node[name] = "{{ input.options." + name + " }}"
	}
	fields := map[string]any{
		"name": subAgentName, "workspace": "shared",
		"nodes": []any{map[string]any{"id": subAgentNode, "type": string(flow.TypeAgent), "input": node}},
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

// withdraw aborts the run of a call whose execution is wanted no more.
func (w *worker) withdraw(ctx context.Context, id string) {
	if cause := context.Cause(ctx); !errors.Is(cause, errWithdrawn) && !errors.Is(cause, errTimeLimit) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	data, err := wire.Marshal(wire.Command{Type: "abort", ID: "parent-" + id, RunID: id, By: "parent", Reason: "the parent run withdrew it"})
	if err == nil {
		_, err = w.runner.log.JetStream().Publish(ctx, w.runner.names.Command(id), data)
	}
	if err != nil {
		w.runner.logger.Warn("run of a sub-agent not aborted", "run", id, "error", err)
	}
}

// lent counts the calls that wait for runs of their own.
type lent struct {
	mu sync.Mutex
	n  int
}

// lend gives the slot of the execution to others while its agent waits for agents: these
// need slots. The returned function takes one again, for which it waits.
func (w *worker) lend() (back func()) {
	w.lent.mu.Lock()
	defer w.lent.mu.Unlock()
	if w.lent.n++; w.lent.n == 1 {
		w.runner.slots.free()
	}
	return func() {
		w.lent.mu.Lock()
		defer w.lent.mu.Unlock()
		if w.lent.n--; w.lent.n == 0 && w.runner.slots != nil {
			w.runner.slots <- struct{}{}
		}
	}
}
