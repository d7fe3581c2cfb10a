package recorder

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/tracing"
)

// maxBlobs bounds the large fields that are held in memory for one transaction.
const maxBlobs = 32 << 20

// recordEntries stores entries in one transaction, or in a few if they refer to many
// large fields.
func (r *Recorder) recordEntries(ctx context.Context, entries []eventlog.Entry) error {
	b := Batch{Incarnation: r.log.Incarnation(), Blobs: map[string][]byte{}}
	size, from := 0, 0
	for i := range entries {
		fetched, err := r.prepareEntry(ctx, &entries[i], b.Blobs)
		if err != nil {
			return err
		}
		if size += fetched; size > maxBlobs {
			b.Entries = entries[from : i+1]
			if err := r.commitBatch(ctx, b); err != nil {
				return err
			}
			size, from = 0, i+1
			clear(b.Blobs)
		}
	}
	b.Entries = entries[from:]
	return r.commitBatch(ctx, b)
}

// commitBatch stores one transaction and reports what was odd about it.
func (r *Recorder) commitBatch(ctx context.Context, b Batch) error {
	if len(b.Entries) == 0 {
		return nil
	}
	behind := b.Entries[len(b.Entries)-1].Behind > uint64(r.c.Batch)
	b.Later = behind
	var report Report
	begun := time.Now()
	ctx, span := r.log.Traced(ctx, name, b.Entries, begun)
	defer span.End()
	err := r.retryStore(ctx, recording, func() (err error) {
		if report, err = r.store.Index.Record(ctx, b); err == nil && r.atOnce {
			err = r.store.Archive.Sync()
		}
		return err
	})
	if err != nil {
		tracing.Fail(span, err)
		return err
	}
	r.recorded.setBusy(behind)
	r.metrics.countBatch(report, time.Since(begun))
	r.takeReport(ctx, report)
	if report.Derived < report.Position.Seq {
		select {
		case r.later <- struct{}{}:
		default: // that is known
		}
	}
	return nil
}

// takeReport takes what a transaction came to.
func (r *Recorder) takeReport(ctx context.Context, report Report) {
	r.recorded.moveTo(report.Position.Seq)
	r.derived.moveTo(report.Derived)
	for _, d := range report.Defects {
		r.logger.ErrorContext(ctx, "event not understood", "run", d.Entry.RunID, "position", d.Entry.Pos, "reason", d.Reason)
		if err := r.retryServer(ctx, func() error { return r.log.DeadLetter(ctx, name, d.Reason, d.Entry) }); err != nil {
			return
		}
	}
	if report.Lost > 0 {
		r.logger.ErrorContext(ctx, "the stream dropped events before they were recorded", "lost", report.Lost, "position", report.Position.Seq)
	}
	if report.Gaps > 0 || report.Void > 0 || report.Bad > 0 || report.Refused > 0 {
		r.logger.WarnContext(ctx, "recorded events that are out of order",
			"gaps", report.Gaps, "void", report.Void, "bad", report.Bad, "refused", report.Refused, "position", report.Position.Seq)
	}
}

// prepareEntry does for an entry what needs the server: dead letters for poison, and
// large fields. It goes on trying while the server is away. A process that dies
// between a dead letter and its transaction sends the letter twice.
func (r *Recorder) prepareEntry(ctx context.Context, e *eventlog.Entry, blobs map[string][]byte) (fetched int, err error) {
	if e.Err != nil {
		return 0, r.retryServer(ctx, func() error { return r.log.DeadLetter(ctx, name, e.Err.Error(), *e) })
	}
	for _, b := range e.Event.Blobs {
		if _, ok := blobs[b.SHA256]; ok {
			continue
		}
		err := r.retryServer(ctx, func() error {
			data, err := r.log.Blob(ctx, b.SHA256)
			if errors.Is(err, eventlog.ErrBlobMissing) {
				r.logger.WarnContext(ctx, "blob is missing", "run", e.RunID, "node", e.NodeID, "position", e.Pos, "error", err)
				return nil
			}
			if err == nil {
				blobs[b.SHA256] = data
				fetched += len(data)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return fetched, nil
}

// syncEvery is how often what was recorded is synced. What a loss of power takes back before that, the stream has: it keeps
// events for a minute at least.
const syncEvery = 5 * time.Second

// followSync syncs what was recorded, now and then, until ctx ends.
func (r *Recorder) followSync(ctx context.Context) {
	for synced := uint64(0); ; {
		if pull.Sleep(ctx, syncEvery); ctx.Err() != nil {
			return
		}
		if pos, _ := r.recorded.currentPos(); pos != synced {
			err := r.store.Archive.Sync()
			r.c.Health.Set(syncing, err)
			if err == nil {
				synced = pos
			}
		}
	}
}

// checkpointEvery is how often it is looked whether the store's file lacks much of its log.
const checkpointEvery = 250 * time.Millisecond

// followLog takes the log of the store's file over into it until ctx ends, so that commits don't have to.
func (r *Recorder) followLog(ctx context.Context) {
	for seen := uint64(0); ctx.Err() == nil; pull.Sleep(ctx, checkpointEvery) {
		recorded, _ := r.recorded.currentPos()
		derived, _ := r.derived.currentPos()
		if recorded+derived == seen {
			continue
		}
		seen = recorded + derived
		if err := r.store.Archive.Checkpoint(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "the log of the store's file stays, and commits take it over", "error", err)
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
