package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const (
	// silence is how long a reader waits for an answer.
	silence = maxWait + 1500*time.Millisecond
	// absence is how long a recorder may be away, such as one that is started again,
	// until that is an error of what isn't followed.
	absence = 5 * time.Second
	// opening is how long the opening of a reader waits for a recorder.
	opening = 2 * time.Second
	// grace is how long a recorder may know of less than its reader.
	grace = 30 * time.Second
)

// Options are the settings of a [Reader]. The zero value of each means its default.
type Options struct {
	Names  subjects.Names
	Keys   *seal.Keys   // open what is read; see [eventlog.Options]
	Logger *slog.Logger // default: discard
	// Away is called when a feed that is followed gets no answer, with the reason,
	// and with nil when it goes on.
	Away func(error)
}

var _ eventlog.Reader = (*Reader)(nil)

// Reader reads what is recorded, and asks for runs, with nothing but requests.
// It is an [eventlog.Reader].
type Reader struct {
	nc          *nats.Conn
	o           Options
	run         string // the only one that the credentials are for; "": all
	incarnation string
	blobs       blobPlaces // of run
}

// blobPlaces are the positions of events that have large fields, as far as they were read lately: a guest
// asks for a field by the event of the run that has it.
type blobPlaces struct {
	mu        sync.Mutex
	positions map[string]uint64 // by SHA-256
}

// maxPlaces bounds how many are known. A field is nearly always asked for when its event has just been read.
const maxPlaces = 4096

func (p *blobPlaces) noteBlobs(e eventlog.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range e.Event.Blobs {
		if p.positions == nil || len(p.positions) >= maxPlaces {
			p.positions = map[string]uint64{}
		}
		p.positions[b.SHA256] = e.Pos
	}
}

// positionOf returns 0 for a field of which nothing is known.
func (p *blobPlaces) positionOf(sha256 string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.positions[sha256]
}

// Open returns a reader on a connection. It fails if no recorder answers.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Reader, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Away == nil {
		o.Away = func(error) {}
	}
	run, err := access.OwnRun(nc)
	if err != nil {
		return nil, fmt.Errorf("feed: open: %w", err)
	}
	r := &Reader{nc: nc, o: o, run: run}
	b, err := askWithin[wire.BoundsResponse](ctx, r, opening, wire.VerbBounds, wire.BoundsRequest{Run: r.run})
	if err != nil {
		return nil, err
	}
	r.incarnation = b.Incarnation
	return r, nil
}

// Conn returns the connection.
func (r *Reader) Conn() *nats.Conn { return r.nc }

// Names returns the names of streams and subjects.
func (r *Reader) Names() subjects.Names { return r.o.Names }

// Keys returns the keys that open what is read; nil if there are none.
func (r *Reader) Keys() *seal.Keys { return r.o.Keys }

// Incarnation returns the incarnation of the stream of events when the reader was opened.
func (r *Reader) Incarnation() string { return r.incarnation }

// StartRun asks for a run. It fails if what runs write is encrypted and the reader lacks the
// key: it couldn't read what becomes of the run. A request that gets no answer is sent again, and
// counts once.
func (r *Reader) StartRun(ctx context.Context, q wire.RunRequest) error {
	if err := r.CheckKeys(ctx); err != nil {
		return err
	}
	_, err := askPatiently[wire.StartResponse](ctx, r, wire.VerbStart, q)
	if wire.HasCode(err, wire.CodeTooLarge) {
		return &wire.APIError{
			Code: wire.CodeTooLarge, Message: fmt.Sprintf("flow, input and state of run %s are too large: the server takes %d bytes", q.RunID, r.nc.MaxPayload()),
			Hint: "keep what is large in files of the workspace",
		}
	}
	return err
}

// Unseal is [eventlog.Log.Unseal].
func (r *Reader) Unseal(subject string, stored []byte) ([]byte, error) {
	return r.o.Keys.OpenValue(subject, stored)
}

// CheckKeys is [eventlog.Log.CheckKeys].
func (r *Reader) CheckKeys(ctx context.Context) error {
	b, err := r.askBounds(ctx)
	if err == nil && b.KeyNote != nil {
		_, err = eventlog.KeyInUse(b.KeyNote, r.o.Names, r.o.Keys)
	}
	return err
}

