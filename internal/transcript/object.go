package transcript

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// head is the info of an object and its sequence in the stream, 0 if there is
// none. sum is the state of its digest; nil if it isn't known. The size is that of
// the session, the digest that of what is stored of it, which may be sealed.
type head struct {
	info jetstream.ObjectInfo
	seq  uint64
	sum  hash.Hash
}

// errCorrupt is returned for chunks that aren't what their head says.
var errCorrupt = errors.New("the chunks don't match their digest")

// readWait bounds an answer of the server.
const readWait = 5 * time.Second

func (s *Store) headSubject(name string) string {
	return "$O." + s.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

func (s *Store) chunkSubject(generation string) string { return "$O." + s.bucket + ".C." + generation }

// chunkPlace is what a chunk of an object is sealed for.
func (s *Store) chunkPlace(info jetstream.ObjectInfo, chunk uint32) string {
	return fmt.Sprintf("%s %s %d", s.headSubject(info.Name), info.NUID, chunk)
}

// wholeLines returns content up to the end of its last whole line.
func wholeLines(content []byte) []byte {
	end := bytes.LastIndexByte(content, '\n') + 1
	if end == 0 {
		return nil
	}
	return content[:end]
}

// isScattered reports whether a session is to be rewritten: it has doubled and
// most of its chunks are small.
func (x *storedSession) isScattered(piece int) bool {
	few := 256 + 4*int(x.head.info.Size)/piece // far below
	return int(x.head.info.Chunks) > few && x.head.info.Size >= 2*x.began
}

// beginGeneration writes a session as a whole, behind the generation that was seen.
func (s *Store) beginGeneration(ctx context.Context, x *storedSession, data []byte) error {
	h, err := s.lastHead(ctx, x.name)
	switch {
	case err != nil:
		return err
	case h.info.NUID != x.head.info.NUID:
		x.taken = true
		return ErrTaken
	}
	x.head.seq = h.seq // its writer may have added something
	return s.writeGeneration(ctx, x, data)
}

// rewriteSession writes a session of ours as a whole: what it has up to offset, and
// data.
func (s *Store) rewriteSession(ctx context.Context, x *storedSession, offset int64, data []byte) error {
	h, err := s.lastHead(ctx, x.name)
	switch {
	case err != nil:
		return err
	case h.info.NUID != x.head.info.NUID:
		x.taken = true
		return ErrTaken
	}
	var kept []byte
	if offset > 0 {
		if kept, err = s.readChunks(ctx, x.head.info); err != nil {
			return err
		}
	}
	return s.writeGeneration(ctx, x, append(kept[:offset:offset], data...))
}

func (s *Store) writeGeneration(ctx context.Context, x *storedSession, content []byte) error {
	next := head{info: jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: x.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(s.piece)}}, // at most 512 KiB
		Bucket:     s.bucket, NUID: rand.Text(),
	}, seq: x.head.seq, sum: sha256.New()}
	if err := s.writeChunks(ctx, &next, content); err != nil {
		s.purgeChunks(ctx, next.info.NUID)
		return err
	}
	before := x.head.info.NUID
	if err := s.storeHead(ctx, x, next); err != nil {
		return err
	}
	x.ours, x.dirty, x.began = true, false, x.head.info.Size
	if before != "" {
		s.purgeChunks(ctx, before)
	}
	return nil
}

// appendData appends data to a generation of ours.
func (s *Store) appendData(ctx context.Context, x *storedSession, data []byte) error {
	next := x.head
	x.dirty = true // until the head counts them
	if err := s.writeChunks(ctx, &next, data); err != nil {
		return err
	}
	if err := s.storeHead(ctx, x, next); err != nil {
		return err
	}
	x.dirty = false
	return nil
}

// writeChunks stores data behind the chunks that the head counts, and counts them.
func (s *Store) writeChunks(ctx context.Context, h *head, data []byte) error {
	for len(data) > 0 {
		n := min(s.piece, len(data))
		stored, err := s.keys.Value(s.chunkPlace(h.info, h.info.Chunks), data[:n])
		if err != nil {
			return err
		}
		if _, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: s.chunkSubject(h.info.NUID), Data: stored}); err != nil {
			return err
		}
		h.sum.Write(stored)
		h.info.Size += uint64(n) // not negative
		h.info.Chunks++
		data = data[n:]
	}
	h.info.Digest = jetstream.GetObjectDigestValue(h.sum)
	return nil
}

// storeHead stores a head behind the one that is known.
func (s *Store) storeHead(ctx context.Context, x *storedSession, next head) error {
	info, err := json.Marshal(next.info)
	if err != nil {
		return err
	}
	m := nats.NewMsg(s.headSubject(x.name))
	m.Data = info
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(next.seq))
	if err == nil {
		next.seq = ack.Sequence
		x.head = next
		return nil
	}
	x.lost = next.info.NUID
	if _, refused := errors.AsType[*jetstream.APIError](err); !refused {
		return err // it may be stored; the next Save looks
	}
	if e := s.settleHead(ctx, x); e != nil {
		return errors.Join(err, e)
	}
	if x.taken {
		return ErrTaken
	}
	return err
}

