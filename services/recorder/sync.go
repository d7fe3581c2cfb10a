package recorder

import (
	"context"
	"time"
)

// syncEvery is how often what was recorded is synced. What a loss of power takes back before that, the stream has: it keeps
// events for a minute at least.
const syncEvery = 5 * time.Second

// followSync syncs what was recorded, now and then, until ctx ends.
func (r *Recorder) followSync(ctx context.Context) {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for synced := uint64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		pos, _ := r.recorded.currentPos()
		if pos == synced {
			continue
		}
		err := r.store.Archive.Sync()
		r.c.Health.Set(syncing, err)
		if err == nil {
			synced = pos
		}
	}
}

// limitsAge reports whether the stream drops events by their age. Power may be away for longer than that: then each
// batch is synced.
func (r *Recorder) limitsAge(ctx context.Context) (limited bool, err error) {
	err = r.retryServer(ctx, func() error {
		s, err := r.log.JetStream().Stream(ctx, r.log.Names().EventsStream())
		if err == nil {
			limited = s.CachedInfo().Config.MaxAge > 0
		}
		return err
	})
	return limited, err
}
