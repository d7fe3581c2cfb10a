package recorder_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/services/recorder"
)

// How far the recorder is behind everybody sees, whether it runs or not; when it
// has caught up, it isn't any more.
func TestTheRecordersLag(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := plantOn(t, natstest.Start(t), topology.Config{MaxAge: 12 * time.Minute})
		p.fill(10)
		<-time.After(10 * time.Minute)
		lag, err := p.log.Lag(t.Context(), "recorder")
		if err != nil || !lag.Danger() || lag.Events < 10 || lag.Part < 0.8 || lag.Part > 0.9 {
			t.Errorf("%+v, %v", lag, err)
		}
		r, err := recorder.New(recorder.Config{Path: p.path()}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		metrics := prometheus.NewPedanticRegistry()
		metrics.MustRegister(r)
		p.run(r)
		<-time.After(time.Minute)
		if lag, err := p.log.Lag(t.Context(), "recorder"); err != nil || lag != (eventlog.Lag{}) {
			t.Errorf("%+v, %v", lag, err)
		}
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		for name, zero := range map[string]bool{
			"wake_recorder_events_behind": true, "wake_recorder_lag_seconds": true, "wake_recorder_expiry_ratio": true,
			"wake_recorder_void_total": true, "wake_recorder_bad_total": true, "wake_recorder_refused_total": true,
			"wake_recorder_gaps_total": true, "wake_recorder_lost_total": true,
			"wake_recorder_position": false, "wake_recorder_events_total": false, "wake_recorder_batch_seconds": false, "wake_recorder_store_bytes": false,
		} {
			if v, ok := got[name]; !ok || zero != (v == 0) {
				t.Errorf("%s: %v, %t", name, v, ok)
			}
		}
		<-time.After(30 * time.Minute) // everything is dropped: all of it was recorded
		if lag, err := p.log.LagAt(t.Context(), 0); err != nil || lag.Part != 1 {
			t.Errorf("%+v, %v: what was dropped unread is no danger any more, it is done", lag, err)
		}
	})
}

// Where the stream has dropped all that wasn't recorded, nothing is left that could be lost: what begins then is recorded, and the loss told.
func TestLagOfLostEvents(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := plantOn(t, natstest.Start(t), topology.Config{MaxAge: 12 * time.Minute})
		p.fill(10)
		<-time.After(time.Hour)
		p.record(recorder.Config{})
		<-time.After(time.Minute)
		if lag, err := p.log.Lag(t.Context(), "recorder"); err != nil || lag.Danger() || !lag.Gone || lag.Events < 10 {
			t.Errorf("behind what the stream has dropped: %+v, %v", lag, err)
		}
		p.until(p.fill(1))
		<-time.After(time.Minute)
		if lag, err := p.log.Lag(t.Context(), "recorder"); err != nil || lag != (eventlog.Lag{}) {
			t.Errorf("behind the next event: %+v, %v", lag, err)
		}
	})
}

// The recorder goes on with a store whose file an operator has removed, and tells of it: the store is gone when the recorder ends.
func TestFileRemoved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := plantOn(t, natstest.Start(t), topology.Config{})
		path := filepath.Join(t.TempDir(), "recorder.db") // whatever others record into
		board := health.NewBoard(slog.New(slog.DiscardHandler))
		r, err := recorder.New(recorder.Config{Path: path, Health: board}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p.run(r)
		<-time.After(time.Minute)
		if err := board.Err(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if err := board.Err(); err == nil || !strings.Contains(err.Error(), "was removed") {
			t.Errorf("told: %v", err)
		}
	})
}
