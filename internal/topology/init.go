// Package topology holds the configuration of every stream, bucket, object
// store and durable consumer of wake. [Init] creates and updates them and is the
// only one that does; services call [Verify] when they start and refuse to run
// on anything else.
//
// Everything that Init creates carries the prefix of the installation in its
// metadata; what lacks it is another's and is never touched. What a
// setting leaves open, Init keeps as it is, so that running it again changes
// nothing.
package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// callTimeout bounds each call of the server. Creating a replicated stream on a
// busy cluster takes longer than the client's default.
const callTimeout = 30 * time.Second

// Init creates what is missing and updates what differs from c. Running it
// again, or twice at once, does no harm. It fails, with the report of what it
// did so far, if a stream that isn't wake's is in the way, or if the server can't
// make a change; then it says which and what to do.
func Init(ctx context.Context, js jetstream.JetStream, c Config) (Report, error) {
	report := Report{Prefix: c.Names.Prefix()}
	if err := c.checkLimits(); err != nil {
		return report, err
	}
	if err := checkServer(js); err != nil {
		return report, err
	}
	if err := CheckRestored(ctx, js, c.Names); err != nil {
		return report, err
	}
	c.alone = js.Conn().ConnectedClusterName() == ""
	b := builder{js: js, config: c}
	if err := b.checkSubjects(ctx); err != nil {
		return report, fmt.Errorf("topology: %w", err)
	}
	for _, r := range allRooms(c) {
		item, err := b.ensureRoom(ctx, r)
		if err != nil {
			return report, fmt.Errorf("topology: %s %s: %w", r.kind, r.name, err)
		}
		report.Items = append(report.Items, item)
	}
	for _, want := range durableConsumers(c.Names) {
		item, err := b.ensureConsumer(ctx, want)
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

// ensureRoom creates or updates a stream, unless it is as it shall be.
func (b *builder) ensureRoom(ctx context.Context, r room) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	item := Item{Kind: r.kind, Name: r.name}
	if r.want.Name == b.config.Names.AlertsStream() && b.maxAge > 0 {
		r.want.MaxAge = 2 * b.maxAge
	}
	cur, state, err := b.currentStream(ctx, r)
	if err != nil {
		return item, err
	}
	if cur == nil {
		if cur, err = b.createStream(ctx, r); err != nil {
			return item, err
		}
		if cur != nil {
			item.Action = Created
			b.noteEvents(cur)
			return item, nil
		}
		if cur, state, err = b.currentStream(ctx, r); err != nil || cur == nil {
			return item, errors.Join(err, errMeanwhile)
		}
	}
	want := r.decideStream(b.config, cur)
	item.Action, item.Changes = Unchanged, diffFields(*cur, want)
	if len(item.Changes) > 0 {
		item.Action = Updated
		if err := b.updateStream(ctx, want, item.Changes, state); err != nil {
			return item, err
		}
	}
	b.noteEvents(&want)
	return item, nil
}

var errMeanwhile = errors.New("it was created and deleted meanwhile; run `wake init` again")

// noteEvents keeps what other rooms and the report want to know of the events.
func (b *builder) noteEvents(c *jetstream.StreamConfig) {
	if c.Name == b.config.Names.EventsStream() {
		b.maxAge, b.incarnation = c.MaxAge, c.Metadata[incarnationKey]
	}
}

// currentStream returns the configuration and the state of a stream, or nil if there
// is none. It fails if the stream is not wake's.
func (b *builder) currentStream(ctx context.Context, r room) (*jetstream.StreamConfig, jetstream.StreamState, error) {
	s, err := b.js.Stream(ctx, r.want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, jetstream.StreamState{}, nil
	}
	if err != nil {
		return nil, jetstream.StreamState{}, explainError(err, "")
	}
	info := s.CachedInfo()
	if err := checkForeign(r, b.config.Names, info.Config); err != nil {
		return nil, jetstream.StreamState{}, err
	}
	return &info.Config, info.State, nil
}

// createStream returns nil if another process created the stream first.
func (b *builder) createStream(ctx context.Context, r room) (*jetstream.StreamConfig, error) {
	s, err := b.js.CreateStream(ctx, r.decideStream(b.config, nil))
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		return nil, nil
	case errorCode(err) == codeSubjectsOverlap:
		return nil, cmp.Or(b.overlapError(ctx, r), fmt.Errorf("another stream has one of its subjects %v; delete that or choose another prefix", r.want.Subjects))
	case err != nil:
		return nil, explainError(err, "create it")
	}
	return &s.CachedInfo().Config, nil
}

