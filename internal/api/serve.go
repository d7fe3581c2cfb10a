package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Limits of a request.
const (
	MaxRequest = 64 << 10        // bytes
	MaxWork    = 5 * time.Second // for its answer
)

// version is that of the verbs, not of the program.
const version = "1.0.0"

// Service answers verbs.
type Service struct {
	Names     subjects.Names
	Name      string // of the service: recorder, snapshotter …
	Endpoints []Endpoint
	Logger    *slog.Logger
	Tracer    trace.Tracer // of a span for each request; default: none

	// Away, if set, says of an error, or of an answer that took too long, what isn't there at the moment, as "its store"; "": that is
	// not the reason.
	Away func(error) string
}

// Endpoint answers one verb. Make it with [Handle].
type Endpoint struct {
	verb   string
	action string
	ofRun  bool
	held   bool
	large  bool
	at     string // subject; "": that of the verb
	hint   string // for an answer that is too large
	answer func(context.Context, wire.Raw, Form) (any, error)
}

// OfRun says that requests are about one run, which their field run names, so that guests
// of that run may ask about it. A handler that takes more than an id for
// the name of a run looks at [CallerOf].
func (e Endpoint) OfRun() Endpoint {
	e.ofRun = true
	return e
}

// Large says that requests may be as large as a message, not only [MaxRequest].
func (e Endpoint) Large() Endpoint {
	e.large = true
	return e
}

// Bound says that no more answers are made at once than fit in room, which endpoints may share: a request that finds none
// until [MaxWork] is over is refused as busy.
func (e Endpoint) Bound(room chan struct{}) Endpoint {
	answer := e.answer
	e.answer = func(ctx context.Context, body wire.Raw, form Form) (any, error) {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return nil, &wire.APIError{Code: wire.CodeBusy, Message: "as many requests as it takes at once are being answered", Hint: "ask again in a while"}
		}
		defer func() { <-room }()
		return answer(ctx, body, form)
	}
	return e
}

// Instead says what to do where an answer is too large.
func (e Endpoint) Instead(hint string) Endpoint {
	e.hint = hint
	return e
}

// At says that the requests come on another subject than that of the verb, such as one of
// this process.
func (e Endpoint) At(subject string) Endpoint {
	e.at = subject
	return e
}

// Form is the form that an answer has to take.
type Form struct {
	JSON  bool // else msgpack
	Limit int  // bytes that fit in one message, the envelope's share taken off
}

// Handle returns the endpoint that answers verb with f. Action is what the
// envelope of seeds/004 calls it, beside the verb itself; it may be "".
//
// An error that is a [*wire.APIError] is the answer; another one is logged and
// answered with [wire.CodeInternal].
func Handle[Q, A any](verb, action string, f func(context.Context, Q, Form) (A, error)) Endpoint {
	return Endpoint{verb: verb, action: action, answer: func(ctx context.Context, body wire.Raw, form Form) (any, error) {
		var q Q
		if err := wire.Unmarshal(body, &q); err != nil {
			return nil, badRequest("the request for %s can't be read: %v", verb, err)
		}
		return f(ctx, q, form)
	}}
}

// Hold is [Handle] for a verb that waits before it answers: requests for it are
// answered beside each other, [MaxHeld] at once, [MaxHeldEach] of one user, and have no
// spans of their own: what they send is the caller's.
func Hold[Q, A any](verb string, f func(context.Context, Q, Form) (A, error)) Endpoint {
	e := Handle(verb, "", f)
	e.held = true
	return e
}

// How many requests are held.
const (
	MaxHeld     = 4096
	MaxHeldEach = 512
)

