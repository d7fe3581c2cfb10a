// Package lease says which runner may act for a run or a node now.
//
// A lease is a key of the bucket WAKE_LEASES that its holder keeps renewing, up to
// 500 of them in one write; it expires with the bucket's TTL. A lease keeps two
// runners from doing the same work; it doesn't protect the log. That is what claims
// are for: a holder that stalls longer than its lease is fenced by the log itself
// (package eventlog).
//
// A holder that can't reach the server doesn't give up: it begins nothing new
// ([Lease.Valid]) and takes its lease again when the server is back, unless
// another holder was faster ([Lease.Lost]). So an outage longer than the TTL, which
// no holder could have used, costs no work.
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

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// ErrHeld is returned by [Holder.Acquire] for a lease that another runner holds.
var ErrHeld = errors.New("lease: held by another runner")

// ErrLost is returned by [Lease.Await] when another runner holds the lease.
var ErrLost = errors.New("lease: lost to another runner")

// Identity identifies a holder.
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

// Holder acquires leases and keeps them alive. Its Run must be running while
// leases are held; it also watches others' leases.
type Holder struct {
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	id     Identity
	ttl    time.Duration
	atomic bool // the bucket takes batches
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

// NewHolder returns the holder of a runner's leases. The time to live is the
// bucket's.
func NewHolder(ctx context.Context, js jetstream.JetStream, bucket string, id Identity, logger *slog.Logger) (*Holder, error) {
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
	backing, ok := status.(*jetstream.KeyValueBucketStatus)
	atomic := ok && backing.StreamInfo().Config.AllowAtomicPublish
	return &Holder{js: js, kv: kv, id: id, ttl: ttl, atomic: atomic, logger: logger, again: make(chan struct{}, 1), held: map[string]*Lease{}, seen: map[string]sighting{}}, nil
}

// TTL returns how long a lease lives without being renewed.
func (h *Holder) TTL() time.Duration { return h.ttl }

// Run renews the held leases, three times per TTL, says that the runner is
// there, and watches the leases of all others, until ctx ends. It releases
// nothing but its own presence.
func (h *Holder) Run(ctx context.Context) error {
	tick := time.NewTicker(h.ttl / 3)
	defer tick.Stop()
	var watching sync.WaitGroup
	watching.Go(func() { h.watchLeases(ctx) })
	defer watching.Wait()
	h.renewPresence(ctx)
	for {
		select {
		case <-ctx.Done():
			h.withdrawPresence(ctx)
			return nil
		case <-tick.C:
			h.restartDeafWatch()
			h.renewAll(ctx)
			h.dropOldSightings()
		}
	}
}

// renewPresence renews the presence of the runner, which shows whether the bucket can
// be written. What happened in a gap in showing it, such as that of a process that
// was stopped, isn't known.
func (h *Holder) renewPresence(ctx context.Context) {
	value, err := wire.Marshal(Info{Runner: h.id.Runner, Home: h.id.Home, Since: time.Now().UnixMilli()})
	var revision uint64
	if err == nil {
		wait, cancel := context.WithTimeout(ctx, h.ttl/3)
		revision, err = h.kv.Put(wait, presenceKey(h.id.Runner), value)
		cancel()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.up = time.Time{}
		return
	}
	now := time.Now()
	if h.up.IsZero() || now.Sub(h.wrote) > h.ttl {
		h.up = now
	}
	h.wrote, h.presence = now, revision
}

// restartDeafWatch begins another watch if this one doesn't tell of our own presence.
func (h *Holder) restartDeafWatch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.seen[presenceKey(h.id.Runner)]; h.presence == 0 || s.revision >= h.presence {
		h.unheard = 0
		return
	}
	if h.unheard++; h.unheard < 2 {
		return
	}
	h.unheard, h.since = 0, time.Time{}
	select {
	case h.again <- struct{}{}:
	default:
	}
}

