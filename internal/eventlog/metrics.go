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

func newMetrics(l *Log) logMetrics {
	s := metric.New("log")
	m := logMetrics{
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
	s.Read("waiting_events", "Events that wait to be stored; those that an earlier process left count once they are read.", l.sumQueues(func(q *queue) float64 { return float64(q.frameCount()) }))
	s.Read("waiting_bytes", "Size of the events that wait to be stored.", l.sumQueues(func(q *queue) float64 { return float64(q.heldBytes()) }))
	s.Read("spool_bytes", "Size of the events that wait on disk, since the server is away or slow.", l.sumQueues(func(q *queue) float64 {
		if !q.spooling {
			return 0
		}
		return float64(q.disk.size)
	}))
	s.Read("failing", "1 while events can't be stored, else 0.", func() float64 {
		if l.Health() != nil {
			return 1
		}
		return 0
	})
	return m
}

// Describe implements [prometheus.Collector].
func (l *Log) Describe(ch chan<- *prometheus.Desc) { l.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (l *Log) Collect(ch chan<- prometheus.Metric) { l.metrics.Collect(ch) }

// sumQueues adds up what the queues of events say.
func (l *Log) sumQueues(of func(*queue) float64) func() float64 {
	return func() (total float64) {
		for _, lane := range l.eventLanes() {
			lane.mu.Lock()
			total += of(&lane.queue)
			lane.mu.Unlock()
		}
		return total
	}
}

// eventLanes are the lanes that store events.
func (l *Log) eventLanes() []*lane {
	if l.found == nil {
		return l.lanes
	}
	return append([]*lane{l.found}, l.lanes...)
}

// frameCount returns how many frames wait, as far as that is known: an earlier
// process's are counted when they are read.
func (q *queue) frameCount() (n int) {
	if !q.spooling {
		return len(q.window)
	}
	for _, g := range q.disk.segments {
		n += g.frames
	}
	return n
}
