package main

import (
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
)

// connection is what a process shows of itself and of its connection, as
// wake_build_info and wake_nats_….
type connection struct{ info, connected, reconnects prometheus.Collector }

func processMetrics(nc *nats.Conn) connection {
	return connection{
		info: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wake_build_info", Help: "1; its label is the version of wake.",
			ConstLabels: prometheus.Labels{"version": versionOfThis().Version},
		}, func() float64 { return 1 }),
		connected: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wake_nats_connected", Help: "1 while the process is connected to NATS, else 0.",
		}, func() float64 {
			if nc.IsConnected() {
				return 1
			}
			return 0
		}),
		reconnects: prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "wake_nats_reconnects_total", Help: "How often the connection to NATS was made again.",
		}, func() float64 { return float64(nc.Stats().Reconnects) }),
	}
}

func (c connection) allCollectors() []prometheus.Collector {
	return []prometheus.Collector{c.info, c.connected, c.reconnects}
}

// Describe implements [prometheus.Collector].
func (c connection) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.allCollectors() {
		m.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c connection) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.allCollectors() {
		m.Collect(ch)
	}
}
