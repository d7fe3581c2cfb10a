package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

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

// Existing returns which streams of an installation are there. It fails if one of
// them isn't this installation's.
func Existing(ctx context.Context, js jetstream.JetStream, n subjects.Names) ([]string, error) {
	var names []string
	for _, r := range allRooms(Config{Names: n}) {
		s, err := js.Stream(ctx, r.want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err == nil {
			err = checkForeign(r, n, s.CachedInfo().Config)
		}
		if err != nil {
			return nil, fmt.Errorf("topology: %s %s: %w", r.kind, r.name, err)
		}
		names = append(names, r.want.Name)
	}
	return names, nil
}
