package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Everything of a run that is stored on the server and is no event goes by here, so
// that it is sealed where events are: messages by Send and Unseal, values of keys
// by a Bucket. What only says which process works on what (leases, registrations,
// positions) does not.

// Unseal returns what was published on a subject; what isn't sealed, as it is. It
// fails with [seal.ErrNoKey] or [seal.ErrForged].
func (l *Log) Unseal(subject string, stored []byte) ([]byte, error) {
	return l.o.Keys.OpenValue(subject, stored)
}

// Original returns an event of the stream as it was before it was sealed; what isn't a
// sealed event, as it is. It fails with [seal.ErrNoKey] or [seal.ErrForged].
func (l *Log) Original(stored []byte) ([]byte, error) {
	e, err := wire.Decode(stored)
	if err != nil || !seal.Sealed(e) {
		return stored, nil //nolint:nilerr // what is no event isn't sealed
	}
	_, data, err := l.o.Keys.Original(e)
	return data, err
}

// Keys returns the keys of the log, for what is neither a message nor a value; nil if
// it has none.
func (l *Log) Keys() *seal.Keys { return l.o.Keys }

// inUse is the service that WAKE_STATE keeps a note for: the installation is sealed. The
// note is sealed too, so that a process that can read it has the key that is in use.
const inUse = "encryption"

// CheckKeys fails with [seal.ErrNoKey] if other processes seal with a key that this log
// lacks: it couldn't read what they store, and shouldn't add what any process can read. It
// fails with [seal.ErrForged] if the log has another key of that name.
func (l *Log) CheckKeys(ctx context.Context) error {
	_, _, err := l.keyInUse(ctx)
	return err
}

// keyInUse returns the id of the key that is in use and the revision of the note that
// says so; "" and 0 if there is none.
func (l *Log) keyInUse(ctx context.Context) (id string, revision uint64, err error) {
	stored, revision, err := l.KeyNote(ctx)
	if err == nil && stored != nil {
		id, err = KeyInUse(stored, l.names, l.o.Keys)
	}
	if err != nil {
		return "", 0, err
	}
	return id, revision, nil
}

// KeyNote returns the note that says which key is in use, as it is stored, and its
// revision; nil if there is none.
func (l *Log) KeyNote(ctx context.Context) (stored []byte, revision uint64, err error) {
	bucket := l.names.StateBucket()
	m, err := l.getFrom(ctx, "KV_"+bucket, getRequest{LastBy: notePlace(l.names), NoHdr: true})
	if errors.Is(err, errNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("eventlog: which key is in use: %w", err)
	}
	return m.Data, m.Pos, nil
}

// KeyInUse returns the id of the key that a note names. It fails as [Log.CheckKeys]
// does.
func KeyInUse(stored []byte, names subjects.Names, keys *seal.Keys) (id string, err error) {
	value, err := keys.OpenValue(notePlace(names), stored)
	switch {
	case errors.Is(err, seal.ErrForged):
		return "", fmt.Errorf("eventlog: the key that is in use here isn't the one of the same id at hand: %w", err)
	case err != nil:
		return "", fmt.Errorf("eventlog: what is stored of runs here is encrypted: %w", err)
	}
	var n note
	if err := wire.Unmarshal(value, &n); err != nil {
		return "", fmt.Errorf("eventlog: which key is in use: %w", err)
	}
	return n.Key, nil
}

// note says under which key is written.
type note struct {
	V   int    `json:"v"`
	Key string `json:"key"`
}

func noteKey(names subjects.Names) string { return names.StateKey(inUse, subjects.NoRun) }

func notePlace(names subjects.Names) string { return Place(names.StateBucket(), noteKey(names)) }

// UseKeys is [Log.CheckKeys] of a process that is about to write for long: from now
// on other processes are told that they need its key.
func (l *Log) UseKeys(ctx context.Context) error {
	for {
		id, revision, err := l.keyInUse(ctx)
		if err != nil || l.o.Keys == nil || id == l.o.Keys.WriteID() {
			return err
		}
		value, err := wire.Marshal(note{V: wire.Version, Key: l.o.Keys.WriteID()})
		if err != nil {
			return fmt.Errorf("eventlog: note which key is in use: %w", err)
		}
		b, err := l.Bucket(ctx, l.names.StateBucket())
		if err == nil {
			_, err = b.Save(ctx, noteKey(l.names), value, revision)
		}
		if errors.Is(err, jetstream.ErrKeyExists) {
			continue // another process was faster
		}
		if err != nil {
			return fmt.Errorf("eventlog: note which key is in use: %w", err)
		}
		return nil
	}
}
