package schedule_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// opened is the schedules of an installation, and the bucket that they are in.
func openStore(t *testing.T, nc *nats.Conn, k *seal.Keys) (*schedule.Store, jetstream.KeyValue) {
	t.Helper()
	logtest.Init(t, nc, topology.Config{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := schedule.Open(t.Context(), js, subjects.Default, k)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subjects.Default.StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	return store, kv
}

func dailySchedule(name string) schedule.Schedule {
	return schedule.Schedule{
		Name: name, Cron: "@daily", Zone: "Europe/Berlin", CatchUp: schedule.CatchAll, Since: 5,
		Request: wire.RunRequest{V: wire.Version, Definition: wire.RawString("flow"), Labels: map[string]string{"team": "core"}, By: "somebody"},
	}
}

func addSchedules(t *testing.T, store *schedule.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := store.Add(t.Context(), dailySchedule(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A schedule is stored as it is, and changed only by who has read it as it is.
func TestStoreKeepsSchedules(t *testing.T) {
	store, _ := openStore(t, natstest.New(t).Conn(t), nil)
	if all, err := store.All(t.Context()); err != nil || len(all) > 0 {
		t.Fatalf("%v, %v", all, err)
	}
	if _, err := store.Get(t.Context(), "a"); !errors.Is(err, schedule.ErrNone) {
		t.Errorf("one that isn't there: %v", err)
	}
	if err := store.Remove(t.Context(), "a"); !errors.Is(err, schedule.ErrNone) {
		t.Errorf("one that isn't there is removed: %v", err)
	}
	addSchedules(t, store, "b", "c", "a")
	if err := store.Add(t.Context(), schedule.Schedule{Name: "b"}); !errors.Is(err, schedule.ErrChanged) {
		t.Errorf("a second one of the name: %v", err)
	}
	all, err := store.All(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for i, name := range []string{"a", "b", "c"} {
		if diff := cmp.Diff(dailySchedule(name), all[i].Schedule); diff != "" || all[i].Gone || all[i].Err != nil {
			t.Errorf("%v (-want +got):\n%s", all[i].Err, diff)
		}
	}
	read, err := store.Get(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all[1], read); diff != "" {
		t.Errorf("one (-of all +alone):\n%s", diff)
	}
	read.Paused = true
	if err := store.Update(t.Context(), read); err != nil {
		t.Fatal(err)
	}
	read.Paused = false
	if err := store.Update(t.Context(), read); !errors.Is(err, schedule.ErrChanged) {
		t.Errorf("an update of what was changed meanwhile: %v", err)
	}
	if now, err := store.Get(t.Context(), "b"); err != nil || !now.Paused {
		t.Errorf("%+v, %v", now, err)
	}
	if err := store.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "b"); !errors.Is(err, schedule.ErrNone) {
		t.Errorf("a removed one: %v", err)
	}
	if all, err := store.All(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	addSchedules(t, store, "b") // of a name that was free again
	large := dailySchedule("large")
	large.Request.Definition = wire.RawString(strings.Repeat("x", 8<<20))
	if err := store.Add(t.Context(), large); err == nil || errors.Is(err, schedule.ErrChanged) {
		t.Errorf("what can't be stored: %v", err)
	}
}

// A watch tells what there is, each change and each removal, and ends when its context does.
func TestStoreWatch(t *testing.T) {
	store, _ := openStore(t, natstest.New(t).Conn(t), nil)
	addSchedules(t, store, "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told []string
	for e, err := range store.Watch(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Gone && e.Key == subjects.Default.StateKey("schedule", "a"):
			told = append(told, "a gone")
		case e.Paused:
			told = append(told, e.Name+" paused")
		default:
			told = append(told, e.Name)
		}
		switch len(told) {
		case 1:
			e.Paused = true
			err = store.Update(ctx, e)
		case 2:
			err = store.Add(ctx, dailySchedule("b"))
		case 3:
			err = store.Remove(ctx, "a")
		default:
			cancel()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a", "a paused", "b", "a gone"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// What can't be read, or stands at the key of another schedule, is told as that, and the others are read.
func TestStoreOfForeignValues(t *testing.T) {
	k, err := seal.Parse([]byte("a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) string { return subjects.Default.StateKey("schedule", name) }
	for name, k := range map[string]*seal.Keys{"open": nil, "sealed": k} {
		t.Run(name, func(t *testing.T) {
			nc := natstest.New(t).Conn(t)
			store, kv := openStore(t, nc, k)
			addSchedules(t, store, "a", "z")
			a, err := kv.Get(t.Context(), key("a"))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(a.Value()), "@daily") != (k == nil) {
				t.Errorf("stored is %q", a.Value())
			}
			for name, value := range map[string][]byte{"moved": a.Value(), "garbage": []byte("\xc1")} {
				if _, err := kv.Put(t.Context(), key(name), value); err != nil {
					t.Fatal(err)
				}
				if _, err := store.Get(t.Context(), name); err == nil || errors.Is(err, schedule.ErrNone) {
					t.Errorf("%s: %v", name, err)
				}
			}
			all, err := store.All(t.Context())
			if err != nil || len(all) != 4 {
				t.Fatalf("%v, %v", all, err)
			}
			for _, e := range all {
				if good := e.Key == key("a") || e.Key == key("z"); good != (e.Err == nil) {
					t.Errorf("%s: %v", e.Key, e.Err)
				}
			}
			if without, _ := openStore(t, nc, nil); k != nil {
				if _, err := without.Get(t.Context(), "a"); !errors.Is(err, seal.ErrNoKey) {
					t.Errorf("without keys: %v", err)
				}
			}
		})
	}
}

// An installation without the bucket has no schedules that could be told.
func TestStoreWithoutBucket(t *testing.T) {
	nc := natstest.New(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schedule.Open(t.Context(), js, subjects.Default, nil); err == nil {
		t.Error("it was opened")
	}
	store, _ := openStore(t, nc, nil)
	if err := js.DeleteKeyValue(t.Context(), subjects.Default.StateBucket()); err != nil {
		t.Fatal(err)
	}
	if all, err := store.All(t.Context()); err == nil {
		t.Errorf("all are %v", all)
	}
	told := 0
	for e, err := range store.Watch(t.Context()) {
		if told++; err == nil {
			t.Errorf("told of %+v", e)
		}
	}
	if told != 1 {
		t.Errorf("the end was told %d times", told)
	}
}
