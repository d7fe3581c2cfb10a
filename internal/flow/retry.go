package flow

import (
	"encoding/json"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// NextTry tells when a node that has failed is tried again, Unix ms: by its policy in the flow that the state has, or when a
// limit of its model is over. ok is false if it isn't. It reads no more of the flow than the node's policy.
func NextTry(s *wire.State, id string) (due int64, ok bool) {
	if s.Status.Ended() || s.NodeStatus[id] != wire.NodeFailed {
		return 0, false
	}
	return nextTry(s, id, retryOf(s.Definition, id))
}

// nextTry is [NextTry] of a node with a policy; nil: none.
func nextTry(s *wire.State, id string, r *Retry) (due int64, ok bool) {
	n := s.Nodes[id]
	switch {
	case s.NodeStatus[id] != wire.NodeFailed || n.Count > 0 && n.Index == nil:
		return 0, false
	case n.Due != 0:
		return n.Due, true
	case r == nil || n.ErrorType == wire.ErrorInput || n.ErrorType == wire.ErrorCancelled || run.Interrupted(s, id) || n.Attempt >= r.MaxAttempts ||
		slices.Contains(r.Except, n.ErrorType):
		return 0, false
	}
	return n.EndedAt + r.waitAfter(n.Attempt), true
}

// retryOf is the policy of a node, or of that of which it is an item, nil if it has none.
func retryOf(definition wire.Raw, id string) *Retry {
	node, _, _ := strings.Cut(id, "/")
	for _, n := range definition.Get("nodes").Items() {
		if n.TextAt("id") != node {
			continue
		}
		var r *Retry
		if text, err := json.Marshal(n.Get("policy", "retry")); err != nil || json.Unmarshal(text, &r) != nil {
			return nil
		}
		return r
	}
	return nil
}
