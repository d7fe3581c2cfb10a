package recorder

import (
	"context"
	"time"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/rebuild"
)

// followOrders obeys orders to derive everything again until ctx ends. What fails is
// tried again with the next look.
func (r *Recorder) followOrders(ctx context.Context) {
	for obeyed := ""; ctx.Err() == nil; pull.Sleep(ctx, rebuild.Every) {
		id, err := r.obeyOrder(ctx, obeyed)
		if err != nil && ctx.Err() == nil {
			r.logger.ErrorContext(ctx, "what is derived wasn't derived again", "error", err)
		}
		obeyed = id // not again and again
	}
}

// obeyOrder looks for an order besides the last one, and obeys it. It returns the last
// one.
func (r *Recorder) obeyOrder(ctx context.Context, last string) (string, error) {
	desk, err := rebuild.Open(ctx, r.log.JetStream(), r.log.Names(), name)
	if err != nil {
		return last, nil //nolint:nilerr // the server is away
	}
	order, err := desk.Order(ctx)
	if err != nil || order.ID == "" || order.ID == last {
		return last, nil //nolint:nilerr // likewise
	}
	told := time.Time{}
	tell := func(p rebuild.Progress) {
		told = time.Now()
		p.ID, p.Unit = order.ID, "runs"
		if err := desk.Report(ctx, p); err != nil {
			r.logger.WarnContext(ctx, "progress is not shown", "error", err)
		}
	}
	runs := 0
	err = r.store.Index.Rebuild(ctx, order.ID, func(done, of int) {
		if runs = of; time.Since(told) >= time.Second {
			tell(rebuild.Progress{Part: uint64(done), Of: uint64(of)})
		}
	})
	p := rebuild.Progress{Part: uint64(runs), Of: uint64(runs), Done: err == nil}
	if err != nil {
		p.Error = err.Error()
	}
	if ctx.Err() == nil {
		tell(p)
	}
	if err == nil && runs > 0 {
		r.logger.InfoContext(ctx, "derived everything again", "runs", runs)
	}
	return order.ID, err
}
