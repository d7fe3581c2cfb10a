package recorder

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lagEvery is how often the recorder looks how far it is behind.
const lagEvery = 5 * time.Second

// gauges are what a recorder shows of itself, as wake_recorder_….
type gauges struct{ position, behind, expiry prometheus.Gauge }

func newGauges() gauges {
	gauge := func(what, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "wake", Subsystem: name, Name: what, Help: help})
	}
	return gauges{
		position: gauge("position", "Position in the log up to which everything is recorded."),
		behind:   gauge("events_behind", "Events of the stream that aren't recorded."),
		expiry:   gauge("expiry_ratio", "Age of the oldest event that isn't recorded, as a part of the age at which the stream drops it; 1: some were dropped."),
	}
}

// Describe implements [prometheus.Collector].
func (r *Recorder) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range []prometheus.Gauge{r.gauges.position, r.gauges.behind, r.gauges.expiry} {
		g.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (r *Recorder) Collect(ch chan<- prometheus.Metric) {
	for _, g := range []prometheus.Gauge{r.gauges.position, r.gauges.behind, r.gauges.expiry} {
		g.Collect(ch)
	}
}

// watchLag shows how far the recorder is behind until ctx ends, and says once that
// the stream is about to drop what isn't recorded.
func (r *Recorder) watchLag(ctx context.Context) {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for danger := false; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		pos, _ := r.done.at()
		wait, cancel := context.WithTimeout(ctx, lagEvery)
		lag, err := r.log.LagAt(wait, pos)
		cancel()
		if err != nil {
			continue // the server is away
		}
		r.gauges.position.Set(float64(pos))
		r.gauges.behind.Set(float64(lag.Events))
		r.gauges.expiry.Set(lag.Part)
		if lag.Danger() && !danger {
			r.logger.ErrorContext(ctx, "the stream is about to drop events before they are recorded: let it keep them for longer with `wake init --max-age`",
				"events_behind", lag.Events, "oldest", lag.Age.Round(time.Second).String(), "max_age_percent", int(100*lag.Part))
		}
		danger = lag.Danger()
	}
}
