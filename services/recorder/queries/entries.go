package queries

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Entries is [Answers.Read] with the events taken apart, as the log yields them.
func (a *Answers) Entries(ctx context.Context, q Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for kept, err := range a.Read(ctx, q) {
			e := eventlog.Entry{Pos: kept.Pos, Time: time.UnixMilli(kept.Time), RunID: kept.Run, Data: kept.Data}
			if err == nil {
				if e.Event, e.Err = wire.Decode(kept.Data); e.Err == nil {
					e.NodeID, e.Kind = e.Event.NodeID, e.Event.Type().Kind()
				}
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Blob returns a large field by its SHA-256. It fails with
// [eventlog.ErrBlobMissing] if it was missing when it was recorded.
func (a *Answers) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	t, err := a.View(ctx)
	if err != nil {
		return nil, fmt.Errorf("recorder: blob %s: %w", sha256, err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	data, err := t.Blob(ctx, sha256)
	if errors.Is(err, fs.ErrNotExist) {
		err = eventlog.ErrBlobMissing
	}
	if err != nil {
		return nil, fmt.Errorf("recorder: blob %s: %w", sha256, err)
	}
	return data, nil
}

// Find returns the run that ref means: an id, a unique prefix of one, a label, a
// session or @last. It fails with RUN_NOT_FOUND or AMBIGUOUS_ID.
func (a *Answers) Find(ctx context.Context, ref string) (string, error) {
	t, err := a.View(ctx)
	if err != nil {
		return "", fmt.Errorf("recorder: find: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	found, err := request.Resolve(ctx, t, ref, "", "")
	if err != nil {
		return "", request.Wrap("find", err)
	}
	return found.Run, nil
}
