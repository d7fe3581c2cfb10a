package recorder

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/rebuild"
)

// deriveMost bounds what is derived in one transaction: recording waits for it. A
// segment that was written while there was much to catch up with spans about as
// many positions.
const deriveMost = maxBatch

// deriveEvery is how often it is looked whether what comes in leaves time for
// deriving.
const deriveEvery = 100 * time.Millisecond

// deriveLater derives what was left for later until ctx ends. While there is much
// to record, that goes first.
func (r *Recorder) deriveLater(ctx context.Context) error {
	for behind := true; ; {
		if !behind {
			select {
			case <-r.later:
			case <-ctx.Done():
				return nil
			}
		}
		for _, busy := r.recorded.currentPos(); busy && ctx.Err() == nil; _, busy = r.recorded.currentPos() {
			pull.Sleep(ctx, deriveEvery)
		}
		var report Report
		err := r.retryStore(ctx, derivingMore, func() (err error) {
			report, err = r.store.Index.Derive(ctx, deriveMost)
			return err
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err != nil {
			return err
		}
		r.metrics.refused.Add(float64(report.Refused))
		r.takeReport(ctx, report)
		behind = report.Derived < report.Position.Seq
	}
}

// followIndex takes what is recorded into the full text until ctx ends. While there is
// much to catch up with, recording goes first.
func (r *Recorder) followIndex(ctx context.Context) error {
	for seen := uint64(0); ctx.Err() == nil; pull.Sleep(ctx, indexEvery) {
		_, busy := r.recorded.currentPos()
		pos, _ := r.derived.currentPos()
		if pos == seen {
			continue
		}
		more, err := true, error(nil)
		for more && err == nil {
			err = r.retryStore(ctx, indexing, func() (err error) {
				more, err = r.store.Index.IndexLines(ctx)
				return err
			})
			if busy {
				break
			}
			_, busy = r.recorded.currentPos()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if !more {
			seen = pos
		}
	}
	return nil
}

// indexForSearch takes what is recorded into the full text before a search, for as long
// as a question waits. What there is no time for, the answer says.
func (r *Recorder) indexForSearch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	for more, err := true, error(nil); more && err == nil; {
		more, err = r.store.Index.IndexLines(ctx)
	}
}

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
	events, err := r.rebuildTables(ctx, desk, order.ID)
	if err == nil && events > 0 {
		r.logger.InfoContext(ctx, "derived everything again", "events", events)
	}
	return order.ID, err
}

// rebuildTables derives everything again, and reports once a second how far it is. It returns of how many events.
func (r *Recorder) rebuildTables(ctx context.Context, desk *rebuild.Desk, order string) (events uint64, err error) {
	report := func(p rebuild.Progress) {
		p.ID, p.Unit = order, "events"
		if err := desk.Report(ctx, p); err != nil {
			r.logger.WarnContext(ctx, "progress is not shown", "error", err)
		}
	}
	var part, of atomic.Uint64
	var reporting sync.WaitGroup
	over, end := context.WithCancel(ctx)
	reporting.Go(func() { // not in the transaction, which doesn't wait for the server
		for pull.Sleep(over, time.Second); over.Err() == nil; pull.Sleep(over, time.Second) {
			report(rebuild.Progress{Part: part.Load(), Of: of.Load()})
		}
	})
	err = r.store.Index.Rebuild(ctx, order, func(done, all int64) {
		part.Store(uint64(done))
		of.Store(uint64(all))
	})
	end()
	reporting.Wait()
	p := rebuild.Progress{Part: part.Load(), Of: part.Load(), Done: err == nil}
	if err != nil {
		p.Error = err.Error()
	}
	if ctx.Err() == nil {
		report(p)
	}
	return p.Part, err
}
