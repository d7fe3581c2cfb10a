package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// service names the keys of the schedules in WAKE_STATE.
const service = "schedule"

// Store has the schedules of an installation. Where it has keys, they are sealed.
type Store struct {
	js    jetstream.JetStream
	kv    jetstream.KeyValue
	names subjects.Names
	keys  *seal.Keys
}

// Entry is a schedule as it is stored.
type Entry struct {
	Schedule

	Key      string
	Revision uint64
	Gone     bool  // it was removed
	Err      error // why it can't be read
}

// ErrChanged is returned for a schedule that another caller has changed meanwhile.
var ErrChanged = errors.New("the schedule was changed meanwhile")

// ErrNone is returned for a schedule that isn't there.
var ErrNone = errors.New("there is no such schedule")

// Open returns the schedules of an installation.
func Open(ctx context.Context, js jetstream.JetStream, names subjects.Names, keys *seal.Keys) (*Store, error) {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("open the bucket of states: %w", err)
	}
	return &Store{js: js, kv: kv, names: names, keys: keys}, nil
}

func (s *Store) key(name string) string { return s.names.StateKey(service, name) }

// place is what a sealed value is bound to.
func (s *Store) place(key string) string { return s.names.StateBucket() + "." + key }

// Add stores a new schedule. It fails with [ErrChanged] if there is one of its name.
func (s *Store) Add(ctx context.Context, one Schedule) error {
	value, err := s.encode(one)
	if err != nil {
		return err
	}
	_, err = s.kv.Create(ctx, s.key(one.Name), value)
	return changedError(err)
}

// Update stores a schedule in the place of the one that was read.
func (s *Store) Update(ctx context.Context, e Entry) error {
	value, err := s.encode(e.Schedule)
	if err != nil {
		return err
	}
	_, err = s.kv.Update(ctx, e.Key, value, e.Revision)
	return changedError(err)
}

func changedError(err error) error {
	if keys.IsConflict(err) {
		return ErrChanged
	}
	return err
}

// Remove removes a schedule. Runs that it has begun go on.
func (s *Store) Remove(ctx context.Context, name string) error {
	if _, err := s.Get(ctx, name); err != nil {
		return err
	}
	return keys.Delete(ctx, s.kv, s.key(name), 0)
}

// Get returns a schedule. It fails with [ErrNone].
func (s *Store) Get(ctx context.Context, name string) (Entry, error) {
	e, err := s.kv.Get(ctx, s.key(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Entry{}, ErrNone
	}
	if err != nil {
		return Entry{}, err
	}
	one := s.decode(keys.Entry{Key: e.Key(), Value: e.Value(), Revision: e.Revision()})
	return one, one.Err
}

// All returns all schedules, by name.
func (s *Store) All(ctx context.Context) ([]Entry, error) {
	stored, err := keys.All(ctx, s.js, s.names.StateBucket(), s.names.ServiceStates(service))
	if err != nil {
		return nil, err
	}
	all := make([]Entry, 0, len(stored))
	for _, e := range stored {
		all = append(all, s.decode(e))
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

// Watch yields all schedules, and each change. It ends with an error when anything is odd, and without one when ctx ends.
func (s *Store) Watch(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range keys.Watch(ctx, s.js, s.names.StateBucket(), s.names.ServiceStates(service)) {
			if err == nil && e.Key == "" {
				continue
			}
			if err != nil || !yield(s.decode(e), nil) {
				if err != nil {
					yield(Entry{}, err)
				}
				return
			}
		}
	}
}

func (s *Store) encode(one Schedule) ([]byte, error) {
	value, err := wire.Marshal(one)
	if err != nil {
		return nil, err
	}
	return s.keys.Value(s.place(s.key(one.Name)), value)
}

func (s *Store) decode(e keys.Entry) Entry {
	one := Entry{Key: e.Key, Revision: e.Revision, Gone: e.Deleted}
	if e.Deleted {
		return one
	}
	value, err := s.keys.OpenValue(s.place(e.Key), e.Value)
	if err == nil {
		err = wire.Unmarshal(value, &one.Schedule)
	}
	if err == nil && s.key(one.Name) != e.Key {
		err = fmt.Errorf("schedule %q stands at the key %s", one.Name, e.Key)
	}
	one.Err = err
	return one
}
