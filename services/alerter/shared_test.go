package alerter_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
	"code.wake.dev/wake/services/recorder"
)

// Budgets that runs share are told at 50, 80 and 100 %, each once, by whichever alerter looks, however often it begins anew;
// another amount is another budget.
func TestSharedBudgets(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, log := logtest.StartServer(t)
		var out printed
		for range 2 { // alerters
			start(t, logtest.Open(t, s.Conn(t)), alerter.Config{Out: &out})
		}
		store, err := budget.Open(t.Context(), log.JetStream(), log.Names(), log.Keys())
		if err != nil {
			t.Fatal(err)
		}
		put := func(b wire.SharedBudget) {
			t.Helper()
			if _, err := store.Edit(t.Context(), b.Name, func(old *wire.SharedBudget) { *old = b }); err != nil {
				t.Fatal(err)
			}
		}
		put(wire.SharedBudget{Name: "daily", Per: wire.BudgetPerDay, Usd: 10, Then: wire.BudgetPause})
		<-time.After(time.Minute) // no recorder answers: nothing is told, and nothing else is held up
		r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, logtest.Open(t, s.Conn(t)), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		logtest.Go(t, r.Run)
		h := &history{t: t, log: log, run: "r1", writers: map[string]*eventlog.Writer{}}
		for _, usd := range []float64{4, 2, 3, 2} { // 40, 60, 90 and 110 %
			h.add(about("coder", &wire.TurnEnd{TurnCostUsd: &usd}))
			<-time.After(2 * time.Minute)
		}
		put(wire.SharedBudget{Name: "daily", Per: wire.BudgetPerDay, Usd: 20, Then: wire.BudgetPause})
		<-time.After(2 * time.Minute)
		var got []string
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, "Shared") {
				got = append(got, line)
			}
		}
		want := []string{
			"[subagent:wake] 💰 Shared budget daily (all runs, per day): $6.00 of $10.00 spent\n",
			"[subagent:wake] 💰 Shared budget daily (all runs, per day): $9.00 of $10.00 spent\n",
			"[subagent:wake] 💰 Shared budget daily (all runs, per day): $11.00 of $10.00 spent\n",
			"[subagent:wake] 💰 Shared budget daily (all runs, per day): $11.00 of $20.00 spent\n",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}
