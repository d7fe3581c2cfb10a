package topology

import (
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"wake/pkg/subjects"
)

// foreign fails if a stream with the name of a room belongs to somebody else.
func foreign(r room, n subjects.Names, c jetstream.StreamConfig) error {
	switch prefix := c.Metadata[prefixKey]; prefix {
	case n.Prefix():
		return nil
	case "":
		return fmt.Errorf("the stream %s with subjects %v was not created by `wake init`; delete it (`nats stream rm %s`) or choose another prefix", r.want.Name, c.Subjects, r.want.Name)
	default:
		return fmt.Errorf("the stream %s belongs to the installation with prefix %q", r.want.Name, prefix)
	}
}