// Bounds is [eventlog.Log.Bounds].
func (r *Reader) Bounds(ctx context.Context) (first, last uint64, err error) {
	b, err := r.askBounds(ctx)
	return b.First, b.Last, err
}

func (r *Reader) askBounds(ctx context.Context) (wire.BoundsResponse, error) {
	return askPatiently[wire.BoundsResponse](ctx, r, wire.VerbBounds, wire.BoundsRequest{Run: r.run})
}

// Last is [eventlog.Log.Last].
func (r *Reader) Last(ctx context.Context, run, node string) (eventlog.Entry, bool, error) {
	a, err := askPatiently[wire.LastResponse](ctx, r, wire.VerbLast, wire.LastRequest{Run: run, Node: node})
	if err != nil || a.Message == nil {
		return eventlog.Entry{}, false, err
	}
	return eventlog.EntryOf(eventlogMessage(*a.Message), r.o.Names, r.o.Keys), true, nil
}

func eventlogMessage(m wire.FeedMessage) eventlog.Message {
	return eventlog.Message{Subject: m.Subject, Pos: m.Pos, Data: m.Data, Time: m.When(), Trace: m.Trace}
}

// Read is [eventlog.Log.Read].
func (r *Reader) Read(ctx context.Context, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return r.entriesOf(r.readFeed(ctx, requestOf(q)))
}

// Follow is [eventlog.Log.Follow]. It goes on where it was when a recorder is away.
func (r *Reader) Follow(ctx context.Context, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return r.entriesOf(r.followFeed(ctx, requestOf(q)))
}

// entriesOf yields messages of events as entries.
func (r *Reader) entriesOf(messages iter.Seq2[eventlog.Message, error]) iter.Seq2[eventlog.Entry, error] {
	entries := eventlog.Entries(messages, r.o.Names, r.o.Keys)
	if r.run == "" {
		return entries
	}
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range entries {
			if e.Event != nil {
				r.blobs.noteBlobs(e)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func requestOf(q eventlog.Query) wire.FeedRequest {
	return wire.FeedRequest{Run: q.Run, Node: q.Node, Kinds: q.Kinds, From: q.From, To: q.To}
}

// Alerts yields the alerts of a run, or of all for "", from a position on, as they are
// stored, and with follow also those to come.
func (r *Reader) Alerts(ctx context.Context, run string, from uint64, follow bool) iter.Seq2[eventlog.Message, error] {
	q := wire.FeedRequest{Of: wire.TopicAlerts, Run: run, From: from}
	if follow {
		return r.followFeed(ctx, q)
	}
	return r.readFeed(ctx, q)
}

// LastAlerts returns the last alerts of a run that can be read, at most so many, the oldest first.
func (r *Reader) LastAlerts(ctx context.Context, run string, most int) ([]wire.Alert, error) {
	var all []wire.Alert
	for m, err := range r.Alerts(ctx, run, 1, false) {
		if err != nil {
			return nil, err
		}
		data, err := r.Unseal(m.Subject, m.Data)
		var a wire.Alert
		if err != nil || wire.Unmarshal(data, &a) != nil {
			continue
		}
		if all = append(all, a); len(all) > most {
			all = all[1:]
		}
	}
	return all, nil
}

// readFeed yields what there is when it is called.
func (r *Reader) readFeed(ctx context.Context, q wire.FeedRequest) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for q.From = max(q.From, 1); ; {
			p, err := askPatiently[wire.FeedResponse](ctx, r, wire.VerbFeed, q)
			if err == nil {
				err = r.checkPiece(p, q)
			}
			if err != nil {
				yield(eventlog.Message{}, err)
				return
			}
			for i, fed := range p.Messages {
				m := eventlogMessage(fed)
				if p.Behind > 0 || p.Next > p.Last {
					m.Behind = p.Behind + uint64(len(p.Messages)-1-i)
				}
				if !yield(m, nil) {
					return
				}
			}
			if q.To == 0 || p.Last < q.To { // what is stored later doesn't count
				q.To = p.Last
			}
			if q.From = p.Next; q.From > q.To {
				return
			}
		}
	}
}

// checkPiece refuses a piece that is none of what was asked for.
func (r *Reader) checkPiece(p wire.FeedResponse, q wire.FeedRequest) error {
	if p.Incarnation != r.incarnation {
		return fmt.Errorf("%w: it is %q, the position is of %q", eventlog.ErrIncarnation, p.Incarnation, r.incarnation)
	}
	next := q.From
	for _, m := range p.Messages {
		if m.Pos < next {
			return &wire.APIError{Code: wire.CodeInternal, Message: fmt.Sprintf("the feed goes back from position %d to %d", next, m.Pos)}
		}
		next = m.Pos + 1
	}
	if p.Next < next || p.Next == q.From && len(p.Messages) > 0 {
		return &wire.APIError{Code: wire.CodeInternal, Message: fmt.Sprintf("the feed stands at position %d", p.Next)}
	}
	return nil
}

// Pauses between questions that get no answer.
const (
	firstPause = 20 * time.Millisecond
	longPause  = 250 * time.Millisecond
)

// followFeed yields what there is and what comes, until ctx ends.
func (r *Reader) followFeed(ctx context.Context, q wire.FeedRequest) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		q.Wait, q.From = true, max(q.From, 1)
		f := feedFollower{r: r, q: q, yield: yield, pause: firstPause}
		for {
			err := f.runSession(ctx)
			switch {
			case f.stopped || ctx.Err() != nil:
				return
			case r.nc.IsClosed():
				yield(eventlog.Message{}, fmt.Errorf("feed: %w", nats.ErrConnectionClosed))
				return
			case !mayPass(err) && !errors.Is(err, pull.ErrDisconnected):
				yield(eventlog.Message{}, fmt.Errorf("feed: %w", err))
				return
			case !f.away && f.pause == longPause: // else it is stopping, or one of several
				f.away = true
				r.o.Away(err)
			}
			pull.AwaitConnection(ctx, r.nc)
			pull.Sleep(ctx, f.pause)
			f.pause = min(2*f.pause, longPause)
		}
	}
}