func (h *Holder) withdrawPresence(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.ttl/3)
	defer cancel()
	if err := h.kv.Delete(ctx, presenceKey(h.id.Runner)); err != nil {
		h.logger.Debug("presence not withdrawn", "error", err) // it expires
	}
}

func presenceKey(runner string) string { return subjects.Default.PresenceKey(runner) }

// watchLeases notes the changes of all leases until ctx ends.
func (h *Holder) watchLeases(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.noteChanges(ctx)
		h.noteBlind()
		if err != nil {
			pull.Sleep(ctx, h.ttl/10)
			pull.AwaitConnection(ctx, h.js.Conn())
		}
	}
}

// noteBlind notes that changes may go unseen from now on.
func (h *Holder) noteBlind() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Time{}
}

// noteChanges notes changes until the watch fails or has gone deaf.
func (h *Holder) noteChanges(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		select {
		case <-h.again:
			cancel()
		case <-ctx.Done():
		}
	})
	defer listening.Wait()
	defer cancel()
	for e, err := range keys.Watch(ctx, h.js, h.kv.Bucket(), ">") {
		if err != nil {
			return err
		}
		h.noteSighting(e)
	}
	return nil
}

// noteSighting notes a change; one without a key says that all there was has been seen. A revision
// may be lower than that seen before: a bucket that was created anew.
func (h *Holder) noteSighting(e keys.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Key == "" {
		h.since = time.Now()
		return
	}
	if old, ok := h.seen[e.Key]; ok && old.revision == e.Revision {
		return // another watch tells what the last one told
	}
	s := sighting{revision: e.Revision, at: time.Now(), released: e.Deleted}
	if !s.released && wire.Unmarshal(e.Value, &s.info) != nil {
		s.info = Info{}
	}
	h.seen[e.Key] = s
	if !s.released && e.Key == presenceKey(h.id.Runner) && s.info.Home != h.id.Home {
		if h.namesake.IsZero() {
			h.logger.Warn("another runner has this one's name", "runner", h.id.Runner)
		}
		h.namesake = s.at
	}
}

// dropOldSightings drops what the server has dropped long ago.
func (h *Holder) dropOldSightings() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() || h.writableFor() <= 4*h.ttl {
		return
	}
	for key, s := range h.seen {
		if time.Since(s.at) > 4*h.ttl {
			delete(h.seen, key)
		}
	}
}

// writableFor returns for how long the bucket could be written without a gap, 0 if
// it can't.
func (h *Holder) writableFor() time.Duration {
	if h.up.IsZero() || time.Since(h.wrote) > h.ttl {
		return 0
	}
	return time.Since(h.up)
}

// renewAll renews the presence and the leases.
func (h *Holder) renewAll(ctx context.Context) {
	h.mu.Lock()
	leases := make([]*Lease, 0, len(h.held))
	for _, l := range h.held {
		if l != nil {
			leases = append(leases, l)
		}
	}
	h.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { h.renewPresence(ctx) })
	h.renewHeld(ctx, leases)
	wg.Wait()
}

// Free reports whether [Holder.Acquire] has a chance. last is the runner that claimed
// it last by the log; empty if nothing has begun under it. It asks no server.
func (h *Holder) Free(key, last string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, mine := h.held[key]
	return !mine && h.isFree(key, last)
}

// isFree is [Holder.Free] under mu. The server would give an expired lease to
// any holder. After an outage all have expired, and the work of holders that couldn't
// renew must not be taken: they get one whole time to live of a server that can
// be written, as far as this holder can tell.
func (h *Holder) isFree(key, last string) bool {
	s, seen := h.seen[key]
	switch {
	case seen && s.released, !seen && last == "":
		return true
	case seen && h.isOurs(s.info):
		return true // an earlier process of ours, which is gone
	case h.since.IsZero():
		return false
	case !seen && last == h.id.Runner && (h.namesake.IsZero() || time.Since(h.namesake) >= h.ttl):
		return true // as above, and it is long ago
	}
	absent := time.Since(h.since)
	if seen {
		absent = time.Since(s.at)
	}
	return min(absent, h.writableFor()) >= h.ttl
}

