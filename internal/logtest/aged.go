package logtest

import (
	"testing"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// DropEvents has the stream drop all events, as they age out, once the recorder and the snapshotter, which have to run, know those of a run.
func DropEvents(t testing.TB, log *eventlog.Log, runID string) {
	t.Helper()
	var last uint64
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: runID, Kinds: snapshot.Kinds}) {
		if err != nil {
			t.Fatalf("logtest: %v", err)
		}
		last = e.Pos
	}
	for tries := 0; ; tries++ {
		page, err := api.Call[wire.EventsResponse](t.Context(), log.Conn(), log.Names(), wire.VerbEvents, wire.EventsRequest{Run: runID, From: last, To: last})
		state, found, missing := snapshot.Load(t.Context(), log, runID)
		if err == nil && missing == nil && found && len(page.Events) > 0 && state.Position.Seq >= last {
			break
		}
		if tries > 1000 {
			t.Fatalf("logtest: %d isn't known of: %v, %v", last, err, missing)
		}
		<-time.After(10 * time.Millisecond)
	}
	events, err := log.JetStream().Stream(t.Context(), log.Names().EventsStream())
	if err != nil {
		t.Fatalf("logtest: %v", err)
	}
	config := events.CachedInfo().Config
	short := config
	short.MaxAge, short.Duplicates = 100*time.Millisecond, 100*time.Millisecond
	for tries := 0; ; tries++ {
		if _, err := log.JetStream().UpdateStream(t.Context(), short); err != nil || tries > 1000 {
			t.Fatalf("logtest: after %d tries: %v", tries, err)
		}
		if first, end, err := log.Bounds(t.Context()); err == nil && first > end {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if _, err := log.JetStream().UpdateStream(t.Context(), config); err != nil {
		t.Fatalf("logtest: %v", err)
	}
}
