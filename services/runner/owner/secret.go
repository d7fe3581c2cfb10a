package owner

import (
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// Secrets returns where a definition has secrets itself, as its caller knows them by
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

// breakingPlaces returns the places in which a run without the secret does something else
// than the flow says: in words for an agent one may be missing.
func breakingPlaces(places []string) []string {
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
	places, err := Secrets(o.def, o.cfg.Log.Secrets)
	if err != nil {
		return "", err
	}
	if places = breakingPlaces(places); len(places) == 0 {
		return "", nil
	}
	return fmt.Sprintf("the flow has a secret in it, which isn't recorded, and runs are of what is recorded (%s): "+
		"start the runner with --secret NAME and write ${secret.NAME} in env, or start it with --redact off", strings.Join(places, "; ")), nil
}
