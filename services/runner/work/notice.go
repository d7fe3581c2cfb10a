package work

import (
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// A run is told what its children's alerts say: each is a command of type notice
// to it, which waits in its inbox for an agent. What an agent has taken is on
// record, so that no other one is told again.

// The first lines of what an agent is told: at first what has queued up since an
// agent of the run was last told, then what comes.
const (
	noticesSince = "[Worker events since last session]"
	noticesNow   = "[Worker events]"
)

// noticeMessage returns the notices that haven't been passed on as one message with the id
// of the last one; nil if there are none or they are another agent's.
func (w *watch) noticeMessage(passed map[string]bool) *wire.InboxEntry {
	if w.noticedNode() != w.offer.NodeID {
		return nil
	}
	lines, last := []string{noticesSince}, ""
	for _, m := range w.view.State.Inbox {
		if m.Command.TextAt("type") != run.CommandNotice {
			continue
		}
		if passed[m.ID] {
			lines, last = []string{noticesNow}, ""
			continue
		}
		text := m.Command.TextAt("message")
		lines, last = append(lines, text), m.ID
	}
	if last == "" {
		return nil
	}
	if w.informed {
		lines[0] = noticesNow
	}
	if n := w.view.State.NoticesLost; n > 0 {
		lines[0] += fmt.Sprintf(" (%d older ones were dropped)", n)
	}
	cmd, err := wire.Marshal(wire.Command{Type: run.CommandNotice, Message: strings.Join(lines, "\n")})
	if err != nil {
		return nil
	}
	return &wire.InboxEntry{ID: last, Node: w.offer.NodeID, Command: cmd}
}

// noticedNode returns the node of the agent that is told notices: of those at work the
// first that began. All workers come to the same one, and the next worker sees in
// the log what the one before was told.
func (w *watch) noticedNode() (node string) {
	var first uint64
	for id, n := range w.view.State.Nodes {
		atWork := n.Open() && n.Started >= n.Scheduled && n.Type == string(flow.TypeAgent)
		if atWork && (node == "" || n.Started < first) {
			node, first = id, n.Started
		}
	}
	return node
}
