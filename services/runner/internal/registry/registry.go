// Package registry knows which runs go on: in the fleet, and in this process.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Service is in the keys, in WAKE_STATE, of registered runs.
const Service = "runner"

// Registration says that a run has begun, or is about to, and hasn't ended.
type Registration struct {
	Run    string `json:"run"`
	Runner string `json:"runner"` // its last owner
	Folder string `json:"folder"` // the runner that holds its folder
	Since  int64  `json:"since"`  // Unix ms, of the last owner
	// MovesTo is the runner that is about to have the run go on in a folder of its own: it holds the folder once the run was resumed
	// behind position MovesFrom.
	MovesTo   string `json:"movesTo,omitempty"`
	MovesFrom uint64 `json:"movesFrom,omitempty"`
	// Moved is the folder in which the run goes on, if that isn't the one in which it began.
	Moved string `json:"moved,omitempty"`

	Parent string `json:"parent,omitempty"` // the run that has started it
	Call   string `json:"call,omitempty"`   // the call of that run's agent that waits for it
	// Released is the epoch in which the last owner has given the run back; 0: it
	// hasn't. If no runner has claimed the run since, none may be acting for it,
	// however long ago that was.
	Released uint64 `json:"released,omitempty"`

	// Parked is since when the run waits without an owner, Unix ms; 0: it doesn't. Its last owner has given it back, and
	// nothing is to be done about it until it is due, or a command comes. Due is when, Unix ms; 0: only by a command.
	Parked int64 `json:"parked,omitempty"`
	Due    int64 `json:"due,omitempty"`

	// Process is that of the last owner, by a name that no other process has. Trials is how many
	// processes have begun to take the run over since one has got as far as to decide for it.
	Process string `json:"process,omitempty"`
	Trials  int    `json:"trials,omitempty"`

	// Trace is that of the last owner's beginning, as [tracing.Parent] spells it.
	Trace string `json:"trace,omitempty"`

	// Incarnation is that of the log: in another one the run doesn't exist.
	Incarnation string `json:"incarnation"`
}

// Registry knows the runs that need an owner. It is kept in WAKE_STATE: an owner
// puts its run there before the run's first event, and takes it out when nothing
// is left to do about it. So a run that lost its owner at any point in between is
// found there by all others.
type Registry struct {
	js          jetstream.JetStream
	kv          jetstream.KeyValue
	names       subjects.Names
	incarnation string // of the log
	logger      *slog.Logger
	sooner      chan struct{} // see [Registry.Alarms]

	mu     sync.Mutex
	runs   map[string]knownRun        // by key
	called map[string]map[string]bool // keys of called runs, by the run that called them
	awake  map[string]struct{}        // keys of runs that aren't parked
	alarms alarms                     // of those that are
	clock  int64                      // when they were looked at last, Unix ms
}

// knownRun is a registration of which revision.
type knownRun struct {
	Registration

	revision uint64
	gone     bool   // it was taken out
	alarm    *alarm // nil: it isn't parked
}

// Open returns the registry of a log. It knows what [Registry.Follow] has seen.
func Open(ctx context.Context, log *eventlog.Log, logger *slog.Logger) (*Registry, error) {
	js, names := log.JetStream(), log.Names()
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("runner: open the bucket of states: %w", err)
	}
	return newRegistry(js, kv, names, log.Incarnation(), logger), nil
}

func newRegistry(js jetstream.JetStream, kv jetstream.KeyValue, names subjects.Names, incarnation string, logger *slog.Logger) *Registry {
	return &Registry{
		js: js, kv: kv, names: names, incarnation: incarnation, logger: logger, sooner: make(chan struct{}, 1),
		runs: map[string]knownRun{}, called: map[string]map[string]bool{}, awake: map[string]struct{}{},
	}
}

// Follow keeps the registry up to date until ctx ends.
func (g *Registry) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.watchRegistrations(ctx); err != nil {
			g.logger.Debug("the watch of active runs begins again", "error", err)
			pull.Sleep(ctx, time.Second)
			pull.AwaitConnection(ctx, g.js.Conn())
		}
	}
	return nil
}

// watchRegistrations notes changes until ctx ends or anything is odd.
func (g *Registry) watchRegistrations(ctx context.Context) error {
	former := g.knownRevisions() // those of them that don't come again were taken out long ago
	for e, err := range keys.Watch(ctx, g.js, g.names.StateBucket(), g.names.ServiceStates(Service)) {
		if err != nil {
			return err
		}
		if e.Key == "" {
			for key, revision := range former {
				g.noteChange(keys.Entry{Key: key, Revision: revision + 1, Deleted: true})
			}
			former = nil
			continue
		}
		delete(former, e.Key)
		g.noteChange(e)
	}
	return nil
}

// knownRevisions are those of the registrations that this process knows, by key.
func (g *Registry) knownRevisions() map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]uint64, len(g.runs))
	for key, k := range g.runs {
		all[key] = k.revision
	}
	return all
}

