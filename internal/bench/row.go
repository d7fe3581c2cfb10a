package bench

import (
	"context"
	"slices"
)

// Row is a line of the table: a figure, and what it is compared with.
type Row struct {
	Group    string  `json:"group"` // the step that measured it
	Name     string  `json:"name"`  // what was measured
	Unit     string  `json:"unit"`  // of Value and Baseline
	Value    Spread  `json:"value"`
	Against  string  `json:"against,omitempty"` // what Baseline is
	Baseline *Spread `json:"baseline,omitempty"`
	Ratio    *Spread `json:"ratio,omitempty"` // of Value to Baseline, within each round
	Goal     *Goal   `json:"goal,omitempty"`  // of the ratio
}

// Goal is what a ratio should be.
type Goal struct {
	AtLeast float64 `json:"atLeast,omitempty"`
	AtMost  float64 `json:"atMost,omitempty"`
	Met     bool    `json:"met"`
}

// Spread is what the rounds of a measurement came to.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// NewSpread returns the spread of values, of which there is at least one. The
// median of an even number is the lower one of the two in the middle.
func NewSpread(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	return Spread{Median: sorted[(len(sorted)-1)/2], Low: sorted[0], High: sorted[len(sorted)-1]}
}

// NewRow returns the row of a figure that is compared with nothing.
func NewRow(name, unit string, values ...float64) Row {
	return Row{Name: name, Unit: unit, Value: NewSpread(values)}
}

// Versus returns the row with what it is compared with, the values of the same
// rounds.
func (r Row) Versus(against string, values, baseline []float64) Row {
	ratios := make([]float64, len(values))
	for i, v := range values {
		ratios[i] = v / baseline[i]
	}
	base, ratio := NewSpread(baseline), NewSpread(ratios)
	r.Against, r.Baseline, r.Ratio = against, &base, &ratio
	return r
}

// AtLeast returns the row with a goal for its ratio.
func (r Row) AtLeast(goal float64) Row {
	r.Goal = &Goal{AtLeast: goal, Met: r.Ratio.Median >= goal}
	return r
}

// AtMost returns the row with a goal for its ratio.
func (r Row) AtMost(goal float64) Row {
	r.Goal = &Goal{AtMost: goal, Met: r.Ratio.Median <= goal}
	return r
}

// Measure measures once.
type Measure func(ctx context.Context) (float64, error)

// Interleave measures in turn, rounds times, and returns the values of each
// measure. Every other round goes backwards, so that none always follows the
// same one.
func Interleave(ctx context.Context, rounds int, measures ...Measure) ([][]float64, error) {
	values := make([][]float64, len(measures))
	for round := range rounds {
		for i := range measures {
			if round%2 == 1 {
				i = len(measures) - 1 - i
			}
			v, err := measures[i](ctx)
			if err != nil {
				return nil, err
			}
			values[i] = append(values[i], v)
		}
	}
	return values, nil
}

// Quantile returns the value below which the part q of sorted values lies.
func Quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
