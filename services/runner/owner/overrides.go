package owner

import (
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/ledger"
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

// checkLimits fails with a [rejection] unless the run may go on under limits that are given.
func checkLimits(given wire.Raw, s *wire.State) error {
	if len(given) == 0 {
		return nil
	}
	if err := ledger.CheckLimits(given); err != nil {
		return command.Reject(wire.CodeBadRequest, "%v", err)
	}
	b, spent := ledger.BudgetOf(ledger.MergeLimits(s.Limits, given)), ledger.Spent(s.Usage)
	if b.IsReached(spent, wire.Spent{}) {
		return command.Reject(wire.CodeBadRequest, "run %s has spent %s already: it would stop at once", s.RunID, b.Text(spent, wire.Spent{}))
	}
	return nil
}
