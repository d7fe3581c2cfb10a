package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// RestoringKey is in the metadata of a stream at least while its installation is restored from a backup, and stays if that is
// interrupted: what is there isn't whole then, and [Init] and [Verify] refuse it.
const RestoringKey = "wake.restoring"

// restoringMismatch says that an installation isn't whole.
func restoringMismatch(n subjects.Names) *Mismatch {
	return &Mismatch{
		Problems: []string{"the installation is being restored from a backup, or that was interrupted: what is there isn't whole"},
		Remedy:   withPrefix("wake restore DIR", n),
	}
}

// CheckRestored fails with a [*Mismatch] while the installation is restored, and if that was interrupted.
func CheckRestored(ctx context.Context, js jetstream.JetStream, n subjects.Names) error {
	for _, name := range Streams(n) {
		s, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return explainError(err, "")
		}
		if s.CachedInfo().Config.Metadata[RestoringKey] != "" {
			return restoringMismatch(n)
		}
	}
	return nil
}

// MarkRestoring says of a stream that it is being restored, or not any more.
func MarkRestoring(ctx context.Context, js jetstream.JetStream, name string, restoring bool) error {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	c := s.CachedInfo().Config
	if c.Metadata[RestoringKey] != "" == restoring {
		return nil
	}
	c.Metadata = maps.Clone(c.Metadata)
	if delete(c.Metadata, RestoringKey); restoring {
		c.Metadata[RestoringKey] = "true"
	}
	if _, err := js.UpdateStream(ctx, c); err != nil {
		return fmt.Errorf("mark %s: %w", name, err)
	}
	return nil
}
