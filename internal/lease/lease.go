// Package lease says which runner may act for a run or a node now.
//
// A runner process has one session: a key of the bucket WAKE_LEASES that it keeps renewing, and that expires with the
// bucket's TTL. Claims in the log name the session of the process that makes them, so the last claim of a run or a node
// says which process acts for it: that of the session, until it says in the log that it doesn't any more, or its session
// is gone. A lease is what a process holds of its own session for one run or node. So nothing is written for a lease,
// and a runner renews one key, however much it holds.
//
// A lease keeps two runners from doing the same work; it doesn't protect the log. That is what claims are for. A process that
// takes over reads the last claim first, then finds its session gone for one TTL, by the leader of the bucket too, and then
// claims behind what it has read or not at all (package eventlog).
//
// A holder that can't reach the server doesn't give up: it begins nothing new ([Lease.Valid]). If it was away for longer
// than its session lives, others may have claimed meanwhile: when it is back, each lease counts again as soon as a claim of
// its own holder, behind all others, has proven that none has ([Lease.Claimed]), or is lost ([Lease.Lost]). So an outage
// longer than the TTL, which no holder could have used, costs no work.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

var (
	// ErrHeld is returned by [Holder.Acquire] for what another process acts for, or this one already.
	ErrHeld = errors.New("lease: held by another runner")

	// ErrLost is returned by [Lease.Await] for a lease that is over: another process may act for its run or node. A proof
	// fails with it if another one has claimed, see [Lease.Claimed].
	ErrLost = errors.New("lease: lost to another runner")
)

// Identity identifies a holder.
type Identity struct {
	Runner string // as in claims
	// Home is what only one process at a time can have, such as a random id in
	// a locked folder. A session of the same home is that of a process that is gone.
	Home    string
	Process string // as in claims; no other process has had it
}

// Claimant is whom the last claim of a run or a node names.
type Claimant struct {
	Runner  string
	Process string // "": none acts for it
}

// Key names what a lease is for: a node, or by [wire.RunNode] its run.
type Key struct{ Run, Node string }

func (k Key) String() string { return k.Run + "/" + k.Node }

// Holder keeps the session of a process, and knows those of others. Its Run must be running while
// leases are acquired and held.
type Holder struct {
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	id     Identity
	ttl    time.Duration
	logger *slog.Logger

	again chan struct{}  // the watch has gone deaf: begin another
	tasks sync.WaitGroup // what Run has begun

	mu      sync.Mutex
	held    map[Key]*Lease
	proving bool            // leases in doubt are being proven
	left    map[Key]leaving // what is given back when its time is over
	session ownSession
	seen    map[string]sighting // sessions, by their processes
	since   time.Time           // since when sightings are complete; zero: they aren't
	unheard int                 // how often the session's last renewal hadn't been sighted a tick later
	// namesake is when a runner of the same name and another home was sighted.
	namesake time.Time
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
	backing, ok := status.(*jetstream.KeyValueBucketStatus)
	switch ttl := status.TTL(); {
	case ttl <= 0:
		return nil, fmt.Errorf("lease: bucket %s has no TTL; run `wake init`", status.Bucket())
	case !ok || backing.StreamInfo().Config.AllowDirect: // a replica that is behind would say that a session is gone
		return nil, fmt.Errorf("lease: bucket %s is read from any replica; run `wake init`", status.Bucket())
	default:
		return &Holder{
			js: js, kv: kv, id: id, ttl: ttl, logger: logger, again: make(chan struct{}, 1),
			held: map[Key]*Lease{}, left: map[Key]leaving{}, seen: map[string]sighting{}, session: ownSession{news: make(chan struct{})},
		}, nil
	}
}

// TTL returns how long a session lives without being renewed.
func (h *Holder) TTL() time.Duration { return h.ttl }

// Run renews the session, three times per TTL, and watches those of all others, until ctx ends. Then the session is
// withdrawn, unless something is still held under it: that others have when it has expired.
func (h *Holder) Run(ctx context.Context) error {
	tick := time.NewTicker(h.ttl / 3)
	defer tick.Stop()
	h.tasks.Go(func() { h.watchSessions(ctx) })
	defer h.tasks.Wait()
	h.renewSession(ctx)
	for {
		select {
		case <-ctx.Done():
			h.withdrawSession(ctx)
			return nil
		case <-tick.C:
			h.restartDeafWatch()
			h.renewSession(ctx)
			h.giveBackLeft(ctx)
			h.dropOldSightings()
		}
	}
}

// Free reports whether [Holder.Acquire] has a chance. It asks no server.
func (h *Holder) Free(key Key, last Claimant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[key] == nil && h.isFree(last)
}

