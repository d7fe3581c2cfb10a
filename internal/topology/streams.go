package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// maxConsumers is explicit on each stream since the server's default, 1000, is
// less than a fleet of runners and viewers may want.
const maxConsumers = 20_000

// duplicateWindow is the server's own default. Nothing that wake publishes has
// a message id.
const duplicateWindow = 2 * time.Minute

// prefixKey is the metadata that names the installation.
const prefixKey = "wake.prefix"

// Kind is the kind of a thing that Init creates.
type Kind string

// The kinds.
const (
	Stream      Kind = "stream"
	Bucket      Kind = "bucket" // key-value
	ObjectStore Kind = "object store"
	Consumer    Kind = "consumer" // of the stream of events
)

// room is a stream as it shall be. Buckets and object stores are streams too.
type room struct {
	kind Kind
	name string // as people know it: that of the bucket, not of its stream
	want jetstream.StreamConfig

	// tune sets what [Config] leaves to the user, given the server's configuration: nil if
	// the stream is yet to be created.
	tune func(want, cur *jetstream.StreamConfig)
}

// allRooms returns all streams, that of events first.
func allRooms(c Config) []room {
	n := c.Names
	limits := func(want, cur *jetstream.StreamConfig) { tuneEvents(c, want, cur) }
	return []room{
		{Stream, n.EventsStream(), eventsConfig(n), limits},
		{Stream, n.CommandsStream(), streamConfig(n.CommandsStream(), "commands to runs", n.AllCommands()), nil},
		{Stream, n.QueueStream(), queueConfig(n), nil},
		{Stream, n.AlertsStream(), alertsConfig(n), nil},
		{Stream, n.DeadLetterStream(), streamConfig(n.DeadLetterStream(), "what could not be used, with the reason", n.AllDeadLetters()), nil},
		{Bucket, n.SnapshotsBucket(), bucketConfig(n.SnapshotsBucket(), "states of runs"), func(want, cur *jetstream.StreamConfig) { tunePersistence(c, want, cur) }},
		{Bucket, n.BookmarksBucket(), bucketConfig(n.BookmarksBucket(), "points to fork from"), nil},
		{Bucket, n.LeasesBucket(), leasesConfig(n), func(want, cur *jetstream.StreamConfig) { tuneLeases(c, want, cur) }},
		{Bucket, n.StateBucket(), stateConfig(n), nil},
		{ObjectStore, n.BlobsBucket(), objectsConfig(n.BlobsBucket(), "large payloads"), nil},
		{ObjectStore, n.SessionsBucket(), objectsConfig(n.SessionsBucket(), "session files of agents"), nil},
		{ObjectStore, n.WorkspacesBucket(), objectsConfig(n.WorkspacesBucket(), "what is in the folders of runs"), nil},
	}
}

// decideStream returns the configuration of a room, given the server's: what wake
// doesn't decide (placement, compression, the metadata of others) stays.
func (r room) decideStream(c Config, cur *jetstream.StreamConfig) jetstream.StreamConfig {
	want := r.want
	want.Metadata = map[string]string{prefixKey: c.Names.Prefix()}
	want.Replicas = cmp.Or(c.Replicas, replicasOf(cur), 1)
	if r.tune != nil {
		r.tune(&want, cur)
	}
	if cur == nil {
		return want
	}
	merged := *cur
	merged.Metadata = maps.Clone(cur.Metadata)
	if merged.Metadata == nil {
		merged.Metadata = map[string]string{}
	}
	maps.Copy(merged.Metadata, want.Metadata)
	merged.Description = want.Description
	merged.Subjects = want.Subjects
	merged.Storage, merged.Retention, merged.Discard = want.Storage, want.Retention, want.Discard
	merged.Replicas = want.Replicas
	merged.MaxConsumers = want.MaxConsumers
	merged.MaxMsgs, merged.MaxMsgsPerSubject = want.MaxMsgs, want.MaxMsgsPerSubject
	merged.MaxBytes, merged.MaxAge = want.MaxBytes, want.MaxAge
	merged.Duplicates = want.Duplicates
	merged.NoAck, merged.Sealed = false, false
	merged.DenyDelete, merged.DenyPurge = want.DenyDelete, want.DenyPurge
	merged.AllowRollup, merged.AllowDirect = want.AllowRollup, want.AllowDirect
	merged.AllowAtomicPublish = want.AllowAtomicPublish
	merged.AllowMsgTTL = merged.AllowMsgTTL || want.AllowMsgTTL // a server can't take it back
	return merged
}

