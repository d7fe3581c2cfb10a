package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Options say how to restore.
type Options struct {
	Force    bool         // remove the streams that are there
	Replicas int          // of each stream; default: as in the backup
	Files    func() error // puts in its place what the server doesn't hold, before what it holds is said to be whole
}

// ExistsError is returned if streams of the installation are there.
type ExistsError struct{ Streams []string }

func (e *ExistsError) Error() string {
	return "the server has this installation: " + strings.Join(e.Streams, ", ")
}

// Restore builds the streams of a backup that [Open] has checked. It fails with an
// [*ExistsError] if some are there, unless they are to be removed, and, before it
// touches anything, if the backup isn't of this installation. One that fails later, or is
// interrupted, leaves streams that no service takes, see [topology.RestoringKey], until it is begun again. No service may be running.
func Restore(ctx context.Context, nc *nats.Conn, n subjects.Names, dir string, m Manifest, o Options, progress Progress) error {
	if err := restoreAll(ctx, nc, n, dir, m, o, progress); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

func restoreAll(ctx context.Context, nc *nats.Conn, n subjects.Names, dir string, m Manifest, o Options, progress Progress) error {
	if err := m.checkWhole(n); err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := markExisting(ctx, nc, js, n, m.Streams[0].Stream, o.Force); err != nil {
		return err
	}
	for i, s := range m.Streams {
		if i == 0 {
			if s.Config, err = markConfig(s.Config); err != nil {
				return err
			}
		}
		attempt := func() error { // the stream is there, or what an attempt before has made
			if err := removeStream(ctx, js, s.Stream); err != nil {
				return err
			}
			return restoreStream(ctx, nc, js, dir, s, o, progress)
		}
		err := topology.AwaitLeader(ctx, nc, attempt)
		if lostFolder(err) {
			err = topology.AwaitLeader(ctx, nc, attempt)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Stream, err)
		}
	}
	if err := topology.AwaitLeader(ctx, nc, func() error { return registerRuns(ctx, js, n, m.Late) }); err != nil {
		return err
	}
	if err := topology.AwaitLeader(ctx, nc, func() error { return wakeParked(ctx, js, n) }); err != nil {
		return err
	}
	if o.Files != nil {
		if err := o.Files(); err != nil {
			return err
		}
	}
	if err := topology.AwaitLeader(ctx, nc, func() error { return topology.MarkRestoring(ctx, js, m.Streams[0].Stream, false) }); err != nil {
		return err
	}
	return topology.AwaitLeader(ctx, nc, func() error { return topology.Verify(ctx, js, n) })
}

// markExisting marks one of the streams that are there, as of an installation that is being restored, if they may be replaced: if
// it is whole only by force. From then on one is marked: this one until it is replaced, the first that is restored until all are.
func markExisting(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, n subjects.Names, first string, force bool) error {
	var there []string
	var whole bool
	if err := topology.AwaitLeader(ctx, nc, func() (err error) {
		there, whole, err = topology.Existing(ctx, js, n)
		return err
	}); err != nil {
		return err
	}
	if len(there) > 0 && whole && !force {
		return &ExistsError{there}
	}
	if there = slices.DeleteFunc(there, func(name string) bool { return name == first }); len(there) == 0 {
		return nil
	}
	return topology.AwaitLeader(ctx, nc, func() error { return topology.MarkRestoring(ctx, js, there[0], true) })
}

// lostFolder reports whether a stream couldn't be made since the server removed the folder that it makes streams in: it does
// so a moment after its last stream was removed (stream.go of v2.15: "no op if not empty").
func lostFolder(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return ok && strings.Contains(e.Description, "could not create storage directory")
}

