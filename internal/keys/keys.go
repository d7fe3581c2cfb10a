// Package keys follows the keys of a bucket.
//
// The client's own watcher holds a lock while it waits for the answer to its
// request, and its callback waits for that lock: nothing but time is lost by that,
// except where time is that of a [testing/synctest] bubble, which then stands still.
package keys

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/pull"
)

// Entry is the newest value of a key.
type Entry struct {
	Key      string // "": all that there was when the watch began has come
	Value    []byte
	Revision uint64
	Deleted  bool // by a writer, or since it was too old
}

// IsConflict reports whether a key isn't as its writer expected: it exists, has another revision, or is being written by another one,
// which servers of a cluster tell by a code of its own. What the writer does then is to read it again.
func IsConflict(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) ||
		ok && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// markFor is how long the mark of a deletion stays, for watchers. A watcher that begins later finds no key.
const markFor = time.Hour

// Delete removes a key of a bucket whose messages may have a TTL. With a revision other than 0 it fails if the key has another one.
func Delete(ctx context.Context, kv jetstream.KeyValue, key string, revision uint64) error {
	options := []jetstream.KVDeleteOpt{jetstream.PurgeTTL(markFor)}
	if revision != 0 {
		options = append(options, jetstream.LastRevision(revision))
	}
	return kv.Purge(ctx, key, options...)
}

const (
	// ahead is how many entries are asked for at once.
	ahead = 256
	// idle is how long the server keeps the consumer of a watcher that is gone.
	idle = time.Minute
	// patience is how long the server may take to make a consumer, or remove it.
	patience = 5 * time.Second
)

// Watch yields the newest entries of the keys that match a filter, which may have
// wildcards, then one without a key, and then each change. It ends with an error
// when anything is odd: a reader that goes on watches anew, and sees all keys again. It ends
// without one when ctx ends.
func Watch(ctx context.Context, js jetstream.JetStream, bucket, filter string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := watchKeys(ctx, js, bucket, filter, func(e Entry) bool { return yield(e, nil) })
		if err != nil && ctx.Err() == nil {
			yield(Entry{}, fmt.Errorf("watch keys %s of %s: %w", filter, bucket, err))
		}
	}
}

func watchKeys(ctx context.Context, js jetstream.JetStream, bucket, filter string, yield func(Entry) bool) error {
	prefix, stream := "$KV."+bucket+".", "KV_"+bucket
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := js.CreateConsumer(wait, stream, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubject:     prefix + filter,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: idle,
	})
	if err != nil {
		return err
	}
	info := c.CachedInfo()
	defer removeConsumer(ctx, js, stream, info.Name)
	p, err := pull.New(js.Conn(), stream, info.Name, ahead)
	if err != nil {
		return err
	}
	defer p.Stop()
	ctx, release := pull.Connected(ctx, js.Conn())
	defer release()
	complete := info.NumPending == 0
	if complete && !yield(Entry{}) {
		return nil
	}
	for {
		m, err := p.Next(ctx)
		if err != nil {
			return err
		}
		if !yield(entryOf(prefix, m)) {
			return nil
		}
		if !complete && m.Pending == 0 {
			if complete = true; !yield(Entry{}) {
				return nil
			}
		}
	}
}

// entryOf reads a message of a bucket's stream. A deletion is a message with a
// header, be it a client's or the server's.
func entryOf(prefix string, m pull.Message) Entry {
	op, reason := m.Header.Get("KV-Operation"), m.Header.Get("Nats-Marker-Reason")
	return Entry{Key: m.Subject[len(prefix):], Value: m.Data, Revision: m.Pos, Deleted: op != "" && op != "PUT" || reason != ""}
}

// removeConsumer removes the consumer. If that fails, the server does so after a while.
func removeConsumer(ctx context.Context, js jetstream.JetStream, stream, consumer string) {
	if !js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = js.DeleteConsumer(ctx, stream, consumer)
}

// errEnded means that a watch ended before it was complete, without saying why.
var errEnded = errors.New("the watch of keys has ended")

// All returns the entries of the keys that match a filter and aren't deleted.
func All(ctx context.Context, js jetstream.JetStream, bucket, filter string) ([]Entry, error) {
	var all []Entry
	for e, err := range Watch(ctx, js, bucket, filter) {
		switch {
		case err != nil:
			return nil, err
		case e.Key == "":
			return all, nil
		case !e.Deleted:
			all = append(all, e)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return nil, errEnded
}
