package topology

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// ackPending is more than anybody fetches: a consumer that stalls here would stall
// who tries it out.
const ackPending = 100_000

// consumers returns the durable consumers of the stream of events. They say which
// events a service is given, and are set by it to where it is. Nothing is
// delivered by them: each process reads by a consumer of its own, since two that
// set one to where they are, in turns, are given what is the other's.
func consumers(n subjects.Names) []jetstream.ConsumerConfig {
	folded := []string{
		n.KindEvents(string(wire.KindFlow)),
		n.KindEvents(string(wire.KindAgent)),
		n.KindEvents(string(wire.KindTool)),
	}
	return []jetstream.ConsumerConfig{
		consumer(subjects.RecorderConsumer, "index and archive", []string{n.AllEvents()}),
		consumer(subjects.SnapshotterConsumer, "states of runs", folded),
		consumer(subjects.AlerterConsumer, "alerts", folded),
	}
}

func consumer(name, description string, filters []string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        name,
		Name:           name,
		Description:    "wake: " + description,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckAllPolicy,
		AckWait:        time.Minute,
		MaxDeliver:     -1,
		MaxAckPending:  ackPending,
		FilterSubjects: filters,
	}
}

// decideConsumer returns the configuration of a consumer, given what is there.
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