// removeStream removes a stream, if it is there.
func removeStream(ctx context.Context, js jetstream.JetStream, name string) error {
	if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// checkWhole checks that a backup is of an installation, and that its parts go together.
func (m Manifest) checkWhole(n subjects.Names) error {
	if m.Prefix != n.Prefix() {
		return fmt.Errorf("the backup is of the installation with prefix %q: give --prefix %s", m.Prefix, m.Prefix)
	}
	var names []string
	for _, s := range m.Streams {
		names = append(names, s.Stream)
	}
	if want := inOrder(n); !slices.Equal(names, want) {
		return fmt.Errorf("%w: it has the streams %v, want %v", ErrDamaged, names, want)
	}
	i := slices.Index(names, n.EventsStream())
	_, last, err := m.Streams[i].Messages()
	if err != nil {
		return err
	}
	if m.Store != nil && m.Store.Position.Seq > last {
		return fmt.Errorf("%w: the recorder's store is at position %d, the events end at %d", ErrDamaged, m.Store.Position.Seq, last)
	}
	return nil
}

func restoreStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, dir string, s Stream, o Options, progress Progress) error {
	in, err := os.Open(filepath.Join(dir, s.Name))
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	config, err := withReplicas(s.Config, o.Replicas)
	if err != nil {
		return err
	}
	var done int64
	err = rebuildStream(ctx, nc, s.Stream, config, s.State, in, func(n int) {
		done += int64(n)
		progress(s.Stream, done, s.Bytes)
	})
	if err != nil {
		return err
	}
	return compareStream(ctx, js, s)
}

// withReplicas returns a stream's configuration with another number of replicas.
func withReplicas(config json.RawMessage, replicas int) (json.RawMessage, error) {
	if replicas == 0 {
		return config, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	fields["num_replicas"] = json.RawMessage(fmt.Sprint(replicas))
	if replicas > 1 {
		delete(fields, "persist_mode") // the server doesn't replicate what it doesn't sync
	}
	return json.Marshal(fields)
}

// markConfig returns a stream's configuration with the mark that it is being restored.
func markConfig(config json.RawMessage) (json.RawMessage, error) {
	fields, metadata := map[string]json.RawMessage{}, map[string]string{}
	err := json.Unmarshal(config, &fields)
	if kept := fields["metadata"]; err == nil && kept != nil {
		err = json.Unmarshal(kept, &metadata)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	metadata[topology.RestoringKey] = "true"
	if fields["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// compareStream checks that a stream holds what its copy did, but for what has aged out
// meanwhile.
func compareStream(ctx context.Context, js jetstream.JetStream, s Stream) error {
	count, last, err := s.Messages()
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, s.Stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	ages := info.Config.MaxAge > 0 || info.Config.AllowMsgTTL // keys that were deleted leave marks which do
	if info.State.LastSeq != last || info.State.Msgs != count && !ages {
		return fmt.Errorf("the server has %d messages up to %d, the backup has %d up to %d", info.State.Msgs, info.State.LastSeq, count, last)
	}
	return nil
}

// registerRuns registers runs that were registered while streams were copied.
func registerRuns(ctx context.Context, js jetstream.JetStream, n subjects.Names, late []Key) error {
	kv, err := js.KeyValue(ctx, n.StateBucket())
	if err != nil {
		return err
	}
	for _, k := range late {
		if _, err := kv.Create(ctx, k.Key, k.Value); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
			return fmt.Errorf("register %s: %w", k.Key, err)
		}
	}
	return nil
}

// wakeParked has each parked run be looked at once. One that was woken while streams were copied is parked by its registration and
// at work by its events: it would wait for ever.
func wakeParked(ctx context.Context, js jetstream.JetStream, n subjects.Names) error {
	kv, err := js.KeyValue(ctx, n.StateBucket())
	if err != nil {
		return err
	}
	registered, err := keys.All(ctx, js, n.StateBucket(), n.ServiceStates(registry))
	if err != nil {
		return fmt.Errorf("registered runs: %w", err)
	}
	for _, e := range registered {
		var fields map[string]any
		if wire.Unmarshal(e.Value, &fields) != nil || fields["parked"] == nil { // its owner writes another one, or it has none
			continue
		}
		fields["due"] = 1 // long ago
		value, err := wire.Marshal(fields)
		if err != nil {
			return err
		}
		if _, err := kv.Put(ctx, e.Key, value); err != nil {
			return fmt.Errorf("wake %s: %w", e.Key, err)
		}
	}
	return nil
}
