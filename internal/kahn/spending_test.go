package kahn_test

import (
	"testing"

	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/pkg/wire"
)

// What a line says of tokens and costs is read, within bounds: lines come from anywhere.
func TestSpendingOfLine(t *testing.T) {
	for ext, want := range map[string]wire.Spending{
		`{"tokens_in":7,"tokens_out":3,"cost_usd":0.5}`:                           {InputTokens: 7, OutputTokens: 3, CostUsd: 0.5},
		`{"tokens_in":7,"cost_usd":0.5,"cost_basis":"` + wire.CostComputed + `"}`: {InputTokens: 7, CostUsd: 0.5, ComputedUsd: 0.5},
		`{"tokens_out":3,"cost_usd":0.5,"cost_basis":"` + wire.CostPartly + `"}`:  {OutputTokens: 3, CostUsd: 0.5, Unpriced: 1},
		`{"tokens_in":-7,"tokens_out":-3,"cost_usd":-1}`:                          {},
		`{"cost_usd":1e300}`:   {CostUsd: wire.MaxCostUsd},
		`{"tokens_in":"many"}`: {},
		`[]`:                   {},
	} {
		e, err := kahn.Parse([]byte(`{"ts":"2026-05-05T09:00:00.000Z","run_id":"r","event":"agent_run_start","agent_id":"a","task":"t","ext":` + ext + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Spending(); got != want {
			t.Errorf("%s: %+v, want %+v", ext, got, want)
		}
	}
	e, err := kahn.Parse([]byte(`{"ts":"2026-05-05T09:00:00.000Z","run_id":"r","event":"agent_run_start","agent_id":"a","task":"t"}`))
	if err != nil || e.Spending() != (wire.Spending{}) {
		t.Errorf("%+v, %v", e, err)
	}
}
