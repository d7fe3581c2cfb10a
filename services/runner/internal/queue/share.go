package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Share returns a durable consumer that all runners take from, and makes it if need be. It is in the server's memory,
// where handing out and acknowledging cost no sync; it is gone when the server ends, and a runner that needs it makes
// it again, as c says. One on disk, as earlier versions made it, is made anew unless a runner takes from it now.
func (q *Queue) Share(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c.MemoryStorage = true
	there, err := q.shared(ctx, stream, c.Durable)
	if err == nil && there != nil && !there.Config.MemoryStorage && there.NumWaiting == 0 {
		if err = q.log.JetStream().DeleteConsumer(ctx, stream, c.Durable); errors.Is(err, jetstream.ErrConsumerNotFound) {
			err = nil
		}
		there = nil
	}
	if there != nil { // what can't be changed stays
		was := there.Config
		c.MemoryStorage, c.DeliverPolicy, c.OptStartSeq = was.MemoryStorage, was.DeliverPolicy, was.OptStartSeq
	}
	var made jetstream.Consumer
	if err == nil {
		made, err = q.log.JetStream().CreateOrUpdateConsumer(ctx, stream, c)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", c.Durable, err)
	}
	return made, nil
}

// shared returns a consumer as it is, or nil if there is none.
func (q *Queue) shared(ctx context.Context, stream, durable string) (*jetstream.ConsumerInfo, error) {
	c, err := q.log.JetStream().Consumer(ctx, stream, durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}
