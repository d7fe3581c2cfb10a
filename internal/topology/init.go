package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// callTimeout bounds each call of the server. Creating a replicated stream on a
// busy cluster takes longer than the client's default.
const callTimeout = 30 * time.Second

// Init creates what is missing and updates what differs from c. Running it
// again, or twice at once, does no harm. It fails, with the report of what it
// did so far, if a stream of somebody else is in the way, or if the server can't
// make a change; then it says which and what to do.
func Init(ctx context.Context, js jetstream.JetStream, c Config) (Report, error) {
	report := Report{Prefix: c.Names.Prefix()}
	if err := c.check(); err != nil {
		return report, err
	}
	if err := checkServer(js); err != nil {
		return report, err
	}
	b := builder{js: js, config: c}
	for _, r := range rooms(c) {
		item, err := b.room(ctx, r)
		if err != nil {
			return report, fmt.Errorf("topology: %s %s: %w", r.kind, r.name, err)
		}
		report.Items = append(report.Items, item)
	}
	for _, want := range consumers(c.Names) {
		item, err := b.consumer(ctx, want)
		if err != nil {
			return report, fmt.Errorf("topology: consumer %s of %s: %w", want.Name, c.Names.EventsStream(), err)
		}
		report.Items = append(report.Items, item)
	}
	report.Incarnation = b.incarnation
	return report, nil
}

// builder creates and updates.
type builder struct {
	js     jetstream.JetStream
	config Config

	maxAge      time.Duration // of events, once they are done
	incarnation string        // likewise
}

// room creates or updates a stream, unless it is as it shall be.
func (b *builder) room(ctx context.Context, r room) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	item := Item{Kind: r.kind, Name: r.name}
	if r.want.Name == b.config.Names.AlertsStream() && b.maxAge > 0 {
		r.want.MaxAge = 2 * b.maxAge
	}
	cur, state, err := b.current(ctx, r)
	if err != nil {
		return item, err
	}
	if cur == nil {
		if cur, err = b.create(ctx, r); err != nil {
			return item, err
		}
		if cur != nil {
			item.Action = Created
			b.note(cur)
			return item, nil
		}
		if cur, state, err = b.current(ctx, r); err != nil || cur == nil {
			return item, errors.Join(err, errMeanwhile)
		}
	}
	want := r.decide(b.config, cur)
	item.Action, item.Changes = Unchanged, diff(*cur, want)
	if len(item.Changes) > 0 {
		item.Action = Updated
		if err := b.update(ctx, want, item.Changes, state); err != nil {
			return item, err
		}
	}
	b.note(&want)
	return item, nil
}

var errMeanwhile = errors.New("it was created and deleted meanwhile; run `wake init` again")

// note keeps what other rooms and the report want to know of the events.
func (b *builder) note(c *jetstream.StreamConfig) {
	if c.Name == b.config.Names.EventsStream() {
		b.maxAge, b.incarnation = c.MaxAge, c.Metadata[incarnationKey]
	}
}

// current returns the configuration and the state of a stream, or nil if there
// is none. It fails if the stream is not wake's.
func (b *builder) current(ctx context.Context, r room) (*jetstream.StreamConfig, jetstream.StreamState, error) {
	s, err := b.js.Stream(ctx, r.want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, jetstream.StreamState{}, nil
	}
	if err != nil {
		return nil, jetstream.StreamState{}, explain(err, "")
	}
	info := s.CachedInfo()
	if err := foreign(r, b.config.Names, info.Config); err != nil {
		return nil, jetstream.StreamState{}, err
	}
	return &info.Config, info.State, nil
}

// create returns nil if somebody else created the stream first.
func (b *builder) create(ctx context.Context, r room) (*jetstream.StreamConfig, error) {
	s, err := b.js.CreateStream(ctx, r.decide(b.config, nil))
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		return nil, nil
	case code(err) == codeSubjectsOverlap:
		return nil, b.overlap(ctx, r)
	case err != nil:
		return nil, explain(err, "create it")
	}
	return &s.CachedInfo().Config, nil
}

func (b *builder) update(ctx context.Context, want jetstream.StreamConfig, changes []Change, state jetstream.StreamState) error {
	if fixed := have(changes, "storage", "retention", "persist_mode", "sealed"); len(fixed) > 0 {
		return fmt.Errorf("the server can't change %s; delete the stream (`nats stream rm %s`) and run `wake init` again, or choose another prefix", list(fixed), want.Name)
	}
	if want.MaxBytes > 0 && uint64(want.MaxBytes) < state.Bytes {
		return fmt.Errorf("it holds %d bytes, %d would delete the oldest of them; choose at least as many", state.Bytes, want.MaxBytes)
	}
	_, err := b.js.UpdateStream(ctx, want)
	if code(err) == codeSubjectsOverlap {
		return fmt.Errorf("another stream has one of the subjects %v; delete it or choose another prefix", want.Subjects)
	}
	return explain(err, "change "+list(changes))
}

// overlap says which stream has the subjects of a room.
func (b *builder) overlap(ctx context.Context, r room) error {
	for _, subject := range r.want.Subjects {
		names := b.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
		for name := range names.Name() {
			return fmt.Errorf("its subjects %s are stored by the stream %s; delete that (`nats stream rm %s`) or choose another prefix", subject, name, name)
		}
	}
	return fmt.Errorf("another stream has one of its subjects %v; delete that or choose another prefix", r.want.Subjects)
}

// consumer creates or updates a consumer, unless it is as it shall be.
func (b *builder) consumer(ctx context.Context, want jetstream.ConsumerConfig) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	item := Item{Kind: Consumer, Name: want.Name}
	stream := b.config.Names.EventsStream()
	cur, err := b.js.Consumer(ctx, stream, want.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		item.Action = Created
		_, err := b.js.CreateOrUpdateConsumer(ctx, stream, want)
		return item, explain(err, "create it")
	}
	if err != nil {
		return item, explain(err, "")
	}
	found := cur.CachedInfo().Config
	want = decideConsumer(want, found)
	item.Action, item.Changes = Unchanged, diff(found, want)
	if len(item.Changes) == 0 {
		return item, nil
	}
	item.Action = Updated
	return item, b.updateConsumer(ctx, want, item.Changes)
}

func (b *builder) updateConsumer(ctx context.Context, want jetstream.ConsumerConfig, changes []Change) error {
	stream := b.config.Names.EventsStream()
	if fixed := have(changes, "deliver_policy", "ack_policy"); len(fixed) > 0 {
		return fmt.Errorf("the server can't change %s; run `nats consumer rm %s %s` and `wake init` again: services keep their positions elsewhere", list(fixed), stream, want.Name)
	}
	_, err := b.js.UpdateConsumer(ctx, stream, want)
	return explain(err, "change "+list(changes))
}
