// Package child names the runs that a run starts, by its flow nodes or by calls of its
// agents, and says what such a run gets and what comes of it.
package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"code.wake.dev/wake/internal/flow"
	runs "code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/queue"
)

// CallID names the run that a call of an agent starts. A worker that asks again, in
// whatever process, waits for the same one.
func CallID(run, exec, call string) string { return runs.ChildID(run, exec+"."+call) }

// CallKey is how the state of a run names an open call.
func CallKey(exec, call string) string { return exec + "/" + call }

// InputError says that no child run can have an input.
type InputError struct{ Problem string }

// Error implements error.
func (e *InputError) Error() string { return e.Problem }

// Start asks for a child run. Asking twice does no harm. It fails with an [InputError]
// for a request that no server takes.
func Start(ctx context.Context, q *queue.Queue, request wire.RunRequest) error {
	err := q.AskRun(ctx, request)
	var large *queue.TooLargeError
	switch {
	case errors.As(err, &large):
		return &InputError{fmt.Sprintf("flow, input and state of the child run are %d bytes, more than the server takes", large.Bytes)}
	case err != nil:
		return fmt.Errorf("start child run %s: %w", request.RunID, err)
	}
	return nil
}

// IsOf reports whether a run is the one that a node of its parent, or a call of that's agent, has begun, and not another one to which
// somebody gave its id: a run that was only recorded is what its file says.
func IsOf(s *wire.State, parent, node, call string) bool {
	return s.Imported == "" && s.ParentRun == parent && s.ParentNode == node && s.ParentCall == call
}

// TakenText says why a node, or an agent's call, has no result: another run had the id of the one that it asked for.
func TakenText(s *wire.State) string {
	return fmt.Sprintf("run %s isn't the one that was asked for: its id had been taken", s.RunID)
}

// Outcome is what a child run that has ended is to the node or the call that has started it: its status is complete, failed or aborted, and
// one that has failed has an error.
func Outcome(s *wire.State) (wire.Raw, error) {
	outcome := map[string]any{"runId": s.RunID, "status": string(s.Status), "outputs": s.Outputs, "state": s.State}
	if s.Status == wire.RunComplete {
		outcome["status"] = string(cmp.Or(s.Result, wire.FlowStatusComplete))
	}
	if s.Error != "" {
		outcome["error"] = s.Error
	}
	return wire.Marshal(outcome)
}

// Failure says in words of an agent's call why its run has no result; "" if it has one.
func Failure(s *wire.State) string {
	switch {
	case s.Status == wire.RunAborted:
		return fmt.Sprintf("Run %s was aborted: %s", s.RunID, cmp.Or(s.Reason, "no reason was given"))
	case s.Result == wire.FlowStatusFailed:
		return fmt.Sprintf("Run %s failed: %s", s.RunID, cmp.Or(s.Error, "nothing says why"))
	}
	return ""
}

// Layers are the settings that were given while the run was under way, as they count
// for a node, the last ones most: those for every agent, those for the node, those for the
// item of a forEach. A node "" has none of its own.
func Layers(given wire.Raw, def *flow.Definition, node string) ([]map[string]wire.Raw, error) {
	if given == nil {
		return nil, nil
	}
	var fields map[string]wire.Raw
	if err := wire.Unmarshal(given, &fields); err != nil {
		return nil, err
	}
	all := []map[string]wire.Raw{maps.Clone(fields)}
	maps.DeleteFunc(all[0], func(name string, v wire.Raw) bool { return def.Node(name) != nil && v.IsMap() })
	ids := []string{node}
	if base, _, isItem := strings.Cut(node, "/"); isItem {
		ids = []string{base, node}
	}
	for _, id := range ids {
		var own map[string]wire.Raw
		if fields[id].IsMap() && wire.Unmarshal(fields[id], &own) == nil {
			all = append(all, own)
		}
	}
	return all, nil
}

// nameLabel is what people call a run.
const nameLabel = "name"

// Labels are those of a run that another one begins: that one's but its name, unless its own flow or who begins it says otherwise. So what it
// spends counts where the other's does.
func Labels(parent map[string]string, def *flow.Definition, own map[string]string) map[string]string {
	labels := maps.Clone(parent)
	if def != nil {
		maps.DeleteFunc(labels, func(key, _ string) bool { _, is := def.Labels[key]; return is })
	}
	if labels == nil {
		return own
	}
	delete(labels, nameLabel)
	maps.Copy(labels, own)
	return labels
}

// Inherited returns the settings that a run passes on to a child: those for
// every agent, and if an agent of the child stands in for that of a node, the node's.
func Inherited(given wire.Raw, def *flow.Definition, node string) wire.Raw {
	all, err := Layers(given, def, node)
	if err != nil {
		return nil
	}
	merged := map[string]wire.Raw{}
	for _, layer := range all {
		maps.Copy(merged, layer)
	}
	delete(merged, "workspace")
	if len(merged) == 0 {
		return nil
	}
	raw, err := wire.Marshal(merged)
	if err != nil {
		return nil
	}
	return raw
}
