package runner

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"wake/internal/flow"
	"wake/internal/run"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// Strategies of a resumption.
const (
	strategyCrash  = "crash"  // open tool calls are sealed
	strategyManual = "manual" // they stay as they are
)

// codeDuplicate is the reason of a command that was recorded before.
const codeDuplicate wire.ErrorCode = "DUPLICATE"

// judge decides about one command.
type judge struct {
	owner  *owner
	state  *wire.State
	cmd    wire.Command
	id     string
	fields map[string]any // what the record adds to the command, such as its recipient
}

// verdict returns what the command decides in itself, or a [rejection].
func (j *judge) verdict(ctx context.Context) ([]*wire.Event, error) {
	s := j.state
	switch {
	case slices.Contains(s.CommandIDs, j.id):
		return nil, reject(codeDuplicate, "command %s is on record already", j.id)
	case j.cmd.RunID != "" && j.cmd.RunID != s.RunID:
		return nil, reject(wire.CodeBadRequest, "the command names run %s and was sent to run %s", j.cmd.RunID, s.RunID)
	case over(s) && j.cmd.Type != "fork":
		return nil, rejectEnded(s, j.cmd)
	}
	switch j.cmd.Type {
	case "send":
		return nil, j.send()
	case "steer":
		return nil, j.steer()
	case run.CommandNotice:
		return nil, j.notice()
	case "reply":
		return nil, j.reply(ctx)
	case "approve", "deny":
		return nil, j.decide(ctx)
	case "pause":
		return j.pause()
	case "resume":
		return j.resume()
	case "abort":
		if j.cmd.Resumable {
			return j.pause()
		}
		return []*wire.Event{{Payload: &wire.FlowAborted{Reason: j.cmd.Reason}}}, nil
	case "bookmark":
		return j.bookmark()
	case "fork":
		return nil, j.fork(ctx)
	}
	return nil, reject(wire.CodeBadRequest, "unknown command %q", j.cmd.Type)
}