// isOurs reports whether a lease that this holder doesn't hold is of its home.
func (h *Holder) isOurs(info Info) bool { return info.Home != "" && info.Home == h.id.Home }

// Acquire takes a lease that isn't held; see [Holder.Free] for last. It fails
// with [ErrHeld] for one that a holder has or may still want back, this holder
// included.
func (h *Holder) Acquire(ctx context.Context, key, last string) (*Lease, error) {
	h.mu.Lock()
	if _, mine := h.held[key]; mine || last != "" && !h.isFree(key, last) {
		h.mu.Unlock()
		return nil, ErrHeld
	}
	h.held[key] = nil
	h.mu.Unlock()
	l, err := h.acquireLease(ctx, key)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.held, key)
		return nil, err
	}
	h.held[key] = l
	return l, nil
}

func (h *Holder) acquireLease(ctx context.Context, key string) (*Lease, error) {
	start := currentMoment()
	nonce := rand.Text()
	value, err := wire.Marshal(Info{Runner: h.id.Runner, Home: h.id.Home, Since: start.at.UnixMilli(), Nonce: nonce})
	if err != nil {
		return nil, err
	}
	rev, err := h.kv.Create(ctx, key, value)
	if errors.Is(err, jetstream.ErrKeyExists) {
		rev, err = h.inheritLease(ctx, key, value)
	}
	if errors.Is(err, jetstream.ErrKeyNotFound) { // it was released or expired between the two questions, or its release was forgotten
		rev, err = h.kv.Create(ctx, key, value)
	}
	if errors.Is(err, ErrHeld) || errors.Is(err, jetstream.ErrKeyExists) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, fmt.Errorf("lease: acquire %s: %w", key, err)
	}
	return &Lease{holder: h, key: key, nonce: nonce, value: value, revision: rev, first: rev, asked: start, turn: make(chan struct{}, 1), lost: make(chan struct{}), renewed: make(chan struct{}, 1)}, nil
}

// inheritLease takes over what an earlier process of ours held. It fails with [jetstream.ErrKeyNotFound] if no one holds it any more.
func (h *Holder) inheritLease(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	e, err := h.kv.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	var info Info
	if wire.Unmarshal(e.Value(), &info) != nil || !h.isOurs(info) {
		return 0, ErrHeld
	}
	rev, err := h.kv.Update(ctx, key, value, e.Revision())
	if _, refused := errors.AsType[*jetstream.APIError](err); refused {
		return 0, ErrHeld
	}
	return rev, err
}

// Of returns the holder of a lease, if it has one, as far as has been seen.
func (h *Holder) Of(key string) (Info, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[key] != nil {
		return Info{Runner: h.id.Runner, Home: h.id.Home}, true
	}
	s, seen := h.seen[key]
	if !seen || s.released || !h.since.IsZero() && min(time.Since(s.at), h.writableFor()) >= h.ttl {
		return Info{}, false
	}
	return s.info, true
}

// Present reports whether a runner is there. It is gone when it has said so, or
// has said nothing for one time to live during which it could.
func (h *Holder) Present(runner string) bool {
	if runner == h.id.Runner {
		return true
	}
	key := presenceKey(runner)
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, seen := h.seen[key]; seen && s.released {
		return false
	}
	return !h.isFree(key, runner+"?") // the log has no say in it
}

// Lease is the right to act for a run or a node.
type Lease struct {
	holder *Holder
	key    string
	nonce  string // in value; tells this lease from all others
	value  []byte
	first  uint64
	lost   chan struct{}

	turn    chan struct{} // full while the server is asked
	renewed chan struct{} // holds one token when the lease was renewed

	mu       sync.Mutex
	revision uint64
	asked    clockMoment // when the last renewal was asked for: it expires one TTL later
	ended    bool
}

