package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// refKey marks a value that refers to an object.
const refKey = "$blob"

// referredBlob returns the object that a value refers to, or "".
func referredBlob(value []byte) string {
	sum := wire.Raw(value).TextAt(refKey, "sha256")
	return sum
}

// storeAsBlob stores an encoded state as an object and returns the value that refers
// to it and says of which position it is, and the object's name.
func (s *Store) storeAsBlob(ctx context.Context, runID string, at wire.Position, data []byte) (value []byte, name string, err error) {
	sum := sha256.Sum256(data)
	name = hex.EncodeToString(sum[:])
	// An object is put once: another put would remove chunks that a reader
	// still needs.
	if _, err := s.log.Blob(ctx, name); errors.Is(err, eventlog.ErrBlobMissing) {
		stored, err := s.log.Keys().Blob(name, data)
		if err != nil {
			return nil, "", err
		}
		if err := keys.PutObject(ctx, s.blobs, name, stored); err != nil {
			return nil, "", err
		}
	} else if err != nil {
		return nil, "", err
	}
	value, err = wire.Marshal(map[string]any{
		refKey:     map[string]any{"sha256": name, "size": len(data)},
		"runId":    runID,
		"position": at,
	})
	return value, name, err
}

// readBlob returns the object of an encoded state. It fails with [seal.ErrForged] if the content has another hash
// than its name says.
func readBlob(ctx context.Context, log eventlog.Reader, name string) ([]byte, error) {
	data, err := log.Blob(ctx, name)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("object %s: %w", name, seal.ErrForged)
	}
	return data, nil
}

// dropBlob removes an object that a snapshot referred to. What can't be removed
// is garbage and does no harm.
func (s *Store) dropBlob(ctx context.Context, name string) {
	_, _ = s.log.DropBlob(ctx, name, time.Time{})
}

// Drop removes the state of a run that was removed, its labelled points and their objects. The snapshotter may store the state once more, if it
// hasn't come to the end of the run.
func Drop(ctx context.Context, log *eventlog.Log, runID string) error {
	n := log.Names()
	for bucket, filter := range map[string]string{n.SnapshotsBucket(): n.SnapshotKey(runID), n.BookmarksBucket(): n.BookmarkKeys(runID)} {
		if err := dropKeys(ctx, log, bucket, filter); err != nil {
			return fmt.Errorf("snapshot: drop those of run %s: %w", runID, err)
		}
	}
	return nil
}

func dropKeys(ctx context.Context, log *eventlog.Log, bucket, filter string) error {
	kv, err := log.Bucket(ctx, bucket)
	if err != nil {
		return err
	}
	prefix := "$KV." + bucket + "."
	stream, err := log.JetStream().Stream(ctx, "KV_"+bucket)
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+filter))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		value, _, err := kv.Get(ctx, strings.TrimPrefix(subject, prefix))
		if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, seal.ErrForged) { // which refers to nothing
			continue
		}
		if sum := referredBlob(value); err == nil && sum != "" {
			_, err = log.DropBlob(ctx, sum, time.Time{})
		}
		if err != nil {
			return err
		}
	}
	if len(info.State.Subjects) == 0 {
		return nil
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(prefix+filter))
}
