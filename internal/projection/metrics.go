package projection

import "github.com/prometheus/client_golang/prometheus"

// metrics are what a projection counts, as wake_<service>_….
type metrics struct {
	events, refused, saves, unusable prometheus.Counter
	runs, position                   prometheus.Gauge
}

func newMetrics(service string) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "wake", Subsystem: service, Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "wake", Subsystem: service, Name: name, Help: help})
	}
	return metrics{
		events:   counter("events_total", "Events that were read."),
		refused:  counter("refused_total", "Events that could not be used and were set aside."),
		saves:    counter("saves_total", "Values that were saved."),
		unusable: counter("unusable_total", "Stored values and positions that could not be used and were built again."),
		runs:     gauge("runs", "Runs in memory."),
		position: gauge("position", "Position in the log below which everything is saved."),
	}
}

func (m metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.refused, m.saves, m.unusable, m.runs, m.position}
}

// Describe implements [prometheus.Collector].
func (m metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

func (m metrics) show(runs int, position uint64) {
	m.runs.Set(float64(runs))
	m.position.Set(float64(position))
}
