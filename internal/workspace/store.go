package workspace

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
)

// Reader reads packs. It is safe for concurrent use.
type Reader struct {
	bucket string
	keys   *seal.Keys
	dec    *zstd.Decoder
	fetch  Fetch
}

// Fetch returns what is stored of a pack; nil, or [ErrMissing], if it isn't kept.
type Fetch func(ctx context.Context, pack string) ([]byte, error)

// NewReader returns a reader of the packs that fetch returns, opened by keys if there are some.
func NewReader(names subjects.Names, keys *seal.Keys, fetch Fetch) (*Reader, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(transfers), zstd.WithDecoderMaxMemory(maxUnpacked))
	return &Reader{bucket: names.WorkspacesBucket(), keys: keys, dec: dec, fetch: fetch}, err
}

// Store keeps packs. It is safe for concurrent use.
type Store struct {
	*Reader

	js     jetstream.JetStream
	stream jetstream.Stream
	piece  int // bytes of a pack, unpacked
	enc    *zstd.Encoder
}

const (
	maxPiece = 512 << 10
	// headroom is what a message needs beside its data: headers, the seal and its place, what doesn't get smaller.
	headroom = 8 << 10
	// transfers is how many packs are on their way at once.
	transfers = 8
)

// Open returns the store. The object store must be there. Packs are sealed if there are keys.
func Open(ctx context.Context, js jetstream.JetStream, names subjects.Names, keys *seal.Keys) (*Store, error) {
	stream, err := openStream(ctx, js, names)
	if err != nil {
		return nil, err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(transfers), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	s := &Store{js: js, stream: stream, enc: enc, piece: max(1, min(maxPiece, int(js.Conn().MaxPayload()))-headroom)}
	s.Reader, err = NewReader(names, keys, s.Stored)
	return s, err
}

// openStream returns the stream of the object store.
func openStream(ctx context.Context, js jetstream.JetStream, names subjects.Names) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, "OBJ_"+names.WorkspacesBucket())
	if err != nil {
		return nil, fmt.Errorf("workspace: object store %s: %w", names.WorkspacesBucket(), err)
	}
	return stream, nil
}

func (r *Reader) packSubject(name string) string { return "$O." + r.bucket + ".C." + name }

func packName(run string, content []byte) string {
	return subjects.Escape(run) + "." + digest(sha256.Sum256(content)).String()
}

// putPack stores a pack, and returns what it takes. To store it twice stores it once.
func (s *Store) putPack(ctx context.Context, name string, content []byte) (size int, err error) {
	subject := s.packSubject(name)
	stored, err := s.keys.Value(subject, s.enc.EncodeAll(content, nil))
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(subject)
	m.Data = stored
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	if _, err := s.js.PublishMsg(ctx, m); err != nil {
		return 0, fmt.Errorf("workspace: store: %w", cmp.Or(context.Cause(ctx), err))
	}
	return len(stored), nil
}

// answerWait is how long the server may say nothing: work waits for a snapshot, also while storage is away.
const answerWait = 5 * time.Second

var errSilent = fmt.Errorf("the server has said nothing for %s: %w", answerWait, context.DeadlineExceeded)

// getPack returns what is in a pack, checked by its name.
func (r *Reader) getPack(ctx context.Context, name string) ([]byte, error) {
	if !isPackName(name) {
		return nil, fmt.Errorf("%w: %.100q names no pack", ErrDamaged, name)
	}
	stored, err := r.fetch(ctx, name)
	if err == nil && stored == nil {
		err = fmt.Errorf("%w: pack %s", ErrMissing, name)
	}
	if err != nil {
		return nil, err
	}
	packed, err := r.keys.OpenValue(r.packSubject(name), stored)
	if err != nil {
		return nil, fmt.Errorf("workspace: pack %s: %w", name, err)
	}
	content, err := r.dec.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: pack %s: %w", ErrDamaged, name, err)
	}
	if _, sum, _ := strings.Cut(name, "."); digest(sha256.Sum256(content)).String() != sum {
		return nil, fmt.Errorf("%w: pack %s isn't what its name says", ErrDamaged, name)
	}
	return content, nil
}

// Stored returns what is stored of a pack: as a replica has it, or, as that may lag, the leader. It fails with [ErrMissing] or
// [ErrDamaged], if the name is none.
func (s *Store) Stored(ctx context.Context, name string) ([]byte, error) {
	if !isPackName(name) {
		return nil, fmt.Errorf("%w: %.100q names no pack", ErrDamaged, name)
	}
	wait, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	m, err := s.stream.GetLastMsgForSubject(wait, s.packSubject(name))
	if err == nil {
		return m.Data, nil
	}
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, fmt.Errorf("workspace: pack %s: %w", name, err)
	}
	request, err := json.Marshal(map[string]any{"last_by_subj": s.packSubject(name)})
	if err != nil {
		return nil, err
	}
	reply, err := s.js.Conn().RequestWithContext(wait, "$JS.API.STREAM.MSG.GET.OBJ_"+s.bucket, request)
	if err != nil {
		return nil, fmt.Errorf("workspace: pack %s: %w", name, err)
	}
	var answer struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(reply.Data, &answer); {
	case err != nil:
		return nil, fmt.Errorf("workspace: pack %s: %w", name, err)
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, fmt.Errorf("%w: pack %s", ErrMissing, name)
	case answer.Error != nil:
		return nil, fmt.Errorf("workspace: pack %s: %w", name, answer.Error)
	}
	return answer.Message.Data, nil
}

