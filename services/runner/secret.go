package runner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"wake/internal/agent"
	"wake/internal/flow"
	"wake/pkg/wire"
)

// A flow refers to a secret by its name; the runner puts the value in when it starts the
// agent or the command, and nowhere else. What a binding has made of a field isn't looked
// at: an agent's words are no reference.

// withSecrets returns variables or headers with the secrets that those of the flow refer
// to. Literal is the field as the flow has it.
func (w *worker) withSecrets(values map[string]string, literal wire.Raw) (map[string]string, error) {
	var out map[string]string
	for name, value := range values {
		if text, ok := literal.Get(name).Text(); !ok || text != value || !flow.SecretRef.MatchString(text) || strings.Contains(text, "{{") {
			continue
		}
		var missing string
		whole := flow.SecretRef.ReplaceAllStringFunc(value, func(ref string) string {
			key := flow.SecretRef.FindStringSubmatch(ref)[1]
			secret, ok := w.runner.cfg.Secrets[key]
			if !ok {
				missing = key
			}
			return secret
		})
		if missing != "" {
			return nil, fmt.Errorf("%s: runner %s has no secret %s: start it with --secret %s", name, w.runner.cfg.ID, missing, missing)
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
func (w *worker) optionSecrets(o *agent.Options) (err error) {
	if o.Env, err = w.withSecrets(o.Env, w.node.Input.Get("env")); err != nil {
		return fmt.Errorf("env: %w", err)
	}
	for name, server := range o.MCPServers {
		literal := w.node.Input.Get("mcpServers").Get(name)
		if server.Env, err = w.withSecrets(server.Env, literal.Get("env")); err == nil {
			server.Headers, err = w.withSecrets(server.Headers, literal.Get("headers"))
		}
		if err != nil {
			return fmt.Errorf("mcpServers: %s: %w", name, err)
		}
		o.MCPServers[name] = server
	}
	return nil
}

// Secrets returns where a definition has secrets itself, as whoever asks knows them by
// where: they would be taken out of what is recorded, and a run is of what is recorded.
func Secrets(def *flow.Definition, where func(wire.Payload) ([]string, error)) ([]string, error) {
	all, err := where(flow.Start(def, wire.RunRequest{})[0].Payload)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var found []string
	for _, n := range def.Nodes {
		places, err := where(&wire.NodeStart{NodeType: string(n.Type), Attempt: 1, Input: n.Input})
		if err != nil {
			return nil, err
		}
		for _, place := range places {
			found = append(found, "node "+n.ID+": "+place)
		}
	}
	inNodes := func(place string) bool { return strings.HasPrefix(place, "definition.nodes.input.") }
	for _, place := range slices.DeleteFunc(all, inNodes) {
		found = append(found, strings.TrimPrefix(place, "definition."))
	}
	return found, nil
}

// breaking returns the places in which a run without the secret does something else
// than the flow says: in words for an agent one may be missing.
func breaking(places []string) []string {
	return slices.DeleteFunc(slices.Clone(places), func(place string) bool {
		return !slices.ContainsFunc(strings.Split(place, "."), func(name string) bool {
			switch strings.TrimSpace(name[strings.LastIndexByte(name, ' ')+1:]) {
			case "env", "command", "headers", "url":
				return true
			}
			return false
		})
	})
}

// ownSecrets returns why a flow that has secrets itself can't run; "" if it can.
func (o *owner) ownSecrets() (string, error) {
	places, err := Secrets(o.def, o.runner.log.Secrets)
	if err != nil {
		return "", err
	}
	if places = breaking(places); len(places) == 0 {
		return "", nil
	}
	return fmt.Sprintf("the flow has a secret in it, which isn't recorded, and runs are of what is recorded (%s): "+
		"start the runner with --secret NAME and write ${secret.NAME} in env, or start it with --redact off", strings.Join(places, "; ")), nil
}
