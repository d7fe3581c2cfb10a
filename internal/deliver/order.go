package deliver

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// What a sink can be asked for.
const (
	orderTest  = "test"
	orderRetry = "retry"
)

// sinkOrder is a request while it is obeyed.
type sinkOrder struct {
	ctx  context.Context //nolint:containedctx // it is the request's, handed over with it
	ask  wire.SinkRequest
	done chan sinkAnswer
}

type sinkAnswer struct {
	response wire.SinkResponse
	err      error
}

// serveOrders answers requests for this sink until stop is called.
func (t *target) serveOrders(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	s := api.Service{
		Names: t.d.log.Names(), Name: "sink-" + t.name, Logger: t.logger, Tracer: t.d.log.Tracer(),
		Endpoints: []api.Endpoint{api.Handle(wire.VerbSink(t.name), "", t.submitOrder)},
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Run(ctx, t.d.log.Conn()); err != nil && ctx.Err() == nil {
			t.logger.WarnContext(ctx, "sink can't be asked for anything", "error", err)
		}
	})
	return func() {
		cancel()
		serving.Wait()
	}
}

// submitOrder hands an order over to the goroutine that runs the target, and waits for the outcome.
func (t *target) submitOrder(ctx context.Context, ask wire.SinkRequest, _ api.Form) (wire.SinkResponse, error) {
	if ask.Do != orderTest && ask.Do != orderRetry {
		return wire.SinkResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "a sink does test and retry"}
	}
	o := sinkOrder{ctx: ctx, ask: ask, done: make(chan sinkAnswer, 1)}
	select {
	case t.orders <- o:
	case <-ctx.Done():
		return wire.SinkResponse{}, context.Cause(ctx)
	}
	select {
	case a := <-o.done:
		return a.response, a.err
	case <-ctx.Done():
		return wire.SinkResponse{}, context.Cause(ctx)
	}
}

// obeyWaitingOrder obeys an order if a caller waits with one: while there is much to send,
// nothing else looks.
func (t *target) obeyWaitingOrder() {
	select {
	case o := <-t.orders:
		o.done <- t.obeyOrder(o)
	default:
	}
}

// obeyOrder does what was asked for. That the sink takes nothing is an answer, not an
// error.
func (t *target) obeyOrder(o sinkOrder) sinkAnswer {
	if o.ask.Do == orderRetry {
		r, err := t.retryLetters(o.ctx, o.ask.Letters)
		return sinkAnswer{r, err}
	}
	var r wire.SinkResponse
	if err := t.attemptDelivery(o.ctx, testNotification(t.name)); err != nil {
		r.Problem = err.Error()
	} else {
		r.Sent = 1
	}
	return sinkAnswer{r, nil}
}

// retryLetters sends dead letters of the sink again, each once, the oldest first, and
// removes those that it takes. It ends with the first that it doesn't take, or when
// time is up.
func (t *target) retryLetters(ctx context.Context, ids []uint64) (wire.SinkResponse, error) {
	var r wire.SinkResponse
	for l, err := range StoredLetters(ctx, t.d.log, t.name) {
		if err != nil {
			if ctx.Err() != nil && r.Sent > 0 {
				r.More = true
				return r, nil
			}
			return r, err
		}
		if len(ids) > 0 && !slices.Contains(ids, l.ID) {
			continue
		}
		if r.Problem != "" || ctx.Err() != nil {
			r.More = true
			return r, nil
		}
		if err := t.attemptDelivery(ctx, l.Notification); err != nil {
			r.Problem = err.Error()
			continue
		}
		r.Sent++
		if err := removeLetter(ctx, t.d.log, l.ID); err != nil {
			return r, err
		}
		if err := t.showOwner(ctx); err != nil && !errors.Is(err, errTaken) {
			return r, err
		}
	}
	return r, nil
}

// Try asks the owner of a sink to send it a test.
func Try(ctx context.Context, nc *nats.Conn, names subjects.Names, sink string) (wire.SinkResponse, error) {
	return callSink(ctx, nc, names, sink, wire.SinkRequest{Do: orderTest})
}

// Retry asks the owner of a sink to send dead letters again, all or some.
func Retry(ctx context.Context, nc *nats.Conn, names subjects.Names, sink string, letters []uint64) (wire.SinkResponse, error) {
	return callSink(ctx, nc, names, sink, wire.SinkRequest{Do: orderRetry, Letters: letters})
}

func callSink(ctx context.Context, nc *nats.Conn, names subjects.Names, sink string, ask wire.SinkRequest) (wire.SinkResponse, error) {
	return api.Call[wire.SinkResponse](ctx, nc, names, wire.VerbSink(sink), ask)
}
