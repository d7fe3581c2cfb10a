package eventlog

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
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
	known   map[string]time.Time // some that are there, as of when; guarded by turn
}

// freshFor is how long a field that is there is taken for new. An event refers to none that was stored, or made new again, more than
// twice as long before: so [Log.DropBlob] may remove those that are older than the stream's first event by [BlobMargin].
const freshFor = 4 * time.Hour

// BlobMargin is by how much a large field has to be older than the first event of the stream for that no event there refers to it: twice
// what freshFor allows, since clocks differ.
const BlobMargin = 4 * freshFor

// maxKnown bounds the memory of what has been put.
const maxKnown = 10_000

func newBlobStore(l leader, js jetstream.JetStream, bucket string, ackWait time.Duration) *blobStore {
	return &blobStore{
		leader: l, js: js, bucket: bucket, ackWait: ackWait,
		turn: make(chan struct{}, 1), known: map[string]time.Time{},
	}
}

// putMissing stores blobs that aren't there, and makes those new again that are old.
func (b *blobStore) putMissing(ctx context.Context, blobs map[string][]byte) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	for sum, data := range blobs {
		if time.Since(b.known[sum]).Abs() < freshFor {
			continue
		}
		meta, there, err := b.readMeta(ctx, sum)
		if err == nil && there && time.Since(meta.Time).Abs() >= freshFor {
			there, err = b.renewBlob(ctx, meta)
		}
		if err == nil && !there {
			err = b.putBlob(ctx, sum, data)
		}
		if err != nil {
			return err
		}
		if len(b.known) >= maxKnown {
			clear(b.known)
		}
		b.known[sum] = time.Now()
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
	return keys.PutObject(wait, store, sum, data)
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

// renewBlob makes a blob new again. It reports false for one that was removed, or put by another, meanwhile.
func (b *blobStore) renewBlob(ctx context.Context, meta Message) (bool, error) {
	wait, cancel := context.WithTimeout(ctx, b.ackWait)
	defer cancel()
	m := nats.NewMsg(meta.Subject)
	m.Data = meta.Data
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	_, err := b.js.PublishMsg(wait, m, jetstream.WithExpectLastSequencePerSubject(meta.Pos))
	if keys.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// hasBlob reports whether a blob is there.
func (b *blobStore) hasBlob(ctx context.Context, sum string) (bool, error) {
	_, there, err := b.readMeta(ctx, sum)
	return there, err
}

// readMeta asks the leader for what describes a blob: a replica that lags would make
// us put it twice.
func (b *blobStore) readMeta(ctx context.Context, sum string) (meta Message, there bool, err error) {
	name := base64.URLEncoding.EncodeToString([]byte(sum))
	request := getRequest{LastBy: "$O." + b.bucket + ".M." + name, NoHdr: true}
	m, err := b.getFrom(ctx, "OBJ_"+b.bucket, request)
	if errors.Is(err, errNotFound) {
		return Message{}, false, nil
	}
	if err != nil {
		return Message{}, false, fmt.Errorf("%s: %w", b.bucket, err)
	}
	info, err := parseMeta(m)
	return m, err == nil && !info.Deleted, err
}

// blobMeta is what is read of the description of a blob.
type blobMeta struct {
	Deleted bool   `json:"deleted"`
	Chunks  string `json:"nuid"` // name of its chunks
}

func parseMeta(m Message) (info blobMeta, err error) {
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return info, fmt.Errorf("%s: %w", m.Subject, err)
	}
	return info, nil
}

// DropBlob removes a blob, unless it was stored, or made new again, after a time; zero: in any case. It reports whether it is gone. If the
// process dies meanwhile its chunks may stay: nothing refers to them.
func (l *Log) DropBlob(ctx context.Context, sum string, after time.Time) (gone bool, err error) {
	b := l.blobs
	meta, _, err := b.readMeta(ctx, sum)
	if err != nil || meta.Pos == 0 {
		return err == nil, err
	}
	info, err := parseMeta(meta)
	if err != nil || !after.IsZero() && meta.Time.After(after) {
		return false, err
	}
	stream, err := b.js.Stream(ctx, "OBJ_"+b.bucket)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(meta.Subject), jetstream.WithPurgeSequence(meta.Pos+1))
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", b.bucket, err)
	}
	if meta, _, err = b.readMeta(ctx, sum); err != nil || meta.Pos != 0 { // an event refers to it again
		return false, err
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject("$O."+b.bucket+".C."+info.Chunks)); err != nil {
		return false, fmt.Errorf("%s: %w", b.bucket, err)
	}
	return true, nil
}

// hasChunks reports whether the leader has a blob, and content of it.
func (b *blobStore) hasChunks(ctx context.Context, sum string) (bool, error) {
	meta, there, err := b.readMeta(ctx, sum)
	if err != nil || !there {
		return false, err
	}
	info, err := parseMeta(meta)
	if err != nil {
		return false, err
	}
	_, err = b.getFrom(ctx, "OBJ_"+b.bucket, getRequest{LastBy: "$O." + b.bucket + ".C." + info.Chunks, NoHdr: true})
	if errors.Is(err, errNotFound) {
		return false, nil
	}
	return err == nil, err
}

// maxDamaged is how many times a blob is read before its content counts as damaged.
const maxDamaged = 3

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
	damaged := 0
	for wait := newPauses(b.maxBackoff); ; {
		data, err := store.GetBytes(ctx, sum)
		if err == nil {
			return data, nil
		}
		if errors.Is(err, jetstream.ErrDigestMismatch) {
			if damaged++; damaged == maxDamaged {
				return nil, fmt.Errorf("%w: %w", ErrBlobMissing, err)
			}
		} else if !errors.Is(err, jetstream.ErrObjectNotFound) {
			there, failed := b.hasChunks(ctx, sum)
			if failed == nil && !there {
				err = fmt.Errorf("%w: its content isn't there", ErrBlobMissing)
			}
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
