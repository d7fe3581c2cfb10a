package api

import (
	"bytes"
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

	"wake/internal/tracing"
	"wake/pkg/subjects"
	"wake/pkg/wire"
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
}

// Endpoint answers one verb. Make it with [Handle].
type Endpoint struct {
	verb   string
	action string
	answer func(context.Context, wire.Raw, Form) (any, error)
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

// Run answers requests on nc until ctx ends, and returns when the last one has
// been answered. Requests of one verb are answered one after the other; several
// processes that serve the same verbs share them.
func (s Service) Run(ctx context.Context, nc *nats.Conn) error {
	if s.Tracer == nil {
		s.Tracer = tracing.Off()
	}
	w := worker{Service: s, nc: nc}
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
		if err = svc.AddEndpoint(e.verb, w.handler(ctx, e), micro.WithEndpointSubject(s.Names.API(e.verb))); err != nil {
			break
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	stopped := svc.Stop()
	w.wait()
	if err != nil || stopped != nil && !errors.Is(stopped, nats.ErrConnectionClosed) {
		return fmt.Errorf("api: serve %s: %w", s.Name, errors.Join(err, stopped))
	}
	return nil
}

// worker answers requests while its service runs.
type worker struct {
	Service
	nc   *nats.Conn
	mu   sync.RWMutex // held for reading by whoever answers
	over bool
}

// wait returns when nothing is being answered any more. What comes later is
// refused.
func (w *worker) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// handler answers requests until ctx ends.
func (w *worker) handler(ctx context.Context, e Endpoint) micro.HandlerFunc {
	return func(m micro.Request) {
		w.mu.RLock()
		defer w.mu.RUnlock()
		r := w.read(m.Data())
		if w.over {
			r.problem = w.stopping()
		}
		ctx, span := tracing.Serve(tracing.Extract(ctx, nats.Header(m.Headers())), w.Tracer, w.Names.API(e.verb))
		defer span.End()
		data, problem := r.do(ctx, e)
		if problem != nil {
			tracing.Refuse(span, problem)
		}
		if err := reply(m, data, problem); err != nil && ctx.Err() == nil {
			w.Logger.WarnContext(ctx, "answer was not sent", "subject", m.Subject(), "error", err)
		}
	}
}

// reply sends an answer. If that fails, whoever asked sees a timeout.
func reply(m micro.Request, data []byte, problem *wire.APIError) error {
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

func (w *worker) read(data []byte) *request {
	r := &request{w: w, form: Form{
		JSON:  len(data) == 0 || data[0] == '{',
		Limit: int(w.nc.MaxPayload()) - envelopeSize,
	}}
	var err error
	switch {
	case len(data) > MaxRequest:
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
	if kind, _ := r.body.Get("type").Text(); kind == "command" && r.problem == nil {
		r.open()
	}
	return r
}

// open takes the request out of its envelope.
func (r *request) open() {
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

// do answers the request.
func (r *request) do(ctx context.Context, e Endpoint) ([]byte, *wire.APIError) {
	if r.enveloped && r.problem == nil && r.envelope.Action != e.verb && (e.action == "" || r.envelope.Action != e.action) {
		r.problem = badRequest("%q is no action of %s", r.envelope.Action, r.w.Names.API(e.verb))
	}
	if r.problem != nil {
		return r.refuse(r.problem)
	}
	limited, cancel := context.WithTimeout(ctx, MaxWork)
	defer cancel()
	v, err := e.answer(limited, r.body, r.form)
	if err != nil {
		return r.refuse(r.w.problem(ctx, limited.Err(), e.verb, err))
	}
	data, err := r.encode(v)
	switch {
	case err != nil:
		return r.refuse(r.w.problem(ctx, nil, e.verb, err))
	case len(data) > r.form.Limit+envelopeSize:
		return r.refuse(&wire.APIError{
			Code:    wire.CodeTooLarge,
			Message: fmt.Sprintf("the answer has %d bytes, a message at most %d", len(data), r.form.Limit),
			Hint:    "ask for less, by limit or filters",
		})
	}
	return data, nil
}

func (r *request) refuse(problem *wire.APIError) ([]byte, *wire.APIError) {
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

func (r *request) encode(v any) ([]byte, error) {
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

// problem returns the answer for an error; over says why the work had to end, if
// it had to.
func (w *worker) problem(ctx context.Context, over error, verb string, err error) *wire.APIError {
	if p, ok := errors.AsType[*wire.APIError](err); ok {
		return p
	}
	if ctx.Err() != nil {
		return w.stopping()
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

func (w *worker) stopping() *wire.APIError {
	return &wire.APIError{Code: wire.CodeUnreachable, Message: "the " + w.Name + " is stopping", Hint: "ask again"}
}

func badRequest(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}
