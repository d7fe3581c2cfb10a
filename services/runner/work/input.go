package work

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
)

// agentInput is the input of an agent node.
type agentInput struct {
	Provider string   `json:"provider"`
	Prompt   wire.Raw `json:"prompt"`
	Messages wire.Raw `json:"messages"`
	agent.Options

	provider agent.Provider
	name     string // of the provider
	can      agent.Capabilities
	// begun says that a call may have begun although the agent hasn't said so.
	begun bool
}

// FixtureProvider is what recorded agents are called.
const FixtureProvider = "fixture"

// defaultProvider acts in nodes that name none.
const defaultProvider = "claude"

var errNoProvider = errors.New("unknown provider")

// agentInput reads the input of the node, replaces the settings that are
// overridden, and finds the provider.
func (x *execution) agentInput() (in *agentInput, err error) {
	in = new(agentInput)
	if err := wire.Unmarshal(x.entry.Input, in); err != nil {
		return in, fmt.Errorf("input of the node: %w", err)
	}
	if in.Prompt == nil {
		in.Prompt = in.Messages
	}
	modes := []string{in.PermissionMode}
	if err := overrideOptions(&in.Options, x.origin.overrides, x.def, x.offer.NodeID); err != nil {
		return in, fmt.Errorf("overrides: %w", err)
	}
	if err := x.optionSecrets(&in.Options); err != nil {
		return in, err
	}
	if len(x.cfg.Prices) > 0 {
		prices := maps.Clone(x.cfg.Prices)
		maps.Copy(prices, in.Prices)
		in.Prices = prices
	}
	in.Cwd = x.resolveDir(in.Cwd)
	in.Decide = x.awaitDecision
	if in.provider, in.name, err = x.findProvider(in.Provider); err != nil {
		return in, err
	}
	in.can = in.provider.Capabilities()
	in.begun = in.can.TellsLate || !in.can.SaysBegin && slices.ContainsFunc(append(modes, in.PermissionMode), func(mode string) bool { return !bypassesApproval(mode) })
	return in, nil
}

// applyOptions replaces the options that are given.
func applyOptions(o *agent.Options, given map[string]wire.Raw) error {
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

// findProvider returns the agent that acts in the node. In a run with fixtures no
// other agent can be reached.
func (x *execution) findProvider(name string) (agent.Provider, string, error) {
	if dir := x.origin.fixtures; dir != "" {
		if x.cfg.Fixtures == nil {
			return nil, "", errors.New("this runner has no fixtures")
		}
		p, err := x.cfg.Fixtures(dir)
		return p, FixtureProvider, err
	}
	if name == "" {
		name = defaultProvider
	}
	p, ok := x.cfg.Providers[name]
	if !ok {
		return nil, "", fmt.Errorf("%w %q", errNoProvider, name)
	}
	return p, name, nil
}

// maxTask is the length of the one-line task of an agent in runes.
const maxTask = 120

// taskLine returns the first line of a prompt.
func taskLine(prompt wire.Raw) string {
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

// overrideOptions replaces options by those that were given. Variables of the environment are
// added.
func overrideOptions(o *agent.Options, given wire.Raw, def *flow.Definition, node string) error {
	all, err := child.Layers(given, def, node)
	if err != nil {
		return err
	}
	for _, layer := range all {
		if err := applyOptions(o, layer); err != nil {
			return err
		}
	}
	return nil
}

// A flow refers to a secret by its name; the runner puts the value in when it starts the
// agent or the command, and nowhere else. What a binding has made of a field isn't looked
// at: an agent's words are no reference.

// withSecrets returns variables or headers with the secrets that those of the flow refer
// to. Literal is the field as the flow has it.
func (x *execution) withSecrets(values map[string]string, literal wire.Raw) (map[string]string, error) {
	var out map[string]string
	for name, value := range values {
		if text, ok := literal.Get(name).Text(); !ok || text != value || !flow.SecretRef.MatchString(text) || strings.Contains(text, "{{") {
			continue
		}
		var missing string
		whole := flow.SecretRef.ReplaceAllStringFunc(value, func(ref string) string {
			key := flow.SecretRef.FindStringSubmatch(ref)[1]
			secret, ok := x.cfg.Secrets[key]
			if !ok {
				missing = key
			}
			return secret
		})
		if missing != "" {
			return nil, fmt.Errorf("%s: runner %s has no secret %s: start it with --secret %s", name, x.cfg.ID, missing, missing)
		}
		if out == nil {
			out = maps.Clone(values)
		}
		out[name] = whole
	}
	if out == nil {
		return values, nil
	}
	return out, nil
}

// optionSecrets puts the secrets into the options of an agent.
func (x *execution) optionSecrets(o *agent.Options) (err error) {
	if o.Env, err = x.withSecrets(o.Env, x.node.Input.Get("env")); err != nil {
		return fmt.Errorf("env: %w", err)
	}
	for name, server := range o.MCPServers {
		literal := x.node.Input.Get("mcpServers").Get(name)
		if server.Env, err = x.withSecrets(server.Env, literal.Get("env")); err == nil {
			server.Headers, err = x.withSecrets(server.Headers, literal.Get("headers"))
		}
		if err != nil {
			return fmt.Errorf("mcpServers: %s: %w", name, err)
		}
		o.MCPServers[name] = server
	}
	return nil
}
