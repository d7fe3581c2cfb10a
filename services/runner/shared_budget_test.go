package runner_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/runner"
	"code.wake.dev/wake/services/runner/internal/purse"
)

// recorder starts a recorder on a store; it returns how to end it.
func (b *bench) recorder(path string) (stop func()) {
	b.t.Helper()
	r, err := recorder.New(recorder.Config{Path: path}, b.open(), b.logger())
	if err != nil {
		b.t.Fatal(err)
	}
	return b.background(r.Run)
}

func (b *bench) budget(one wire.SharedBudget) {
	b.t.Helper()
	store, err := budget.Open(b.t.Context(), b.log.JetStream(), b.log.Names(), b.log.Keys())
	if err == nil {
		_, err = store.Edit(b.t.Context(), one.Name, func(old *wire.SharedBudget) { *old = one })
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func labelled(key, value string) func(*wire.RunRequest) {
	return func(r *wire.RunRequest) { r.Labels = map[string]string{key: value} }
}

// restful is [spender] that takes a minute before each agent spends its dollar.
func restful() *scripted {
	return &scripted{play: func(s *session, say func(wire.Payload) bool) {
		usd := 1.0
		select {
		case <-time.After(time.Minute):
		case <-s.ctx.Done():
			return
		}
		if say(&wire.TurnStart{}) && say(&wire.TurnEnd{TurnCostUsd: &usd, Usage: &wire.TokenUsage{InputTokens: 900, OutputTokens: 100}}) {
			say(&wire.AgentComplete{Result: "done"})
		}
	}}
}

func (b *bench) paused(id, reason string) func() bool {
	return func() bool {
		s := b.fold(id, b.read(id))
		return s.Status == wire.RunPaused && s.Reason == reason
	}
}

func (b *bench) gone(id string) func() bool {
	return func() bool { return b.fold(id, b.read(id)).Result == wire.FlowStatusComplete }
}

// TestSharedBudget has runs of two runners stop for what they have spent together, one of which is killed between, and go on
// when more is granted. Runs without the label don't care.
func TestSharedBudget(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.recorder(filepath.Join(t.TempDir(), "recorder.db"))
		b.budget(wire.SharedBudget{Name: "core", Label: "team=core", Usd: 4, Then: wire.BudgetPause})
		one := func(c *runner.Config) { c.MaxAgents = 1 }
		r1 := b.process("r1", restful(), one)
		b.process("r2", restful(), one)
		// Neither can end before both have spent four.
		four := three + "  - {from: c, to: d}\n"
		four = strings.Replace(four, "edges:", "  - {id: d, type: agent, input: {provider: claude, prompt: d}}\nedges:", 1)
		b.submit("run1", four, labelled("team", "core"))
		b.submit("run2", four, labelled("team", "core"))
		b.submit("other", three, labelled("team", "web"))
		b.awaits("two dollars", func() bool {
			return b.fold("run1", b.read("run1")).Usage.CostUsd+b.fold("run2", b.read("run2")).Usage.CostUsd >= 2
		})
		r1.kill() // and the runner that goes on with its run knows what it has spent
		b.awaits("run1 is paused", b.paused("run1", wire.PauseSharedBudget))
		b.awaits("run2 is paused", b.paused("run2", wire.PauseSharedBudget))
		b.awaits("the other run is complete", b.gone("other"))
		s1, s2 := b.fold("run1", b.read("run1")), b.fold("run2", b.read("run2"))
		if usd := s1.Usage.CostUsd + s2.Usage.CostUsd; usd < 4 || usd > 5 {
			t.Errorf("%v and %v dollars were spent", s1.Usage.CostUsd, s2.Usage.CostUsd)
		}
		if p := first[*wire.FlowPaused](t, b.read("run1")); !strings.HasPrefix(p.Message, "shared budget spent: core (team=core): $4.00 of $4.00; ") {
			t.Errorf("paused for %+v", p)
		}
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1"}); code(r) != "COMMAND_REJECTED" || !strings.Contains(r.Reason, "core (team=core)") {
			t.Errorf("%+v", r)
		}

		// A run that begins now spends nothing; all go on when there is more.
		b.submit("late", three, labelled("team", "core"))
		b.awaits("late is paused", b.paused("late", wire.PauseSharedBudget))
		if s := b.fold("late", b.read("late")); s.Usage.CostUsd != 0 || len(s.Nodes) > 1 {
			t.Errorf("it has spent %v, nodes %v", s.Usage.CostUsd, s.Nodes)
		}
		b.budget(wire.SharedBudget{Name: "core", Label: "team=core", Usd: 100, Then: wire.BudgetPause})
		for _, id := range []string{"run1", "run2", "late"} {
			b.awaits(id+" is complete", b.gone(id))
			if s := b.fold(id, b.read(id)); s.Usage.CostUsd < 3 || s.BudgetFrom != nil {
				t.Errorf("%s has spent %v of %v", id, s.Usage.CostUsd, s.BudgetFrom)
			}
		}
	})
}

