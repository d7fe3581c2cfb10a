package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// rawPending is the number of raw publishes that may wait for their answer at
// once: the client's own default.
const rawPending = 4000

// PublishAsync publishes n messages one by one without waiting for each, on 16
// subjects, and returns the messages per second until the last is acknowledged.
func (s *Scratch) PublishAsync(ctx context.Context, data []byte, n int) (float64, error) {
	js, err := jetstream.New(s.JS.Conn(), jetstream.WithPublishAsyncMaxPending(rawPending))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	futures := make([]jetstream.PubAckFuture, n)
	for i := range n {
		if futures[i], err = js.PublishAsync(s.rawSubject("n"+strconv.Itoa(i%16)), data); err != nil {
			return 0, fmt.Errorf("bench: publish: %w", err)
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return 0, fmt.Errorf("bench: publish: %w", err)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return perSecond(n, began), nil
}

// Batches that are in flight at once: as many as a log has lanes.
const (
	batchSize  = 1000
	batchLanes = 4
)

// PublishBatches publishes atomic batches of 1000 messages, four at a time, and
// returns the messages per second. It publishes at least one for each of the
// four.
func (s *Scratch) PublishBatches(ctx context.Context, data []byte, n int) (float64, error) {
	each := max(n/batchSize/batchLanes, 1)
	began := time.Now()
	errs := make(chan error, batchLanes)
	var working sync.WaitGroup
	for lane := range batchLanes {
		working.Go(func() {
			for range each {
				if err := s.publishBatch(ctx, s.rawSubject("batch"+strconv.Itoa(lane)), data); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	working.Wait()
	select {
	case err := <-errs:
		return 0, fmt.Errorf("bench: publish a batch: %w", err)
	default:
		return perSecond(each*batchLanes*batchSize, began), nil
	}
}

func (s *Scratch) publishBatch(ctx context.Context, subject string, data []byte) error {
	nc, id := s.JS.Conn(), rand.Text()
	m := &nats.Msg{Subject: subject, Data: data}
	for i := 1; i <= batchSize; i++ {
		m.Header = nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i)}}
		if i < batchSize {
			if err := nc.PublishMsg(m); err != nil {
				return err
			}
		}
	}
	m.Header["Nats-Batch-Commit"] = []string{"1"}
	_, err := s.JS.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	return err
}

// Publish publishes one message and waits until it is stored.
func (s *Scratch) Publish(ctx context.Context, data []byte) error {
	_, err := s.JS.Publish(ctx, s.rawSubject("one"), data, jetstream.WithRetryAttempts(0))
	return err
}

// Drink reads the n messages of the stream of events that filters select, or all
// if there are none, by a consumer that does nothing else, and returns the
// messages per second.
func (s *Scratch) Drink(ctx context.Context, n int, filters ...string) (float64, error) {
	c, err := s.JS.CreateConsumer(ctx, s.Names.EventsStream(), jetstream.ConsumerConfig{
		FilterSubjects: filters, AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	read := make(chan struct{})
	got := 0
	consuming, err := c.Consume(func(jetstream.Msg) {
		if got++; got == n {
			close(read)
		}
	}, jetstream.PullMaxMessages(5000))
	if err != nil {
		return 0, err
	}
	defer func() {
		consuming.Stop()
		<-consuming.Closed()
	}()
	select {
	case <-read:
		rate := perSecond(n, began)
		return rate, s.JS.DeleteConsumer(ctx, s.Names.EventsStream(), c.CachedInfo().Name)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func perSecond(n int, began time.Time) float64 { return float64(n) / time.Since(began).Seconds() }
