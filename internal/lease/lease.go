// Package lease says who may act for a run or a node at the moment.
//
// A lease is a key of the bucket WAKE_LEASES that its holder keeps renewing, up to
// 500 of them in one write; it expires with the bucket's TTL. A lease keeps two
// runners from doing the same work; it doesn't protect the log. That is what claims
// are for: a holder that stalls longer than its lease is fenced by the log itself
// (package eventlog).
//
// A holder that can't reach the server doesn't give up: it begins nothing new
// ([Lease.Valid]) and takes its lease again when the server is back, unless
// somebody else was faster ([Lease.Lost]). So an outage longer than the TTL, which
// nobody could have used, costs no work.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/keys"
	"wake/internal/pull"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// ErrHeld is returned by [Keeper.Acquire] for a lease that somebody else holds.
var ErrHeld = errors.New("lease: held by another runner")

// ErrLost is returned by [Lease.Await] when somebody else holds the lease.
var ErrLost = errors.New("lease: lost to another runner")

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
	Nonce  string `json:"nonce,omitempty"`
}

// Keeper acquires leases and keeps them alive. Its Run must be running while
// leases are held; it also watches who holds what.
type Keeper struct {
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	id     Identity
	ttl    time.Duration
	logger *slog.Logger

	again chan struct{} // the watch has gone deaf: begin another

	mu       sync.Mutex
	held     map[string]*Lease   // nil: being acquired
	seen     map[string]sighting // by key
	since    time.Time           // since when sightings are complete; zero: they aren't
	up       time.Time           // since when the bucket can be written; zero: it can't
	wrote    time.Time           // when that was shown last
	presence uint64              // revision of the presence written last
	unheard  int                 // how often that hadn't been sighted a tick later
	namesake time.Time           // when a runner of the same name and another home was sighted
}

// sighting is the last change of a key that was seen.
type sighting struct {
	revision uint64
	at       time.Time // when, by our clock
	released bool
	info     Info
}

// NewKeeper returns the keeper of a runner's leases. The time to live is the
// bucket's.
func NewKeeper(ctx context.Context, js jetstream.JetStream, bucket string, id Identity, logger *slog.Logger) (*Keeper, error) {
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("lease: open the bucket: %w", err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: read the bucket: %w", err)
	}
	ttl := status.TTL()
	if ttl <= 0 {
		return nil, fmt.Errorf("lease: bucket %s has no TTL; run `wake init`", status.Bucket())
	}
	return &Keeper{js: js, kv: kv, id: id, ttl: ttl, logger: logger, again: make(chan struct{}, 1), held: map[string]*Lease{}, seen: map[string]sighting{}}, nil
}

// TTL returns how long a lease lives without being renewed.
func (k *Keeper) TTL() time.Duration { return k.ttl }

// Run renews the held leases, three times per TTL, says that the runner is
// there, and watches the leases of all others, until ctx ends. It releases
// nothing but its own presence.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.ttl / 3)
	defer tick.Stop()
	var watching sync.WaitGroup
	watching.Go(func() { k.watch(ctx) })
	defer watching.Wait()
	k.appear(ctx)
	for {
		select {
		case <-ctx.Done():
			k.disappear(ctx)
			return nil
		case <-tick.C:
			k.listen()
			k.renewAll(ctx)
			k.forget()
		}
	}
}

// appear renews the presence of the runner, which shows whether the bucket can
// be written. Of a gap in showing it, such as that of a process that was stopped,
// nobody knows what happened in it.
func (k *Keeper) appear(ctx context.Context) {
	value, err := wire.Marshal(Info{Runner: k.id.Runner, Home: k.id.Home, Since: time.Now().UnixMilli()})
	var revision uint64
	if err == nil {
		wait, cancel := context.WithTimeout(ctx, k.ttl/3)
		revision, err = k.kv.Put(wait, presenceKey(k.id.Runner), value)
		cancel()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.up = time.Time{}
		return
	}
	now := time.Now()
	if k.up.IsZero() || now.Sub(k.wrote) > k.ttl {
		k.up = now
	}
	k.wrote, k.presence = now, revision
}

// listen begins another watch if this one doesn't tell of our own presence.
func (k *Keeper) listen() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.seen[presenceKey(k.id.Runner)]; k.presence == 0 || s.revision >= k.presence {
		k.unheard = 0
		return
	}
	if k.unheard++; k.unheard < 2 {
		return
	}
	k.unheard, k.since = 0, time.Time{}
	select {
	case k.again <- struct{}{}:
	default:
	}
}

func (k *Keeper) disappear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ttl/3)
	defer cancel()
	if err := k.kv.Delete(ctx, presenceKey(k.id.Runner)); err != nil {
		k.logger.Debug("presence not withdrawn", "error", err) // it expires
	}
}

func presenceKey(runner string) string { return subjects.Default.PresenceKey(runner) }

