package main

import (
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
)

// processMetrics are what a process shows of itself and of its connection.
func processMetrics(nc *nats.Conn) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wake_build_info", Help: "1; its label is the version of wake.",
			ConstLabels: prometheus.Labels{"version": versionOfThis().Version},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wake_nats_connected", Help: "1 while the process is connected to NATS, else 0.",
		}, func() float64 {
			if nc.IsConnected() {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "wake_nats_reconnects_total", Help: "How often the connection to NATS was made again.",
		}, func() float64 { return float64(nc.Stats().Reconnects) }),
	}
}
