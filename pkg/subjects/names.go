package subjects

import (
	"errors"
	"fmt"
	"strings"
)

// DefaultPrefix is the first token of all subjects unless another is chosen.
const DefaultPrefix = "wake"

// Default are the names with [DefaultPrefix].
var Default = Names{} // a constant in all but name: Names has no exported field and no setter

// Names are the names of one installation of wake. Installations with different
// prefixes share nothing. The zero value has [DefaultPrefix]. Names can be
// compared with == .
type Names struct{ prefix string }

// maxPrefix keeps subjects and stream names short.
const maxPrefix = 64

// ErrPrefix is returned by [New].
var ErrPrefix = errors.New("subjects: invalid prefix")

// New returns the names with a prefix: one or more tokens of lower-case
// letters, digits and '-', joined by dots, of at most 64 bytes in all.
func New(prefix string) (Names, error) {
	if prefix == DefaultPrefix {
		return Default, nil
	}
	if len(prefix) > maxPrefix {
		return Names{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrPrefix, len(prefix), maxPrefix)
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" || strings.Trim(token, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return Names{}, fmt.Errorf("%w %q: want tokens of a-z, 0-9 and '-' joined by dots", ErrPrefix, prefix)
		}
	}
	return Names{prefix: prefix}, nil
}

// Prefix returns what all subjects begin with, without the dot.
func (n Names) Prefix() string {
	if n.prefix == "" {
		return DefaultPrefix
	}
	return n.prefix
}

// streamPrefix returns what all streams and buckets begin with. Since a prefix has
// neither upper-case letters nor '_', different prefixes differ here too.
func (n Names) streamPrefix() string {
	return strings.ReplaceAll(strings.ToUpper(n.Prefix()), ".", "_")
}

// EventsStream returns the stream of all events, "WAKE_EVENTS".
func (n Names) EventsStream() string { return n.streamPrefix() + "_EVENTS" }

// CommandsStream returns the stream of commands to runs, "WAKE_COMMANDS".
func (n Names) CommandsStream() string { return n.streamPrefix() + "_COMMANDS" }

// QueueStream returns the stream of work that waits for a runner, "WAKE_QUEUE".
func (n Names) QueueStream() string { return n.streamPrefix() + "_QUEUE" }

// AlertsStream returns the stream of alerts, "WAKE_ALERTS".
func (n Names) AlertsStream() string { return n.streamPrefix() + "_ALERTS" }

// DeadLetterStream returns the stream of what couldn't be used,
// "WAKE_DEADLETTER".
func (n Names) DeadLetterStream() string { return n.streamPrefix() + "_DEADLETTER" }

// SnapshotsBucket returns the key-value bucket of runs' states,
// "WAKE_SNAPSHOTS".
func (n Names) SnapshotsBucket() string { return n.streamPrefix() + "_SNAPSHOTS" }

// BookmarksBucket returns the key-value bucket of points to fork from,
// "WAKE_BOOKMARKS".
func (n Names) BookmarksBucket() string { return n.streamPrefix() + "_BOOKMARKS" }

// LeasesBucket returns the key-value bucket of leases, "WAKE_LEASES".
func (n Names) LeasesBucket() string { return n.streamPrefix() + "_LEASES" }

// StateBucket returns the key-value bucket of services' own state,
// "WAKE_STATE".
func (n Names) StateBucket() string { return n.streamPrefix() + "_STATE" }

// BlobsBucket returns the object store of large payloads, "WAKE_BLOBS".
func (n Names) BlobsBucket() string { return n.streamPrefix() + "_BLOBS" }

// SessionsBucket returns the object store of agents' session files,
// "WAKE_SESSIONS".
func (n Names) SessionsBucket() string { return n.streamPrefix() + "_SESSIONS" }

// WorkspacesBucket returns the object store of what is in the folders of
// runs, "WAKE_WORKSPACES".
func (n Names) WorkspacesBucket() string { return n.streamPrefix() + "_WORKSPACES" }

// Durable consumers of the stream of events, one per service.
const (
	RecorderConsumer    = "recorder"
	SnapshotterConsumer = "snapshotter"
	AlerterConsumer     = "alerter"
)

// RunsConsumer is the durable consumer of WAKE_QUEUE for runs to own.
const RunsConsumer = "runs"

// NodesConsumer returns the durable consumer of WAKE_QUEUE for the node
// executions of a pool.
func NodesConsumer(pool string) string { return "nodes-" + Escape(pool) }
