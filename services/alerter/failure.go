package alerter

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// failures finds errors that no retry takes care of: of agents, of nodes that are
// not tried again, and of runs.
type failures struct {
	// Told holds the executions with an error that has been told: an agent's error,
	// then its node's, are one.
	Told map[string]bool `json:"told,omitempty"`
	// Attempts numbers the open executions.
	Attempts map[string]int `json:"attempts,omitempty"`
	// Retries holds the calls of a model that fail again and again, by agent.
	Retries map[string]retries `json:"retries,omitempty"`
	// Node is the node of the error that was told last: that its run fails because of it is no other failure.
	Node string `json:"node,omitempty"`
}

// retries is a series of failed tries.
type retries struct {
	First uint64 `json:"first"` // position
	Told  bool   `json:"told,omitempty"`
}

// detect is a [detector].
func (s failures) detect(in input) (failures, []finding) {
	var found []finding
	switch p := in.Event.Payload.(type) {
	case *wire.NodeScheduled:
		s.Attempts = withKey(s.Attempts, in.Event.ExecID, p.Attempt)
		if in.Event.Node() == s.Node {
			s.Node = ""
		}
	case *wire.AgentError:
		s, found = s.agentError(in, p)
	case *wire.NodeError:
		s, found = s.nodeError(in, p)
	case *wire.NodeComplete, *wire.NodeCancelled:
		s = s.forgetExecution(in.Event.ExecID)
	case *wire.FlowComplete:
		found = s.runFailed(in, p)
	case *wire.Usage, *wire.AgentTool, *wire.AgentComplete:
		s.Retries = withoutKey(s.Retries, agentOf(in.Event)) // the model has answered
	case *wire.TurnEnd:
		if !p.IsError {
			s.Told = withoutKey(s.Told, in.Event.ExecID)
		}
	}
	return s, found
}

// agentError tells an error once per execution, and a series of tries when the
// second one has failed: the first is everyday life.
func (s failures) agentError(in input, p *wire.AgentError) (failures, []finding) {
	e := in.Event
	if p.ErrorType == wire.ErrorUser || isDeliberateEnd(p) || p.ResetsAt != 0 { // the end of its node tells of a limit
		return s, nil
	}
	f := in.finding(kindError, wire.SeverityError, errorLine(p), map[string]any{"message": errorMessage(p), "errorType": nameLine(p.ErrorType)})
	if p.ErrorType == wire.ErrorProcessDied {
		f.Kind = kindDied
	}
	if isAPI(p) {
		f.Event, f.Data = "api_error", map[string]any{"message": errorMessage(p)}
		if retry := retryOf(p); retry != "" {
			f.Data["retry"] = retry
		}
	}
	if isPassing(p) {
		return s.noteRetry(in, p, f)
	}
	if s.Told[e.ExecID] {
		return s, nil
	}
	if e.ExecID != "" {
		s.Told = withKey(s.Told, e.ExecID, true)
	}
	s.Node = e.Node()
	return s, []finding{f}
}

func (s failures) noteRetry(in input, p *wire.AgentError, f finding) (failures, []finding) {
	if p.Attempt == nil || p.MaxAttempts == 0 {
		return s, nil
	}
	agent := agentOf(in.Event)
	r, ok := s.Retries[agent]
	if !ok || *p.Attempt <= 1 {
		r = retries{First: in.Pos}
	}
	tell := in.Limits.Retry.From > 0 && *p.Attempt >= int64(in.Limits.Retry.From) && !r.Told
	r.Told = r.Told || tell
	s.Retries = withKey(s.Retries, agent, r)
	if !tell {
		return s, nil
	}
	f.Severity, f.Armed, f.Level = wire.SeverityWarning, r.First, "retry"
	return s, []finding{f}
}