// settleHead finds out what became of a head after its acknowledgement didn't come.
func (s *Store) settleHead(ctx context.Context, x *storedSession) error {
	h, err := s.lastHead(ctx, x.name)
	if err != nil {
		return err
	}
	before, lost := x.head.info.NUID, x.lost
	x.lost = ""
	switch h.info.NUID {
	case lost: // stored, or it was the generation of before
		x.head, x.ours, x.dirty = h, true, true
		if before != lost && before != "" {
			s.purgeChunks(ctx, before)
		}
	case before: // not stored
		x.head.seq = h.seq
		s.purgeChunks(ctx, lost)
	default:
		x.taken = true
		s.purgeChunks(ctx, lost)
	}
	return nil
}

// purgeChunks removes the chunks of a generation that no head names. What can't be removed
// stays.
func (s *Store) purgeChunks(ctx context.Context, generation string) {
	_ = s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.chunkSubject(generation)))
}

// lastHead returns a session's head as the leader has it: a replica may lag. It is
// zero if there is none.
func (s *Store) lastHead(ctx context.Context, name string) (head, error) {
	request, err := json.Marshal(map[string]any{"last_by_subj": s.headSubject(name), "no_hdr": true})
	if err != nil {
		return head{}, err
	}
	wait, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	m, err := s.js.Conn().RequestWithContext(wait, "$JS.API.STREAM.MSG.GET.OBJ_"+s.bucket, request)
	if err != nil {
		return head{}, fmt.Errorf("head: %w", err)
	}
	var answer struct {
		Message struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return head{}, fmt.Errorf("head: %w", err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return head{}, nil
	case answer.Error != nil:
		return head{}, fmt.Errorf("head: %w", answer.Error)
	}
	h := head{seq: answer.Message.Seq}
	if err := json.Unmarshal(answer.Message.Data, &h.info); err != nil {
		return head{}, fmt.Errorf("head: %w", err)
	}
	return h, nil
}

// attempts is how often a session is read while its writer replaces it.
const attempts = 5

// readContent returns a session's head and what it counts.
func (s *Store) readContent(ctx context.Context, name string) (h head, content []byte, err error) {
	for range attempts {
		if h, err = s.lastHead(ctx, name); err != nil {
			return h, nil, err
		}
		if content, err = s.readChunks(ctx, h.info); !errors.Is(err, errCorrupt) {
			return h, content, err
		}
	}
	return h, nil, err
}

// loadWait bounds the wait for a server, or a leader, that is away, and loadPause the
// pauses between two tries.
const (
	loadWait  = 30 * time.Second
	loadPause = 2 * time.Second
)

// awaitContent is content, tried again while the server can't say it.
func (s *Store) awaitContent(ctx context.Context, name string) (head, []byte, error) {
	begun := time.Now()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, loadPause) {
		h, content, err := s.readContent(ctx, name)
		if err == nil || errors.Is(err, errCorrupt) || s.js.Conn().IsClosed() || time.Since(begun)+pause > loadWait {
			return h, content, err
		}
		select {
		case <-ctx.Done():
			return h, nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// batch is how many chunks are asked for at once.
const batch = 64

// readChunks returns the chunks that a head counts, checked by their digest.
func (s *Store) readChunks(ctx context.Context, info jetstream.ObjectInfo) ([]byte, error) {
	if info.Chunks == 0 {
		return nil, nil
	}
	c, err := s.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: s.chunkSubject(info.NUID), AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.stream.DeleteConsumer(ctx, c.CachedInfo().Name) }() // the server does so in a minute
	var content []byte
	var faulty error // the first chunk that can't be opened
	sum, chunk := sha256.New(), uint32(0)
	for left := int(info.Chunks); left > 0; {
		got, err := c.Fetch(min(left, batch), jetstream.FetchMaxWait(readWait))
		if err != nil {
			return nil, err
		}
		n := 0
		for m := range got.Messages() {
			sum.Write(m.Data())
			data, err := s.keys.OpenValue(s.chunkPlace(info, chunk), m.Data())
			if err != nil && faulty == nil {
				faulty = err
			}
			content = append(content, data...)
			n++
			chunk++
		}
		if err := got.Error(); err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errCorrupt
		}
		left -= n
	}
	switch {
	case jetstream.GetObjectDigestValue(sum) != info.Digest:
		return nil, errCorrupt // its writer has replaced it meanwhile
	case faulty != nil:
		return nil, faulty
	case uint64(len(content)) != info.Size:
		return nil, errCorrupt
	}
	return content, nil
}
