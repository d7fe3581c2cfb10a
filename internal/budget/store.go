package budget

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

// Store has the budgets of an installation: one value, so that one key tells a reader whether there are
// any. Where the installation has keys, it is sealed.
type Store struct {
	js    jetstream.JetStream
	kv    jetstream.KeyValue
	names subjects.Names
	keys  *seal.Keys
}

// maxBudgets bounds how many there are: their sums are asked for every second.
const maxBudgets = 200

// The errors of [Store] that a caller decides on.
var (
	ErrNone = errors.New("there is no such budget")
	ErrFull = fmt.Errorf("there are %d budgets, which is as many as there may be", maxBudgets)
)

// Open returns the budgets of an installation.
func Open(ctx context.Context, js jetstream.JetStream, names subjects.Names, keys *seal.Keys) (*Store, error) {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("open the bucket of states: %w", err)
	}
	return &Store{js: js, kv: kv, names: names, keys: keys}, nil
}

func (s *Store) key() string { return s.names.StateKey("budget", wire.NoRun) }

// place is what a sealed value is bound to.
func (s *Store) place() string { return s.names.StateBucket() + "." + s.key() }

// All returns all budgets, by name, without what is spent of them.
func (s *Store) All(ctx context.Context) ([]wire.SharedBudget, error) {
	all, _, err := s.read(ctx)
	return all, err
}

func (s *Store) read(ctx context.Context) (all []wire.SharedBudget, revision uint64, err error) {
	e, err := s.kv.Get(ctx, s.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the budgets: %w", err)
	}
	all, err = s.decode(e.Value())
	return all, e.Revision(), err
}

func (s *Store) decode(value []byte) (all []wire.SharedBudget, err error) {
	if value, err = s.keys.OpenValue(s.place(), value); err == nil {
		err = wire.Unmarshal(value, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the budgets: %w", err)
	}
	return all, nil
}

// InvalidError is the error of a budget that can't be kept, see [Check].
type InvalidError struct{ Reason error }

func (e *InvalidError) Error() string { return e.Reason.Error() }

// Edit stores what edit makes of the budget of a name, or of a new one that has nothing but that, and returns it. Edit is called
// again if others change budgets meanwhile. It fails with an [*InvalidError] if the budget can't be kept.
func (s *Store) Edit(ctx context.Context, name string, edit func(*wire.SharedBudget)) (b wire.SharedBudget, err error) {
	err = s.change(ctx, func(all []wire.SharedBudget) ([]wire.SharedBudget, error) {
		at, there := findBudget(all, name)
		if b = (wire.SharedBudget{Name: name}); there {
			b = all[at]
		}
		edit(&b)
		b.Name, b.Day, b.Spent = name, "", wire.Spent{}
		if err := Check(b); err != nil {
			return nil, &InvalidError{err}
		}
		if there {
			all[at] = b
			return all, nil
		}
		if len(all) >= maxBudgets {
			return nil, ErrFull
		}
		return slices.Insert(all, at, b), nil
	})
	return b, err
}

// Remove removes a budget.
func (s *Store) Remove(ctx context.Context, name string) error {
	return s.change(ctx, func(all []wire.SharedBudget) ([]wire.SharedBudget, error) {
		at, there := findBudget(all, name)
		if !there {
			return nil, ErrNone
		}
		return slices.Delete(all, at, at+1), nil
	})
}

func findBudget(all []wire.SharedBudget, name string) (at int, there bool) {
	return slices.BinarySearchFunc(all, name, func(b wire.SharedBudget, name string) int { return strings.Compare(b.Name, name) })
}

// change writes what edit makes of the budgets, of the newest if others change them meanwhile.
func (s *Store) change(ctx context.Context, edit func([]wire.SharedBudget) ([]wire.SharedBudget, error)) error {
	for {
		all, revision, err := s.read(ctx)
		if err == nil {
			all, err = edit(all)
		}
		if err != nil {
			return err
		}
		value, err := wire.Marshal(all)
		if err == nil {
			value, err = s.keys.Value(s.place(), value)
		}
		if err != nil {
			return err
		}
		if revision == 0 {
			_, err = s.kv.Create(ctx, s.key(), value)
		} else {
			_, err = s.kv.Update(ctx, s.key(), value, revision)
		}
		if !keys.IsConflict(err) {
			return err
		}
	}
}

// Watch yields all budgets, and again whenever they have changed. It ends with an error when anything is odd, and
// without one when ctx ends.
func (s *Store) Watch(ctx context.Context) iter.Seq2[[]wire.SharedBudget, error] {
	return func(yield func([]wire.SharedBudget, error) bool) {
		var all []wire.SharedBudget
		for e, err := range keys.Watch(ctx, s.js, s.names.StateBucket(), s.key()) {
			switch {
			case err != nil:
			case e.Key == "": // and there is none, or it has come
			case e.Deleted:
				all = nil
			default:
				all, err = s.decode(e.Value)
			}
			if !yield(all, err) || err != nil {
				return
			}
		}
	}
}
