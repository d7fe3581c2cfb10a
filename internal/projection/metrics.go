package projection

import (
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/metric"
)

// metrics are what a projection counts, as wake_<service>_….
type metrics struct {
	*metric.Set

	events, refused, saves, unusable prometheus.Counter
	took                             prometheus.Histogram
	runs, position                   prometheus.Gauge
}

func newMetrics(service string) metrics {
	s := metric.New(service)
	return metrics{
		Set:      s,
		events:   s.Counter("events_total", "Events that were read."),
		refused:  s.Counter("refused_total", "Events that could not be used and were set aside."),
		saves:    s.Counter("saves_total", "Values that were saved."),
		unusable: s.Counter("unusable_total", "Stored values and positions that could not be used and were built again."),
		took:     s.Seconds("fold_seconds", "Time to fold a batch of events."),
		runs:     s.Gauge("runs", "Runs in memory."),
		position: s.Gauge("position", "Position in the log below which everything is saved."),
	}
}

func (m metrics) setGauges(runs int, position uint64) {
	m.runs.Set(float64(runs))
	m.position.Set(float64(position))
}