// isFree is [Holder.Free] of what this process doesn't hold, under mu. After an outage all sessions have expired, and the
// work of holders that couldn't renew must not be taken: they get one whole time to live of a server that can
// be written, as far as this holder can tell.
func (h *Holder) isFree(last Claimant) bool {
	s, seen := h.seen[last.Process]
	switch {
	case h.isOver(last):
		return true
	case h.since.IsZero():
		return false
	case !seen && last.Runner == h.id.Runner && (h.namesake.IsZero() || time.Since(h.namesake) >= h.ttl):
		return true // an earlier process of ours, and it is long ago
	}
	absent := time.Since(h.since)
	if seen {
		absent = time.Since(s.at)
	}
	return min(absent, h.writableFor()) >= h.ttl
}

// isOver reports whether no process acts under a claim any more, nor ever will.
func (h *Holder) isOver(last Claimant) bool {
	s := h.seen[last.Process]
	return last.Process == "" || last.Process == h.id.Process || s.Over || s.Home != "" && s.Home == h.id.Home
}

// Holds reports whether this process holds a lease.
func (h *Holder) Holds(key Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[key] != nil
}

// OnEnd has a function called when a lease that this process holds ends, instead of the one of the last call. It must take no time.
// Of a lease that it doesn't hold it is never called.
func (h *Holder) OnEnd(key Key, call func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.held[key]; l != nil {
		l.onEnd = call
	}
}

// Present reports whether a runner is there. It is gone when it has said so, or
// has said nothing for one time to live during which it could.
func (h *Holder) Present(runner string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if runner == h.id.Runner {
		return true
	}
	known := false
	for process, s := range h.seen {
		if s.Runner != runner {
			continue
		}
		known = true
		if !s.Over && !h.isFree(Claimant{Runner: runner, Process: process}) {
			return true
		}
	}
	return !known && (h.since.IsZero() || min(time.Since(h.since), h.writableFor()) < h.ttl)
}

// Acquire takes the lease of a run or a node; last is the claimant of its last claim, which the caller has read
// from the log's leader, and behind which it is going to claim. Acquire fails with [ErrHeld] where that claimant acts, or may still
// want to, and where this process holds the lease already.
func (h *Holder) Acquire(ctx context.Context, key Key, last Claimant) (*Lease, error) {
	if err := h.awaitSession(ctx); err != nil {
		return nil, fmt.Errorf("lease: acquire %s: %w", key, err)
	}
	h.mu.Lock()
	if h.held[key] != nil || !h.isFree(last) {
		h.mu.Unlock()
		return nil, ErrHeld
	}
	l := h.holdLease(key)
	delete(h.left, key)
	sure := h.isOver(last)
	h.mu.Unlock()
	if sure {
		return l, nil
	}
	if err := h.confirmGone(ctx, last); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// holdLease begins a lease, under mu.
func (h *Holder) holdLease(key Key) *Lease {
	l := &Lease{holder: h, key: key, spell: h.session.spell}
	h.held[key] = l
	return l
}

// confirmGone asks the leader of the bucket whether a session is gone: the holder's sightings may be out of date. A session whose key is
// still there is gone, too, if the key has the revision that the holder sighted one TTL ago: a server with a clock that was put back lets
// keys expire as much later.
func (h *Holder) confirmGone(ctx context.Context, last Claimant) error {
	e, err := h.kv.Get(ctx, subjects.Default.SessionKey(last.Runner, last.Process))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lease: look for a session: %w", err)
	}
	var session Session
	if wire.Unmarshal(e.Value(), &session) == nil && session.Over {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, seen := h.seen[last.Process]
	if seen && s.revision == e.Revision() && h.isFree(last) {
		return nil
	}
	if !seen && session.Process == last.Process { // the sighting was dropped as that of a key which has expired
		h.seen[last.Process] = sighting{Session: session, revision: e.Revision(), at: time.Now()}
	}
	return ErrHeld
}

// awaitSession waits until the session is valid: claims must not name one that isn't there.
func (h *Holder) awaitSession(ctx context.Context) error {
	late := time.NewTimer(h.ttl)
	defer late.Stop()
	for {
		h.mu.Lock()
		valid, news := h.session.isValid(h.ttl), h.session.news
		h.mu.Unlock()
		if valid {
			return nil
		}
		select {
		case <-news:
		case <-late.C:
			return errors.New("the session of this runner is not renewed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leaving is a lease that is given back when its time is over.
type leaving struct {
	due  time.Time
	give func(context.Context) error
}

// giveBackLeft gives back the leases that were abandoned, and not taken again, in their time.
func (h *Holder) giveBackLeft(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, l := range h.left {
		if time.Now().Before(l.due) || h.held[key] != nil {
			continue
		}
		held := h.holdLease(key) // not to be taken meanwhile
		delete(h.left, key)
		h.tasks.Go(func() {
			err := l.give(ctx)
			held.Release()
			if err == nil || ctx.Err() != nil {
				return
			}
			h.logger.Debug("lease not given back yet", "key", key, "error", err)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.held[key] == nil {
				h.left[key] = l
			}
		})
	}
}
