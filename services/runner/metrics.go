package runner

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/metric"
	"code.wake.dev/wake/services/runner/work"
)

// What metrics of runs and of nodes are labelled with.
const (
	ofRuns  = "run"
	ofNodes = "node"
)

// runnerMetrics are what a runner shows of itself, as wake_runner_….
type runnerMetrics struct {
	*metric.Set

	fill                  prometheus.Gauge
	waited                *prometheus.HistogramVec
	takenOver, lost       *prometheus.CounterVec // by [ofRuns] or [ofNodes]
	agents, agentFailures *prometheus.CounterVec // by provider
	folderBytes           prometheus.Counter
	parked, woken         prometheus.Counter
	setAside              prometheus.Counter
}

// newMetrics makes the metrics of a runner that has some providers.
func newMetrics(providers map[string]agent.Provider) runnerMetrics {
	s := metric.New("runner")
	names := append(slices.Sorted(maps.Keys(providers)), work.FixtureProvider)
	m := runnerMetrics{
		Set:           s,
		fill:          s.Gauge("stream_fill_ratio", "Part of the bytes of the stream of events that is in use, looked at every 5 s; 0: it has no limit."),
		waited:        s.SecondsBy("queue_wait_seconds", "Time from when a run or a node was offered until this runner took it.", "what", ofRuns, ofNodes),
		takenOver:     s.Counters("takeovers_total", "Runs and nodes that another runner had begun.", "what", ofRuns, ofNodes),
		lost:          s.Counters("lost_total", "Runs and nodes that were given up since another runner took over.", "what", ofRuns, ofNodes),
		agents:        s.Counters("agent_starts_total", "Agents that were started.", "provider", names...),
		agentFailures: s.Counters("agent_errors_total", "Agents that could not be started or ended with an error.", "provider", names...),
		parked:        s.Counter("parked_total", "Runs that did nothing but wait and were let go until they are due or a command comes."),
		woken:         s.Counter("woken_total", "Parked runs that this runner has woken."),
		setAside:      s.Counter("set_aside_total", "Runs that were paused since they had ended the processes that took them over, or executed a node of them."),
		folderBytes:   s.Counter("folder_stored_bytes_total", "Bytes that snapshots of folders took in the object store, compressed."),
	}
	return m
}
