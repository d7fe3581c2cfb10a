package runner

import (
	"context"
	"sync/atomic"
	"time"

	"wake/internal/eventlog"
	"wake/pkg/subjects"
)

// What part of the stream's bytes may be in use for a run, and for an execution,
// to begin. The rest is for what has begun: claims, intents and ends.
const (
	fullForRuns  = 0.8
	fullForNodes = 0.9
)

// fillEvery is how often the runner looks how full the stream is.
const fillEvery = 5 * time.Second

// watchFill looks how full the stream is, and how far behind the recorder, until
// ctx ends.
func (r *Runner) watchFill(ctx context.Context) error {
	tick := time.NewTicker(fillEvery)
	defer tick.Stop()
	for {
		wait, cancel := context.WithTimeout(ctx, fillEvery)
		if fill, err := r.log.Fill(wait); err == nil {
			r.noteFill(fill)
		}
		if lag, err := r.log.Lag(wait, subjects.RecorderConsumer); err == nil {
			r.noteLag(lag)
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// noteFill says once that nothing new is begun, and once that it is again.
func (r *Runner) noteFill(fill float64) {
	r.metrics.fill.Set(fill)
	note := func(is *atomic.Bool, limit float64, what string) {
		full := fill >= limit
		if !is.CompareAndSwap(!full, full) {
			return
		}
		if full {
			r.logger.Error("the stream of events is nearly full: raise its max bytes with `wake init`, which works while it is in use",
				"full_percent", int(100*fill), "not_begun", what)
		} else {
			r.logger.Info("the stream of events has room again", "full_percent", int(100*fill), "begun_again", what)
		}
	}
	note(&r.refusing, fullForRuns, "runs")
	note(&r.full, fullForNodes, "nodes")
}

// noteLag says once that no runs are begun because the stream is about to drop what
// isn't recorded, and once that they are again.
func (r *Runner) noteLag(lag eventlog.Lag) {
	behind := lag.Danger()
	if !r.behind.CompareAndSwap(!behind, behind) {
		return
	}
	if behind {
		r.logger.Error("the stream of events is about to drop what isn't recorded: start the recorder, or let the stream keep events for longer with `wake init --max-age`",
			"events_behind", lag.Events, "oldest", lag.Age.Round(time.Second).String(), "max_age_percent", int(100*lag.Part), "not_begun", "runs")
	} else {
		r.logger.Info("the recorder has caught up", "events_behind", lag.Events, "begun_again", "runs")
	}
}

// roomForRun fails with errFull or errBehind if no run may begin.
func (r *Runner) roomForRun(ctx context.Context) error {
	fill, err := r.log.Fill(ctx)
	if err != nil {
		return err
	}
	r.noteFill(fill)
	if fill >= fullForRuns {
		return errFull
	}
	lag, err := r.log.Lag(ctx, subjects.RecorderConsumer)
	if err != nil {
		return err
	}
	if r.noteLag(lag); lag.Danger() {
		return errBehind
	}
	return nil
}
