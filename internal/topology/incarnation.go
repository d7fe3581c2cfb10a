package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

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