func replicasOf(cur *jetstream.StreamConfig) int {
	if cur == nil {
		return 0
	}
	return cur.Replicas
}

func streamConfig(name, description string, filters ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       "wake: " + description,
		Subjects:          filters,
		Storage:           jetstream.FileStorage,
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardNew,
		MaxConsumers:      maxConsumers,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxBytes:          -1,
		Duplicates:        duplicateWindow,
		AllowDirect:       true,
	}
}

// eventsConfig is append-only: no client can remove an event, and a full stream refuses
// the next one.
func eventsConfig(n subjects.Names) jetstream.StreamConfig {
	c := streamConfig(n.EventsStream(), "every step of every agent", n.AllEvents())
	c.DenyDelete, c.DenyPurge = true, true
	c.AllowAtomicPublish = true
	return c
}

// tuneEvents sets the limits of the stream of events and names its incarnation.
func tuneEvents(c Config, want, cur *jetstream.StreamConfig) {
	incarnation := ""
	if cur != nil {
		want.MaxAge, want.MaxBytes = cur.MaxAge, cur.MaxBytes
		incarnation = cur.Metadata[incarnationKey]
	}
	if c.MaxAge != 0 {
		want.MaxAge = max(c.MaxAge, 0)
	}
	if c.MaxBytes != 0 {
		want.MaxBytes = max(c.MaxBytes, -1)
	}
	want.Duplicates = dedupWindow(want.MaxAge)
	want.Metadata[incarnationKey] = cmp.Or(incarnation, newIncarnation())
}

func queueConfig(n subjects.Names) jetstream.StreamConfig {
	c := streamConfig(n.QueueStream(), "runs and node executions that wait for a runner", n.QueueRun(), n.AllQueueNodes())
	c.Retention = jetstream.WorkQueuePolicy
	return c
}

// alertsConfig can't be removed one by one: the alert that is still there is what
// keeps it from being raised again.
func alertsConfig(n subjects.Names) jetstream.StreamConfig {
	c := streamConfig(n.AlertsStream(), "what deserves attention", n.AllAlerts())
	c.DenyDelete = true
	c.AllowAtomicPublish = true
	return c
}

// bucketConfig is a key-value bucket of history 1 as clients expect it (ADR-8).
func bucketConfig(name, description string) jetstream.StreamConfig {
	c := streamConfig("KV_"+name, description, "$KV."+name+".>")
	c.MaxMsgsPerSubject = 1
	c.AllowRollup = true
	c.DenyDelete = true
	return c
}

// leasesConfig is a bucket that is read from its leader: a replica that is behind would say that a session is gone.
func leasesConfig(n subjects.Names) jetstream.StreamConfig {
	c := bucketConfig(n.LeasesBucket(), "sessions of runners")
	c.AllowDirect = false
	return c
}

// stateConfig is a bucket in which marks of deletions don't stay: runs come and go there, for as long as the installation is in use.
func stateConfig(n subjects.Names) jetstream.StreamConfig {
	c := bucketConfig(n.StateBucket(), "state of services")
	c.AllowMsgTTL = true
	return c
}

// tuneLeases sets the TTL of all keys of the bucket. A TTL of a single key would
// be dropped when the key is renewed.
func tuneLeases(c Config, want, cur *jetstream.StreamConfig) {
	want.MaxAge = c.LeaseTTL
	if want.MaxAge == 0 && cur != nil {
		want.MaxAge = cur.MaxAge
	}
	want.MaxAge = cmp.Or(want.MaxAge, DefaultLeaseTTL)
	want.Duplicates = dedupWindow(want.MaxAge)
	tunePersistence(c, want, cur)
}

