// Package feed reads what is recorded for users who may not read streams: [Server] has
// the streams and answers verbs of wake.api, [Reader] asks them and reads as a log does.
//
// A feed is a series of requests: each says from which position on, and is answered with
// a piece, at once or when there is something. So the server remembers nothing of its
// readers, any of several servers may answer, one that was started again goes on, and a
// reader gets no more than it asks for.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const (
	maxPiece = 1 << 20         // bytes of an answer, whatever fits in a message
	maxReads = 8               // requests that read a stream at once
	maxWait  = 2 * time.Second // for a message; less than [api.MaxWork]
)

// Server answers for the streams. It needs no store, so that users read and give commands
// while a recorder's isn't at hand.
type Server struct {
	log            *eventlog.Log
	logger         *slog.Logger
	events, alerts *tail
	reads          chan struct{} // held while reading a stream
	shelf          pieceShelf
}

// NewServer returns a server of the streams of a log.
func NewServer(log *eventlog.Log, logger *slog.Logger) *Server {
	n := log.Names()
	return &Server{
		log: log, logger: logger,
		events: newTail(log, logger, n.EventsStream(), n.Prefix()+".events.", n.AllEvents()),
		alerts: newTail(log, logger, n.AlertsStream(), n.Prefix()+".alerts.", n.AllAlerts()),
		reads:  make(chan struct{}, maxReads),
	}
}

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var following sync.WaitGroup
	following.Go(func() { s.events.run(ctx) })
	following.Go(func() { s.alerts.run(ctx) })
	err := api.Service{Names: s.log.Names(), Name: "feed", Logger: s.logger, Tracer: s.log.Tracer(), Endpoints: s.endpoints(), Away: awayServers}.Run(ctx, s.log.Conn())
	stop()
	following.Wait()
	return err
}

func (s *Server) endpoints() []api.Endpoint {
	return []api.Endpoint{
		api.Hold(wire.VerbFeed, s.serveFeed).OfRun(),
		api.Hold(wire.VerbLast, s.serveLast).OfRun(),
		api.Hold(wire.VerbBounds, s.serveBounds).OfRun(),
		api.Hold(wire.VerbValue, s.serveValue).OfRun(),
		api.Hold(wire.VerbBlob, s.serveBlob).OfRun(),
		api.Hold(wire.VerbSession, s.serveSession).OfRun(),
		api.Hold(wire.VerbCommand, s.command).Large(),
		api.Hold(wire.VerbStart, s.startRun).Large(),
	}
}

// awayServers says of an answer that took too long that the streams are what it waited for: there is nothing else to wait for.
func awayServers(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the NATS servers didn't answer in time"
	case eventlog.Unavailable(err):
		return "no NATS server stores or reads it at the moment"
	}
	return ""
}