// Run answers requests on nc until ctx ends, and returns when the last one has
// been answered. Requests of one verb are answered one after the other, unless they are
// held; several processes that serve the same verbs share them.
func (s Service) Run(ctx context.Context, nc *nats.Conn) error {
	if s.Tracer == nil {
		s.Tracer = tracing.Off()
	}
	knows, err := access.KnowsUsers(nc)
	if err != nil {
		return fmt.Errorf("api: serve %s: %w", s.Name, err)
	}
	w := worker{Service: s, nc: nc, knowsUsers: knows, asked: map[string]int{}}
	svc, err := micro.AddService(nc, micro.Config{
		Name:        strings.ReplaceAll(s.Names.Prefix(), ".", "-") + "-" + s.Name,
		Version:     version,
		Description: "queries that the " + s.Name + " answers",
		QueueGroup:  s.Name,
	})
	if err != nil {
		return fmt.Errorf("api: serve %s: %w", s.Name, err)
	}
	for _, e := range s.Endpoints {
		handler := w.makeHandler(ctx, e)
		if e.held {
			handler = w.makeHolder(ctx, e)
		}
		if err = svc.AddEndpoint(e.verb, handler, micro.WithEndpointSubject(cmp.Or(e.at, s.Names.API(e.verb)))); err != nil {
			break
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	stopped := svc.Stop()
	w.awaitAnswers()
	if err != nil || stopped != nil && !errors.Is(stopped, nats.ErrConnectionClosed) {
		return fmt.Errorf("api: serve %s: %w", s.Name, errors.Join(err, stopped))
	}
	return nil
}

// worker answers requests while its service runs.
type worker struct {
	Service
	nc         *nats.Conn
	knowsUsers bool         // the server names the caller of each request
	mu         sync.RWMutex // held for reading by each request while it is answered
	over       bool

	counting sync.Mutex
	held     int            // requests
	asked    map[string]int // of them, by user
}

// awaitAnswers returns when nothing is being answered any more. What comes later is
// refused.
func (w *worker) awaitAnswers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// makeHandler answers requests until ctx ends.
func (w *worker) makeHandler(ctx context.Context, e Endpoint) micro.HandlerFunc {
	return func(m micro.Request) {
		w.mu.RLock()
		defer w.mu.RUnlock()
		r := w.readRequest(e, m.Data())
		if w.over {
			r.problem = w.stoppingError()
		}
		ctx := r.identifyCaller(ctx, e, m.Headers().Get(access.CallerHeader))
		ctx, span := tracing.Serve(tracing.Extract(ctx, nats.Header(m.Headers())), w.Tracer, w.Names.API(e.verb))
		defer span.End()
		data, problem := r.callEndpoint(ctx, e)
		if problem != nil {
			tracing.Refuse(span, problem)
		}
		if err := sendReply(m, data, problem); err != nil && ctx.Err() == nil {
			w.Logger.WarnContext(ctx, "answer was not sent", "subject", m.Subject(), "error", err)
		}
	}
}

// makeHolder answers requests beside each other until ctx ends.
func (w *worker) makeHolder(ctx context.Context, e Endpoint) micro.HandlerFunc {
	return func(m micro.Request) {
		w.mu.RLock()
		r := w.readRequest(e, m.Data())
		ctx := r.identifyCaller(tracing.Extract(ctx, nats.Header(m.Headers())), e, m.Headers().Get(access.CallerHeader))
		who := askerOf(ctx, m)
		room := w.beginHeld(who)
		switch {
		case w.over:
			r.problem = w.stoppingError()
		case !room:
			r.problem = &wire.APIError{Code: wire.CodeBusy, Message: "the " + w.Name + " holds as many requests as it takes", Hint: "ask again, or end some of what follows runs"}
		}
		answer := func() {
			defer w.mu.RUnlock()
			data, problem := r.callEndpoint(ctx, e)
			if room {
				w.endHeld(who)
			}
			if err := w.sendAnswer(m, data, problem); err != nil && ctx.Err() == nil {
				w.Logger.WarnContext(ctx, "answer was not sent", "subject", m.Subject(), "error", err)
			}
		}
		if r.problem != nil {
			answer()
			return
		}
		go answer() // Run waits for it, by mu
	}
}

// sendAnswer is [sendReply] for a request after its handler has returned: micro counts what it has
// replied by then, and nothing later.
func (w *worker) sendAnswer(m micro.Request, data []byte, problem *wire.APIError) error {
	answer := &nats.Msg{Subject: m.Reply(), Data: data}
	if problem != nil {
		answer.Header = nats.Header{micro.ErrorCodeHeader: {string(problem.Code)}, micro.ErrorHeader: {string(problem.Code)}}
	}
	return w.nc.PublishMsg(answer)
}

// beginHeld counts a request that is to be held, if there is room for it.
func (w *worker) beginHeld(who string) bool {
	w.counting.Lock()
	defer w.counting.Unlock()
	if w.held >= MaxHeld || w.asked[who] >= MaxHeldEach {
		return false
	}
	w.held++
	w.asked[who]++
	return true
}

func (w *worker) endHeld(who string) {
	w.counting.Lock()
	defer w.counting.Unlock()
	w.held--
	if w.asked[who]--; w.asked[who] == 0 {
		delete(w.asked, who)
	}
}

// askerOf returns the caller's key: that of the user that the server names, where it does, else
// the connection, by its inbox.
func askerOf(ctx context.Context, m micro.Request) string {
	if caller := CallerOf(ctx); caller.Key != "" {
		return caller.Key
	}
	inbox := m.Reply()
	return inbox[:max(0, strings.LastIndexByte(inbox, '.'))]
}

// sendReply sends an answer. If that fails, the caller sees a timeout.
func sendReply(m micro.Request, data []byte, problem *wire.APIError) error {
	if problem != nil {
		return m.Error(string(problem.Code), string(problem.Code), data)
	}
	return m.Respond(data)
}

// request is one request while it is answered.
type request struct {
	w         *worker
	body      wire.Raw
	form      Form
	enveloped bool
	envelope  wire.CommandEnvelope
	problem   *wire.APIError
}

// envelopeSize is what an envelope adds to an answer at most.
const envelopeSize = 1 << 10

func (w *worker) readRequest(e Endpoint, data []byte) *request {
	r := &request{w: w, form: Form{
		JSON:  len(data) == 0 || data[0] == '{',
		Limit: int(w.nc.MaxPayload()) - envelopeSize,
	}}
	var err error
	switch {
	case len(data) > MaxRequest && !e.large:
		r.problem = &wire.APIError{Code: wire.CodeTooLarge, Message: fmt.Sprintf("the request has %d bytes, at most %d are allowed", len(data), MaxRequest)}
	case len(data) == 0:
		r.body, err = wire.RawFromJSON([]byte("{}"))
	case r.form.JSON:
		r.body, err = wire.RawFromJSON(data)
	default:
		r.body, err = wire.Canonical(bytes.Clone(data))
	}
	if err != nil {
		r.problem = badRequest("the request is neither JSON nor msgpack: %v", err)
	}
	if kind := r.body.TextAt("type"); kind == "command" && r.problem == nil {
		r.openEnvelope()
	}
	return r
}

// openEnvelope takes the request out of its envelope.
func (r *request) openEnvelope() {
	if err := wire.Unmarshal(r.body, &r.envelope); err != nil {
		r.problem = badRequest("the command can't be read: %v", err)
		return
	}
	if len(r.envelope.RequestID) > envelopeSize/2 {
		r.problem = badRequest("requestId is longer than %d bytes", envelopeSize/2)
		return
	}
	r.enveloped, r.body = true, r.envelope.Params
	if len(r.body) == 0 {
		r.body, _ = wire.Marshal(struct{}{})
	}
}

func (r *request) callEndpoint(ctx context.Context, e Endpoint) ([]byte, *wire.APIError) {
	if r.enveloped && r.problem == nil && r.envelope.Action != e.verb && (e.action == "" || r.envelope.Action != e.action) {
		r.problem = badRequest("%q is no action of %s", r.envelope.Action, r.w.Names.API(e.verb))
	}
	if r.problem != nil {
		return r.encodeRefusal(r.problem)
	}
	limited, cancel := context.WithTimeout(ctx, MaxWork)
	defer cancel()
	v, err := e.answer(limited, r.body, r.form)
	if err != nil {
		return r.encodeRefusal(r.w.problemOf(ctx, limited.Err(), e.verb, err))
	}
	data, err := r.encodeResult(v)
	switch {
	case err != nil:
		return r.encodeRefusal(r.w.problemOf(ctx, nil, e.verb, err))
	case len(data) > r.form.Limit+envelopeSize:
		return r.encodeRefusal(&wire.APIError{
			Code:    wire.CodeTooLarge,
			Message: fmt.Sprintf("the answer has %d bytes, a message at most %d", len(data), r.form.Limit),
			Hint:    cmp.Or(e.hint, "ask for less, by limit or filters"),
		})
	}
	return data, nil
}

func (r *request) encodeRefusal(problem *wire.APIError) ([]byte, *wire.APIError) {
	var v any = wire.ErrorResponse{Error: problem}
	if r.enveloped {
		v = wire.ResponseEnvelope{Type: "response", RequestID: r.envelope.RequestID, Error: problem}
	}
	raw, err := wire.Marshal(v)
	if err != nil {
		return nil, problem
	}
	return r.inForm(raw), problem
}

func (r *request) encodeResult(v any) ([]byte, error) {
	raw, err := wire.Marshal(v)
	if err != nil {
		return nil, err
	}
	if r.enveloped {
		raw, err = wire.Marshal(wire.ResponseEnvelope{Type: "response", RequestID: r.envelope.RequestID, Result: raw})
		if err != nil {
			return nil, err
		}
	}
	return r.inForm(raw), nil
}

func (r *request) inForm(raw wire.Raw) []byte {
	if !r.form.JSON {
		return raw
	}
	data, err := wire.AppendJSON(make([]byte, 0, len(raw)+len(raw)/4), raw)
	if err != nil {
		return nil // not reached: raw is canonical
	}
	return data
}

// problemOf returns the answer for an error; over says why the work had to end, if
// it had to.
func (w *worker) problemOf(ctx context.Context, over error, verb string, err error) *wire.APIError {
	if p, ok := errors.AsType[*wire.APIError](err); ok {
		return p
	}
	if ctx.Err() != nil {
		return w.stoppingError()
	}
	if what := w.awayReason(cmp.Or(over, err)); what != "" {
		w.Logger.DebugContext(ctx, "query not answered", "verb", verb, "error", err)
		return &wire.APIError{Code: wire.CodeUnreachable, Message: fmt.Sprintf("the %s can't answer: %s", w.Name, what), Hint: "`wake doctor` says what is wrong"}
	}
	if over != nil {
		return &wire.APIError{
			Code:    wire.CodeTimeout,
			Message: fmt.Sprintf("the %s needed more than %s", w.Name, MaxWork),
			Hint:    "ask for less, by limit or filters",
		}
	}
	w.Logger.ErrorContext(ctx, "query failed", "verb", verb, "error", err)
	return &wire.APIError{Code: wire.CodeInternal, Message: "the " + w.Name + " failed", Hint: "its log says why"}
}

// awayReason says what isn't there at the moment, if an error comes of that.
func (w *worker) awayReason(err error) string {
	if w.Away != nil {
		if what := w.Away(err); what != "" {
			return what
		}
	}
	if topology.LeaderMoved(err) && !errors.Is(err, context.DeadlineExceeded) {
		return "no NATS server leads what it reads at the moment"
	}
	return ""
}

func (w *worker) stoppingError() *wire.APIError {
	return &wire.APIError{Code: wire.CodeUnreachable, Message: "the " + w.Name + " is stopping", Hint: "ask again"}
}

func badRequest(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}