// feedFollower is a feed that is followed.
type feedFollower struct {
	r       *Reader
	q       wire.FeedRequest
	yield   func(eventlog.Message, error) bool
	stopped bool          // yield said so
	pause   time.Duration // before the next question, if there is no answer to this one
	ahead   time.Time     // since when the recorder has known of less; zero: it doesn't
	away    bool          // as Away was told
}

// runSession asks until there is no answer, or the connection is lost: an answer that was
// on its way is then.
func (f *feedFollower) runSession(ctx context.Context) error {
	connected, release := pull.Connected(ctx, f.r.nc)
	defer release()
	for {
		p, err := f.askNext(connected)
		if err != nil {
			return err
		}
		f.pause = firstPause
		if f.away {
			f.away = false
			f.r.o.Away(nil)
		}
		for _, m := range p.Messages {
			if !f.yield(eventlogMessage(m), nil) {
				f.stopped = true
				return nil
			}
		}
		f.q.From = p.Next
	}
}

func (f *feedFollower) askNext(ctx context.Context) (wire.FeedResponse, error) {
	wait, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	p, err := api.Call[wire.FeedResponse](wait, f.r.nc, f.r.o.Names, wire.VerbFeed, f.q)
	if err == nil {
		err = f.r.checkPiece(p, f.q)
	}
	if err != nil {
		return p, err
	}
	switch {
	case f.q.From <= p.Last+1:
		f.ahead = time.Time{}
	case f.ahead.IsZero():
		f.ahead = time.Now()
	case time.Since(f.ahead) > grace:
		return p, fmt.Errorf("%w: it is %d, the last one is %d", eventlog.ErrBeyond, f.q.From-1, p.Last)
	}
	return p, nil
}

// mayPass reports whether an error may pass: no recorder answers at present.
func mayPass(err error) bool {
	return wire.HasCode(err, wire.CodeUnreachable, wire.CodeTimeout, wire.CodeBusy, wire.CodeInternal)
}

// askPatiently asks, for a while also a recorder that is away.
func askPatiently[A any](ctx context.Context, r *Reader, verb string, q any) (A, error) {
	return askWithin[A](ctx, r, absence, verb, q)
}

