package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"wake/internal/agent"
	"wake/internal/hook"
	"wake/pkg/wire"
)

// agentInput is the input of an agent node.
type agentInput struct {
	Provider string   `json:"provider"`
	Prompt   wire.Raw `json:"prompt"`
	Messages wire.Raw `json:"messages"`
	agent.Options

	provider agent.Provider
	name     string // of the provider
	// begun says that a call may have begun although the agent hasn't said so.
	begun bool
}

// fixtureProvider is what recorded agents are called.
const fixtureProvider = "fixture"

// defaultProvider acts in nodes that name none.
const defaultProvider = "claude"

var errNoProvider = errors.New("unknown provider")

// agent drives the agent of the node and returns the events that end the
// execution.
func (w *worker) agent(ctx context.Context, n wire.NodeState, messages <-chan wire.InboxEntry) ([]*wire.Event, error) {
	in, err := w.agentInput(n)
	if errors.Is(err, errNoProvider) {
		return nil, &failure{message: err.Error(), kind: wire.ErrorNoProvider}
	}
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	request, next := w.request(in, n), continuation{}
	if n.Started != 0 {
		if next, err = w.goOn(ctx, n, in); err != nil || w.holds(n) {
			return nil, err
		}
		next.ask(&request)
		request.History = w.history(ctx, n)
	}
	var given []wire.InboxEntry
	for {
		d := drive{
			worker: w, request: request, opening: next.opening, first: next.first, again: given, seen: next.seen, messages: messages,
		}
		// A session without a turn has nothing to lose: it begins afresh.
		d.lenient = n.Turns == 0 && (request.Resume || request.ForkOf != "")
		events, err := d.run(ctx, in)
		if !errors.Is(err, errSessionNotFound) {
			return events, err
		}
		w.runner.logger.Warn("session not found: the agent begins afresh",
			"run", w.offer.RunID, "node", w.offer.NodeID, "session", request.SessionID)
		request, next, given = w.request(in, n), continuation{opening: d.opening, first: next.message}, d.given
	}
}

// request asks for a session that begins.
func (w *worker) request(in agentInput, n wire.NodeState) agent.Request {
	r := agent.Request{
		RunID: w.offer.RunID, NodeID: w.offer.NodeID, ExecID: w.offer.ExecID,
		SessionID: agent.NewSessionID(), Prompt: in.Prompt, Options: in.Options,
		Transcript: agent.Transcript{Load: w.runner.sessions.Load, Save: w.runner.sessions.Save},
	}
	r.Hooks = hook.New(hook.Config{
		Hooks: w.def.HooksOf(w.node), RunID: r.RunID, NodeID: r.NodeID, ExecID: r.ExecID, Dir: in.Cwd,
		Env: agent.CommandEnvironment(os.Environ(), in.Env), Ask: w.runner.cfg.Ask, Logger: w.runner.logger,
	})
	for _, q := range n.Asked {
		r.Asked = append(r.Asked, q.ID)
	}
	if in.name == nativeProvider && !w.isSubAgent() {
		r.Delegate = func(ctx context.Context, call, prompt string) (agent.Part, error) {
			return w.delegate(ctx, n, call, prompt)
		}
		r.RunFlow, r.Flows = w.runFlow, w.node.Flows
	}
	return r
}

// isSubAgent reports whether an agent has started this one, which starts none itself.
func (w *worker) isSubAgent() bool {
	return w.state.ParentCall != "" && w.state.FlowName == subAgentName
}

// agentInput reads the input of the node, replaces the settings that somebody
// has overridden, and finds who acts.
func (w *worker) agentInput(n wire.NodeState) (in agentInput, err error) {
	if err := wire.Unmarshal(n.Input, &in); err != nil {
		return in, fmt.Errorf("input of the node: %w", err)
	}
	if in.Prompt == nil {
		in.Prompt = in.Messages
	}
	modes := []string{in.PermissionMode}
	if err := override(&in.Options, w.state.Overrides, w.def, w.offer.NodeID); err != nil {
		return in, fmt.Errorf("overrides: %w", err)
	}
	if err := w.optionSecrets(&in.Options); err != nil {
		return in, err
	}
	in.Cwd = w.dir(in.Cwd)
	in.Decide = w.decide
	if in.provider, in.name, err = w.provider(in.Provider); err != nil {
		return in, err
	}
	in.begun = in.name == "claude" && slices.ContainsFunc(append(modes, in.PermissionMode), func(mode string) bool { return !bypasses(mode) })
	return in, nil
}

// apply replaces the options that are given.
func apply(o *agent.Options, given map[string]wire.Raw) error {
	raw, err := wire.Marshal(given)
	if err != nil {
		return err
	}
	env := o.Env
	o.Env = nil
	if err := wire.Unmarshal(raw, o); err != nil {
		return err
	}
	if len(env) > 0 {
		all := maps.Clone(env)
		maps.Copy(all, o.Env)
		o.Env = all
	}
	return nil
}

// provider returns the agent that acts in the node. In a run with fixtures no
// other agent can be reached.
func (w *worker) provider(name string) (agent.Provider, string, error) {
	if dir := w.state.Fixtures; dir != "" {
		if w.runner.cfg.Fixtures == nil {
			return nil, "", errors.New("this runner has no fixtures")
		}
		p, err := w.runner.cfg.Fixtures(dir)
		return p, fixtureProvider, err
	}
	if name == "" {
		name = defaultProvider
	}
	p, ok := w.runner.cfg.Providers[name]
	if !ok {
		return nil, "", fmt.Errorf("%w %q", errNoProvider, name)
	}
	return p, name, nil
}

// maxTask is the length of the one-line task of an agent in runes.
const maxTask = 120

// task returns the first line of a prompt.
func task(prompt wire.Raw) string {
	text, ok := prompt.Text()
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if r := []rune(line); len(r) > maxTask {
		return string(r[:maxTask-1]) + "…"
	}
	return line
}