// Revision is the revision with which the lease was acquired. It grows from
// holder to holder, so it bounds the epoch of the holder's claim from below.
func (l *Lease) Revision() uint64 { return l.first }

// Lost is closed when another runner holds the lease. It isn't closed by Release.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Valid reports whether the holder may begin something new: it is false from a
// tenth of the TTL before the lease may expire.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended && time.Now().Before(l.asked.at.Add(l.holder.ttl-l.holder.ttl/10))
}

// Renewed holds a token when the lease was renewed since the last one was taken.
func (l *Lease) Renewed() <-chan struct{} { return l.renewed }

// Until returns when the lease expires unless it is renewed, on the clock of [process.Uptime]: it
// expires in time in which the machine is suspended, too. It is in the past for a
// lease that was lost or released.
func (l *Lease) Until() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0
	}
	return l.asked.up + l.holder.ttl
}

// clockMoment is a time on two clocks: ours, and that which counts time in which the machine
// was suspended.
type clockMoment struct {
	at time.Time
	up time.Duration
}

func currentMoment() clockMoment { return clockMoment{at: time.Now(), up: process.Uptime()} }

// Await waits until the holder may begin something new. It fails with [ErrLost]
// when another runner holds the lease, or it was released.
func (l *Lease) Await(ctx context.Context) error {
	for !l.Valid() {
		if l.isOver() {
			return ErrLost
		}
		select {
		case <-l.lost:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(l.holder.ttl / 20):
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
	if err := l.holder.kv.Delete(ctx, l.key, jetstream.LastRevision(revision)); err != nil {
		return fmt.Errorf("lease: release %s: %w", l.key, err)
	}
	return nil
}

// Abandon has the lease expire: no other holder may have it before its time is over, but this one may take it again.
func (l *Lease) Abandon() { l.end() }

// renew extends the lease. If that is refused it looks why: an update that lost
// its acknowledgement is still ours, and a key that expired while the server
// couldn't be reached is created again, for no other holder took it.
func (l *Lease) renew(ctx context.Context) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.isOver() {
		return
	}
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.holder.ttl/3)
	defer cancel()
	const tries = 3 // a read may be behind
	for try := range tries {
		start := currentMoment()
		stored, err := l.writeValue(ctx, revision)
		if err == nil {
			l.noteRenewal(stored, start)
			return
		}
		if _, refused := errors.AsType[*jetstream.APIError](err); !refused && !errors.Is(err, jetstream.ErrKeyExists) {
			return
		}
		e, looked := l.holder.kv.Get(ctx, l.key)
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

// writeValue writes the lease over the given revision; 0 is that of a lease that isn't held.
func (l *Lease) writeValue(ctx context.Context, revision uint64) (uint64, error) {
	if revision == 0 {
		return l.holder.kv.Create(ctx, l.key, l.value)
	}
	return l.holder.kv.Update(ctx, l.key, l.value, revision)
}

// expiry returns when the lease expires unless it is renewed.
func (l *Lease) expiry() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked.at.Add(l.holder.ttl)
}

// isExpired reports whether the server may have dropped the lease.
func (l *Lease) isExpired() bool { return !time.Now().Before(l.expiry()) }

// isOver reports whether the lease was lost or released.
func (l *Lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// noteRenewal notes that the server has renewed the lease at our request of a time.
func (l *Lease) noteRenewal(revision uint64, asked clockMoment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision, l.asked = revision, asked
	select {
	case l.renewed <- struct{}{}:
	default:
	}
}

func (l *Lease) lose(cause error) {
	if _, held := l.end(); held {
		l.holder.logger.Warn("lease lost", "key", l.key, "cause", cause)
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
	l.holder.mu.Lock()
	delete(l.holder.held, l.key)
	l.holder.mu.Unlock()
	return l.revision, true
}
