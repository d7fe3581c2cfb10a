package recorder

import (
	"context"
	"iter"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/services/recorder/queries"
)

// storedLog is the log as far as it is recorded, those events included that the stream has dropped: it is read from the store.
type storedLog struct {
	*eventlog.Log

	answers *queries.Answers
}

// Bounds returns the first position that there may be, and the last one that is recorded.
func (l storedLog) Bounds(ctx context.Context) (first, last uint64, err error) {
	at, err := l.answers.Position(ctx)
	return 1, at.Seq, err
}

// Read yields events of a run.
func (l storedLog) Read(ctx context.Context, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return l.answers.Stored(ctx, q)
}

// Blob returns a large field.
func (l storedLog) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	return l.answers.Blob(ctx, sha256)
}
