package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// ackPending is more than any reader fetches: a consumer that stalls here would stall
// the user who tries it out.
const ackPending = 100_000

// durableConsumers returns the durable consumers of the stream of events. Services set them
// to where they are. Nothing is delivered by them: each process reads by a consumer of its
// own, since two that set one to where they are, in turns, are given what is the other's.
// They have no filter but the stream's one subject: with another one, setting them takes the longer the more runs there are.
func durableConsumers(n subjects.Names) []jetstream.ConsumerConfig {
	return []jetstream.ConsumerConfig{
		durableConsumer(subjects.RecorderConsumer, "index and archive", n.AllEvents()),
		durableConsumer(subjects.SnapshotterConsumer, "states of runs", n.AllEvents()),
		durableConsumer(subjects.AlerterConsumer, "alerts", n.AllEvents()),
	}
}

// Durable returns the durable consumer of a service on the stream of events.
func Durable(n subjects.Names, service string) (c jetstream.ConsumerConfig, known bool) {
	all := durableConsumers(n)
	i := slices.IndexFunc(all, func(c jetstream.ConsumerConfig) bool { return c.Name == service })
	if i < 0 {
		return c, false
	}
	return all[i], true
}

// Altered returns what isn't as it should be about a durable consumer, as far as services rely
// on it.
func Altered(want, cur jetstream.ConsumerConfig) []Change {
	return changesOf(diffFields(cur, decideConsumer(want, cur)), reliedConsumer...)
}

// reliedConsumer are the settings of a durable consumer that services rely on.
var reliedConsumer = []string{"deliver_policy", "ack_policy", "filter_subject", "filter_subjects", "headers_only"}

// Repair makes the durable consumer of a service again if it is missing, or was altered.
// Services keep their positions elsewhere. It returns what it did: created, updated or
// unchanged.
func Repair(ctx context.Context, js jetstream.JetStream, n subjects.Names, service string) (Action, error) {
	want, known := Durable(n, service)
	if !known {
		return "", fmt.Errorf("topology: no service is called %s", service)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream := n.EventsStream()
	cur, err := js.Consumer(ctx, stream, service)
	switch {
	case err == nil && len(Altered(want, cur.CachedInfo().Config)) == 0:
		return Unchanged, nil
	case err == nil:
		if err := js.DeleteConsumer(ctx, stream, service); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return "", fmt.Errorf("topology: consumer %s of %s: %w", service, stream, err)
		}
		_, err = js.CreateOrUpdateConsumer(ctx, stream, want)
		return Updated, explainError(err, "")
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		_, err = js.CreateOrUpdateConsumer(ctx, stream, want)
		return Created, explainError(err, "")
	}
	return "", explainError(err, "")
}

func durableConsumer(name, description, filter string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        name,
		Name:           name,
		Description:    "wake: " + description,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckAllPolicy,
		AckWait:        time.Minute,
		MaxDeliver:     -1,
		MaxAckPending:  ackPending,
		FilterSubjects: []string{filter},
	}
}

// decideConsumer returns the configuration of a consumer, given that of the server.
func decideConsumer(want, cur jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	merged := cur
	merged.Durable, merged.Name, merged.Description = want.Durable, want.Name, want.Description
	merged.DeliverPolicy, merged.AckPolicy = want.DeliverPolicy, want.AckPolicy
	merged.AckWait, merged.MaxDeliver, merged.MaxAckPending = want.AckWait, want.MaxDeliver, want.MaxAckPending
	merged.HeadersOnly = false
	if len(want.FilterSubjects) != 1 || cur.FilterSubject != want.FilterSubjects[0] {
		merged.FilterSubject, merged.FilterSubjects = "", want.FilterSubjects
	}
	return merged
}
