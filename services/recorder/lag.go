package recorder

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/pull"
)

// lagEvery is how often the recorder looks how far it is behind.
const lagEvery = 5 * time.Second

// measureEvery is how often it looks how large its store is.
const measureEvery = time.Minute

// watchLag shows how far the recorder is behind until ctx ends, and says once that
// the stream is about to drop what isn't recorded.
func (r *Recorder) watchLag(ctx context.Context) {
	measured := time.Time{}
	for danger := false; ; {
		if pull.Sleep(ctx, lagEvery); ctx.Err() != nil {
			return
		}
		if time.Since(measured) >= measureEvery {
			if size, err := r.store.Archive.Size(ctx); err == nil {
				r.metrics.size.Set(float64(size))
			}
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
