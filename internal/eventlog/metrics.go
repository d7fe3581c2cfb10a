package eventlog

import (
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/metric"
)

// logMetrics are what a log counts, as wake_log_….
type logMetrics struct {
	*metric.Set

	events, batches, resent, refused, fenced, void prometheus.Counter
	took                                           prometheus.Histogram
	letters                                        *prometheus.CounterVec
}

func newMetrics() logMetrics {
	s := metric.New("log")
	return logMetrics{
		Set:     s,
		events:  s.Counter("events_total", "Events that were stored, but for claims of runs and nodes."),
		batches: s.Counter("batches_total", "Batches of events that were stored."),
		took:    s.Seconds("store_seconds", "Time to store a batch, with all attempts."),
		resent:  s.Counter("resends_total", "Further attempts to store a batch, or what was left of it."),
		refused: s.Counter("refused_total", "Attempts that the server refused."),
		fenced:  s.Counter("fenced_total", "Writers that found that their node has another one."),
		void:    s.Counter("void_total", "Messages on a node's subject that are no event of its writer, nor a claim: another client may publish events."),
		letters: s.Counters("dead_letters_total", "What could not be used and was set aside, by the service that found it.",
			"source", DeadService, "runner", "recorder", "snapshotter", "alerter"),
	}
}