// watch notes the changes of all leases until ctx ends.
func (k *Keeper) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.note(ctx)
		k.blind()
		if err != nil {
			pause(ctx, k.ttl/10)
			pull.AwaitConnection(ctx, k.js.Conn())
		}
	}
}

// blind notes that changes may go unseen from now on.
func (k *Keeper) blind() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since = time.Time{}
}

// note notes changes until the watch fails or has gone deaf.
func (k *Keeper) note(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		select {
		case <-k.again:
			cancel()
		case <-ctx.Done():
		}
	})
	defer listening.Wait()
	defer cancel()
	for e, err := range keys.Watch(ctx, k.js, k.kv.Bucket(), ">") {
		if err != nil {
			return err
		}
		k.sight(e)
	}
	return nil
}

// sight notes a change; one without a key says that all there was has been seen. A revision
// may be lower than that seen before: a bucket that was created anew.
func (k *Keeper) sight(e keys.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.Key == "" {
		k.since = time.Now()
		return
	}
	if old, ok := k.seen[e.Key]; ok && old.revision == e.Revision {
		return // another watch tells what the last one told
	}
	s := sighting{revision: e.Revision, at: time.Now(), released: e.Deleted}
	if !s.released && wire.Unmarshal(e.Value, &s.info) != nil {
		s.info = Info{}
	}
	k.seen[e.Key] = s
	if !s.released && e.Key == presenceKey(k.id.Runner) && s.info.Home != k.id.Home {
		if k.namesake.IsZero() {
			k.logger.Warn("another runner has this one's name", "runner", k.id.Runner)
		}
		k.namesake = s.at
	}
}

// forget drops what the server has dropped long ago.
func (k *Keeper) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.since.IsZero() || k.writable() <= 4*k.ttl {
		return
	}
	for key, s := range k.seen {
		if time.Since(s.at) > 4*k.ttl {
			delete(k.seen, key)
		}
	}
}

// writable returns for how long the bucket could be written without a gap, 0 if
// it can't.
func (k *Keeper) writable() time.Duration {
	if k.up.IsZero() || time.Since(k.wrote) > k.ttl {
		return 0
	}
	return time.Since(k.up)
}

// renewAll renews the presence and the leases.
func (k *Keeper) renewAll(ctx context.Context) {
	k.mu.Lock()
	leases := make([]*Lease, 0, len(k.held))
	for _, l := range k.held {
		if l != nil {
			leases = append(leases, l)
		}
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { k.appear(ctx) })
	k.renewHeld(ctx, leases)
	wg.Wait()
}

// Free reports whether [Keeper.Acquire] has a chance. last is who claimed it
// last by the log; empty if nobody has begun anything under it. It asks nobody.
func (k *Keeper) Free(key, last string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, mine := k.held[key]
	return !mine && k.free(key, last)
}

// free is [Keeper.Free] under mu. The server would give an expired lease to
// anybody. After an outage all have expired, and the work of those who couldn't
// renew must not be taken: they get one whole time to live of a server that can
// be written, as far as this keeper can tell.
func (k *Keeper) free(key, last string) bool {
	s, seen := k.seen[key]
	switch {
	case seen && s.released, !seen && last == "":
		return true
	case seen && k.ours(s.info):
		return true // an earlier process of ours, which is gone
	case k.since.IsZero():
		return false
	case !seen && last == k.id.Runner && (k.namesake.IsZero() || time.Since(k.namesake) >= k.ttl):
		return true // as above, and it is long ago
	}
	absent := time.Since(k.since)
	if seen {
		absent = time.Since(s.at)
	}
	return min(absent, k.writable()) >= k.ttl
}

// ours reports whether a lease that this keeper doesn't hold is of its home.
func (k *Keeper) ours(info Info) bool { return info.Home != "" && info.Home == k.id.Home }

// Acquire takes a lease that nobody holds; see [Keeper.Free] for last. It fails
// with [ErrHeld] for one that somebody holds or may still want back, this keeper
// included.
func (k *Keeper) Acquire(ctx context.Context, key, last string) (*Lease, error) {
	k.mu.Lock()
	if _, mine := k.held[key]; mine || last != "" && !k.free(key, last) {
		k.mu.Unlock()
		return nil, ErrHeld
	}
	k.held[key] = nil
	k.mu.Unlock()
	l, err := k.acquire(ctx, key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		delete(k.held, key)
		return nil, err
	}
	k.held[key] = l
	return l, nil
}

