package bookmark_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// Pages of fork points, of any size, are together what all of them are, ancestors' too.
func TestPages(t *testing.T) {
	log := logtest.Start(t)
	owner, node, err := bench.Begin(t.Context(), log, "parent")
	if err != nil {
		t.Fatal(err)
	}
	mark := func(label string) uint64 {
		return logtest.Append(t, owner, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: label}})
	}
	work := func(w *eventlog.Writer, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			e, err := bench.Work(i)
			if err == nil {
				err = w.Enqueue(t.Context(), e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	work(node, 0, 300)
	mark("moved")
	work(node, 300, 9000)
	parted := mark("kept")
	mark("moved")
	work(node, 9000, 9100)
	parent, err := history.StateAt(t.Context(), log, "parent", parted)
	if err != nil {
		t.Fatal(err)
	}
	child := logtest.Claim(t, log, "child", wire.RunNode)
	logtest.Append(t, child, &wire.Event{Payload: &wire.RunForked{ParentRun: "parent", ParentPos: parted, Label: "kept", State: wire.RawOf(parent)}})
	for i := range 5 {
		pos := logtest.Append(t, child, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint("own-", i)}})
		logtest.Append(t, child, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint("same-", i), AtPos: pos}})
		logtest.Append(t, child, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint("again-", i), AtPos: pos}})
	}
	automatic, err := bookmark.List(t.Context(), log, "parent")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range automatic[len(automatic)-5:] { // points that have been given their own names, as labels without a name are
		logtest.Append(t, owner, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: p.Label, AtPos: p.Position}})
	}

	for _, run := range []string{"parent", "child"} {
		want, err := bookmark.List(t.Context(), log, run)
		if err != nil || len(want) < 900 {
			t.Fatalf("%d points, %v", len(want), err)
		}
		for _, limit := range []int{1, 3, 7, 400, bookmark.MaxPoints} {
			var got []bookmark.Point
			for cursor, pages := uint64(0), 0; ; pages++ {
				page, next, err := bookmark.ListBefore(t.Context(), log, run, cursor, limit)
				if err != nil || len(page) > max(limit, 3) || len(page) == 0 && next > 0 {
					t.Fatalf("%s by %d: %d points, then %d, %v", run, limit, len(page), next, err)
				}
				got, cursor = append(slices.Clone(page), got...), next
				if next == 0 {
					break
				}
				if limit < 100 && pages == 6 { // the rest is alike
					break
				}
			}
			if diff := cmp.Diff(want[len(want)-min(len(want), len(got)):], got); diff != "" || limit >= 400 && len(got) != len(want) {
				t.Errorf("%s by %d: %d points, want %d (-all +pages):\n%.2000s", run, limit, len(got), len(want), diff)
			}
		}
	}
	for _, limit := range []int{0, -1, 1_000_000_000} {
		if _, _, err := bookmark.ListBefore(t.Context(), log, "parent", 0, limit); err == nil {
			t.Errorf("a page of %d", limit)
		}
	}
	if _, _, err := bookmark.ListBefore(t.Context(), log, "nobody", 0, 10); err == nil {
		t.Error("a run that isn't there has points")
	}
	if page, next, err := bookmark.ListBefore(t.Context(), log, "child", 1<<60, 2); err != nil || len(page) != 3 || next == 0 {
		t.Errorf("before a position of another log: %d points, then %d, %v", len(page), next, err)
	}
	if page, next, err := bookmark.ListBefore(t.Context(), log, "parent", 1, 2); err != nil || len(page) != 0 || next != 0 {
		t.Errorf("before the beginning: %d points, then %d, %v", len(page), next, err)
	}
}
