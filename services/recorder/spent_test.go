package recorder_test

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// spent is what a run has used and cost, as a place shows it.
type spent struct {
	In, Out int64
	Usd     float64
	Basis   string
}

// TestSpendingAgrees holds all places to the same numbers.
func TestSpendingAgrees(t *testing.T) {
	files, err := filepath.Glob("../../internal/agent/claude/testdata/*/*.jsonl")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	runs, s, target := ingested(t, files)
	if told := checkSpending(t, files, runs, s, target); told < 15 {
		t.Errorf("%d of them cost anything", told)
	}
}

// checkSpending requires that each place shows the same of each recording, and returns how many of them cost
// anything.
func checkSpending(t *testing.T, files []string, runs map[string][]eventlog.Entry, s *recorder.Store, target string) (told int) {
	t.Helper()
	for i, file := range files {
		id := fmt.Sprintf("r%d", i)
		t.Run(filepath.Base(file), func(t *testing.T) {
			log := runs[id]
			want := spentInState(t, log)
			if want.Usd > 0 {
				told++
			}
			for place, got := range map[string]spent{
				"status": spentInStatus(t, s, id), "stats": spentInStats(t, s, id), "runs": spentInRuns(t, s, id), "SQLite": spentInTable(t, target, id),
				"KAHN": spentInKAHN(t, log), "OTLP": spentInOTLP(t, id, log), "HTML": spentInHTML(t, id, log), "reconciliation": spentInRows(log),
			} {
				slack := 1e-9
				switch place {
				case "KAHN":
					got.Basis = want.Basis // each agent has one of its own
				case "HTML":
					slack = 0.005 // it rounds
				}
				if got.In != want.In || got.Out != want.Out || got.Basis != want.Basis || math.Abs(got.Usd-want.Usd) > slack {
					t.Errorf("%s says %+v, the state %+v", place, got, want)
				}
			}
		})
	}
	return told
}