func (b *builder) updateStream(ctx context.Context, want jetstream.StreamConfig, changes []Change, state jetstream.StreamState) error {
	if fixed := changesOf(changes, "storage", "retention", "persist_mode", "sealed"); len(fixed) > 0 {
		return fmt.Errorf("the server can't change %s; delete the stream (`nats stream rm %s`) and run `wake init` again, or choose another prefix", joinChanges(fixed), want.Name)
	}
	if want.PersistMode == jetstream.AsyncPersistMode && want.Replicas > 1 {
		return fmt.Errorf("the server doesn't replicate what it doesn't sync; end the services, delete the bucket (`nats stream rm %s`) and run `wake init` again: nothing is lost by that, see docs/durability.md", want.Name)
	}
	if want.MaxBytes > 0 && uint64(want.MaxBytes) < state.Bytes {
		return fmt.Errorf("it holds %d bytes, %d would delete the oldest of them; choose at least as many", state.Bytes, want.MaxBytes)
	}
	if want.Name == leasesConfig(b.config.Names).Name && state.Msgs > 0 {
		if err := checkLeaseTTL(changes); err != nil {
			return err
		}
	}
	_, err := b.js.UpdateStream(ctx, want)
	if errorCode(err) == codeSubjectsOverlap {
		return fmt.Errorf("another stream has one of the subjects %v; delete it or choose another prefix", want.Subjects)
	}
	return explainError(err, "change "+joinChanges(changes))
}

// checkLeaseTTL fails if leases of runners that are at work would live for another time: a runner keeps the one that it began with, and
// would take what others renew in time, or renew its own too late for them.
func checkLeaseTTL(changes []Change) error {
	for _, c := range changesOf(changes, "max_age") {
		if c.Old != time.Duration(0).String() { // no runner begins with that
			return fmt.Errorf("sessions of runners are in it, which live for %s and not for %s: stop all runners, and run `wake init` again %s later", c.Old, c.New, c.Old)
		}
	}
	return nil
}

// checkSubjects fails if another stream has a subject of the installation: nothing is made then.
func (b *builder) checkSubjects(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	own, others := Streams(b.config.Names), false
	near := b.js.StreamNames(ctx, jetstream.WithStreamListSubject(b.config.Names.Prefix()+".>"))
	for name := range near.Name() {
		others = others || !slices.Contains(own, name)
	}
	if err := near.Err(); err != nil {
		return explainError(err, "")
	}
	if !others { // nearly always: one question is enough
		return nil
	}
	for _, r := range allRooms(b.config) {
		if err := b.overlapError(ctx, r); err != nil {
			return fmt.Errorf("%s %s: %w", r.kind, r.name, err)
		}
	}
	return nil
}

// overlapError says which other stream has a subject of a room; nil: none has.
func (b *builder) overlapError(ctx context.Context, r room) error {
	for _, subject := range r.want.Subjects {
		names := b.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
		for name := range names.Name() {
			if name == r.want.Name {
				continue
			}
			s, err := b.js.Stream(ctx, name)
			if err != nil {
				return explainError(err, "")
			}
			if prefix := s.CachedInfo().Config.Metadata[prefixKey]; prefix != "" {
				return fmt.Errorf("its subjects %s are stored by the stream %s of the installation with prefix %q; choose another prefix", subject, name, prefix)
			}
			return fmt.Errorf("its subjects %s are stored by the stream %s; delete that (`nats stream rm %s`) or choose another prefix", subject, name, name)
		}
		if err := names.Err(); err != nil {
			return explainError(err, "")
		}
	}
	return nil
}

