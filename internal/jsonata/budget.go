package jsonata

import "fmt"

// The budget of an evaluation, or of several that share one.
const (
	maxSteps = 1_000_000 // each about 0.1 µs
	maxBytes = 32 << 20  // of all values that it makes
	maxDepth = 1000      // of values, and of calls, within each other
)

// Budget is what is left of the steps and the bytes that evaluations may use. It counts, and
// asks no clock: the same expressions and data always end at the same place.
type Budget struct {
	steps, bytes int
	err          *BudgetError // what has been exceeded
}

// NewBudget returns a whole budget.
func NewBudget() *Budget { return &Budget{steps: maxSteps, bytes: maxBytes} }

// Spent is the part of the budget that is used, from 0 to 1.
func (b *Budget) Spent() float64 {
	if b.err != nil {
		return 1
	}
	return max(1-float64(b.steps)/maxSteps, 1-float64(b.bytes)/maxBytes)
}

// Make counts bytes that the caller makes of the values of expressions.
func (b *Budget) Make(bytes int) (err error) {
	defer b.catchPanic(&err)
	b.countBytes(bytes)
	return nil
}

// BudgetError is the error of an evaluation that needs more than its budget.
type BudgetError struct{ Over string }

// Error names what was exceeded and what to do.
func (e *BudgetError) Error() string {
	return "OVER_BUDGET: needs more than " + e.Over + "; make less of it at once, or compute it in an exec node"
}

// countSteps counts work.
func (b *Budget) countSteps(n int) {
	if b.steps -= n; b.steps < 0 || n < 0 {
		b.stopExceeded(fmt.Sprintf("%d steps", maxSteps))
	}
}

// countBytes counts bytes, and the work of writing them.
func (b *Budget) countBytes(n int) {
	if b.bytes -= n; b.bytes < 0 || n < 0 {
		b.stopExceeded(fmt.Sprintf("%d MiB of memory", maxBytes>>20))
	}
	b.countSteps(n >> 8)
}

// checkDepth checks how deep a value is.
func (b *Budget) checkDepth(depth int) {
	if depth > maxDepth {
		b.stopExceeded(fmt.Sprintf("%d levels of depth", maxDepth))
	}
}

// stopExceeded ends the evaluation; [Budget.catchPanic] returns the error.
func (b *Budget) stopExceeded(what string) {
	b.err = &BudgetError{Over: what}
	panic(b.err)
}

// catchPanic returns as an error what ended an evaluation: its budget, or a defect, which must not end
// the process.
func (*Budget) catchPanic(err *error) {
	switch p := recover().(type) {
	case nil:
	case *BudgetError:
		*err = p
	default:
		*err = fmt.Errorf("defect in the evaluation: %v", p)
	}
}
