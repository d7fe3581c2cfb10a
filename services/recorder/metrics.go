package recorder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/metric"
	"code.wake.dev/wake/internal/pull"
)

// recorderMetrics are what a recorder shows of itself, as wake_recorder_….
type recorderMetrics struct {
	*metric.Set

	position, derived, behind, late        prometheus.Gauge
	expiry, size, folders                  prometheus.Gauge
	events, void, bad, refused, gaps, lost prometheus.Counter
	took                                   prometheus.Histogram
}

func newMetrics() recorderMetrics {
	s := metric.New(name)
	return recorderMetrics{
		Set:      s,
		position: s.Gauge("position", "Position in the log up to which everything is recorded."),
		derived:  s.Gauge("derived_position", "Position in the log up to which answers take account of it, but for the events themselves."),
		behind:   s.Gauge("events_behind", "Events of the stream that aren't recorded."),
		late:     s.Gauge("lag_seconds", "Age of the oldest event that isn't recorded; 0: all are."),
		expiry:   s.Gauge("expiry_ratio", "Age of the oldest event that isn't recorded, as a part of the age at which the stream drops it; 1: some were dropped."),
		size:     s.Gauge("store_bytes", "Size of the store, looked at every minute."),
		folders:  s.Gauge("folder_bytes", "Size of all snapshots of folders in the object store, looked at every minute."),
		events:   s.Counter("events_total", "Events that were recorded."),
		void:     s.Counter("void_total", "Of these: by fenced writers, or in a place that was taken."),
		bad:      s.Counter("bad_total", "Of these: no events; they are dead letters, too."),
		refused:  s.Counter("refused_total", "Of these: not allowed by the history of their run."),
		gaps:     s.Counter("gaps_total", "Events missing in the sequence of a node."),
		lost:     s.Counter("lost_total", "Events that the stream dropped before they were recorded."),
		took:     s.Seconds("batch_seconds", "Time to record a batch of events."),
	}
}

// countBatch counts a batch.
func (m recorderMetrics) countBatch(r Report, took time.Duration) {
	m.took.Observe(took.Seconds())
	m.events.Add(float64(r.Events))
	m.void.Add(float64(r.Void))
	m.bad.Add(float64(r.Bad))
	m.refused.Add(float64(r.Refused))
	m.gaps.Add(float64(r.Gaps))
	m.lost.Add(float64(r.Lost))
}

// showLag shows how far the recorder is behind at its positions.
func (m recorderMetrics) showLag(pos, derived uint64, lag eventlog.Lag) {
	m.position.Set(float64(pos))
	m.derived.Set(float64(derived))
	m.behind.Set(float64(lag.Events))
	m.late.Set(lag.Age.Seconds())
	m.expiry.Set(lag.Part)
}

// Describe implements [prometheus.Collector].
func (r *Recorder) Describe(ch chan<- *prometheus.Desc) { r.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (r *Recorder) Collect(ch chan<- prometheus.Metric) { r.metrics.Collect(ch) }

// lagEvery is how often the recorder looks how far it is behind.
const lagEvery = 5 * time.Second

// measureEvery is how often it looks how large its store is.
const measureEvery = time.Minute

// fileCheck returns what tells whether the store's file is still where it was when the recorder opened it. A file that was removed is
// written on, until the recorder ends and it is gone.
func (r *Recorder) fileCheck() func() error {
	path := r.store.Archive.Path
	first, err := os.Stat(path)
	if path == "" || err != nil {
		return func() error { return nil }
	}
	return func() error {
		now, err := os.Stat(path)
		if err == nil && os.SameFile(first, now) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("%s was removed, or another file put in its place: the recorder goes on with the one that it has open, which is gone when it ends; `wake export` the runs that the stream has dropped, then start it again", path)
	}
}

// watchLag shows how far the recorder is behind until ctx ends, and says once that
// the stream is about to drop what isn't recorded.
func (r *Recorder) watchLag(ctx context.Context) {
	measured, check := time.Time{}, r.fileCheck()
	for danger := false; ; {
		if pull.Sleep(ctx, lagEvery); ctx.Err() != nil {
			return
		}
		r.c.Health.Set(fileKept, check())
		if time.Since(measured) >= measureEvery {
			wait, cancel := context.WithTimeout(ctx, lagEvery)
			if size, err := r.store.Archive.Size(wait); err == nil {
				r.metrics.size.Set(float64(size))
			}
			cancel()
			measured = time.Now()
		}
		pos, _ := r.recorded.currentPos()
		wait, cancel := context.WithTimeout(ctx, lagEvery)
		lag, err := r.log.LagAt(wait, pos)
		cancel()
		if err != nil {
			continue // the server is away
		}
		derived, _ := r.derived.currentPos()
		r.metrics.showLag(pos, derived, lag)
		if lag.Danger() && !danger {
			r.logger.ErrorContext(ctx, "the stream is about to drop events before they are recorded: let it keep them for longer with `wake init --max-age`",
				"events_behind", lag.Events, "oldest", lag.Age.Round(time.Second).String(), "max_age_percent", int(100*lag.Part))
		}
		danger = lag.Danger()
	}
}
