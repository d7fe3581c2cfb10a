package work

import (
	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/child"
)

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
