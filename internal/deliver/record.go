package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// service is the name under which records are kept.
const service = "sink"

func (t *target) stateKey() string { return t.d.log.Names().StateKey(service, t.name) }

// awaitOwnership waits until the target is this process's: it has no owner, or one that is
// gone, or this process had it before.
func (t *target) awaitOwnership(ctx context.Context) error {
	var seen uint64
	var since time.Time
	for {
		r, revision, err := t.loadRecord(ctx)
		if err != nil {
			return err
		}
		if revision != seen {
			seen, since = revision, time.Now()
		}
		if revision == 0 || r.Owner == "" || r.Owner == t.d.id || time.Since(since) >= ownerless {
			err := t.claimSink(ctx, r, revision)
			if !errors.Is(err, errTaken) {
				return err
			}
			continue
		}
		pull.Sleep(ctx, beat)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// loadRecord reads the record. A sink that is new has revision 0.
func (t *target) loadRecord(ctx context.Context) (r targetRecord, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	stored, revision, err := t.kv.Get(ctx, t.stateKey())
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return targetRecord{}, 0, nil
	case err != nil && !errors.Is(err, seal.ErrForged):
		return targetRecord{}, 0, fmt.Errorf("read %s: %w", t.stateKey(), err)
	}
	if err == nil {
		err = wire.Unmarshal(stored, &r)
	}
	if err != nil || r.V != wire.Version {
		t.logger.WarnContext(ctx, "what the sink was given can't be read: it begins with the next alert", "version", r.V, "error", err)
		return targetRecord{}, revision, nil
	}
	return r, revision, nil
}

// claimSink makes this process the owner. A new sink begins with the next alert, and
// with the first one after WAKE_ALERTS was made anew.
func (t *target) claimSink(ctx context.Context, r targetRecord, revision uint64) error {
	wait, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	info, err := t.stream.Info(wait)
	if err != nil {
		return fmt.Errorf("read %s: %w", t.d.log.Names().AlertsStream(), err)
	}
	created := info.Created.UnixNano()
	switch {
	case r.V == 0, r.Stream == created && r.Position > info.State.LastSeq:
		r = targetRecord{V: wire.Version, Stream: created, Position: info.State.LastSeq, Held: r.Held, Sealed: r.Sealed}
	case r.Stream != created:
		r = targetRecord{V: wire.Version, Stream: created, Held: r.Held, Sealed: r.Sealed}
	}
	r.Owner = t.d.id
	t.rec, t.revision = r, revision
	return t.saveRecord(ctx)
}

// saveRecord replaces the record, also while ctx ends. It fails with [errTaken] if
// another process has done so.
func (t *target) saveRecord(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opWait)
	defer cancel()
	data, err := wire.Marshal(t.rec)
	if err != nil {
		return err
	}
	revision, err := t.kv.Save(ctx, t.stateKey(), data, t.revision)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", t.stateKey(), err)
	}
	t.revision, t.saved, t.dirty = revision, time.Now(), false
	return nil
}

// releaseSink lets another process go on at once. If that fails it goes on later.
func (t *target) releaseSink(ctx context.Context) {
	if ctx.Err() == nil {
		return // the server doesn't answer, or another process has it
	}
	t.rec.Owner = ""
	if err := t.saveRecord(ctx); err != nil {
		t.logger.DebugContext(ctx, "sink is not given back", "error", err)
	}
}
