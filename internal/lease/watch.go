package lease

import (
	"context"
	"sync"
	"time"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// sighting is the last change of a session that was seen.
type sighting struct {
	Session

	revision uint64
	at       time.Time // when, by our clock
}

// watchSessions notes the changes of all sessions until ctx ends.
func (h *Holder) watchSessions(ctx context.Context) {
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
// may be lower than that seen before: a bucket that was created anew. That a key was taken out says nothing: only its process
// knows that it doesn't act any more.
func (h *Holder) noteSighting(e keys.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Key == "" {
		h.since = time.Now()
		return
	}
	s := sighting{revision: e.Revision, at: time.Now()}
	if e.Deleted || wire.Unmarshal(e.Value, &s.Session) != nil || s.Process == "" || h.seen[s.Process].revision == e.Revision {
		return // another watch tells what the last one told
	}
	h.seen[s.Process] = s
	if s.Runner == h.id.Runner && s.Home != h.id.Home && !s.Over {
		if h.namesake.IsZero() {
			h.logger.Warn("another runner has this one's name", "runner", h.id.Runner)
		}
		h.namesake = s.at
	}
}

// restartDeafWatch begins another watch if this one doesn't tell of our own session.
func (h *Holder) restartDeafWatch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session.revision == 0 || h.seen[h.id.Process].revision >= h.session.revision {
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

// dropOldSightings drops what the server has dropped long ago.
func (h *Holder) dropOldSightings() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() || h.writableFor() <= 4*h.ttl {
		return
	}
	for process, s := range h.seen {
		if time.Since(s.at) > 4*h.ttl {
			delete(h.seen, process)
		}
	}
}

// writableFor returns for how long the bucket could be written without a gap, 0 if
// it can't.
func (h *Holder) writableFor() time.Duration {
	s := &h.session
	if s.up.IsZero() || time.Since(s.wrote) > h.ttl {
		return 0
	}
	return time.Since(s.up)
}
