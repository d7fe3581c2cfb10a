package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Quantiles are the parts of the acknowledgements that a latency is given for.
var Quantiles = []float64{0.5, 0.99, 0.999}

// Latencies are times in milliseconds, sorted.
type Latencies []float64

// timeCall appends how long f takes.
func (l *Latencies) timeCall(f func() error) error {
	began := time.Now()
	err := f()
	*l = append(*l, float64(time.Since(began))/float64(time.Millisecond))
	return err
}

// Times calls f n times, one after the other.
func Times(n int, f func() error) (Latencies, error) {
	var l Latencies
	for range n {
		if err := l.timeCall(f); err != nil {
			return nil, fmt.Errorf("bench: await: %w", err)
		}
	}
	slices.Sort(l)
	return l, nil
}

// Loaders publish as agents do that stream: one event every so often each.
type Loaders []func(context.Context) error

// Load returns what puts the writers under load.
func (in *Ingest) Load() Loaders {
	var all Loaders
	for _, w := range in.Writers {
		all = append(all, func(ctx context.Context) error { return w.Enqueue(ctx, Text()) })
	}
	return all
}

// Load returns what publishes raw messages without waiting for each, as many as
// the client lets wait for their answer.
func (s *Scratch) Load(data []byte, n int) Loaders {
	var all Loaders
	for i := range n {
		subject := s.rawSubject("load" + strconv.Itoa(i))
		all = append(all, func(context.Context) error {
			_, err := s.JS.PublishAsync(subject, data)
			return err
		})
	}
	return all
}

// Under calls f while the loaders together publish rate events per second. They
// take turns: none begins at the time of another.
func (all Loaders) Under(ctx context.Context, rate int, f func() error) error {
	loading, stop := context.WithCancel(ctx)
	errs := make(chan error, len(all))
	every := time.Second * time.Duration(len(all)) / time.Duration(rate)
	var working sync.WaitGroup
	for i, load := range all {
		working.Go(func() {
			if err := callPeriodically(loading, every, every*time.Duration(i)/time.Duration(len(all)), func() error { return load(ctx) }); err != nil {
				errs <- err
			}
		})
	}
	err := f()
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

// callPeriodically calls f every so often, for the first time after a delay, until
// ctx ends.
func callPeriodically(ctx context.Context, every, delay time.Duration, f func() error) error {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := f(); err != nil {
			return err
		}
	}
}
