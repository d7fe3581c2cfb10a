package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/keys"
	"wake/internal/pull"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// registryService is whose keys in WAKE_STATE the registered runs are.
const registryService = "runner"

// registration says that a run has begun, or is about to, and hasn't ended.
type registration struct {
	Run    string `json:"run"`
	Runner string `json:"runner"`           // its last owner
	Folder string `json:"folder"`           // the runner that holds its folder
	Since  int64  `json:"since"`            // Unix ms, of the last owner
	Parent string `json:"parent,omitempty"` // the run that has started it
	Call   string `json:"call,omitempty"`   // the call of that run's agent that waits for it
	// Released is the epoch in which the last owner has given the run back; 0: it
	// hasn't. If nobody has claimed the run since, nobody may be acting for it,
	// however long ago that was.
	Released uint64 `json:"released,omitempty"`

	// Trace is that of the last owner's beginning, as [tracing.Parent] spells it.
	Trace string `json:"trace,omitempty"`

	// Incarnation is that of the log: in another one the run doesn't exist.
	Incarnation string `json:"incarnation"`
}

// registry knows the runs that need an owner. It is kept in WAKE_STATE: an owner
// puts its run there before the run's first event, and takes it out when nothing
// is left to do about it. So a run that lost its owner at any point in between is
// found there by all others.
type registry struct {
	js    jetstream.JetStream
	kv    jetstream.KeyValue
	names subjects.Names

	mu   sync.Mutex
	runs map[string]known // by key
}

// known is a registration of which revision.
type known struct {
	registration

	revision uint64
	gone     bool // it was taken out
}

func newRegistry(ctx context.Context, js jetstream.JetStream, names subjects.Names) (*registry, error) {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("runner: open the bucket of states: %w", err)
	}
	return &registry{js: js, kv: kv, names: names, runs: map[string]known{}}, nil
}

// followActive keeps the registry up to date until ctx ends.
func (r *Runner) followActive(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.active.follow(ctx); err != nil {
			r.logger.Debug("the watch of active runs begins again", "error", err)
			sleep(ctx, time.Second)
			pull.AwaitConnection(ctx, r.log.Conn())
		}
	}
	return nil
}

// follow notes changes until ctx ends or anything is odd.
func (g *registry) follow(ctx context.Context) error {
	for e, err := range keys.Watch(ctx, g.js, g.names.StateBucket(), g.names.ServiceStates(registryService)) {
		if err != nil {
			return err
		}
		if e.Key != "" {
			g.note(e)
		}
	}
	return nil
}

func (g *registry) note(e keys.Entry) {
	k := known{revision: e.Revision}
	if !e.Deleted && wire.Unmarshal(e.Value, &k.registration) == nil {
		g.keep(e.Key, k)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if k.revision > g.runs[e.Key].revision {
		delete(g.runs, e.Key)
	}
}

// keep takes a newer revision of a key: what this process wrote comes again
// later.
func (g *registry) keep(key string, k known) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.runs[key]; k.revision > old.revision || k.revision == old.revision && !old.gone {
		g.runs[key] = k
	}
}

// list returns the registered runs, by id.
func (g *registry) list() []registration {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]registration, 0, len(g.runs))
	for _, k := range g.runs {
		if !k.gone {
			all = append(all, k.registration)
		}
	}
	slices.SortFunc(all, func(a, b registration) int { return strings.Compare(a.Run, b.Run) })
	return all
}

func (g *registry) key(run string) string { return g.names.StateKey(registryService, run) }

// get returns what is known of a run.
func (g *registry) get(run string) (registration, bool) {
	return g.at(g.key(run))
}

func (g *registry) at(key string) (registration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, ok := g.runs[key]
	return k.registration, ok && !k.gone
}

// load is [registry.get] as the server has it.
func (g *registry) load(ctx context.Context, run string) (reg registration, revision uint64, err error) {
	e, err := g.kv.Get(ctx, g.key(run))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return registration{}, 0, nil
	}
	if err != nil {
		return registration{}, 0, fmt.Errorf("registration of run %s: %w", run, err)
	}
	if err := wire.Unmarshal(e.Value(), &reg); err != nil {
		return registration{}, e.Revision(), nil //nolint:nilerr // whoever owns it writes another one
	}
	return reg, e.Revision(), nil
}

// put registers a run.
func (g *registry) put(ctx context.Context, reg registration) error {
	value, err := wire.Marshal(reg)
	if err != nil {
		return err
	}
	revision, err := g.kv.Put(ctx, g.key(reg.Run), value)
	if err != nil {
		return fmt.Errorf("register run %s: %w", reg.Run, err)
	}
	g.keep(g.key(reg.Run), known{registration: reg, revision: revision})
	return nil
}

// remove takes a run out, unless somebody has registered it again since a
// revision.
func (g *registry) remove(ctx context.Context, run string, revision uint64) error {
	if err := g.kv.Delete(ctx, g.key(run), jetstream.LastRevision(revision)); err != nil {
		return fmt.Errorf("take run %s out of the active ones: %w", run, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.runs[g.key(run)]; k.revision == revision {
		g.runs[g.key(run)] = known{revision: revision, gone: true} // until that comes back
	}
	return nil
}
