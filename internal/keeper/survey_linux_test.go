package keeper_test

import (
	"os"
	"reflect"
	"testing"
	"time"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

// TestSurvey looks at a keeper whose runner is attached, and which stays so.
func TestSurvey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: dir, Fence: keeper.Watchdogs, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	label := keeper.Label{Run: "run1", Node: "a", Exec: "a#1", Position: 7}
	now := process.Uptime()
	k, err := shelf.Open(t.Context(), label, 0, now+time.Minute, now+2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Quit(0) })
	survey := func() keeper.Finding {
		t.Helper()
		found, err := keeper.Survey(t.Context(), dir)
		if err != nil || len(found) != 1 || !reflect.DeepEqual(found[0].Label, label) {
			t.Fatalf("%+v, %v", found, err)
		}
		return found[0]
	}
	if f := survey(); !f.Lives || f.Full != "" || f.Frozen {
		t.Errorf("%+v", f)
	}
	full := make(chan struct{}, 1)
	k.Watch(func(s keeper.State) {
		if s.Full != "" {
			full <- struct{}{}
		}
	})
	p, err := k.Start(process.Config{Name: "agent", Journal: true, Argv: []string{"sh", "-c", "yes"}, Env: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	<-full
	if f := survey(); !f.Lives || f.Full == "" || f.Bytes < 1<<19 {
		t.Errorf("%+v", f)
	}
	if err := k.Quit(0); err != nil {
		t.Fatal(err)
	}
	if f := survey(); f.Lives || f.Bytes < 1<<19 {
		t.Errorf("%+v", f)
	}
	if found, err := keeper.Survey(t.Context(), dir+"/none"); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
