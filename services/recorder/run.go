package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
)

// Run records and answers until ctx ends. It waits for a database that can't be reached, a
// full disk and a file that other processes use, and fails if the store is of another stream
// ([Lasting]), damaged, or can't be opened. It may be called again then.
func (r *Recorder) Run(ctx context.Context) error {
	err := r.retryStore(ctx, opening, func() (err error) {
		r.store, err = Open(ctx, r.c.Path)
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // that is how it ends
	case r.remedy != "" && errors.Is(err, ErrForeign):
		return fmt.Errorf("recorder: the store is damaged, or another file was put in its place: end the recorder, and restore a backup of the store, or %s", r.remedy)
	case err != nil:
		return err
	}
	r.remedy = r.store.Archive.Anew()
	if err := r.checkOrigin(ctx); err != nil {
		if ctx.Err() != nil {
			err = nil // that is how it ends
		}
		return errors.Join(r.adviseOnOrigin(err), r.store.Close())
	}
	r.store.Answers.HoldLive(max(0, r.c.Live))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serve := func(ctx context.Context) error { return r.newService().Run(ctx, r.log.Conn()) }
	parts := []func(context.Context) error{r.consumeStream, serve, r.followIndex, r.deriveLater, r.followAlerts}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			defer stop()
			ended <- part(ctx)
		}()
	}
	var besides sync.WaitGroup
	for _, look := range []func(context.Context){r.followRetention, r.watchLag, r.followSync, r.followLog, r.followOrders, r.warmAnswers} {
		besides.Go(func() { look(ctx) })
	}
	for range parts {
		err = errors.Join(err, <-ended)
	}
	besides.Wait()
	err = errors.Join(err, r.store.Close())
	if database.Damaged(err) {
		err = fmt.Errorf("%w: the store is damaged: end the recorder, and restore a backup of the store, or %s", err, r.remedy)
	}
	return err
}

// warmAnswers has the answers read what questions about all runs need, so that the first user to ask doesn't wait for that.
func (r *Recorder) warmAnswers(ctx context.Context) {
	if err := r.store.Answers.Warm(ctx, time.Now()); err != nil && ctx.Err() == nil {
		r.logger.DebugContext(ctx, "the first questions about all runs will take longer", "error", err)
	}
}

// consumeStream records what the stream holds after the file's position.
func (r *Recorder) consumeStream(ctx context.Context) error {
	var from wire.Position
	var derived uint64
	err := r.retryStore(ctx, opening, func() (err error) {
		from, derived, err = r.store.Archive.Reached(ctx)
		return err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // that is how it ends
	} else if err != nil {
		return err
	}
	if r.atOnce, err = r.limitsAge(ctx); err != nil {
		return nil //nolint:nilerr // that is how it ends
	}
	r.recorded.moveTo(from.Seq)
	r.derived.moveTo(derived)
	r.logger.InfoContext(ctx, "recording", "store", r.store.Archive.Name, "position", from.Seq)
	consumer := eventlog.Consumer{Durable: name, From: from, Batch: r.c.Batch, Wait: r.c.Wait, Ahead: max(r.c.Batch, maxBatch)}
	for {
		err := r.log.Consume(ctx, consumer, func(ctx context.Context, entries []eventlog.Entry) error {
			return r.c.Trial.Handle(ctx, entries, r.recordEntries)
		})
		if !errors.Is(err, eventlog.ErrBeyond) {
			return r.adviseOnOrigin(err)
		}
		r.c.Health.Set(recording, err) // until events come
		consumer.From.Seq, _ = r.recorded.currentPos()
	}
}

// Lasting reports whether an error of [Recorder.Run] doesn't go away by itself.
func Lasting(err error) bool {
	return errors.Is(err, eventlog.ErrIncarnation) || errors.Is(err, ErrNewer) || errors.Is(err, ErrUnreleased) || errors.Is(err, ErrForeign)
}

// adviseOnOrigin says what to do if the store isn't of this stream.
func (r *Recorder) adviseOnOrigin(err error) error {
	if !errors.Is(err, eventlog.ErrIncarnation) {
		return err
	}
	return fmt.Errorf("%w; if the stream was restored from a backup, restore the store of that backup, too, or %s", err, r.store.Archive.Anew())
}
