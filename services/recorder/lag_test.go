package recorder_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wake/internal/eventlog"
	"wake/internal/natstest"
	"wake/internal/topology"
	"wake/services/recorder"
)

// How far the recorder is behind everybody sees, whether it runs or not; when it
// has caught up, it isn't any more.
func TestTheRecordersLag(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := plantOn(t, natstest.Start(t), topology.Config{MaxAge: time.Hour})
		p.fill(10)
		<-time.After(50 * time.Minute)
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
		if err != nil || len(families) != 3 {
			t.Fatal(families, err)
		}
		for _, f := range families {
			v := f.GetMetric()[0].GetGauge().GetValue()
			if position := f.GetName() == "wake_recorder_position"; position != (v > 0) {
				t.Errorf("%s %v", f.GetName(), v)
			}
		}
		<-time.After(2 * time.Hour) // everything is dropped: all of it was recorded
		if lag, err := p.log.LagAt(t.Context(), 0); err != nil || lag.Part != 1 {
			t.Errorf("%+v, %v: what was dropped unread is no danger any more, it is done", lag, err)
		}
	})
}