// tunePersistence has a bucket, if its loss costs time and nothing else, written later than it is
// acknowledged, where it is created on one server alone: the server can't change that, nor
// replicate such a bucket. docs/durability.md says what may be lost.
func tunePersistence(c Config, want, cur *jetstream.StreamConfig) {
	if cur != nil {
		want.PersistMode = cur.PersistMode
	} else if c.alone && want.Replicas == 1 {
		want.PersistMode = jetstream.AsyncPersistMode
	}
}

// objectsConfig is an object store as clients expect it (ADR-20).
func objectsConfig(name, description string) jetstream.StreamConfig {
	c := streamConfig("OBJ_"+name, description, "$O."+name+".C.>", "$O."+name+".M.>")
	c.AllowRollup = true
	return c
}

// dedupWindow is the longest duplicate window that the server takes.
func dedupWindow(maxAge time.Duration) time.Duration {
	if maxAge > 0 {
		return min(maxAge, duplicateWindow)
	}
	return duplicateWindow
}

// checkForeign fails if a stream with the name of a room isn't this installation's.
func checkForeign(r room, n subjects.Names, c jetstream.StreamConfig) error {
	switch prefix := c.Metadata[prefixKey]; prefix {
	case n.Prefix():
		return nil
	case "":
		return fmt.Errorf("the stream %s with subjects %v was not created by `wake init`; delete it (`nats stream rm %s`) or choose another prefix", r.want.Name, c.Subjects, r.want.Name)
	default:
		return fmt.Errorf("the stream %s belongs to the installation with prefix %q", r.want.Name, prefix)
	}
}

// Streams returns the names of all streams of an installation, those of buckets and
// object stores too.
func Streams(n subjects.Names) []string {
	var names []string
	for _, r := range allRooms(Config{Names: n}) {
		names = append(names, r.want.Name)
	}
	return names
}

// Existing returns which streams of an installation are there, and whether what they hold is whole: see [RestoringKey]. It
// fails if one of them isn't this installation's.
func Existing(ctx context.Context, js jetstream.JetStream, n subjects.Names) (names []string, whole bool, err error) {
	whole = true
	for _, r := range allRooms(Config{Names: n}) {
		s, err := js.Stream(ctx, r.want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err == nil {
			err = checkForeign(r, n, s.CachedInfo().Config)
		}
		if err != nil {
			return nil, false, fmt.Errorf("topology: %s %s: %w", r.kind, r.name, err)
		}
		names = append(names, r.want.Name)
		whole = whole && s.CachedInfo().Config.Metadata[RestoringKey] == ""
	}
	return names, whole, nil
}

// incarnationKey is the metadata of the stream of events that names its
// incarnation.
const incarnationKey = "wake.incarnation"

// ErrNoIncarnation is returned for a stream of events that Init didn't create.
var ErrNoIncarnation = errors.New("topology: the stream of events has no incarnation; run `wake init`")

// newIncarnation returns the name of a new incarnation, a random UUID.
//
// A stream that was deleted and created again, or restored from a backup, uses
// the sequences of its predecessor for other events, and its creation time
// doesn't tell them apart. So a position means something only together with the
// incarnation it is of. The stream carries its incarnation from its creation on,
// whatever is updated; a reader that finds another one than with the position it kept
// begins anew.
func newIncarnation() string { return uuid.NewString() }

// Incarnation returns the incarnation of the stream of events. It fails with
// [ErrNoIncarnation] or [jetstream.ErrStreamNotFound].
func Incarnation(ctx context.Context, js jetstream.JetStream, n subjects.Names) (string, error) {
	s, err := js.Stream(ctx, n.EventsStream())
	if err != nil {
		return "", fmt.Errorf("topology: incarnation: %w", err)
	}
	id := s.CachedInfo().Config.Metadata[incarnationKey]
	if id == "" {
		return "", ErrNoIncarnation
	}
	return id, nil
}