// nodeError tells the end of a node that its flow doesn't provide for.
func (s failures) nodeError(in input, p *wire.NodeError) (failures, []finding) {
	e := in.Event
	node, told, attempt := e.Node(), s.Told[e.ExecID], max(s.Attempts[e.ExecID], 1)
	s = s.forgetExecution(e.ExecID)
	if p.RetryAt != 0 {
		return s, []finding{limitFinding(in, p)}
	}
	policy := in.Run.nodePolicy(node)
	if p.ErrorType == wire.ErrorInterrupted || p.ErrorType == wire.ErrorSessionNotFound {
		return s, nil // the run pauses, and that is told
	}
	if told || p.ErrorType == wire.ErrorCancelled || policy.Continue || attempt < policy.MaxAttempts {
		return s, nil
	}
	s.Node = node
	text := timeline.Line(p.Error, maxMessage)
	data := map[string]any{"message": text, "errorType": nameLine(p.ErrorType), "nodeId": node}
	return s, []finding{in.finding(kindError, wire.SeverityError, fmt.Sprintf(textNodeFailed, nameLine(node), text), data)}
}

// limitFinding tells that a node waits until a limit of its model is over.
func limitFinding(in input, p *wire.NodeError) finding {
	message, until := timeline.Line(p.Error, maxMessage), time.UnixMilli(p.RetryAt).UTC().Format(time.RFC3339)
	data := map[string]any{"message": message, "errorType": nameLine(p.ErrorType), "until": until}
	return in.finding(kindLimit, wire.SeverityWarning, fmt.Sprintf(textLimit, until, message), data)
}

func (s failures) forgetExecution(exec string) failures {
	s.Told, s.Attempts = withoutKey(s.Told, exec), withoutKey(s.Attempts, exec)
	return s
}

func (s failures) runFailed(in input, p *wire.FlowComplete) []finding {
	if p.Status != wire.FlowStatusFailed || p.FailedNode != "" && p.FailedNode == s.Node {
		return nil
	}
	text := timeline.Line(p.Error, maxMessage)
	return []finding{{
		Kind: kindError, Severity: wire.SeverityError, NodeID: cmp.Or(p.FailedNode, wire.RunNode), Armed: in.Pos, Level: "run",
		Text: fmt.Sprintf(textRunFailed, text), Data: map[string]any{"message": text, "errorType": "run_failed"},
	}}
}

func errorLine(p *wire.AgentError) string {
	template := textError
	switch {
	case isAPI(p):
		template = textAPIError
	case p.ErrorType == wire.ErrorProcessDied:
		template = textDied
	}
	text := fmt.Sprintf(template, errorMessage(p))
	switch retry := retryOf(p); {
	case retry == "":
	case isPassing(p):
		text += fmt.Sprintf(textRetry, retry)
	default:
		text += fmt.Sprintf(textGaveUp, retry)
	}
	return text
}

// isPassing reports whether an error is one after which the agent tries again.
func isPassing(p *wire.AgentError) bool {
	return p.Severity == wire.SeverityWarning || p.Severity == wire.SeverityInfo
}

// isAPI reports whether the model's API is to blame.
func isAPI(p *wire.AgentError) bool {
	switch p.ErrorType {
	case wire.ErrorNetwork, wire.ErrorRateLimit, wire.ErrorOverloaded:
		return true
	}
	return p.Status >= 400 || p.Phase == "model" && !strings.HasPrefix(p.ErrorType, "error_")
}

// errorMessage is the error's message, without the count of tries that some agents
// put behind it.
func errorMessage(p *wire.AgentError) string {
	text := strings.TrimPrefix(p.Message, "API Error: ") // which the line says itself
	if retry := retryOf(p); retry != "" {
		text = strings.TrimSuffix(text, ": retry "+retry)
	}
	return timeline.Line(text, maxMessage)
}

// retryOf is "2/5" for the second of five tries, and "" where none are counted.
func retryOf(p *wire.AgentError) string {
	if p.Attempt == nil || p.MaxAttempts == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", *p.Attempt, p.MaxAttempts)
}

// isDeliberateEnd reports whether a process died because it was told to: what ended it
// says why.
func isDeliberateEnd(p *wire.AgentError) bool {
	return p.ErrorType == wire.ErrorProcessDied && p.Details.TextAt("reason") != ""
}