// ensureConsumer creates or updates a consumer, unless it is as it shall be.
func (b *builder) ensureConsumer(ctx context.Context, want jetstream.ConsumerConfig) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	item := Item{Kind: Consumer, Name: want.Name}
	stream := b.config.Names.EventsStream()
	cur, err := b.js.Consumer(ctx, stream, want.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		item.Action = Created
		_, err := b.js.CreateOrUpdateConsumer(ctx, stream, want)
		return item, explainError(err, "create it")
	}
	if err != nil {
		return item, explainError(err, "")
	}
	found := cur.CachedInfo().Config
	want = decideConsumer(want, found)
	item.Action, item.Changes = Unchanged, diffFields(found, want)
	if len(item.Changes) == 0 {
		return item, nil
	}
	item.Action = Updated
	return item, b.updateConsumer(ctx, want, item.Changes)
}

func (b *builder) updateConsumer(ctx context.Context, want jetstream.ConsumerConfig, changes []Change) error {
	stream := b.config.Names.EventsStream()
	if fixed := changesOf(changes, "deliver_policy", "ack_policy"); len(fixed) > 0 {
		return fmt.Errorf("the server can't change %s; run `nats consumer rm %s %s` and `wake init` again: services keep their positions elsewhere", joinChanges(fixed), stream, want.Name)
	}
	_, err := b.js.UpdateConsumer(ctx, stream, want)
	return explainError(err, "change "+joinChanges(changes))
}

// DefaultLeaseTTL is how long a lease lives without being renewed.
const DefaultLeaseTTL = 10 * time.Second

// Config are the settings of an installation. A zero value keeps what the server has,
// or is the default of what is created.
type Config struct {
	Names subjects.Names

	// Replicas is the number of servers that keep each stream: 1 to 5, default 1.
	Replicas int

	// MaxAge bounds the age of events; default and negative: none. Alerts don't
	// age, so that reading old events again raises none twice.
	MaxAge time.Duration

	// MaxBytes bounds the size of the stream of events; default and negative:
	// none. A full stream refuses events, it doesn't drop old ones.
	MaxBytes int64

	// LeaseTTL is how long a lease lives without being renewed; default
	// [DefaultLeaseTTL].
	LeaseTTL time.Duration

	alone bool // the server is of no cluster
}

// minMaxAge leaves time for a run that is resumed to anchor its nodes again.
const minMaxAge = time.Minute

func (c Config) checkLimits() error {
	switch {
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("topology: replicas: %d is not between 1 and 5", c.Replicas)
	case c.MaxAge > 0 && c.MaxAge < minMaxAge:
		return fmt.Errorf("topology: max age: %s is less than %s", c.MaxAge, minMaxAge)
	case c.LeaseTTL < 0 || c.LeaseTTL > 0 && c.LeaseTTL < time.Second:
		return errors.New("topology: lease TTL: must be at least 1s")
	default:
		return nil
	}
}

// Action is what Init did.
type Action string

// The actions.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
)

// Item is what Init did about one thing.
type Item struct {
	Kind    Kind     `json:"kind"`
	Name    string   `json:"name"`
	Action  Action   `json:"action"`
	Changes []Change `json:"changes,omitempty"` // of an update
}

// Report is what Init did.
type Report struct {
	Prefix      string `json:"prefix"`
	Incarnation string `json:"incarnation"` // of the stream of events
	Items       []Item `json:"items"`
}

// Changed reports whether Init changed anything.
func (r Report) Changed() bool {
	return slices.ContainsFunc(r.Items, func(i Item) bool { return i.Action != Unchanged })
}