func (k *Keeper) acquire(ctx context.Context, key string) (*Lease, error) {
	start := time.Now()
	nonce := rand.Text()
	value, err := wire.Marshal(Info{Runner: k.id.Runner, Home: k.id.Home, Since: start.UnixMilli(), Nonce: nonce})
	if err != nil {
		return nil, err
	}
	rev, err := k.kv.Create(ctx, key, value)
	if errors.Is(err, jetstream.ErrKeyExists) {
		rev, err = k.inherit(ctx, key, value)
	}
	if errors.Is(err, ErrHeld) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("lease: acquire %s: %w", key, err)
	}
	return &Lease{keeper: k, key: key, nonce: nonce, value: value, revision: rev, first: rev, deadline: start.Add(k.ttl), turn: make(chan struct{}, 1), lost: make(chan struct{})}, nil
}

// inherit takes over what an earlier process of ours held.
func (k *Keeper) inherit(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	e, err := k.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted) {
		return 0, ErrHeld // it has just changed
	}
	if err != nil {
		return 0, err
	}
	var info Info
	if wire.Unmarshal(e.Value(), &info) != nil || !k.ours(info) {
		return 0, ErrHeld
	}
	rev, err := k.kv.Update(ctx, key, value, e.Revision())
	if _, refused := errors.AsType[*jetstream.APIError](err); refused {
		return 0, ErrHeld
	}
	return rev, err
}

// Holder returns who holds a lease, if anybody does, as far as has been seen.
func (k *Keeper) Holder(key string) (Info, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[key] != nil {
		return Info{Runner: k.id.Runner, Home: k.id.Home}, true
	}
	s, seen := k.seen[key]
	if !seen || s.released || !k.since.IsZero() && min(time.Since(s.at), k.writable()) >= k.ttl {
		return Info{}, false
	}
	return s.info, true
}

// Present reports whether a runner is there. It is gone when it has said so, or
// has said nothing for one time to live during which it could.
func (k *Keeper) Present(runner string) bool {
	if runner == k.id.Runner {
		return true
	}
	key := presenceKey(runner)
	k.mu.Lock()
	defer k.mu.Unlock()
	if s, seen := k.seen[key]; seen && s.released {
		return false
	}
	return !k.free(key, runner+"?") // the log has no say in it
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Lease is the right to act for a run or a node.
type Lease struct {
	keeper *Keeper
	key    string
	nonce  string // in value; tells this lease from all others
	value  []byte
	first  uint64
	lost   chan struct{}

	turn chan struct{} // full while the server is asked

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

// Await waits until the holder may begin something new. It fails with [ErrLost]
// when somebody else holds the lease, or it was released.
func (l *Lease) Await(ctx context.Context) error {
	for !l.Valid() {
		if l.over() {
			return ErrLost
		}
		select {
		case <-l.lost:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(l.keeper.ttl / 20):
		}
	}
	return nil
}

// Release gives the lease back, so that the next one needn't wait for it to
// expire, as it does where Release fails. Releasing a lost lease does nothing.
func (l *Lease) Release(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		l.end() // it expires
		return fmt.Errorf("lease: release %s: %w", l.key, ctx.Err())
	}
	revision, held := l.end()
	if !held {
		return nil
	}
	if err := l.keeper.kv.Delete(ctx, l.key, jetstream.LastRevision(revision)); err != nil {
		return fmt.Errorf("lease: release %s: %w", l.key, err)
	}
	return nil
}

// renew extends the lease. If that is refused it looks why: an update whose
// acknowledgement was lost is still ours, and a key that expired while the server
// couldn't be reached is created again, for nobody else took it.
func (l *Lease) renew(ctx context.Context) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.over() {
		return
	}
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.keeper.ttl/3)
	defer cancel()
	const tries = 3 // a read may be behind
	for try := range tries {
		start := time.Now()
		stored, err := l.store(ctx, revision)
		if err == nil {
			l.extend(stored, start)
			return
		}
		if _, refused := errors.AsType[*jetstream.APIError](err); !refused && !errors.Is(err, jetstream.ErrKeyExists) {
			return
		}
		e, looked := l.keeper.kv.Get(ctx, l.key)
		switch {
		case looked == nil && string(e.Value()) == string(l.value):
			revision = e.Revision()
		case looked == nil && (e.Revision() > revision || try == tries-1):
			l.lose(err)
			return
		case looked == nil:
		case errors.Is(looked, jetstream.ErrKeyNotFound), errors.Is(looked, jetstream.ErrKeyDeleted):
			revision = 0
		default:
			return
		}
	}
}

// store writes the lease where it has a revision, 0 for nowhere.
func (l *Lease) store(ctx context.Context, revision uint64) (uint64, error) {
	if revision == 0 {
		return l.keeper.kv.Create(ctx, l.key, l.value)
	}
	return l.keeper.kv.Update(ctx, l.key, l.value, revision)
}

// until returns when the lease expires unless it is renewed.
func (l *Lease) until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// expired reports whether the server may have dropped the lease.
func (l *Lease) expired() bool { return !time.Now().Before(l.until()) }

// over reports whether the lease was lost or released.
func (l *Lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
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
