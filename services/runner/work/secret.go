package work

import (
	"fmt"
	"maps"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

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
