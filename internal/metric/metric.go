// Package metric makes the metrics of a room, as Prometheus wants them:
// wake_<subsystem>_<name>. Their labels have few values, all known beforehand: never
// the id of a run or a node. docs/operations.md lists them.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Set is the metrics of one subsystem. It is a [prometheus.Collector]. It may be
// added to until it is registered.
type Set struct {
	subsystem string
	all       []prometheus.Collector
}

// New returns an empty set.
func New(subsystem string) *Set { return &Set{subsystem: subsystem} }

// Counter adds a counter; its name ends in _total.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return addCollector(s, prometheus.NewCounter(prometheus.CounterOpts{Namespace: "wake", Subsystem: s.subsystem, Name: name, Help: help}))
}

// Counters adds a counter for each of the given values of a label, which are there
// from the beginning: what has never happened counts as 0.
func (s *Set) Counters(name, help, label string, values ...string) *prometheus.CounterVec {
	v := s.CounterBy(name, help, label)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// CounterBy adds a counter by labels.
func (s *Set) CounterBy(name, help string, labels ...string) *prometheus.CounterVec {
	return addCollector(s, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "wake", Subsystem: s.subsystem, Name: name, Help: help}, labels))
}

// Gauge adds a value that goes up and down.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return addCollector(s, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "wake", Subsystem: s.subsystem, Name: name, Help: help}))
}

// Read adds a value that is asked for when a collector reads the metrics, by several goroutines
// maybe.
func (s *Set) Read(name, help string, value func() float64) {
	addCollector(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "wake", Subsystem: s.subsystem, Name: name, Help: help}, value))
}

// Seconds adds the distribution of durations, from 1 ms to 65 s.
func (s *Set) Seconds(name, help string) prometheus.Histogram {
	return addCollector(s, prometheus.NewHistogram(s.secondsOpts(name, help)))
}

// SecondsBy adds a distribution for each of the given values of a label.
func (s *Set) SecondsBy(name, help, label string, values ...string) *prometheus.HistogramVec {
	v := addCollector(s, prometheus.NewHistogramVec(s.secondsOpts(name, help), []string{label}))
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

func (s *Set) secondsOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: "wake", Subsystem: s.subsystem, Name: name, Help: help,
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}
}

func addCollector[C prometheus.Collector](s *Set, c C) C {
	s.all = append(s.all, c)
	return c
}

// Describe implements [prometheus.Collector].
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.all {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.all {
		c.Collect(ch)
	}
}
