package runner

import (
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"wake/internal/metric"
)

// What metrics of runs and of nodes are labelled with.
const (
	ofRuns  = "run"
	ofNodes = "node"
)

// metrics are what a runner shows of itself, as wake_runner_….
type metrics struct {
	*metric.Set

	fill                  prometheus.Gauge
	waited                *prometheus.HistogramVec
	taken, lost           *prometheus.CounterVec // by [ofRuns] or [ofNodes]
	agents, agentFailures *prometheus.CounterVec // by provider
}

func newMetrics(r *Runner) metrics {
	s := metric.New("runner")
	providers := append(slices.Sorted(maps.Keys(r.cfg.Providers)), fixtureProvider)
	m := metrics{
		Set:           s,
		fill:          s.Gauge("stream_fill_ratio", "Part of the bytes of the stream of events that is in use, looked at every 5 s; 0: it has no limit."),
		waited:        s.SecondsBy("queue_wait_seconds", "Time from when a run or a node was offered until this runner took it.", "what", ofRuns, ofNodes),
		taken:         s.Counters("takeovers_total", "Runs and nodes that another runner had begun.", "what", ofRuns, ofNodes),
		lost:          s.Counters("lost_total", "Runs and nodes that were given up since another runner took over.", "what", ofRuns, ofNodes),
		agents:        s.Counters("agent_starts_total", "Agents that were started.", "provider", providers...),
		agentFailures: s.Counters("agent_errors_total", "Agents that could not be started or ended with an error.", "provider", providers...),
	}
	s.Read("runs_owned", "Runs that this runner owns.", func() float64 { return float64(r.owned.len()) })
	s.Read("nodes_working", "Nodes that this runner is at work on.", func() float64 { return float64(r.working.len()) })
	s.Read("slots", "Nodes that it may work on at once.", func() float64 { return float64(cap(r.slots)) })
	s.Read("slots_used", "Slots that are taken.", func() float64 { return float64(len(r.slots)) })
	s.Read("agents_resting", "Agents that wait for a person and have left their slot to others.", func() float64 { return float64(len(r.resting)) })
	s.Read("draining", "1 once it was told to end, else 0.", func() float64 { return truth(r.isDraining()) })
	s.Read("refusing_runs", "1 while it begins no runs, since the stream is full or the recorder far behind, else 0.",
		func() float64 { return truth(r.refusing.Load() || r.behind.Load()) })
	s.Read("refusing_nodes", "1 while it begins no nodes, since the stream is full, else 0.", func() float64 { return truth(r.full.Load()) })
	return m
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// took notes how long what is taken has waited in its queue.
func (m metrics) took(what string, msg jetstream.Msg) {
	if meta, err := msg.Metadata(); err == nil {
		m.waited.WithLabelValues(what).Observe(max(0, time.Since(meta.Timestamp).Seconds()))
	}
}

// Describe implements [prometheus.Collector].
func (r *Runner) Describe(ch chan<- *prometheus.Desc) { r.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (r *Runner) Collect(ch chan<- prometheus.Metric) { r.metrics.Collect(ch) }
