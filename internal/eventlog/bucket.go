package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// Bucket is a key-value bucket. Its values are sealed if the log has keys.
type Bucket struct {
	log *Log
	kv  jetstream.KeyValue
}

// Bucket returns a bucket of the server, which is asked once whether it has it.
func (l *Log) Bucket(ctx context.Context, name string) (*Bucket, error) {
	if b, opened := l.buckets.Load(name); opened {
		return b.(*Bucket), nil // nothing else is stored there
	}
	kv, err := l.js.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	b := &Bucket{l, kv}
	l.buckets.Store(name, b)
	return b, nil
}

func (b *Bucket) keySubject(key string) string { return Place(b.kv.Bucket(), key) }

// Place is what the value of a key of a bucket is sealed for: the subject that it is
// stored on.
func Place(bucket, key string) string { return "$KV." + bucket + "." + key }

// Get returns the value of a key and its revision, or [jetstream.ErrKeyNotFound].
// With [seal.ErrNoKey] and [seal.ErrForged] it returns the revision too.
func (b *Bucket) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	stored, revision, err := b.Stored(ctx, key)
	if err != nil {
		return nil, revision, err
	}
	value, err = b.log.o.Keys.OpenValue(b.keySubject(key), stored)
	return value, revision, err
}

// Stored is [Bucket.Get] of the value as it is stored: sealed, if the log has keys. It fails with [seal.ErrForged], too,
// if the value should have a stamp.
func (b *Bucket) Stored(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	if b.isStamped() {
		return b.readStamped(ctx, key)
	}
	e, err := b.kv.Get(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	return e.Value(), e.Revision(), nil
}

// Save replaces the value of a revision, 0 for none, and returns the new one. It
// fails with [jetstream.ErrKeyExists] if that isn't the current revision.
func (b *Bucket) Save(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	stored, err := b.log.o.Keys.Value(b.keySubject(key), value)
	if err != nil {
		return 0, err
	}
	if b.isStamped() {
		return b.saveStamped(ctx, key, stored, revision)
	}
	if revision == 0 {
		return b.kv.Create(ctx, key, stored)
	}
	saved, err := b.kv.Update(ctx, key, stored, revision)
	return saved, conflictError(err)
}

// conflictError makes a conflict a [jetstream.ErrKeyExists].
func conflictError(err error) error {
	if keys.IsConflict(err) && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("%w: %w", jetstream.ErrKeyExists, err)
	}
	return err
}

// All returns the entries of the keys that match a filter. One that can't be opened
// fails all if its key is missing, and is left out if it is forged.
func (b *Bucket) All(ctx context.Context, filter string) ([]keys.Entry, error) {
	stored, err := keys.All(ctx, b.log.js, b.kv.Bucket(), filter)
	if err != nil {
		return nil, err
	}
	open := stored[:0]
	for _, e := range stored {
		e.Value, err = b.log.o.Keys.OpenValue(b.keySubject(e.Key), e.Value)
		switch {
		case err == nil:
			open = append(open, e)
		case errors.Is(err, seal.ErrNoKey):
			return nil, fmt.Errorf("%s: %w", e.Key, err)
		}
	}
	return open, nil
}

// Purge removes a key and its history.
func (b *Bucket) Purge(ctx context.Context, key string) error { return b.kv.Purge(ctx, key) }

// Snapshot returns the value of a run's snapshot and its revision, as [Bucket.Get] does.
func (l *Log) Snapshot(ctx context.Context, run string) (value []byte, revision uint64, err error) {
	b, err := l.Bucket(ctx, l.names.SnapshotsBucket())
	if err != nil {
		return nil, 0, err
	}
	return b.Get(ctx, l.names.SnapshotKey(run))
}

// Bookmark is [Log.Snapshot] of a bookmark.
func (l *Log) Bookmark(ctx context.Context, run, label string) (value []byte, revision uint64, err error) {
	b, err := l.Bucket(ctx, l.names.BookmarksBucket())
	if err != nil {
		return nil, 0, err
	}
	return b.Get(ctx, l.names.BookmarkKey(run, label))
}

// stampHeader is where a state that is stored on the server has its stamp, see [Options.Stamp].
const stampHeader = "Wake-Stamp"

// isStamped reports whether the values of a bucket have stamps: those that are states of runs.
func (b *Bucket) isStamped() bool {
	bucket, names := b.kv.Bucket(), b.log.names
	return b.log.o.Stamp != nil && (bucket == names.SnapshotsBucket() || bucket == names.BookmarksBucket())
}