func entriesOf(log []eventlog.Entry) export.Events {
	return func(yield func(eventlog.Entry, error) bool) {
		for _, e := range log {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func spentInState(t *testing.T, log []eventlog.Entry) spent {
	t.Helper()
	s := run.New(log[0].RunID)
	for _, e := range log {
		if err := run.Apply(s, wire.Position{Seq: e.Pos}, e.Event); err != nil {
			t.Fatal(err)
		}
	}
	u := s.Usage
	return spent{u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens, u.OutputTokens, u.CostUsd, ledger.Basis(u.CostUsd, u.ComputedUsd, u.Unpriced)}
}

func spentInStatus(t *testing.T, s *recorder.Store, id string) spent {
	t.Helper()
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: id}, time.Now(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return spent{r.TokensIn, r.TokensOut, r.CostUsd, r.CostBasis}
}

func spentInStats(t *testing.T, s *recorder.Store, id string) spent {
	t.Helper()
	r, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Run: id}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return spent{r.Total.TokensIn, r.Total.TokensOut, r.Total.CostUsd, r.Total.CostBasis}
}

func spentInRuns(t *testing.T, s *recorder.Store, id string) spent {
	t.Helper()
	r, err := s.Answers.Runs(t.Context(), wire.RunsRequest{Limit: 1000}, time.Now(), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range r.Runs {
		if info.RunID == id {
			return spent{info.TokensIn, info.TokensOut, info.CostUsd, info.CostBasis}
		}
	}
	t.Fatalf("it isn't among %d runs", len(r.Runs))
	return spent{}
}

func spentInTable(t *testing.T, path, id string) (got spent) {
	t.Helper()
	db := openDB(t, path)
	defer func() { _ = db.Close() }()
	var computed float64
	var unpriced int64
	// The id stands in the text, since the two databases know other parameters.
	err := db.QueryRow(fmt.Sprintf(`SELECT coalesce(sum(s.tokens_in), 0), coalesce(sum(s.tokens_out), 0), coalesce(sum(s.cost_usd), 0.0), coalesce(sum(s.computed_usd), 0.0),
		coalesce(sum(s.unpriced), 0) FROM spend s JOIN runs r ON r.id = s.run WHERE r.run = '%s'`, id)).Scan(&got.In, &got.Out, &got.Usd, &computed, &unpriced)
	if err != nil {
		t.Fatal(err)
	}
	got.Basis = ledger.Basis(got.Usd, computed, unpriced)
	return got
}

func spentInKAHN(t *testing.T, log []eventlog.Entry) (got spent) {
	t.Helper()
	p := kahn.NewProjector(kahn.Projection{})
	last := map[string]json.RawMessage{} // totals are those of the agent in the run so far
	for _, e := range log {
		lines, err := p.Add(e.Pos, e.Event)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			var end struct {
				Event string          `json:"event"`
				Agent string          `json:"agent_id"`
				Ext   json.RawMessage `json:"ext"`
			}
			if err := json.Unmarshal(line, &end); err != nil {
				t.Fatal(err)
			}
			if end.Event == kahn.NameRunEnd && end.Ext != nil {
				last[end.Agent] = end.Ext
			}
		}
	}
	for _, ext := range last {
		var x struct {
			In  int64   `json:"tokens_in"`
			Out int64   `json:"tokens_out"`
			Usd float64 `json:"cost_usd"`
		}
		if err := json.Unmarshal(ext, &x); err != nil {
			t.Fatal(err)
		}
		got.In, got.Out, got.Usd = got.In+x.In, got.Out+x.Out, got.Usd+x.Usd
	}
	return got
}

func spentInOTLP(t *testing.T, id string, log []eventlog.Entry) (got spent) {
	t.Helper()
	_, err := export.OTLP(export.Run{ID: id}, entriesOf(log), export.Spans{}, func(body []byte) error {
		var b struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						Name       string
						Attributes []struct {
							Key   string
							Value struct {
								IntValue    string
								DoubleValue float64
								StringValue string
							}
						}
					}
				}
			}
		}
		if err := json.Unmarshal(body, &b); err != nil {
			return err
		}
		for _, s := range b.ResourceSpans[0].ScopeSpans[0].Spans {
			if !strings.HasPrefix(s.Name, "invoke_agent") {
				continue
			}
			for _, a := range s.Attributes {
				n, _ := strconv.ParseInt(a.Value.IntValue, 10, 64)
				switch a.Key {
				case "gen_ai.usage.input_tokens":
					got.In += n
				case "gen_ai.usage.output_tokens":
					got.Out += n
				case "wake.cost_usd":
					got.Usd += a.Value.DoubleValue
				case "wake.cost_basis":
					got.Basis = a.Value.StringValue
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func spentInHTML(t *testing.T, id string, log []eventlog.Entry) (got spent) {
	t.Helper()
	var page strings.Builder
	if _, err := export.HTML(&page, export.Run{ID: id}, entriesOf(log)); err != nil {
		t.Fatal(err)
	}
	got.In, got.Out = countOnCard(t, page.String(), "tokens in"), countOnCard(t, page.String(), "tokens out")
	switch cost := card(t, page.String(), "cost"); {
	case cost == "unknown":
		got.Basis = wire.CostPartly
	case strings.HasPrefix(cost, "$"):
		usd, basis, with := strings.Cut(strings.TrimPrefix(cost, "$"), " (")
		got.Usd, _ = strconv.ParseFloat(strings.ReplaceAll(usd, ",", ""), 64)
		if got.Basis = wire.CostReported; with {
			got.Basis = strings.TrimSuffix(basis, ")")
		}
	}
	return got
}

// card returns what the page of a run shows large.
func card(t *testing.T, page, what string) string {
	t.Helper()
	m := regexp.MustCompile(`<b>([^<]*)</b><span>` + what).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no %s", what)
	}
	return m[1]
}

func countOnCard(t *testing.T, page, what string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(regexp.MustCompile(`\D`).ReplaceAllString(card(t, page, what), ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func spentInRows(log []eventlog.Entry) (got spent) {
	var r ledger.Reconciliation
	for _, e := range log {
		r.Apply(e.Event)
	}
	for _, row := range r.Rows() {
		got.In, got.Out, got.Usd = got.In+row.Ledger.In, got.Out+row.Ledger.Out, got.Usd+row.CostUsd
		if row.CostBasis != "" && got.Basis != wire.CostPartly {
			got.Basis = row.CostBasis
		}
	}
	return got
}
