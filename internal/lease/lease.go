// Package lease says who may act for a run or a node at the moment.
//
// A lease is a key of the bucket WAKE_LEASES that its holder keeps renewing; it
// expires with the bucket's TTL. A lease keeps two runners from doing the same
// work; it doesn't protect the log. That is what claims are for: a holder that
// stalls longer than its lease is fenced by the log itself (package eventlog).
//
// A holder that can't reach the server doesn't give up: it begins nothing new
// ([Lease.Valid]) and takes its lease again when the server is back, unless
// somebody else was faster ([Lease.Lost]). So an outage longer than the TTL, which
// nobody could have used, costs no work.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/pkg/wire"
)

// ErrHeld is returned by [Keeper.Acquire] for a lease that somebody else holds.
var ErrHeld = errors.New("lease: held by another runner")

// Identity says who a keeper is.
type Identity struct {
	Runner string // as in claims
	// Home is what only one process at a time can have, such as a random id in
	// a locked folder. A lease of the same home is that of a process that is gone.
	Home string
}

// Info is the value of a lease.
type Info struct {
	Runner string `json:"runner"`
	Home   string `json:"home,omitempty"`
	Since  int64  `json:"since"` // Unix ms
}

// Keeper acquires leases and keeps them alive. Its Run must be running while
// leases are held.
type Keeper struct {
	kv     jetstream.KeyValue
	runner string
	ttl    time.Duration
	logger *slog.Logger

	mu   sync.Mutex
	held map[string]*Lease
}

// NewKeeper returns the keeper of a runner's leases. The time to live is the
// bucket's.
func NewKeeper(ctx context.Context, kv jetstream.KeyValue, runner string, logger *slog.Logger) (*Keeper, error) {
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: read the bucket: %w", err)
	}
	ttl := status.TTL()
	if ttl <= 0 {
		return nil, fmt.Errorf("lease: bucket %s has no TTL; run `wake init`", status.Bucket())
	}
	return &Keeper{kv: kv, runner: runner, ttl: ttl, logger: logger, held: map[string]*Lease{}}, nil
}

// TTL returns how long a lease lives without being renewed.
func (k *Keeper) TTL() time.Duration { return k.ttl }

// Run renews the held leases, three times per TTL, until ctx ends. It doesn't
// release them.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.renewAll(ctx)
		}
	}
}

func (k *Keeper) renewAll(ctx context.Context) {
	k.mu.Lock()
	leases := make([]*Lease, 0, len(k.held))
	for _, l := range k.held {
		leases = append(leases, l)
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() { l.renew(ctx) })
	}
	wg.Wait()
}

// Acquire takes a lease that nobody holds, or returns [ErrHeld]. One that the
// keeper itself holds is [ErrHeld] too.
func (k *Keeper) Acquire(ctx context.Context, key string) (*Lease, error) {
	k.mu.Lock()
	_, mine := k.held[key]
	k.mu.Unlock()
	if mine {
		return nil, ErrHeld
	}
	start := time.Now()
	value, err := wire.Marshal(Info{Runner: k.runner, Since: start.UnixMilli()})
	if err != nil {
		return nil, err
	}
	rev, err := k.kv.Create(ctx, key, value)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, fmt.Errorf("lease: acquire %s: %w", key, err)
	}
	l := &Lease{keeper: k, key: key, value: value, revision: rev, first: rev, deadline: start.Add(k.ttl), lost: make(chan struct{})}
	k.mu.Lock()
	k.held[key] = l
	k.mu.Unlock()
	return l, nil
}

// Holder returns who holds a lease, if anybody does.
func (k *Keeper) Holder(ctx context.Context, key string) (Info, bool, error) {
	e, err := k.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted) {
		return Info{}, false, nil
	}
	if err != nil {
		return Info{}, false, fmt.Errorf("lease: read %s: %w", key, err)
	}
	var info Info
	if err := wire.Unmarshal(e.Value(), &info); err != nil {
		return Info{}, false, fmt.Errorf("lease: read %s: %w", key, err)
	}
	return info, true, nil
}

// Lease is the right to act for a run or a node.
type Lease struct {
	keeper *Keeper
	key    string
	value  []byte
	first  uint64
	lost   chan struct{}

	turn sync.Mutex // held while the server is asked

	mu       sync.Mutex
	revision uint64
	deadline time.Time // when it expires unless it is renewed
	ended    bool
}

// Revision is the revision with which the lease was acquired. It grows from
// holder to holder, so it bounds the epoch of the holder's claim from below.
func (l *Lease) Revision() uint64 { return l.first }

// Lost is closed when somebody else holds the lease. It isn't closed by Release.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Valid reports whether the holder may begin something new: it is false from a
// tenth of the TTL before the lease may expire.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended && time.Now().Before(l.deadline.Add(-l.keeper.ttl/10))
}

// Release gives the lease back, so that the next one needn't wait for it to
// expire. Releasing a lost lease does nothing.
func (l *Lease) Release(ctx context.Context) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	revision, held := l.end()
	if !held {
		return nil
	}
	if err := l.keeper.kv.Delete(ctx, l.key, jetstream.LastRevision(revision)); err != nil {
		return fmt.Errorf("lease: release %s: %w", l.key, err)
	}
	return nil
}

// renew extends the lease, or looks why that was refused.
func (l *Lease) renew(ctx context.Context) {
	l.turn.Lock()
	defer l.turn.Unlock()
	l.mu.Lock()
	revision, ended := l.revision, l.ended
	l.mu.Unlock()
	if ended {
		return
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.keeper.ttl/3)
	defer cancel()
	rev, err := l.keeper.kv.Update(ctx, l.key, l.value, revision)
	if err == nil {
		l.extend(rev, start)
	} else if refusal, ok := errors.AsType[*jetstream.APIError](err); ok {
		l.refused(ctx, refusal)
	}
}

// refused looks why an update was refused. An update whose acknowledgement was
// lost is still ours; a key that expired while we couldn't reach the server is
// created again, for nobody else took it.
func (l *Lease) refused(ctx context.Context, cause error) {
	start := time.Now()
	e, err := l.keeper.kv.Get(ctx, l.key)
	switch {
	case err == nil && string(e.Value()) == string(l.value):
		l.mu.Lock()
		l.revision = e.Revision()
		l.mu.Unlock()
	case err == nil:
		l.lose(cause)
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		if rev, err := l.keeper.kv.Create(ctx, l.key, l.value); err == nil {
			l.extend(rev, start)
		} else if errors.Is(err, jetstream.ErrKeyExists) {
			l.lose(err)
		}
	}
}

// extend notes that the server has renewed the lease at our request of a time.
func (l *Lease) extend(revision uint64, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision, l.deadline = revision, asked.Add(l.keeper.ttl)
}

func (l *Lease) lose(cause error) {
	if _, held := l.end(); held {
		l.keeper.logger.Warn("lease lost", "key", l.key, "cause", cause)
		close(l.lost)
	}
}

// end forgets the lease, and returns its revision if it was held.
func (l *Lease) end() (revision uint64, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, false
	}
	l.ended = true
	l.keeper.mu.Lock()
	delete(l.keeper.held, l.key)
	l.keeper.mu.Unlock()
	return l.revision, true
}