// packer collects chunks in packs and stores them.
type packer struct {
	store *Store
	run   string
	known map[digest]chunk

	open    []byte
	waiting []*chunk // in the open pack, without its name
	stored  atomic.Int64
	slots   chan struct{}
	fail    context.CancelCauseFunc // of the context of all calls

	mu       sync.Mutex
	underway int         // packs without an answer
	silence  *time.Timer // fails if packs are under way and none is answered: over a slow line each may take long
}

// newPacker returns a packer, which ends the context of its calls by fail, also if the server says nothing.
func newPacker(s *Store, run string, known map[digest]chunk, fail context.CancelCauseFunc) *packer {
	p := &packer{store: s, run: run, known: known, slots: make(chan struct{}, transfers), fail: fail}
	p.silence = time.AfterFunc(answerWait, func() { fail(errSilent) })
	p.silence.Stop()
	return p
}

// add packs content unless it is kept already, and returns its chunks, which are whole when flush has returned.
func (p *packer) add(ctx context.Context, content []byte) (list []*chunk, err error) {
	for len(content) > 0 {
		part := content[:min(len(content), p.store.piece)]
		content = content[len(part):]
		sum := digest(sha256.Sum256(part))
		if c, ok := p.known[sum]; ok {
			list = append(list, &c)
			continue
		}
		if !p.fits(part) {
			if err := p.closePack(ctx); err != nil {
				return nil, err
			}
		}
		c := &chunk{Sum: sum, At: len(p.open), Size: len(part)}
		p.open = append(p.open, part...)
		p.waiting = append(p.waiting, c)
		list = append(list, c)
	}
	return list, nil
}

// fits reports whether there is room in the open pack.
func (p *packer) fits(content []byte) bool { return len(p.open)+len(content) <= p.store.piece }

// takeOpen names the open pack, and opens another one.
func (p *packer) takeOpen() (name string, content []byte) {
	content, name = p.open, packName(p.run, p.open)
	for _, c := range p.waiting {
		c.Pack = name
		p.known[c.Sum] = *c
	}
	p.open, p.waiting = make([]byte, 0, len(content)), nil
	return name, content
}

// putLast stores the open pack, with content at its end, when all others are stored.
func (p *packer) putLast(ctx context.Context, content []byte) (name string, err error) {
	p.open = append(p.open, content...)
	name, content = p.takeOpen()
	if err := p.flush(ctx); err != nil {
		return "", err
	}
	return name, p.put(ctx, name, content)
}

func (p *packer) put(ctx context.Context, name string, content []byte) error {
	p.noteUnderway(1)
	defer p.noteUnderway(-1)
	size, err := p.store.putPack(ctx, name, content)
	p.stored.Add(int64(size))
	return err
}

// noteUnderway counts packs that have no answer yet.
func (p *packer) noteUnderway(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway += n
	switch {
	case p.underway == 0:
		p.silence.Stop()
	case n < 0 || p.underway == n: // an answer, or the first one that there is to wait for
		p.silence.Reset(answerWait)
	}
}

// closePack names the open pack and begins to store it.
func (p *packer) closePack(ctx context.Context) error {
	if len(p.open) == 0 {
		return nil
	}
	name, content := p.takeOpen()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	go func() {
		defer func() { <-p.slots }()
		if err := p.put(ctx, name, content); err != nil {
			p.fail(err) // the others needn't be stored
		}
	}()
	return nil
}

// flush stores what is open, and waits until all is stored.
func (p *packer) flush(ctx context.Context) error {
	err := p.closePack(ctx)
	for range cap(p.slots) {
		p.slots <- struct{}{} // each put ends with its context
	}
	for range cap(p.slots) {
		<-p.slots
	}
	return cmp.Or(context.Cause(ctx), err)
}

// Usage is what snapshots of all runs take.
type Usage struct {
	Packs uint64
	Bytes int64
}

// Used returns what snapshots of all runs take.
func Used(ctx context.Context, js jetstream.JetStream, names subjects.Names) (Usage, error) {
	stream, err := openStream(ctx, js, names)
	if err != nil {
		return Usage{}, err
	}
	s := stream.CachedInfo().State
	return Usage{s.Msgs, int64(s.Bytes)}, nil // no disk is as large
}

// Holders returns which runs have packed something. It asks the server for the names of all packs.
func Holders(ctx context.Context, js jetstream.JetStream, names subjects.Names) (holds func(run string) bool, err error) {
	bucket := names.WorkspacesBucket()
	packs := "$O." + bucket + ".C."
	stream, err := openStream(ctx, js, names)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(packs+">"))
	if err != nil {
		return nil, fmt.Errorf("workspace: object store %s: %w", bucket, err)
	}
	tokens := map[string]bool{}
	for subject := range info.State.Subjects {
		token, _, _ := strings.Cut(strings.TrimPrefix(subject, packs), ".")
		tokens[token] = true
	}
	return func(run string) bool { return tokens[subjects.Escape(run)] }, nil
}

// Drop removes all that a run has packed.
func Drop(ctx context.Context, nc *nats.Conn, names subjects.Names, run string) error {
	bucket := names.WorkspacesBucket()
	request, err := json.Marshal(map[string]string{"filter": "$O." + bucket + ".C." + subjects.Escape(run) + ".*"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.PURGE.OBJ_"+bucket, request)
	if err != nil {
		return fmt.Errorf("workspace: drop: %w", err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("workspace: drop: %w", err)
	}
	if answer.Error != nil {
		return fmt.Errorf("workspace: drop: %w", answer.Error)
	}
	return nil
}
