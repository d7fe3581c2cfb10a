package owner

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/view"
)

// judge decides about one command.
type judge struct {
	runs   *view.Runs
	forks  forks
	state  *wire.State
	cmd    wire.Command
	id     string
	stop   *flow.Stop     // what the run has to stop for; nil: nothing
	fields map[string]any // what the record adds to the command, such as its recipient
}

// verdict returns what the command decides in itself, or a [rejection].
func (j *judge) verdict(ctx context.Context) ([]*wire.Event, error) {
	s := j.state
	if strings.TrimSpace(j.cmd.Message) == "" {
		j.cmd.Message = "" // models refuse a text without a word
	}
	switch {
	case slices.Contains(s.CommandIDs, j.id):
		return nil, command.Reject(command.CodeDuplicate, "command %s is on record already", j.id)
	case j.cmd.RunID != "" && j.cmd.RunID != s.RunID:
		return nil, command.Reject(wire.CodeBadRequest, "the command names run %s and was sent to run %s", j.cmd.RunID, s.RunID)
	case run.Failed(s) && j.cmd.Type == "resume" && len(j.cmd.Rerun) > 0:
		return j.judgeRerun(ctx)
	case view.Over(s) && j.cmd.Type != "fork" && (j.cmd.Type != "bookmark" || s.Imported != ""):
		return nil, RejectEnded(s, j.cmd)
	}
	switch j.cmd.Type {
	case "send":
		return nil, j.judgeSend()
	case "steer":
		return nil, j.judgeSteer()
	case run.CommandNotice:
		return nil, j.judgeNotice()
	case "reply":
		return j.leaveHold(j.judgeReply(ctx))
	case "approve", "deny":
		return j.leaveHold(j.judgeDecision(ctx))
	case "pause":
		return j.judgePause()
	case "resume":
		return j.judgeResume()
	case "abort":
		if j.cmd.Resumable {
			return j.judgePause()
		}
		return []*wire.Event{{Payload: &wire.FlowAborted{Reason: j.cmd.Reason}}}, nil
	case "bookmark":
		return j.judgeBookmark(ctx)
	case "fork":
		return nil, j.judgeFork(ctx)
	}
	return nil, command.Reject(wire.CodeBadRequest, "unknown command %q", j.cmd.Type)
}

// recordedCommand returns the command as it is recorded.
func (j *judge) recordedCommand(raw wire.Raw) (wire.Raw, error) {
	if len(j.fields) == 0 {
		return raw, nil
	}
	return command.With(raw, j.fields)
}

// RejectEnded is the answer of a run that has ended.
func RejectEnded(s *wire.State, cmd wire.Command) error {
	what := "is " + string(s.Status)
	switch {
	case s.Imported != "":
		what = "was imported and is not executed"
	case run.Failed(s):
		what = "has failed"
	}
	switch {
	case cmd.Type == "resume" && run.Failed(s):
		return command.Reject(wire.CodeNotResumable, "run %s %s: it goes on by rerun (--rerun)", s.RunID, what)
	case cmd.Type == "resume" && s.Imported == "":
		return command.Reject(wire.CodeNotResumable, "run %s %s: nothing of it failed that could be tried again", s.RunID, what)
	case cmd.Type == "resume":
		return command.Reject(wire.CodeNotResumable, "run %s %s: a session that is watched goes on by wake adopt, any run as a fork", s.RunID, what)
	}
	return command.Reject(wire.CodeCommandRejected, "run %s %s", s.RunID, what)
}

// removedWait is how long the recorder may take to say whether it has removed a run.
const removedWait = 2 * time.Second

// rejectRemoved refuses a command to a run that has ended and that the recorder has removed: it records nothing more of that. Where the
// recorder doesn't answer the command is obeyed.
func (j *judge) rejectRemoved(ctx context.Context) error {
	if !view.Over(j.state) {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, removedWait)
	defer cancel()
	log := j.forks.log
	if removed, _ := api.RunRemoved(wait, log.Conn(), log.Names(), j.state.RunID); removed != nil {
		return command.Reject(wire.CodeRunNotFound, "%s", removed.Message)
	}
	return ctx.Err()
}

