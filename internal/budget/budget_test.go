package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/seal"
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

// What bounds a budget may have, to the last one.
func TestCheckBounds(t *testing.T) {
	good := wire.SharedBudget{Name: "core", Usd: 5, Then: "pause"}
	for name, edit := range map[string]func(*wire.SharedBudget){
		"dollars alone": func(*wire.SharedBudget) {},
		"tokens alone":  func(b *wire.SharedBudget) { b.Usd, b.Tokens = 0, 1 },
		"most dollars":  func(b *wire.SharedBudget) { b.Usd = wire.MaxCostUsd },
		"most tokens":   func(b *wire.SharedBudget) { b.Tokens = math.MaxInt64 / 2 },
		"an end":        func(b *wire.SharedBudget) { b.Then = "abort" },
		"a value of =":  func(b *wire.SharedBudget) { b.Label = "a=b=c" },
	} {
		b := good
		edit(&b)
		if err := budget.Check(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for want, edit := range map[string]func(*wire.SharedBudget){
		`label: "team=" is no`:    func(b *wire.SharedBudget) { b.Label = "team=" },
		`then: "stop" is unknown`: func(b *wire.SharedBudget) { b.Then = "stop" },
		"usd is no number":        func(b *wire.SharedBudget) { b.Usd = math.Inf(1) },
		"usd is no number of US":  func(b *wire.SharedBudget) { b.Usd, b.Tokens = -1, 5 },
		"tokens is no":            func(b *wire.SharedBudget) { b.Tokens = math.MaxInt64/2 + 1 },
	} {
		b := good
		edit(&b)
		if err := budget.Check(b); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", b, err, want)
		}
	}
}

// What counts is the label as a whole, and what is spent is told with what it is of.
func TestCoversWholeLabel(t *testing.T) {
	b := wire.SharedBudget{Name: "b", Label: "a=b=c", Tokens: 10, Per: "day", Day: "2026-03-02", Spent: wire.Spent{Usd: 9, Tokens: 10}}
	if budget.Covers(b, map[string]string{"a": "b"}) || !budget.Covers(b, map[string]string{"a": "b=c", "x": "y"}) || budget.Covers(b, nil) {
		t.Error("it covers what has another label")
	}
	if now := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC); !budget.IsReached(b, now) || budget.IsReached(b, now.Add(-1)) || budget.IsReached(b, now.Add(24*time.Hour)) {
		t.Error("it isn't reached on its day, or is on another")
	}
	if got := budget.Text(b); got != "b (a=b=c, per day): 10 of 10 tokens" {
		t.Error(got)
	}
	b.Label, b.Per = "", ""
	if got := budget.Text(b); got != "b (all runs): 10 of 10 tokens" {
		t.Error(got)
	}
}

// There may be so many budgets: one more is refused, and each of them may still be changed.
func TestStoreIsFull(t *testing.T) {
	store := openStore(t, natstest.New(t).Conn(t), nil)
	one := wire.SharedBudget{Usd: 1, Then: "pause"}
	for i := range 200 {
		one.Name = fmt.Sprint("b", i)
		if err := putBudget(t, store, one); err != nil {
			t.Fatal(err)
		}
	}
	one.Name = "more"
	if err := putBudget(t, store, one); !errors.Is(err, budget.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	one.Name, one.Usd = "b7", 2
	if err := putBudget(t, store, one); err != nil {
		t.Error(err)
	}
	if all, err := store.All(t.Context()); err != nil || len(all) != 200 || !slices.Contains(all, one) {
		t.Errorf("%d budgets, %v", len(all), err)
	}
	one.Usd = -1
	if err := putBudget(t, store, one); err == nil {
		t.Error("what can't be kept was put")
	}
}

func openStore(t *testing.T, nc *nats.Conn, k *seal.Keys) *budget.Store {
	t.Helper()
	logtest.Init(t, nc, topology.Config{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := budget.Open(t.Context(), js, subjects.Default, k)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// Where there are keys, nothing of a budget can be read without them, and nothing is changed without having been read.
func TestSealedStore(t *testing.T) {
	k, err := seal.Parse([]byte("a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	if err != nil {
		t.Fatal(err)
	}
	nc := natstest.New(t).Conn(t)
	store, open := openStore(t, nc, k), openStore(t, nc, nil)
	secret := wire.SharedBudget{Name: "secret", Usd: 1, Then: "pause"}
	if err := putBudget(t, store, secret); err != nil {
		t.Fatal(err)
	}
	if all, err := store.All(t.Context()); err != nil || !slices.Equal(all, []wire.SharedBudget{secret}) {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := open.All(t.Context()); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("read without keys: %v", err)
	}
	if err := putBudget(t, open, wire.SharedBudget{Name: "other", Usd: 1, Then: "pause"}); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("changed without keys: %v", err)
	}
	if err := open.Remove(t.Context(), "secret"); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("removed without keys: %v", err)
	}
	for all, err := range open.Watch(t.Context()) {
		if len(all) > 0 || !errors.Is(err, seal.ErrNoKey) {
			t.Errorf("watched without keys: %v, %v", all, err)
		}
	}
	if all, err := store.All(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A watch tells each change, that the last budget was removed and that the key was, and ends when its context does.
func TestWatchTellsChanges(t *testing.T) {
	nc := natstest.New(t).Conn(t)
	store := openStore(t, nc, nil)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subjects.Default.StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string) func() error {
		return func() error {
			return putBudget(t, store, wire.SharedBudget{Name: name, Usd: 1, Then: "pause"})
		}
	}
	steps := []struct {
		do   func() error
		want string // names
	}{
		{put("b"), "b"},
		{put("a"), "a b"},
		{func() error { return store.Remove(t.Context(), "b") }, "a"},
		{func() error { return store.Remove(t.Context(), "a") }, ""},
		{put("c"), "c"},
		{func() error { return kv.Delete(t.Context(), subjects.Default.StateKey("budget", wire.NoRun)) }, ""},
		{put("d"), "d"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at, want := 0, ""
	for all, err := range store.Watch(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, b := range all {
			names = append(names, b.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Fatalf("behind step %d: %q, want %q", at, got, want)
		}
		if at == len(steps) {
			cancel()
			continue
		}
		want = steps[at].want
		if err := steps[at].do(); err != nil {
			t.Fatal(err)
		}
		at++
	}
	if at != len(steps) {
		t.Errorf("it ended behind step %d", at)
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
			if err := putBudget(t, store, wire.SharedBudget{Name: fmt.Sprint("b", i), Usd: 1, Then: "pause", Spent: wire.Spent{Usd: 9}}); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	if err := store.Remove(t.Context(), "b3"); err != nil {
		t.Error(err)
	}
	if err := putBudget(t, store, wire.SharedBudget{Name: "b4", Tokens: 7, Then: "abort"}); err != nil {
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

// putBudget stores a budget, in the place of one of its name.
func putBudget(t *testing.T, store *budget.Store, b wire.SharedBudget) error {
	t.Helper()
	_, err := store.Edit(t.Context(), b.Name, func(old *wire.SharedBudget) { *old = b })
	return err
}
