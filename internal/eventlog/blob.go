package eventlog

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// blobStore is the object store of large fields. An object's name is the hash of
// its content, so it is written once: a second put would purge the chunks that
// another process is reading.
type blobStore struct {
	leader

	js      jetstream.JetStream
	ackWait time.Duration
	bucket  string
	turn    chan struct{} // held while putting
	store   jetstream.ObjectStore
	known   map[string]bool // some that are there; guarded by turn
}

// maxKnown bounds the memory of what has been put.
const maxKnown = 10_000

func newBlobStore(l leader, js jetstream.JetStream, bucket string, ackWait time.Duration) *blobStore {
	return &blobStore{
		leader: l, js: js, bucket: bucket, ackWait: ackWait,
		turn: make(chan struct{}, 1), known: map[string]bool{},
	}
}

// putMissing stores blobs that aren't there.
func (b *blobStore) putMissing(ctx context.Context, blobs map[string][]byte) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	for sum, data := range blobs {
		if b.known[sum] {
			continue
		}
		there, err := b.hasBlob(ctx, sum)
		if err != nil {
			return err
		}
		if !there {
			if err := b.putBlob(ctx, sum, data); err != nil {
				return err
			}
		}
		if len(b.known) >= maxKnown {
			clear(b.known)
		}
		b.known[sum] = true
	}
	return nil
}

func (b *blobStore) lock(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *blobStore) unlock() { <-b.turn }

func (b *blobStore) putBlob(ctx context.Context, sum string, data []byte) error {
	wait, cancel := context.WithTimeout(ctx, b.ackWait)
	defer cancel()
	store, err := b.openBucket(wait)
	if err != nil {
		return err
	}
	_, err = store.PutBytes(wait, sum, data)
	return err
}

// openBucket returns the bucket; the caller holds turn.
func (b *blobStore) openBucket(ctx context.Context) (jetstream.ObjectStore, error) {
	if b.store == nil {
		store, err := b.js.ObjectStore(ctx, b.bucket)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.bucket, err)
		}
		b.store = store
	}
	return b.store, nil
}

// hasBlob asks the leader whether the blob is there: a replica that lags would make
// us put it twice.
func (b *blobStore) hasBlob(ctx context.Context, sum string) (bool, error) {
	name := base64.URLEncoding.EncodeToString([]byte(sum))
	request := getRequest{LastBy: "$O." + b.bucket + ".M." + name, NoHdr: true}
	m, err := b.getFrom(ctx, "OBJ_"+b.bucket, request)
	if errors.Is(err, errNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", b.bucket, err)
	}
	var info struct {
		Deleted bool `json:"deleted"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return false, fmt.Errorf("%s: %w", b.bucket, err)
	}
	return !info.Deleted, nil
}

// getBlob returns a blob. A replica may lack what the leader has: then it is asked
// again.
func (b *blobStore) getBlob(ctx context.Context, sum string) ([]byte, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	store, err := b.openBucket(ctx)
	b.unlock()
	if err != nil {
		return nil, err
	}
	for wait := newPauses(b.maxBackoff); ; {
		data, err := store.GetBytes(ctx, sum)
		if err == nil {
			return data, nil
		}
		if !errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, err
		}
		there, err := b.hasBlob(ctx, sum)
		if err != nil {
			return nil, err
		}
		if !there {
			return nil, ErrBlobMissing
		}
		if err := wait.pauseNext(ctx); err != nil {
			return nil, err
		}
	}
}