// judgeSend names in a message its recipient, which must be one: an
// agent that begins before it is delivered is none.
func (j *judge) judgeSend() error {
	if j.cmd.Message == "" {
		return command.Reject(wire.CodeBadRequest, "message is required")
	}
	live := j.liveAgents(func(wire.NodeState) bool { return true })
	switch {
	case len(live) == 1:
		j.fields["nodeId"] = live[0]
		return nil
	case len(live) == 0 && j.cmd.NodeID != "":
		if _, known := j.state.NodeStatus[j.cmd.NodeID]; !known {
			return command.Reject(wire.CodeNodeNotFound, "run %s has no node %s", j.state.RunID, j.cmd.NodeID)
		}
	}
	if len(live) == 0 {
		return command.Reject(wire.CodeAmbiguousID, "no agent that can be meant is at work in run %s", j.state.RunID)
	}
	return command.Reject(wire.CodeAmbiguousID, "%d agents are live%s; name one by nodeId or execId", len(live), listText(live))
}

func listText(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return " (" + strings.Join(ids, ", ") + ")"
}

// liveAgents returns the nodes of agents that can be meant, in order.
func (j *judge) liveAgents(is func(wire.NodeState) bool) []string {
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

// judgeSteer makes of a message the answer to the question that has waited for the
// longest time and isn't being answered. From there on it is a message like others.
func (j *judge) judgeSteer() error {
	if j.cmd.Message == "" {
		return command.Reject(wire.CodeBadRequest, "message is required")
	}
	var node string
	var oldest wire.Question
	for _, id := range j.liveAgents(func(n wire.NodeState) bool { return len(n.Asked) > 0 }) {
		for _, q := range j.state.Nodes[id].Asked {
			asks := wire.Approval{Kind: wire.ApprovalMessage, NodeID: id, CallID: q.ID}
			if (node == "" || q.Position < oldest.Position) && !ask.HasAnswer(j.state, asks) {
				node, oldest = id, q
			}
		}
	}
	if node == "" {
		return command.Reject(wire.CodeCommandRejected, "no agent of run %s asks anything", j.state.RunID)
	}
	j.tellAgent(node, oldest)
	return nil
}

// judgeNotice is for whichever agent is at work when it comes or the next one that is.
func (j *judge) judgeNotice() error {
	if j.cmd.Message == "" {
		return command.Reject(wire.CodeBadRequest, "message is required")
	}
	return nil
}

func (j *judge) judgePause() ([]*wire.Event, error) {
	if s := j.state; s.Status == wire.RunPaused && s.Reason != wire.PauseWorkspaceLost && s.Reason != wire.PauseSharedBudget { // which end by themselves
		return nil, command.Reject(wire.CodeCommandRejected, "run %s is paused already%s", j.state.RunID, reasonText(j.state.Reason))
	}
	reason := wire.PauseOperator
	if strings.HasPrefix(j.cmd.ID, pauseByParent) {
		reason = wire.PauseParent
	}
	return []*wire.Event{{Payload: &wire.FlowPaused{Reason: reason, Message: j.cmd.Reason}}}, nil
}

func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// judgeResume goes on with a run that is paused. The operator decides by the command what
// becomes of nodes that a crash interrupted.
func (j *judge) judgeResume() ([]*wire.Event, error) {
	s, cmd := j.state, j.cmd
	if s.Status != wire.RunPaused {
		return nil, command.Reject(wire.CodeLeaseHeld, "run %s is running with runner %s", s.RunID, s.Nodes[wire.RunNode].Runner)
	}
	if strings.HasPrefix(cmd.ID, resumeByParent) && s.Reason != wire.PauseParent {
		return nil, command.Reject(wire.CodeCommandRejected, "run %s was paused by itself%s, so its parent doesn't resume it", s.RunID, reasonText(s.Reason))
	}
	r := &wire.FlowResumed{
		Message: cmd.Message, Strategy: cmp.Or(cmd.Strategy, command.StrategyCrash), Hold: cmd.AutoRun != nil && !*cmd.AutoRun,
		Rerun: cmd.Rerun, Fail: cmd.Fail, Overrides: cmd.Overrides, Limits: cmd.Limits,
	}
	if r.Strategy != command.StrategyCrash && r.Strategy != command.StrategyManual {
		return nil, command.Reject(wire.CodeBadRequest, "strategy is %q, not crash or manual", cmd.Strategy)
	}
	if slices.Contains(r.Rerun, rerunAll) {
		r.Rerun = slices.DeleteFunc(slices.Sorted(maps.Keys(s.NodeStatus)), func(node string) bool {
			return !run.Interrupted(s, node) || slices.Contains(r.Fail, node)
		})
	}
	if err := j.checkInterrupted(r); err != nil {
		return nil, err
	}
	if open := undecidedCalls(s); r.Strategy == command.StrategyManual && !r.Hold && len(open) > 0 {
		return nil, command.Reject(wire.CodeCommandRejected,
			"tool calls are open%s: strategy manual leaves them as they are, so the agents can't go on; answer them (wake approve, wake deny) and resume again, or let strategy crash seal them; autoRun false (--auto-run=false) takes the run over and starts nobody", listText(open))
	}
	if err := checkOverrides(r.Overrides, s); err != nil {
		return nil, err
	}
	if j.stop != nil {
		return nil, command.Reject(wire.CodeCommandRejected, "%s; `wake budget set` grants more, and the run goes on by itself then", j.stop.Why)
	}
	if err := checkLimits(r.Limits, s); err != nil {
		return nil, err
	}
	return []*wire.Event{{Payload: r}}, nil
}

// leaveHold lets a run that strategy manual holds go on with the last answer to its open calls, unless the answer was refused.
func (j *judge) leaveHold(refused error) ([]*wire.Event, error) {
	s := j.state
	r := &wire.FlowResumed{Strategy: command.StrategyManual}
	if refused != nil || s.Status != wire.RunPaused || !s.Held || j.cmd.CallID == "" || j.stop != nil || j.checkInterrupted(r) != nil {
		return nil, refused
	}
	node, _ := j.fields["nodeId"].(string)
	for _, key := range undecidedCalls(s) {
		if call := s.Tools[key]; call.CallID != j.cmd.CallID || call.Node != node {
			return nil, nil
		}
	}
	return []*wire.Event{{Payload: r}}, nil
}

// undecidedCalls are the open calls that no command has allowed or denied since their agents are gone.
func undecidedCalls(s *wire.State) (open []string) {
	for _, key := range slices.Sorted(maps.Keys(s.Tools)) {
		call := s.Tools[key]
		if !ask.HasAnswer(s, wire.Approval{Kind: wire.ApprovalCall, NodeID: call.Node, CallID: call.CallID}) {
			open = append(open, key)
		}
	}
	return open
}

// checkInterrupted checks that each interrupted node gets one decision, and no other
// node gets one.
func (j *judge) checkInterrupted(r *wire.FlowResumed) error {
	decided := map[string]bool{}
	for _, node := range slices.Concat(r.Rerun, r.Fail) {
		if decided[node] {
			return command.Reject(wire.CodeBadRequest, "node %s is named twice in rerun and fail", node)
		}
		if decided[node] = true; !run.Interrupted(j.state, node) {
			return command.Reject(wire.CodeCommandRejected, "node %s was not interrupted", node)
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
	return command.Reject(wire.CodeCommandRejected,
		"interrupted, outcome unknown: %s; decide by rerun (--rerun %s) or fail (--fail %s)", names, names, names)
}

// automatic are the names of points without a label.
var automatic = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(sfp-)?[0-9]+$|#[0-9]+:(start|end)$`) })

// judgeBookmark labels the point at which the run is, or one where it was.
func (j *judge) judgeBookmark(ctx context.Context) ([]*wire.Event, error) {
	if err := j.rejectRemoved(ctx); err != nil {
		return nil, err
	}
	point, mark := pointName(j.state.ForkPoints), &wire.Checkpoint{Kind: wire.CheckpointLabelled}
	if j.cmd.At != "" || j.state.Status.Ended() {
		var err error
		if point, mark.AtPos, err = j.forks.findPoint(ctx, j.state.RunID, j.cmd.At); err != nil {
			return nil, err
		}
	}
	mark.Label = cmp.Or(j.cmd.Label, point)
	if err := subjects.CheckID(mark.Label); err != nil {
		return nil, command.Reject(wire.CodeBadRequest, "label: %v", err)
	}
	if automatic().MatchString(mark.Label) && mark.Label != point {
		return nil, command.Reject(wire.CodeBadRequest, "label %q is the name of another point", mark.Label)
	}
	there := run.HasLabel(j.state, mark.Label)
	if !there && run.CountLabels(j.state) >= run.MaxLabels {
		return nil, command.Reject(wire.CodeCommandRejected, "run %s has %d labels, which is as many as one may have; force (--force) moves one of them", j.state.RunID, run.MaxLabels)
	}
	if there && !j.cmd.Force && j.cmd.Label != "" { // without a label it is the present of the same point
		return nil, command.Reject(wire.CodeCommandRejected, "run %s has a bookmark %q already; force (--force) moves it", j.state.RunID, mark.Label)
	}
	j.fields["label"] = mark.Label
	return []*wire.Event{{Payload: mark}}, nil
}

// rerunAll stands for all nodes that failed.
const rerunAll = "*"

// judgeRerun lets a run that has failed go on: what failed, and what was withdrawn beside it, is executed again.
// Naming nodes says what the sender takes to have failed.
func (j *judge) judgeRerun(ctx context.Context) ([]*wire.Event, error) {
	s, cmd := j.state, j.cmd
	if err := j.rejectRemoved(ctx); err != nil {
		return nil, err
	}
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		return nil, command.Reject(wire.CodeNotResumable, "run %s has no flow that could go on: %v", s.RunID, err)
	}
	again := flow.Unfinished(def, s)
	switch {
	case len(again) == 0:
		return nil, command.Reject(wire.CodeNotResumable, "run %s has failed, but none of its nodes has: %s", s.RunID, s.Error)
	case len(cmd.Fail) > 0, cmd.AutoRun != nil && !*cmd.AutoRun:
		return nil, command.Reject(wire.CodeBadRequest, "run %s has failed: it is given up already, and there is nothing to hold", s.RunID)
	case cmd.Strategy != "" && cmd.Strategy != command.StrategyCrash && cmd.Strategy != command.StrategyManual:
		return nil, command.Reject(wire.CodeBadRequest, "strategy is %q, not crash or manual", cmd.Strategy)
	}
	for _, node := range cmd.Rerun {
		if node != rerunAll && !slices.Contains(again, node) {
			return nil, command.Reject(wire.CodeCommandRejected, "node %s did not end run %s: %s did", node, s.RunID, strings.Join(again, ","))
		}
	}
	if err := checkOverrides(cmd.Overrides, s); err != nil {
		return nil, err
	}
	if err := checkLimits(cmd.Limits, s); err != nil {
		return nil, err
	}
	return []*wire.Event{{Payload: &wire.FlowResumed{
		Message: cmd.Message, Strategy: command.StrategyCrash, Rerun: again, Overrides: cmd.Overrides, Limits: cmd.Limits,
	}}}, nil
}

// judgeReply answers the question that is named: of an ask node, of a call of AskUserQuestion, or
// of a message to the parent. The first ends in the node, the others go to the agent as
// what they are: a decision on the call, and a message.
func (j *judge) judgeReply(ctx context.Context) error {
	if j.cmd.PromptID == "" {
		return command.Reject(wire.CodeBadRequest, "promptId is required")
	}
	if j.cmd.Content == nil {
		return command.Reject(wire.CodeBadRequest, "content is required")
	}
	open := slices.DeleteFunc(ask.Open(j.state), func(a wire.Approval) bool {
		return a.Kind == wire.ApprovalCall || a.CallID != j.cmd.PromptID || j.cmd.NodeID != "" && a.NodeID != j.cmd.NodeID
	})
	switch len(open) {
	case 0:
		return command.Reject(wire.CodeCommandRejected, "no agent waits for an answer to %q; wake approvals %s lists those that do", j.cmd.PromptID, ask.ShellWord(j.state.RunID))
	case 1:
	default:
		return command.Reject(wire.CodeAmbiguousID, "%d agents ask %q%s; name one by nodeId", len(open), j.cmd.PromptID, listText(nodesOf(open)))
	}
	node := open[0].NodeID
	switch n := j.state.Nodes[node]; open[0].Kind {
	case wire.ApprovalQuestion:
		j.cmd.CallID, j.cmd.NodeID, j.cmd.Type = j.cmd.PromptID, node, "approve"
		j.fields["type"], j.fields["callId"] = "approve", j.cmd.PromptID
		return j.judgeDecision(ctx)
	case wire.ApprovalMessage:
		if ask.HasAnswer(j.state, open[0]) {
			return command.Reject(wire.CodeCommandRejected, "%q has its answer", j.cmd.PromptID)
		}
		j.tellAgent(node, wire.Question{ID: j.cmd.PromptID})
		j.fields["message"] = j.cmd.Content.Plain()
		return nil
	default:
		if ask.HasAnswer(j.state, open[0]) {
			return command.Reject(wire.CodeCommandRejected, "%q has its answer", j.cmd.PromptID)
		}
		if _, err := flow.AcceptAnswer(n.Input, j.cmd.Content); err != nil {
			return command.Reject(wire.CodeBadRequest, "the answer is %v", err)
		}
		return nil
	}
}

func nodesOf(open []wire.Approval) []string {
	nodes := make([]string, len(open))
	for i, a := range open {
		nodes[i] = a.NodeID
	}
	slices.Sort(nodes)
	return nodes
}

// tellAgent makes of the command the message that answers what the agent of a node has asked.
// From there on it is a message like others.
func (j *judge) tellAgent(node string, q wire.Question) {
	j.fields["nodeId"], j.fields["execId"], j.fields["type"], j.fields["steer"] = node, j.state.Nodes[node].Exec, "send", true
	if q.ID != "" {
		j.fields["answers"] = q.ID
	}
}

// judgeDecision names the node of the call that is decided. A question is approved by its answer.
func (j *judge) judgeDecision(ctx context.Context) error {
	if j.cmd.CallID == "" {
		return command.Reject(wire.CodeBadRequest, "callId is required")
	}
	open := slices.DeleteFunc(ask.Open(j.state), func(a wire.Approval) bool {
		call := a.Kind == wire.ApprovalCall || a.Kind == wire.ApprovalQuestion
		return !call || a.CallID != j.cmd.CallID || j.cmd.NodeID != "" && a.NodeID != j.cmd.NodeID
	})
	switch len(open) {
	case 0:
		return command.Reject(wire.CodeCommandRejected, "no call %q waits for approval; wake approvals %s lists what does", j.cmd.CallID, ask.ShellWord(j.state.RunID))
	case 1:
	default:
		return command.Reject(wire.CodeAmbiguousID, "%d calls %q wait for approval%s; name one by nodeId", len(open), j.cmd.CallID, listText(nodesOf(open)))
	}
	node := open[0].NodeID
	if ask.HasAnswer(j.state, open[0]) {
		return command.Reject(wire.CodeCommandRejected, "call %q has its decision", j.cmd.CallID)
	}
	j.fields["nodeId"] = node
	if open[0].Kind == wire.ApprovalQuestion && j.cmd.Type == "approve" && !ask.Answered(j.cmd.UpdatedInput) {
		return j.answerQuestion(ctx, open[0])
	}
	return nil
}

// answerQuestion makes of what the command says the answers in the call's input.
func (j *judge) answerQuestion(ctx context.Context, question wire.Approval) error {
	answer := j.cmd.Content
	if answer == nil && j.cmd.Note != "" {
		answer = wire.RawString(j.cmd.Note)
	}
	if answer == nil {
		return command.Reject(wire.CodeBadRequest, "call %q asks a question: give the answer (--choose, --note), or deny it", j.cmd.CallID)
	}
	input, err := j.runs.Inline(ctx, j.state.RunID, question.ToolInput)
	if err != nil {
		return err
	}
	updated, err := ask.Answer(input, answer)
	if err != nil {
		return command.Reject(wire.CodeBadRequest, "%v", err)
	}
	j.fields["updatedInput"] = updated
	return nil
}
