package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"

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