// record returns the command as it is recorded.
func (j *judge) record(raw wire.Raw) (wire.Raw, error) {
	if len(j.fields) == 0 {
		return raw, nil
	}
	var fields map[string]wire.Raw
	if err := wire.Unmarshal(raw, &fields); err != nil {
		return raw, reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	for name, v := range j.fields {
		value, err := wire.Marshal(v)
		if err != nil {
			return raw, reject(wire.CodeBadRequest, "not a command: %v", err)
		}
		fields[name] = value
	}
	return wire.Marshal(fields)
}

// rejectEnded is the answer of a run that has ended.
func rejectEnded(s *wire.State, cmd wire.Command) error {
	what := "is " + string(s.Status)
	if s.Imported != "" {
		what = "was imported and is not executed"
	}
	if cmd.Type == "resume" {
		return reject(wire.CodeNotResumable, "run %s %s", s.RunID, what)
	}
	return reject(wire.CodeCommandRejected, "run %s %s", s.RunID, what)
}

// send says in a message who its recipient is, which must be one: whoever else
// begins before it is delivered is none.
func (j *judge) send() error {
	if j.cmd.Message == "" {
		return reject(wire.CodeBadRequest, "message is required")
	}
	live := j.live(func(wire.NodeState) bool { return true })
	switch {
	case len(live) == 1:
		j.fields["nodeId"] = live[0]
		return nil
	case len(live) == 0 && j.cmd.NodeID != "":
		if _, known := j.state.NodeStatus[j.cmd.NodeID]; !known {
			return reject(wire.CodeNodeNotFound, "run %s has no node %s", j.state.RunID, j.cmd.NodeID)
		}
	}
	if len(live) == 0 {
		return reject(wire.CodeAmbiguousID, "no agent that can be meant is at work in run %s", j.state.RunID)
	}
	return reject(wire.CodeAmbiguousID, "%d agents are live%s; name one by nodeId or execId", len(live), list(live))
}

func list(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return " (" + strings.Join(ids, ", ") + ")"
}

// live returns the nodes whose agents can be meant, in order.
func (j *judge) live(is func(wire.NodeState) bool) []string {
	var ids []string
	for node, n := range j.state.Nodes {
		named := (j.cmd.NodeID == "" || j.cmd.NodeID == node) && (j.cmd.ExecID == "" || j.cmd.ExecID == n.Exec)
		if named && n.Open() && n.Type == string(flow.TypeAgent) && is(n) {
			ids = append(ids, node)
		}
	}
	slices.Sort(ids)
	return ids
}

// steer makes of a message the answer to the question that has waited for the
// longest time and isn't being answered. From there on it is a message like others.
func (j *judge) steer() error {
	if j.cmd.Message == "" {
		return reject(wire.CodeBadRequest, "message is required")
	}
	var node string
	var oldest wire.Question
	for _, id := range j.live(func(n wire.NodeState) bool { return len(n.Asked) > 0 }) {
		for _, q := range j.state.Nodes[id].Asked {
			if (node == "" || q.Position < oldest.Position) && !j.beingAnswered(id, q) {
				node, oldest = id, q
			}
		}
	}
	if node == "" {
		return reject(wire.CodeCommandRejected, "no agent of run %s asks anything", j.state.RunID)
	}
	j.tell(node, oldest)
	return nil
}

// notice is for whichever agent is at work when it comes or the next one that is.
func (j *judge) notice() error {
	if j.cmd.Message == "" {
		return reject(wire.CodeBadRequest, "message is required")
	}
	return nil
}

func (j *judge) pause() ([]*wire.Event, error) {
	if s := j.state; s.Status == wire.RunPaused && s.Reason != wire.PauseWorkspaceLost { // which ends by itself
		return nil, reject(wire.CodeCommandRejected, "run %s is paused already%s", j.state.RunID, because(j.state.Reason))
	}
	reason := wire.PauseOperator
	if strings.HasPrefix(j.cmd.ID, pauseByParent) {
		reason = wire.PauseParent
	}
	return []*wire.Event{{Payload: &wire.FlowPaused{Reason: reason, Message: j.cmd.Reason}}}, nil
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// resume goes on with a run that is paused. Whoever resumes it decides what
// becomes of nodes that a crash interrupted.
func (j *judge) resume() ([]*wire.Event, error) {
	s, cmd := j.state, j.cmd
	if s.Status != wire.RunPaused {
		return nil, reject(wire.CodeLeaseHeld, "run %s is running with runner %s", s.RunID, s.Nodes[wire.RunNode].Runner)
	}
	if strings.HasPrefix(cmd.ID, resumeByParent) && s.Reason != wire.PauseParent {
		return nil, reject(wire.CodeCommandRejected, "run %s was paused by itself%s, so its parent doesn't resume it", s.RunID, because(s.Reason))
	}
	r := &wire.FlowResumed{
		Message: cmd.Message, Strategy: cmp.Or(cmd.Strategy, strategyCrash), Hold: cmd.AutoRun != nil && !*cmd.AutoRun,
		Rerun: cmd.Rerun, Fail: cmd.Fail, Overrides: cmd.Overrides,
	}
	if r.Strategy != strategyCrash && r.Strategy != strategyManual {
		return nil, reject(wire.CodeBadRequest, "strategy is %q, not crash or manual", cmd.Strategy)
	}
	if err := j.interrupted(r); err != nil {
		return nil, err
	}
	if r.Strategy == strategyManual && !r.Hold && len(s.Tools) > 0 {
		return nil, reject(wire.CodeCommandRejected,
			"tool calls are open%s: strategy manual leaves them as they are, so the agents can't go on; deal with them and say autoRun false (--auto-run=false), or let strategy crash seal them", list(openCalls(s)))
	}
	if err := checkOverrides(r.Overrides, s); err != nil {
		return nil, err
	}
	return []*wire.Event{{Payload: r}}, nil
}

func openCalls(s *wire.State) []string {
	return slices.Sorted(maps.Keys(s.Tools))
}

// interrupted checks that each interrupted node gets one decision, and no other
// node gets one.
func (j *judge) interrupted(r *wire.FlowResumed) error {
	decided := map[string]bool{}
	for _, node := range slices.Concat(r.Rerun, r.Fail) {
		if decided[node] {
			return reject(wire.CodeBadRequest, "node %s is named twice in rerun and fail", node)
		}
		if decided[node] = true; !run.Interrupted(j.state, node) {
			return reject(wire.CodeCommandRejected, "node %s was not interrupted", node)
		}
	}
	if r.Hold {
		return nil
	}
	var open []string
	for node := range j.state.NodeStatus {
		if run.Interrupted(j.state, node) && !decided[node] {
			open = append(open, node)
		}
	}
	if len(open) == 0 {
		return nil
	}
	slices.Sort(open)
	names := strings.Join(open, ",")
	return reject(wire.CodeCommandRejected,
		"interrupted, outcome unknown: %s; decide by rerun (--rerun %s) or fail (--fail %s)", names, names, names)
}

// automatic are the names of points that nobody labelled.
var automatic = regexp.MustCompile(`^(sfp-)?[0-9]+$`) //nolint:gochecknoglobals // a constant

// bookmark labels the point at which the run is.
func (j *judge) bookmark() ([]*wire.Event, error) {
	point := pointName(j.state.ForkPoints)
	label := cmp.Or(j.cmd.Label, point)
	if err := subjects.CheckID(label); err != nil {
		return nil, reject(wire.CodeBadRequest, "label: %v", err)
	}
	if automatic.MatchString(label) && label != point {
		return nil, reject(wire.CodeBadRequest, "label %q is the name of another point", label)
	}
	there := slices.ContainsFunc(j.state.Bookmarks, func(b wire.Bookmark) bool { return b.Label == label })
	if there && !j.cmd.Force {
		return nil, reject(wire.CodeCommandRejected, "run %s has a bookmark %q already; force (--force) moves it", j.state.RunID, label)
	}
	j.fields["label"] = label
	return []*wire.Event{{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: label}}}, nil
}
