package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// Quantiles are the parts of the acknowledgements that a latency is given for.
var Quantiles = []float64{0.5, 0.99, 0.999} //nolint:gochecknoglobals // a constant list

// Latencies are times in milliseconds, sorted.
type Latencies []float64

// timed appends how long f takes.
func (l *Latencies) timed(f func() error) error {
	began := time.Now()
	err := f()
	*l = append(*l, float64(time.Since(began))/float64(time.Millisecond))
	return err
}

// Acks appends events one by one and publishes raw ones, in turn, n each.
func (s *Scratch) Acks(ctx context.Context, w *eventlog.Writer, n int) (stored, raw Latencies, err error) {
	data, err := Encoded()
	if err != nil {
		return nil, nil, err
	}
	for range n {
		if err := stored.timed(func() error { _, err := w.Append(ctx, Text()); return err }); err != nil {
			return nil, nil, fmt.Errorf("bench: append: %w", err)
		}
		if err := raw.timed(func() error { return s.Publish(ctx, data) }); err != nil {
			return nil, nil, fmt.Errorf("bench: publish: %w", err)
		}
	}
	slices.Sort(stored)
	slices.Sort(raw)
	return stored, raw, nil
}

// Under calls f while the writers of in together store rate events per second,
// as agents do that stream: one every so often each.
func (in *Ingest) Under(ctx context.Context, rate int, f func(context.Context) error) error {
	loading, stop := context.WithCancel(ctx)
	errs := make(chan error, len(in.Writers))
	var working sync.WaitGroup
	for _, w := range in.Writers {
		working.Go(func() {
			tick := time.NewTicker(time.Second * time.Duration(len(in.Writers)) / time.Duration(rate))
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-loading.Done():
					return
				}
				if err := w.Enqueue(ctx, &wire.Event{Payload: Text().Payload}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	err := f(ctx)
	stop()
	working.Wait()
	if err != nil {
		return err
	}
	select {
	case err := <-errs:
		return fmt.Errorf("bench: load: %w", err)
	default:
		return nil
	}
}
