package budget_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func TestCheck(t *testing.T) {
	good := wire.SharedBudget{Name: "core", Label: "team=core", Per: "day", Usd: 5, Tokens: 100, Then: "pause"}
	for want, edit := range map[string]func(*wire.SharedBudget){
		"":                        func(*wire.SharedBudget) {},
		"name: ":                  func(b *wire.SharedBudget) { b.Name = "" },
		`label: "team" is no`:     func(b *wire.SharedBudget) { b.Label = "team" },
		`label: "=x" is no`:       func(b *wire.SharedBudget) { b.Label = "=x" },
		`per: "week" is unknown`:  func(b *wire.SharedBudget) { b.Per = "week" },
		`then: "" is unknown`:     func(b *wire.SharedBudget) { b.Then = "" },
		"usd is no number":        func(b *wire.SharedBudget) { b.Usd = math.NaN() },
		"tokens is no":            func(b *wire.SharedBudget) { b.Tokens = -1 },
		"it bounds nothing: usd ": func(b *wire.SharedBudget) { b.Usd, b.Tokens = 0, 0 },
	} {
		b := good
		edit(&b)
		if err := budget.Check(b); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", b, err, want)
		}
	}
}

func TestShare(t *testing.T) {
	now := time.Date(2026, 3, 1, 23, 59, 59, 0, time.FixedZone("", -3600)) // the 2nd, UTC
	core := wire.SharedBudget{Name: "core", Label: "team=core", Usd: 4, Spent: wire.Spent{Usd: 4, Tokens: 1 << 40}}
	daily := wire.SharedBudget{Name: "daily", Per: "day", Tokens: 100, Day: "2026-03-02", Spent: wire.Spent{Tokens: 50}}
	if !budget.IsReached(core, now) || budget.IsReached(daily, now) || budget.Text(core) != "core (team=core): $4.00 of $4.00" {
		t.Error(budget.Text(core))
	}
	if share, ofTokens := budget.Share(daily, now); share != 0.5 || !ofTokens {
		t.Errorf("share %v, %v", share, ofTokens)
	}
	daily.Day, daily.Spent.Tokens = "2026-03-01", 100
	if share, _ := budget.Share(daily, now); share != 0 || budget.IsReached(daily, now) {
		t.Errorf("of yesterday, share %v", share)
	}
	for labels, want := range map[string]bool{"team=core": true, "team=web": false, "x=core": false, "": false} {
		key, value, _ := strings.Cut(labels, "=")
		if got := budget.Covers(core, map[string]string{key: value}); got != want {
			t.Errorf("%q: %v", labels, got)
		}
	}
	if !budget.Covers(daily, nil) {
		t.Error("all runs are not covered")
	}
}

// TestStore has many change the budgets at once; a watch sees what they have left.
func TestStore(t *testing.T) {
	nc := natstest.New(t).Conn(t)
	logtest.Init(t, nc, topology.Config{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := budget.Open(t.Context(), js, subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := store.All(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("%v, %v", all, err)
	}
	if err := store.Remove(t.Context(), "b1"); !errors.Is(err, budget.ErrNone) {
		t.Error(err)
	}
	var writing sync.WaitGroup
	for i := range 8 {
		writing.Go(func() {
			if err := store.Put(t.Context(), wire.SharedBudget{Name: fmt.Sprint("b", i), Usd: 1, Then: "pause", Spent: wire.Spent{Usd: 9}}); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	if err := store.Remove(t.Context(), "b3"); err != nil {
		t.Error(err)
	}
	if err := store.Put(t.Context(), wire.SharedBudget{Name: "b4", Tokens: 7, Then: "abort"}); err != nil {
		t.Error(err)
	}
	var names []string
	for all, err := range store.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(all, func(b wire.SharedBudget) bool { return b.Name == "b4" }); i < 0 || all[i] != (wire.SharedBudget{Name: "b4", Tokens: 7, Then: "abort"}) {
			t.Errorf("%+v", all)
		}
		for _, b := range all {
			names = append(names, b.Name)
			if b.Spent != (wire.Spent{}) {
				t.Errorf("%+v was stored", b)
			}
		}
		break
	}
	if diff := cmp.Diff([]string{"b0", "b1", "b2", "b4", "b5", "b6", "b7"}, names); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
}