// askWithin asks, for so long also a recorder that is away.
func askWithin[A any](ctx context.Context, r *Reader, patience time.Duration, verb string, q any) (A, error) {
	asked := time.Now()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		limited, cancel := context.WithTimeout(ctx, api.DefaultWait)
		a, err := api.Call[A](limited, r.nc, r.o.Names, verb, q)
		cancel()
		if err == nil || !mayPass(err) || ctx.Err() != nil || r.nc.IsClosed() || time.Since(asked) > patience {
			return a, err
		}
		if pull.Sleep(ctx, wait); ctx.Err() != nil {
			return a, err // why, not that time is over
		}
	}
}

// Blob is [eventlog.Log.Blob].
func (r *Reader) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	data, err := joinPieces(func(offset int64) (wire.PieceResponse, error) {
		return askPatiently[wire.PieceResponse](ctx, r, wire.VerbBlob, wire.BlobRequest{Run: r.run, Pos: r.blobs.positionOf(sha256), SHA256: sha256, Offset: offset})
	})
	if wire.HasCode(err, wire.CodeNotFound) {
		err = eventlog.ErrBlobMissing
	}
	if err == nil {
		data, err = r.o.Keys.OpenBlob(sha256, data)
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", sha256, err)
	}
	return data, nil
}

// Session returns the file that was kept of an agent's session of a run, or nil.
func (r *Reader) Session(ctx context.Context, run, session string) ([]byte, error) {
	data, err := joinPieces(func(offset int64) (wire.PieceResponse, error) {
		return askPatiently[wire.PieceResponse](ctx, r, wire.VerbSession, wire.SessionRequest{Run: run, Session: session, Offset: offset})
	})
	if wire.HasCode(err, wire.CodeNotFound) {
		return nil, nil
	}
	return data, err
}

// Pack returns a pack of snapshots of folders as it is stored, nil if it isn't kept. Not every user may ask.
func (r *Reader) Pack(ctx context.Context, name string) ([]byte, error) {
	data, err := joinPieces(func(offset int64) (wire.PieceResponse, error) {
		return askWithin[wire.PieceResponse](ctx, r, 0, wire.VerbPack, wire.PackRequest{Name: name, Offset: offset})
	})
	if wire.HasCode(err, wire.CodeNotFound) {
		return nil, nil
	}
	return data, err
}

// joinPieces puts together what ask returns in pieces.
func joinPieces(ask func(offset int64) (wire.PieceResponse, error)) (data []byte, err error) {
	for {
		p, err := ask(int64(len(data)))
		switch {
		case err != nil:
			return nil, err
		case len(data) == 0 && p.Size == int64(len(p.Data)):
			return p.Data, nil
		}
		data = append(data, p.Data...)
		switch {
		case int64(len(data)) == p.Size:
			return data, nil
		case len(p.Data) == 0 || int64(len(data)) > p.Size:
			return nil, &wire.APIError{Code: wire.CodeInternal, Message: fmt.Sprintf("of %d bytes, %d came", p.Size, len(data))}
		}
	}
}

// Inline is [eventlog.Log.Inline].
func (r *Reader) Inline(ctx context.Context, e *wire.Event) (*wire.Event, error) {
	return eventlog.Inline(ctx, r, e)
}

// Snapshot is [eventlog.Log.Snapshot].
func (r *Reader) Snapshot(ctx context.Context, run string) (value []byte, revision uint64, err error) {
	n := r.o.Names
	return r.askValue(ctx, wire.ValueRequest{Run: run}, eventlog.Place(n.SnapshotsBucket(), n.SnapshotKey(run)))
}

// Bookmark is [eventlog.Log.Bookmark].
func (r *Reader) Bookmark(ctx context.Context, run, label string) (value []byte, revision uint64, err error) {
	n := r.o.Names
	return r.askValue(ctx, wire.ValueRequest{Run: run, Label: label}, eventlog.Place(n.BookmarksBucket(), n.BookmarkKey(run, label)))
}

func (r *Reader) askValue(ctx context.Context, q wire.ValueRequest, place string) (value []byte, revision uint64, err error) {
	a, err := askPatiently[wire.ValueResponse](ctx, r, wire.VerbValue, q)
	if wire.HasCode(err, wire.CodeNotFound) {
		err = jetstream.ErrKeyNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	value, err = r.o.Keys.OpenValue(place, a.Value)
	return value, a.Revision, err
}
