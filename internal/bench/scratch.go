package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// Scratch is an installation of wake for measuring, with a stream beside it that
// nothing but raw publishes go to.
type Scratch struct {
	Names subjects.Names
	JS    jetstream.JetStream
}

// NewScratch creates one under the prefix wakebench-<id>. If it fails it removes
// what it has created. It doesn't heed the end of ctx: a request that is cut off
// may be carried out after the removal.
func NewScratch(ctx context.Context, js jetstream.JetStream, id string, replicas int) (*Scratch, error) {
	names, err := subjects.New("wakebench-" + id)
	if err != nil {
		return nil, err
	}
	s := &Scratch{Names: names, JS: js}
	creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), createWait)
	defer cancel()
	if err := errors.Join(s.createStreams(creating, replicas), ctx.Err()); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), s.Remove(ctx))
	}
	return s, nil
}

func (s *Scratch) createStreams(ctx context.Context, replicas int) error {
	config := topology.Config{Names: s.Names, Replicas: replicas, LeaseTTL: leaseTTL}
	_, err := topology.Init(ctx, s.JS, config)
	for try := 1; try < createTries && storeRefused(err); try++ {
		_, err = topology.Init(ctx, s.JS, config)
	}
	if err != nil {
		return err
	}
	_, err = s.JS.CreateStream(ctx, jetstream.StreamConfig{
		Name: s.streamPrefix() + "RAW", Description: "wake bench: raw publishes", Subjects: []string{s.rawSubject(">")},
		Storage: jetstream.FileStorage, Replicas: replicas, AllowAtomicPublish: true, AllowDirect: true,
	})
	return err
}

// createTries is how often creation is tried. The server removes the folder of an account
// with its last stream, some time after that is deleted, and another stream may come in between.
const createTries = 3

// storeRefused reports whether the server couldn't make the folder of a stream.
func storeRefused(err error) bool {
	const storeFailed jetstream.ErrorCode = 10049
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == storeFailed
}

// leaseTTL keeps the renewing of 10 000 leases, those of 5 000 runs and their
// nodes, below what a small disk can sync.
const leaseTTL = time.Minute

// streamPrefix is what the names of all streams begin with.
func (s *Scratch) streamPrefix() string {
	return strings.TrimSuffix(s.Names.EventsStream(), "EVENTS")
}

// rawSubject returns a subject of the stream of raw publishes.
func (s *Scratch) rawSubject(rest string) string { return s.Names.Prefix() + ".raw." + rest }

// What bounds creation and removal, both of which go on when they are interrupted.
const (
	createWait = 30 * time.Second
	removeWait = 30 * time.Second
)

// Remove removes all streams of the prefix, even if ctx has ended.
func (s *Scratch) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWait)
	defer cancel()
	list := s.JS.StreamNames(ctx)
	var ours []string
	for name := range list.Name() {
		bare := strings.TrimPrefix(strings.TrimPrefix(name, "KV_"), "OBJ_")
		if strings.HasPrefix(bare, s.streamPrefix()) {
			ours = append(ours, name)
		}
	}
	failed := list.Err()
	for _, name := range ours {
		if err := s.JS.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			failed = errors.Join(failed, fmt.Errorf("stream %s: %w", name, err))
		}
	}
	if failed != nil {
		return fmt.Errorf("bench: remove scratch: %w", failed)
	}
	return nil
}
