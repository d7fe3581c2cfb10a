package owner

import (
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// checkOverrides fails with a [rejection] unless overrides fit the run.
func checkOverrides(overrides wire.Raw, s *wire.State) error {
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		def = nil // an imported run; it has no nodes to name
	}
	if err := flow.CheckOverrides(def, overrides); err != nil {
		return command.Reject(wire.CodeBadRequest, "%v", err)
	}
	return nil
}
