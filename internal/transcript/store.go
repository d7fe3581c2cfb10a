// Package transcript keeps the session files of agents in the object store of
// sessions, as they grow, so that a session can go on on another machine.
//
// A session is one object, named by its id, that any client of the object store can read,
// unless it is sealed: its chunks under a subject of their own, and its head (the object's info), which
// says how many of them count. What has grown is one more chunk and a new head, so
// that a session of n bytes costs n bytes, not n². A head is only stored behind
// the one that its writer knows (expected sequence), and it is what makes chunks
// count: a writer may die between any two calls, and what it left behind a head
// is never read. A session of many small chunks is rewritten when it has
// doubled.
//
// Writers: the first Save of a writer is the whole file (offset 0). It begins a new
// generation, with chunks under another subject; from then on every other writer is
// refused with [ErrTaken], and what it sends can't reach the new one's. A writer may
// begin only behind the generation that it has seen, by Load, or if there is none.
//
// Chunks of a writer that died before its head, or before it removed the last
// generation's, stay in the store; nothing refers to them.
package transcript

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
)

// ErrTaken is returned to a writer of a session that another one has begun to
// keep since. It must stop: the session is the other's.
var ErrTaken = errors.New("transcript: the session is kept by another writer")

// ErrGap is returned for data that doesn't touch what is kept: a writer that
// hasn't begun with offset 0, or an offset beyond the end.
var ErrGap = errors.New("transcript: what comes before isn't kept")

// Store keeps session files. It is safe for concurrent use.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	bucket string
	keys   *seal.Keys
	piece  int // bytes of a chunk

	mu       sync.Mutex
	sessions map[string]*storedSession
	clock    uint64 // of uses
}

// storedSession is what a store knows of a session. What isn't guarded by the store's
// mu belongs to the holder of turn.
type storedSession struct {
	name string
	turn chan struct{}
	used uint64 // guarded by the store's mu

	head  head   // as last seen
	ours  bool   // its generation is this writer's
	taken bool   // it was, and isn't any more
	began uint64 // size when the generation was written as a whole
	dirty bool   // there may be chunks behind the head
	lost  string // generation whose head may or may not be stored
}

// maxSessions bounds what a store remembers. One that is forgotten can't be
// added to before it is begun anew.
const maxSessions = 4096

// maxPiece is the most bytes of a chunk.
const maxPiece = 512 << 10

// headroom is what a message needs beside its data.
const headroom = 4 << 10

// Open returns the store. The object store must be there. Chunks are sealed if there
// are keys.
func Open(ctx context.Context, js jetstream.JetStream, names subjects.Names, keys *seal.Keys) (*Store, error) {
	bucket := names.SessionsBucket()
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, fmt.Errorf("transcript: object store %s: %w", bucket, err)
	}
	return &Store{
		js: js, stream: stream, bucket: bucket, keys: keys, sessions: make(map[string]*storedSession),
		piece: max(1, min(maxPiece, int(js.Conn().MaxPayload())-headroom)),
	}, nil
}

// Load returns the whole lines of what is kept of a session, or nil if there
// are none. Another writer isn't disturbed by it; a Save with offset 0 that follows
// takes the session over. While the server, or a leader, is away it goes on trying
// for half a minute: a session goes on when others have just ended, such as servers.
func (s *Store) Load(ctx context.Context, id string) ([]byte, error) {
	x, err := s.lockSession(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("transcript: load: %w", err)
	}
	defer x.unlock()
	h, content, err := s.awaitContent(ctx, x.name)
	if err != nil {
		return nil, fmt.Errorf("transcript: load: %w", err)
	}
	if !x.ours || h.info.NUID != x.head.info.NUID {
		x.head, x.ours, x.taken, x.dirty, x.lost = h, false, false, false, ""
	}
	return wholeLines(content), nil
}

// Save adds to what is kept of a session: data stands at offset, and what was
// kept from there on is replaced. Offset 0 begins, see the package comment. Once it
// returns nil, data is stored. After an error it may be stored or not; the
// same Save may be tried again.
func (s *Store) Save(ctx context.Context, id string, offset int64, data []byte) error {
	x, err := s.lockSession(ctx, id)
	if err != nil {
		return fmt.Errorf("transcript: save: %w", err)
	}
	defer x.unlock()
	if err := s.saveData(ctx, x, offset, data); err != nil {
		return fmt.Errorf("transcript: save: %w", err)
	}
	return nil
}

func (s *Store) saveData(ctx context.Context, x *storedSession, offset int64, data []byte) error {
	if x.lost != "" {
		if err := s.settleHead(ctx, x); err != nil {
			return err
		}
	}
	size := int64(x.head.info.Size) // of what was written
	switch {
	case x.taken:
		return ErrTaken
	case offset < 0, !x.ours && offset > 0, x.ours && offset > size:
		return fmt.Errorf("%w: offset %d of %d bytes", ErrGap, offset, size)
	case !x.ours:
		return s.beginGeneration(ctx, x, data)
	case offset < size, x.dirty, x.isScattered(s.piece):
		return s.rewriteSession(ctx, x, offset, data)
	case len(data) == 0:
		return nil
	}
	return s.appendData(ctx, x, data)
}

// lockSession returns a session once no other caller uses it.
func (s *Store) lockSession(ctx context.Context, id string) (*storedSession, error) {
	x := s.sessionOf(id)
	select {
	case x.turn <- struct{}{}:
		return x, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (x *storedSession) unlock() { <-x.turn }

func (s *Store) sessionOf(id string) *storedSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	x := s.sessions[id]
	if x == nil {
		if len(s.sessions) >= maxSessions {
			s.forgetOldest()
		}
		x = &storedSession{name: id, turn: make(chan struct{}, 1)}
		s.sessions[id] = x
	}
	x.used = s.clock
	return x
}

// forgetOldest drops the half of the sessions that were used longest ago, less those in
// use. A session that others were used much more often than meanwhile isn't old: its
// agent may be waiting. It is called under mu.
func (s *Store) forgetOldest() {
	uses := make([]uint64, 0, len(s.sessions))
	for _, x := range s.sessions {
		uses = append(uses, x.used)
	}
	slices.Sort(uses)
	middle := uses[len(uses)/2]
	for id, x := range s.sessions {
		if x.used < middle && len(x.turn) == 0 {
			delete(s.sessions, id)
		}
	}
}

// Remove removes what is kept of a session. One that isn't kept is none already.
func (s *Store) Remove(ctx context.Context, id string) error {
	x, err := s.lockSession(ctx, id)
	if err != nil {
		return fmt.Errorf("transcript: remove: %w", err)
	}
	defer x.unlock()
	h, err := s.lastHead(ctx, id)
	if err == nil && h.seq != 0 {
		err = s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.chunkSubject(h.info.NUID)))
		if err == nil { // else another attempt finds the chunks by it
			err = s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.headSubject(id)))
		}
	}
	if err != nil {
		return fmt.Errorf("transcript: remove: %w", err)
	}
	x.head, x.ours, x.taken, x.dirty, x.lost = head{}, false, false, false, ""
	return nil
}