func (g *Registry) noteChange(e keys.Entry) {
	k := knownRun{revision: e.Revision}
	if !e.Deleted && wire.Unmarshal(e.Value, &k.Registration) == nil {
		shareTexts(&k.Registration)
		g.keepNewer(e.Key, k)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.runs[e.Key]; k.revision > old.revision {
		g.forget(e.Key)
		delete(g.runs, e.Key)
		g.dropCall(e.Key, old.Parent)
	}
}

// dropCall forgets that a run was begun by a call of another's agent, under mu.
func (g *Registry) dropCall(key, parent string) {
	if delete(g.called[parent], key); len(g.called[parent]) == 0 {
		delete(g.called, parent)
	}
}

// keepNewer takes a newer revision of a key: what this process wrote comes again
// later.
func (g *Registry) keepNewer(key string, k knownRun) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.runs[key]; k.revision > old.revision || k.revision == old.revision && !old.gone {
		if k.revision > old.revision { // else its alarm stays as it was tried
			k = g.index(key, k)
		} else {
			k.alarm = old.alarm
		}
		g.runs[key] = k
		if k.Call == "" {
			return
		}
		if g.called[k.Parent] == nil {
			g.called[k.Parent] = map[string]bool{}
		}
		g.called[k.Parent][key] = true
	}
}

// Called returns the registered runs that calls of a run's agents wait for, in any order.
func (g *Registry) Called(run string) (all []Registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.called[run] {
		if k := g.runs[key]; !k.gone && k.Parent == run {
			all = append(all, k.Registration)
		}
	}
	return all
}

// List returns the registered runs that aren't parked, by id.
func (g *Registry) List() []Registration {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]Registration, 0, len(g.awake))
	for key := range g.awake {
		all = append(all, g.runs[key].Registration)
	}
	slices.SortFunc(all, func(a, b Registration) int { return strings.Compare(a.Run, b.Run) })
	return all
}

func (g *Registry) stateKey(run string) string { return g.names.StateKey(Service, run) }

// Get returns what is known of a run.
func (g *Registry) Get(run string) (Registration, bool) {
	return g.At(g.stateKey(run))
}

// At is [Registry.Get] by the key of a run.
func (g *Registry) At(key string) (Registration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, ok := g.runs[key]
	return k.Registration, ok && !k.gone
}

// Load is [Registry.Get] as the server has it.
func (g *Registry) Load(ctx context.Context, run string) (reg Registration, revision uint64, err error) {
	e, err := g.kv.Get(ctx, g.stateKey(run))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Registration{}, 0, nil
	}
	if err != nil {
		return Registration{}, 0, fmt.Errorf("registration of run %s: %w", run, err)
	}
	if err := wire.Unmarshal(e.Value(), &reg); err != nil {
		return Registration{}, e.Revision(), nil //nolint:nilerr // its next owner writes another one
	}
	return reg, e.Revision(), nil
}

// Put registers a run, and returns the revision of that.
func (g *Registry) Put(ctx context.Context, reg Registration) (revision uint64, err error) {
	value, err := wire.Marshal(reg)
	if err != nil {
		return 0, err
	}
	revision, err = g.kv.Put(ctx, g.stateKey(reg.Run), value)
	if err != nil {
		return 0, fmt.Errorf("register run %s: %w", reg.Run, err)
	}
	g.keepNewer(g.stateKey(reg.Run), knownRun{Registration: reg, revision: revision})
	return revision, nil
}

// ErrRegistered is returned by [Registry.Add] for a run that is registered.
var ErrRegistered = errors.New("the run is registered")

// Add is [Registry.Put] of a run that isn't registered, or only in another incarnation of the log.
func (g *Registry) Add(ctx context.Context, reg Registration) (revision uint64, err error) {
	value, err := wire.Marshal(reg)
	if err != nil {
		return 0, err
	}
	revision, err = g.kv.Create(ctx, g.stateKey(reg.Run), value)
	if keys.IsConflict(err) {
		old, at, e := g.Load(ctx, reg.Run)
		if e != nil {
			return 0, e
		}
		if old.Incarnation == g.incarnation {
			return 0, ErrRegistered
		}
		revision, err = g.kv.Update(ctx, g.stateKey(reg.Run), value, at)
	}
	if err != nil {
		return 0, fmt.Errorf("register run %s: %w", reg.Run, err)
	}
	g.keepNewer(g.stateKey(reg.Run), knownRun{Registration: reg, revision: revision})
	return revision, nil
}

// Remove takes a run out, unless it was registered again since a
// revision.
func (g *Registry) Remove(ctx context.Context, run string, revision uint64) error {
	if err := keys.Delete(ctx, g.kv, g.stateKey(run), revision); err != nil {
		return fmt.Errorf("take run %s out of the active ones: %w", run, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.runs[g.stateKey(run)]; k.revision == revision {
		g.forget(g.stateKey(run))
		g.dropCall(g.stateKey(run), k.Parent)
		g.runs[g.stateKey(run)] = knownRun{revision: revision, gone: true} // until that comes back
	}
	return nil
}

// Set holds the ids of what this process is at work on.
type Set struct {
	mu  sync.Mutex
	ids map[string]bool
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{ids: map[string]bool{}} }

// Enter reports whether the id was not there before.
func (s *Set) Enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return false
	}
	s.ids[id] = true
	return true
}

// Leave takes an id out.
func (s *Set) Leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

// Has reports whether an id is there.
func (s *Set) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// Len returns how many there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// List returns the ids in order.
func (s *Set) List() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ids))
}
