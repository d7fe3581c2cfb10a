// Package run folds the events of a run into its state.
//
// [Apply] is the only function that changes a state. It knows no clock, does no
// I/O and logs nothing, so the runner's memory, the snapshot, a replay and a
// fork agree whenever they have folded the same events.
//
// # Promises
//
//   - A state says of which position it is. An event at or below that position
//     changes nothing, so a snapshot and an overlapping tail of the log make the
//     same state as the whole log.
//   - Equal states have equal bytes, and [Decode] of a state's bytes is that
//     state.
//   - An event that the history doesn't allow is refused with a [HistoryError]
//     and changes nothing. A folder that counts it and goes on comes to the same
//     state as every other one that does.
//   - Kinds text and delta change nothing, not even the position, so a folder
//     may filter them out.
//
// # What owner and worker say about a node
//
// The owner of the run and the node's worker write on different subjects, so
// their events cross: a worker may end an execution that the owner has just
// withdrawn or replaced. What an older execution says is a fact about money and
// tools, but it no longer moves the node. What was never scheduled is refused,
// and so is a worker that speaks for another node than its own.
//
// # Inbox
//
// A command that was accepted waits in the inbox until the event is folded that
// obeys it, so no crash in between loses it:
//
//	send         user:message with its command id
//	reply        input:received with its prompt id
//	resume       flow:resumed
//	pause        flow:paused
//	abort        flow:aborted; flow:paused if it is resumable
//	approve/deny permission:decided with its call id
//	bookmark     checkpoint with its label
//
// A command with an id that was seen before is recorded and not put there again. What
// is still there when the run ends was never delivered.
package run

import (
	"fmt"
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// New returns the state of a run before its first event.
func New(runID string) *wire.State {
	s := &wire.State{V: wire.Version, RunID: runID, Status: wire.RunIdle}
	completeState(s)
	return s
}

// completeState gives a state the empty values that its bytes tell from absent ones.
func completeState(s *wire.State) {
	ensureMap(&s.Outputs)
	ensureMap(&s.NodeStatus)
	ensureMap(&s.EdgeStatus)
	ensureMap(&s.LoopCounters)
	ensureMap(&s.AgentSessions)
	ensureMap(&s.ExecSessions)
	ensureMap(&s.Nodes)
	ensureMap(&s.Tools)
	if s.Inbox == nil {
		s.Inbox = []wire.InboxEntry{}
	}
	if s.State == nil {
		s.State = emptyMap
	}
}

func ensureMap[V any](m *map[string]V) {
	if *m == nil {
		*m = map[string]V{}
	}
}

// emptyMap is the value {}.
var emptyMap = wire.Raw{0x80}

// Clone returns a copy that shares only what [Apply] never changes in place.
func Clone(s *wire.State) *wire.State {
	c := *s
	c.Labels = maps.Clone(s.Labels)
	c.Lineage = slices.Clone(s.Lineage)
	c.Outputs = maps.Clone(s.Outputs)
	c.NodeStatus = maps.Clone(s.NodeStatus)
	c.EdgeStatus = maps.Clone(s.EdgeStatus)
	c.LoopCounters = maps.Clone(s.LoopCounters)
	c.Inbox = slices.Clone(s.Inbox)
	c.AgentSessions = maps.Clone(s.AgentSessions)
	c.ExecSessions = maps.Clone(s.ExecSessions)
	c.Nodes = maps.Clone(s.Nodes)
	c.Tools = maps.Clone(s.Tools)
	c.Todos = slices.Clone(s.Todos)
	c.Bookmarks = slices.Clone(s.Bookmarks)
	c.CommandIDs = slices.Clone(s.CommandIDs)
	return &c
}

// Decode reads a state as [wire.Marshal] wrote it. A state of a newer version is
// an error that wraps [wire.ErrVersion].
func Decode(b []byte) (*wire.State, error) {
	s := new(wire.State)
	if err := wire.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("run: snapshot: %w", err)
	}
	if s.V < 1 || s.V > wire.Version {
		return nil, fmt.Errorf("run: snapshot: %w: %d", wire.ErrVersion, s.V)
	}
	completeState(s)
	return s, nil
}

// ExecID names the n-th execution of a node, from 1.
func ExecID(node string, n int) string { return fmt.Sprintf("%s#%d", node, n) }

// ItemID names the node of a forEach item, from 0.
func ItemID(node string, index int) string { return fmt.Sprintf("%s/%d", node, index) }
