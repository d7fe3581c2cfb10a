package eventlog

import (
	"context"
	"iter"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Reader reads what is recorded: a [Log] from the streams, which services may, a
// reader of wake/internal/feed by wake.api, which is all that users may.
type Reader interface {
	Conn() *nats.Conn
	Names() subjects.Names
	Keys() *seal.Keys
	Incarnation() string

	Bounds(ctx context.Context) (first, last uint64, err error)
	Last(ctx context.Context, run, node string) (Entry, bool, error)
	Read(ctx context.Context, q Query) iter.Seq2[Entry, error]
	Follow(ctx context.Context, q Query) iter.Seq2[Entry, error]

	Blob(ctx context.Context, sha256 string) ([]byte, error)
	Inline(ctx context.Context, e *wire.Event) (*wire.Event, error)

	// The value of a run's snapshot, or of a bookmark, and its revision; else
	// jetstream.ErrKeyNotFound, [seal.ErrNoKey] or [seal.ErrForged].
	Snapshot(ctx context.Context, run string) (value []byte, revision uint64, err error)
	Bookmark(ctx context.Context, run, label string) (value []byte, revision uint64, err error)
}