// TestSharedBudgetOfADay is of all runs of a day: on the next one they go on, whether the recorder has said so or not.
func TestSharedBudgetOfADay(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.recorder(filepath.Join(t.TempDir(), "recorder.db"))
		b.budget(wire.SharedBudget{Name: "daily", Per: wire.BudgetPerDay, Tokens: 2000, Then: wire.BudgetPause})
		b.runner("r1", restful())
		b.submit("run1", three)
		b.awaits("run1 is paused", b.paused("run1", wire.PauseSharedBudget))
		p := purse.New(b.log)
		b.background(p.Follow)
		b.awaits("the sum", func() bool { _, known := p.Spent(nil, time.Now()); return known })
		if spent, _ := p.Spent(nil, time.Now()); spent == nil || budget.Text(*spent) != "daily (all runs, per day): 2000 of 2000 tokens" {
			t.Errorf("spent is %+v", spent)
		}
		if spent, _ := p.Spent(nil, time.Now().Add(24*time.Hour)); spent != nil {
			t.Errorf("tomorrow %+v is spent", spent)
		}
	})
}

// TestSharedBudgetAborts ends runs, those that begin later, too.
func TestSharedBudgetAborts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.recorder(filepath.Join(t.TempDir(), "recorder.db"))
		b.budget(wire.SharedBudget{Name: "soft", Usd: 2, Then: wire.BudgetPause})
		b.budget(wire.SharedBudget{Name: "strict", Usd: 2, Then: wire.BudgetAbort})
		b.runner("r1", restful())
		b.submit("run1", three)
		if s, _ := b.ended("run1"); s.Status != wire.RunAborted || !strings.HasPrefix(s.Reason, "shared budget spent: strict (all runs): $2.00 of $2.00") {
			t.Errorf("%s (%s)", s.Status, s.Reason)
		}
	})
}

// TestSharedBudgetAbortsLater ends runs that a budget has paused when it is changed to abort them.
func TestSharedBudgetAbortsLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.recorder(filepath.Join(t.TempDir(), "recorder.db"))
		b.budget(wire.SharedBudget{Name: "soft", Usd: 2, Then: wire.BudgetPause})
		b.runner("r1", restful())
		b.submit("run1", three)
		b.awaits("run1 is paused", b.paused("run1", wire.PauseSharedBudget))
		b.budget(wire.SharedBudget{Name: "soft", Usd: 2, Then: wire.BudgetAbort})
		if s, _ := b.ended("run1"); s.Status != wire.RunAborted || !strings.HasPrefix(s.Reason, "shared budget spent: soft") {
			t.Errorf("%s (%s)", s.Status, s.Reason)
		}
	})
}

// TestSharedBudgetWithoutRecorder: what isn't known stops no run, and lets none go on that has stopped; that it isn't kept is told.
func TestSharedBudgetWithoutRecorder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		store := filepath.Join(t.TempDir(), "recorder.db")
		end := b.recorder(store)
		b.budget(wire.SharedBudget{Name: "all", Usd: 1, Then: wire.BudgetPause})
		r1 := b.process("r1", restful())
		b.submit("run1", three)
		b.awaits("run1 is paused", b.paused("run1", wire.PauseSharedBudget))
		end()
		r1.kill()
		board := health.NewBoard(b.logger())
		b.runner("r2", restful(), func(c *runner.Config) { c.Health = board })
		b.awaits("a takeover", func() bool { return b.owner("run1") == "r2" })
		<-time.After(time.Minute)
		if !b.paused("run1", wire.PauseSharedBudget)() {
			t.Errorf("it went on:\n%s", story(b.read("run1")))
		}
		var said strings.Builder
		for _, trouble := range board.Troubles() {
			fmt.Fprintf(&said, "%s: %v\n", trouble.Part, trouble.Err)
		}
		if !strings.Contains(said.String(), "runner: shared budgets: budgets that runs share aren't kept: no recorder answers") {
			t.Errorf("health says %q", said.String())
		}
		b.submit("run2", three, func(r *wire.RunRequest) { r.Labels = map[string]string{"a": "b"} })
		b.awaits("run2 is complete", b.gone("run2"))
		b.recorder(store)
		b.submit("run3", three)
		b.awaits("run3 is paused", b.paused("run3", wire.PauseSharedBudget))
		b.awaits("nothing is wrong any more", func() bool { return len(board.Troubles()) == 0 })
	})
}
