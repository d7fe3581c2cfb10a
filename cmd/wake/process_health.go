package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/health"
)

// publishHealth tells others, such as wake doctor and the alerter, what keeps parts of the process
// from their work.
func (p *process) publishHealth(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	sum := sha256.Sum256([]byte(host + "\x00" + p.locked))
	return p.health.Publish(ctx, p.log.JetStream(), p.app.names, p.name+"-"+hex.EncodeToString(sum[:8]), "wake "+p.name+" on "+host)
}

// troubleMetrics are what a process's parts can't do.
func (p *process) troubleMetrics() (all []prometheus.Collector) {
	for _, part := range []string{"recorder", "snapshotter", "alerter", "sinks", "rules", "runner"} {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wake_troubled", Help: "1 while a part of the process can't do its work, else 0.", ConstLabels: prometheus.Labels{"what": part},
		}, func() float64 {
			if slices.ContainsFunc(p.health.Troubles(), func(t health.Trouble) bool { return health.Service(t.Part) == part }) {
				return 1
			}
			return 0
		}))
	}
	return all
}

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
			Name: "wake_nats_reconnects_total", Help: "How often a server was found again after the connection to NATS was lost, also one that refused it then.",
		}, func() float64 { return float64(nc.Stats().Reconnects) }),
	}
}
