package ledger_test

import (
	"testing"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// TestCheckLimits refuses what nothing would keep to.
func TestCheckLimits(t *testing.T) {
	for json, want := range map[string]string{
		``:                       "",
		`null`:                   "",
		`{}`:                     "",
		`{"maxCostUsd":2.5}`:     "",
		`{"maxTokens":500000}`:   "",
		`{"maxCostUsd":0}`:       "", // which lifts that of the flow
		`{"then":"abort"}`:       "",
		`{"maxDurationMs":0}`:    "",
		`{"maxDurationMs":1.5}`:  "limits: maxDurationMs is no whole number of milliseconds from 0 to 2419200000",
		`{"maxDurationMs":1e12}`: "limits: maxDurationMs is no whole number of milliseconds from 0 to 2419200000",
		`{"maxDurationMs":"1h"}`: "limits: maxDurationMs is no whole number of milliseconds from 0 to 2419200000",
		`5`:                      "limits are an object of maxCostUsd, maxTokens, then and maxDurationMs",
		`{"maxCostUsd":-1}`:      "limits: maxCostUsd is no number of US dollars from 0 on",
		`{"maxCostUsd":"5"}`:     "limits: maxCostUsd is no number of US dollars from 0 on",
		`{"maxCostUsd":1e300}`:   "limits: maxCostUsd is no number of US dollars from 0 on",
		`{"maxTokens":1.5}`:      "limits: maxTokens is no whole number from 0 on",
		`{"maxTokens":1e30}`:     "limits: maxTokens is no whole number from 0 on",
		`{"then":"stop"}`:        "limits: then is pause or abort",
		`{"maxCostUSD":5}`:       `limits: "maxCostUSD" is unknown; there are maxCostUsd, maxTokens, then and maxDurationMs`,
		`{"then":["pause"]}`:     "limits: then is pause or abort",
		`{"maxTokens":null}`:     "limits: maxTokens is no whole number from 0 on",
		`{"maxTokens":{"a":1}}`:  "limits: maxTokens is no whole number from 0 on",
	} {
		raw, err := wire.RawFromJSON([]byte(json))
		if err != nil && json != "" {
			t.Fatal(err)
		}
		got := ""
		if err := ledger.CheckLimits(raw); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", json, got, want)
		}
		ledger.BudgetOf(raw) // reads anything
	}
}

// TestBudget says how much of a budget is spent, and of which of its bounds.
func TestBudget(t *testing.T) {
	spent := func(usd float64, tokens int64) wire.Spent { return wire.Spent{Usd: usd, Tokens: tokens} }
	for name, test := range map[string]struct {
		budget      ledger.Budget
		spent, from wire.Spent
		share       float64
		reached     bool
		text        string
	}{
		"none":          {ledger.Budget{}, spent(9, 9), spent(0, 0), 0, false, "$9.00 of $0.00"},
		"money":         {ledger.Budget{Usd: 2}, spent(1, 99), spent(0, 0), 0.5, false, "$1.00 of $2.00"},
		"all of it":     {ledger.Budget{Usd: 0.3}, spent(0.1+0.1+0.1, 99), spent(0, 0), 1, true, "$0.30 of $0.30"},
		"as rounded":    {ledger.Budget{Usd: 0.3}, spent(0.29999999999999993, 99), spent(0, 0), 1, true, "$0.30 of $0.30"},
		"tokens":        {ledger.Budget{Tokens: 100}, spent(50, 110), spent(0, 0), 1.1, true, "110 of 100 tokens"},
		"the nearer":    {ledger.Budget{Usd: 2, Tokens: 100}, spent(1, 90), spent(0, 0), 0.9, false, "90 of 100 tokens"},
		"the other":     {ledger.Budget{Usd: 2, Tokens: 100}, spent(2, 90), spent(0, 0), 1, true, "$2.00 of $2.00"},
		"granted again": {ledger.Budget{Usd: 2, Tokens: 100}, spent(3.5, 120), spent(2.5, 100), 0.5, false, "$1.00 of $2.00"},
	} {
		t.Run(name, func(t *testing.T) {
			if share, _ := test.budget.Share(test.spent, test.from); share < test.share-1e-9 || share > test.share+1e-9 {
				t.Errorf("share %v, want %v", share, test.share)
			}
			if got := test.budget.IsReached(test.spent, test.from); got != test.reached {
				t.Errorf("reached %v", got)
			}
			if got := test.budget.Text(test.spent, test.from); got != test.text {
				t.Errorf("text %q, want %q", got, test.text)
			}
		})
	}
}

// TestInherited says what a run that another one starts has of its limits: a time of its own.
func TestInherited(t *testing.T) {
	for json, want := range map[string]string{
		`{"maxCostUsd":1,"maxDurationMs":5}`: `{"maxCostUsd":1}`,
		`{"maxDurationMs":5}`:                `null`,
		`{"maxTokens":7,"then":"abort"}`:     `{"maxTokens":7,"then":"abort"}`,
		`null`:                               `null`,
	} {
		raw, err := wire.RawFromJSON([]byte(json))
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.AppendJSON(nil, ledger.Inherited(raw))
		if err != nil && want != "null" {
			t.Fatal(err)
		}
		if len(got) == 0 {
			got = []byte("null")
		}
		if string(got) != want {
			t.Errorf("%s: %s, want %s", json, got, want)
		}
	}
}