func badRequest(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func checkRun(run string) error {
	if run == subjects.NoRun {
		return nil
	}
	if err := subjects.CheckID(run); err != nil {
		return badRequest("run: %v", err)
	}
	return nil
}

// feedSource is where the messages of a feed are.
func (s *Server) feedSource(q wire.FeedRequest) (*tail, []string, error) {
	if q.Run != "" {
		if err := checkRun(q.Run); err != nil {
			return nil, nil, err
		}
	}
	for _, k := range q.Kinds {
		if !slices.Contains(wire.Kinds, k) {
			return nil, nil, badRequest("%q is no kind of event", k)
		}
	}
	events := q.Of == "" || q.Of == wire.TopicEvents
	switch {
	case events && (q.Node == "" || q.Run != ""):
		return s.events, eventlog.Subjects(s.log.Names(), eventlog.Query{Run: q.Run, Node: q.Node, Kinds: q.Kinds}), nil
	case events:
		return nil, nil, badRequest("node needs a run")
	case q.Of != wire.TopicAlerts:
		return nil, nil, badRequest("there is no feed of %q, only of events and alerts", q.Of)
	case q.Node != "" || len(q.Kinds) > 0:
		return nil, nil, badRequest("node and kinds are of events")
	case q.Run != "":
		return s.alerts, []string{s.log.Names().RunAlerts(q.Run)}, nil
	}
	return s.alerts, []string{s.log.Names().AllAlerts()}, nil
}

type feedPiece struct {
	messages   []eventlog.Message
	next, last uint64
	behind     uint64 // see [wire.FeedResponse]
}

func (s *Server) serveFeed(ctx context.Context, q wire.FeedRequest, f api.Form) (wire.FeedResponse, error) {
	t, subjects, err := s.feedSource(q)
	if err != nil {
		return wire.FeedResponse{}, err
	}
	q.From = max(q.From, 1)
	limit := min(f.Limit, maxPiece)
	if f.JSON {
		limit /= 2 // base64, and what JSON escapes
	}
	var p feedPiece
	if q.Wait {
		p, err = s.waitFor(ctx, t, subjects, q.From, limit)
	} else {
		p, err = s.readPiece(ctx, eventlog.Selection{Stream: t.stream, Subjects: subjects, From: q.From, To: q.To}, limit)
	}
	if err != nil {
		return wire.FeedResponse{}, err
	}
	r := wire.FeedResponse{
		Incarnation: s.log.Incarnation(), Messages: make([]wire.FeedMessage, len(p.messages)), Next: p.next, Last: p.last, Behind: p.behind,
	}
	for i, m := range p.messages {
		r.Messages[i] = feedMessage(m)
	}
	return r, nil
}

func feedMessage(m eventlog.Message) wire.FeedMessage {
	return wire.FeedMessage{Pos: m.Pos, Time: m.Time.UnixMilli(), Subject: m.Subject, Data: m.Data, Trace: m.Trace}
}

// readPiece reads a piece of a stream.
func (s *Server) readPiece(ctx context.Context, selected eventlog.Selection, limit int) (p feedPiece, err error) {
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return p, ctx.Err()
	}
	_, end, err := s.log.BoundsOf(ctx, selected.Stream)
	if err != nil {
		return p, err
	}
	whole := selected.To == 0 || selected.To >= end // else the stream counts those behind To, too
	if whole {
		selected.To = end
	}
	p.next, p.last = max(selected.From, selected.To+1), selected.To
	if selected.From > selected.To {
		return p, nil
	}
	for m, err := range s.log.Messages(ctx, selected) {
		switch {
		case err != nil && len(p.messages) > 0: // enough for an answer
			p.next, p.behind = p.messages[len(p.messages)-1].Pos+1, 0
			return p, nil
		case err != nil:
			return p, err
		}
		if limit -= sizeOf(m); limit < 0 && len(p.messages) > 0 {
			p.next = m.Pos
			return p, nil
		}
		p.messages = append(p.messages, m)
		if whole {
			p.behind = m.Behind
		}
	}
	return p, nil
}

// waitFor returns a piece of what comes, or after a while an empty one.
func (s *Server) waitFor(ctx context.Context, t *tail, subjects []string, from uint64, limit int) (feedPiece, error) {
	over := time.NewTimer(maxWait)
	defer over.Stop()
	for {
		h := t.takeMessages(subjects, from, limit)
		if h.before {
			p, err := s.readPiece(ctx, eventlog.Selection{Stream: t.stream, Subjects: subjects, From: from}, limit)
			if err != nil || len(p.messages) > 0 {
				t.leaveWaiter(h.w)
				return p, err
			}
			from, h.last = p.next, p.last
		}
		if len(h.messages) > 0 {
			return feedPiece{messages: h.messages, next: h.next, last: h.last}, nil
		}
		if h.w == nil {
			continue // what it waits for may be in memory by now
		}
		if !h.before {
			from = h.next
		}
		select {
		case <-h.w.come:
			continue
		case <-over.C:
			t.leaveWaiter(h.w)
			return feedPiece{next: from, last: h.last}, nil
		case <-ctx.Done():
			t.leaveWaiter(h.w)
			return feedPiece{}, ctx.Err()
		}
	}
}

func (t *tail) leaveWaiter(w *waiter) {
	if w != nil {
		t.removeWaiter(w)
	}
}

func (s *Server) serveLast(ctx context.Context, q wire.LastRequest, _ api.Form) (wire.LastResponse, error) {
	if err := checkRun(q.Run); err != nil {
		return wire.LastResponse{}, err
	}
	if q.Node == "" {
		return wire.LastResponse{}, badRequest("node is required")
	}
	m, found, err := s.log.LastMessage(ctx, q.Run, q.Node)
	if err != nil || !found {
		return wire.LastResponse{}, err
	}
	return wire.LastResponse{Message: new(feedMessage(m))}, nil
}