// readStamped is [Bucket.Stored] of values with stamps. With [seal.ErrForged] it returns the revision, too.
func (b *Bucket) readStamped(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	place := b.keySubject(key)
	m, h, err := b.readMessage(ctx, place)
	if err != nil {
		return nil, 0, err
	}
	if !b.log.o.Stamp.IsOf(h.Get(stampHeader), place, m.Data) {
		b.log.tellForged(ctx, b.kv.Bucket(), m)
		return nil, m.Pos, fmt.Errorf("%w: it isn't stamped by the key of this installation", seal.ErrForged)
	}
	return m.Data, m.Pos, nil
}

// readMessage returns the message that a key has its value from.
func (b *Bucket) readMessage(ctx context.Context, place string) (Message, nats.Header, error) {
	m, h, err := b.log.lastOnly(ctx, "KV_"+b.kv.Bucket(), place)
	if errors.Is(err, errUnanswered) {
		m, h, err = b.readFromLeader(ctx, place)
	}
	switch {
	case errors.Is(err, errNotFound):
		return m, nil, jetstream.ErrKeyNotFound
	case err != nil:
		return m, nil, err
	case h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != "":
		return m, nil, jetstream.ErrKeyNotFound
	}
	return m, h, nil
}

// readFromLeader returns the message that a key has its value from, or the mark of its deletion.
func (b *Bucket) readFromLeader(ctx context.Context, place string) (Message, nats.Header, error) {
	m, err := b.log.getFrom(ctx, "KV_"+b.kv.Bucket(), getRequest{LastBy: place})
	h := nats.Header{}
	if err == nil && len(m.Header) > 0 {
		h, err = nats.DecodeHeadersMsg(m.Header)
	}
	return m, h, err
}

// saveStamped is [Bucket.Save] of what is stored.
func (b *Bucket) saveStamped(ctx context.Context, key string, stored []byte, revision uint64) (uint64, error) {
	place := b.keySubject(key)
	put := func(revision uint64) (uint64, error) {
		m := &nats.Msg{Subject: place, Data: stored, Header: nats.Header{stampHeader: {b.log.o.Stamp.Of(place, stored)}}}
		ack, err := b.log.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(revision))
		if err != nil {
			return 0, conflictError(err)
		}
		return ack.Sequence, nil
	}
	saved, err := put(revision)
	if revision == 0 && errors.Is(err, jetstream.ErrKeyExists) { // what was deleted has a mark
		if m, _, err := b.readMessage(ctx, place); errors.Is(err, jetstream.ErrKeyNotFound) {
			return put(m.Pos)
		}
	}
	return saved, err
}

// StampAll stamps all states that are stored, as they are: with a key that is new.
func (l *Log) StampAll(ctx context.Context) error {
	for _, name := range []string{l.names.SnapshotsBucket(), l.names.BookmarksBucket()} {
		b, err := l.Bucket(ctx, name)
		if err != nil {
			return err
		}
		all, err := keys.All(ctx, l.js, name, ">")
		if err != nil {
			return err
		}
		for _, e := range all {
			if _, err := b.saveStamped(ctx, e.Key, e.Value, e.Revision); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
				return fmt.Errorf("stamp %s of %s: %w", e.Key, name, err)
			}
		}
	}
	return nil
}

// tellForged tells once of a state that something other than wake has stored. States of another
// incarnation of the log aren't told of: a restored backup has those.
func (l *Log) tellForged(ctx context.Context, bucket string, m Message) {
	if _, told := l.forged.LoadOrStore(forgery{m.Subject, m.Pos}, true); told || !bytes.Contains(m.Data, []byte(l.incarnation)) {
		return
	}
	reason := "this state of a run isn't stamped by the key of this installation: it was changed, or stored past wake. It isn't used"
	l.logger.ErrorContext(ctx, "a stored state is forged, and isn't used", slog.String("subject", m.Subject), slog.Uint64("revision", m.Pos))
	if l.o.Service == "" {
		return
	}
	data, err := wire.Marshal(&wire.Poison{
		V: wire.Version, Service: l.o.Service, Reason: reason, Subject: m.Subject, Stream: "KV_" + bucket, Position: m.Pos,
		Data: m.Data, Timestamp: time.Now().UnixMilli(),
	})
	if err == nil {
		_, err = l.Send(ctx, l.names.DeadLetter(l.o.Service), data, jetstream.WithMsgID(fmt.Sprint("forged ", m.Subject, " ", m.Pos)))
	}
	if err != nil {
		l.logger.WarnContext(ctx, "a forged state has no dead letter", slog.Any("error", err))
		return
	}
	l.metrics.letters.WithLabelValues(l.o.Service).Inc()
}

// forgery is a state that was told of.
type forgery struct {
	subject  string
	revision uint64
}
