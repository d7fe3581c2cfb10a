package runner

import (
	"wake/internal/flow"
	"wake/pkg/wire"
)

// checkOverrides fails with a [rejection] unless overrides fit the run.
func checkOverrides(overrides wire.Raw, s *wire.State) error {
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		def = nil // an imported run; it has no nodes to name
	}
	if err := flow.CheckOverrides(def, overrides); err != nil {
		return reject(wire.CodeBadRequest, "%v", err)
	}
	return nil
}
