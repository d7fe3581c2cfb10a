package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"

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

// troubleMetric is the metric of what a process's parts can't do.
func (p *process) troubleMetric() prometheus.Collector {
	return troubleMetrics{p, prometheus.NewDesc("wake_troubled", "1 while a part of the process can't do its work, else 0.", []string{"what"}, nil)}
}

// troubleMetrics is a [prometheus.Collector].
type troubleMetrics struct {
	p    *process
	desc *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (t troubleMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- t.desc }

// Collect implements [prometheus.Collector].
func (t troubleMetrics) Collect(ch chan<- prometheus.Metric) {
	ill := map[string]bool{}
	for _, x := range t.p.health.Troubles() {
		ill[health.Service(x.Part)] = true
	}
	for _, part := range []string{"recorder", "snapshotter", "alerter", "sinks", "rules", "runner"} {
		value := 0.0
		if ill[part] {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(t.desc, prometheus.GaugeValue, value, part)
	}
}
