package run

import (
	"fmt"
	"strconv"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// fold is one application of an event. Its methods check everything before they
// change anything.
type fold struct {
	s   *wire.State
	pos wire.Position
	e   *wire.Event
}

// checkDecision checks that the owner decides something about a run that goes on.
func (f *fold) checkDecision() error {
	if err := f.byOwner(); err != nil {
		return err
	}
	return f.goesOn()
}

// byOwner checks that a decision stands where decisions stand.
func (f *fold) byOwner() error {
	if f.e.NodeID != wire.RunNode {
		return f.illegalEvent("is the owner's and belongs on %s", wire.RunNode)
	}
	return nil
}

func (f *fold) goesOn() error {
	switch f.s.Status {
	case wire.RunRunning, wire.RunPaused:
		return nil
	case wire.RunIdle:
		return f.illegalEvent("the run has not started")
	default:
		return f.illegalEvent("the run is %s", f.s.Status)
	}
}

// targetNode returns the node that the event is about. Only the owner speaks for
// another node than the one it writes on.
func (f *fold) targetNode(named string) (string, error) {
	on := f.e.NodeID
	switch {
	case on == wire.RunNode && (named == "" || named == wire.RunNode):
		return "", f.illegalEvent("names no node")
	case on == wire.RunNode:
		return named, nil
	case named != "" && named != on:
		return "", f.illegalEvent("speaks for node %q", named)
	}
	return on, nil
}

// isCurrent reports whether the event is about the latest execution of the node.
// An older execution is none of the node's business any more; one that was
// never scheduled is an error. A run that was imported has no schedule.
func (f *fold) isCurrent(node string, n wire.NodeState) (bool, error) {
	id := f.e.ExecID
	switch {
	case id != "" && id == n.Exec:
		return true, nil
	case f.s.Imported != "":
		return id == "" || n.Exec == "", nil
	case id == "":
		return false, f.illegalEvent("names no execution")
	}
	if i := execNumber(node, id); i < 1 || i > n.Execs {
		return false, f.illegalEvent("%s was never scheduled", id)
	}
	return false, nil
}

// execNumber is the reverse of [ExecID]; 0 if id isn't an execution of node.
func execNumber(node, id string) int {
	digits, ok := strings.CutPrefix(id, node+"#")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || strconv.Itoa(n) != digits {
		return 0
	}
	return n
}

// edgeKey is the key of an edge in the state.
func edgeKey(id, from, to string) string {
	if id != "" {
		return id
	}
	return fmt.Sprintf("%s->%s", from, to)
}