func (s *Server) serveBounds(ctx context.Context, _ wire.BoundsRequest, _ api.Form) (wire.BoundsResponse, error) {
	first, last, err := s.log.Bounds(ctx)
	if err != nil {
		return wire.BoundsResponse{}, err
	}
	note, _, err := s.log.KeyNote(ctx)
	return wire.BoundsResponse{Incarnation: s.log.Incarnation(), First: first, Last: last, KeyNote: note}, err
}

func (s *Server) serveValue(ctx context.Context, q wire.ValueRequest, _ api.Form) (wire.ValueResponse, error) {
	if err := checkRun(q.Run); err != nil {
		return wire.ValueResponse{}, err
	}
	n := s.log.Names()
	bucket, key := n.SnapshotsBucket(), n.SnapshotKey(q.Run)
	if q.Label != "" {
		bucket, key = n.BookmarksBucket(), n.BookmarkKey(q.Run, q.Label)
	}
	b, err := s.log.Bucket(ctx, bucket)
	if err != nil {
		return wire.ValueResponse{}, err
	}
	value, revision, err := b.Stored(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, seal.ErrForged) { // a forged value is no value
		return wire.ValueResponse{}, &wire.APIError{Code: wire.CodeNotFound, Message: "nothing is kept of run " + q.Run}
	}
	return wire.ValueResponse{Value: value, Revision: revision}, err
}

// mayKnow refuses a guest, whose credentials are for one run, unless an event of that run tells of what is asked for: the one at pos, or
// for 0 any.
func (s *Server) mayKnow(ctx context.Context, pos uint64, tells func(*wire.Event) bool) error {
	only := api.CallerOf(ctx).Run
	if only == "" {
		return nil
	}
	for e, err := range s.log.Read(ctx, eventlog.Query{Run: only, From: pos, To: pos}) {
		if err != nil {
			return err
		}
		if e.Event != nil && tells(e.Event) {
			return nil
		}
	}
	return &wire.APIError{Code: wire.CodeNotFound, Message: "run " + only + " has no such thing"}
}

func (s *Server) serveBlob(ctx context.Context, q wire.BlobRequest, f api.Form) (wire.PieceResponse, error) {
	if q.SHA256 == "" {
		return wire.PieceResponse{}, badRequest("sha256 is required")
	}
	if err := s.mayKnow(ctx, q.Pos, func(e *wire.Event) bool {
		return slices.ContainsFunc(e.Blobs, func(b wire.Blob) bool { return b.SHA256 == q.SHA256 })
	}); err != nil {
		return wire.PieceResponse{}, err
	}
	return s.shelf.pieceAt("blob "+q.SHA256, q.Offset, f, func() ([]byte, error) {
		data, err := s.log.StoredBlob(ctx, q.SHA256)
		if errors.Is(err, eventlog.ErrBlobMissing) {
			return nil, &wire.APIError{Code: wire.CodeNotFound, Message: "there is no large field " + q.SHA256}
		}
		return data, err
	})
}

func (s *Server) serveSession(ctx context.Context, q wire.SessionRequest, f api.Form) (wire.PieceResponse, error) {
	if err := checkRun(q.Run); err != nil {
		return wire.PieceResponse{}, err
	}
	if q.Session == "" {
		return wire.PieceResponse{}, badRequest("session is required")
	}
	if err := s.mayKnow(ctx, 0, func(e *wire.Event) bool { return e.SessionID == q.Session }); err != nil {
		return wire.PieceResponse{}, err
	}
	return s.shelf.pieceAt("session "+q.Session, q.Offset, f, func() ([]byte, error) {
		store, err := transcript.Open(ctx, s.log.JetStream(), s.log.Names(), s.log.Keys())
		if err != nil {
			return nil, err
		}
		data, err := store.Load(ctx, q.Session)
		if err == nil && data == nil {
			err = &wire.APIError{Code: wire.CodeNotFound, Message: "no file of the session is kept"}
		}
		return data, err
	})
}
