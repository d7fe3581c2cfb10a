package agent

import (
	"code.wake.dev/wake/pkg/wire"
)

// Outcome follows the events of an execution to its end. The zero value is
// ready.
type Outcome struct {
	SessionID string // the last one that was bound
	Model     string

	complete *wire.AgentComplete
	paused   *wire.AgentPaused
	failed   *wire.AgentError
}

// Observe takes the next event.
func (o *Outcome) Observe(e *wire.Event) {
	if e.SessionID != "" {
		o.SessionID = e.SessionID
	}
	switch p := e.Payload.(type) {
	case *wire.SessionBound:
		o.SessionID = p.NewSession
	case *wire.AgentInit:
		o.Model = p.Model
	case *wire.AgentError:
		if p.Severity != wire.SeverityWarning && p.Severity != wire.SeverityInfo && e.Parent == "" {
			o.failed = p
		}
	case *wire.AgentComplete:
		o.complete = p
	case *wire.AgentPaused:
		o.paused = p
	}
}

// Error returns why the execution failed, or nil if it completed or paused.
// An execution without a terminal event has failed.
func (o *Outcome) Error() *wire.AgentError {
	switch {
	case o.complete != nil || o.paused != nil:
		return nil
	case o.failed != nil:
		return o.failed
	}
	return &wire.AgentError{
		ErrorType: wire.ErrorMissingResult, Message: "the agent ended without a result",
		Severity: wire.SeverityError, Phase: "lifecycle",
	}
}

// Paused returns the interruption that ended the execution, or nil.
func (o *Outcome) Paused() *wire.AgentPaused {
	if o.complete != nil {
		return nil
	}
	return o.paused
}

// output is a node's output: seeds/000's fixture output and what the SDK adds.
type output struct {
	Text              string                `json:"text"`
	StructuredOutput  wire.Raw              `json:"structuredOutput,omitempty"`
	Usage             *usage                `json:"usage,omitempty"` // absent if the agent doesn't tell
	ModelUsage        map[string]modelUsage `json:"modelUsage,omitempty"`
	TotalCostUsd      *float64              `json:"totalCostUsd,omitempty"`
	DurationMs        int64                 `json:"durationMs"`
	NumTurns          int64                 `json:"numTurns"`
	SessionID         string                `json:"sessionId,omitempty"`
	StopReason        string                `json:"stopReason,omitempty"`
	PermissionDenials wire.Raw              `json:"permissionDenials,omitempty"`
	Paused            bool                  `json:"paused,omitempty"`
}

type usage struct {
	InputTokens              int64  `json:"inputTokens"`
	OutputTokens             int64  `json:"outputTokens"`
	CacheCreationInputTokens *int64 `json:"cacheCreationInputTokens,omitempty"`
	CacheReadInputTokens     *int64 `json:"cacheReadInputTokens,omitempty"`
}

type modelUsage struct {
	InputTokens  int64    `json:"inputTokens"`
	OutputTokens int64    `json:"outputTokens"`
	CostUsd      *float64 `json:"costUsd,omitempty"`
}

// Output returns the output of the node: {text, usage, durationMs, sessionId,
// …}; nil if the execution failed. Of a paused one it says {paused: true}.
func (o *Outcome) Output() (wire.Raw, error) {
	out := output{SessionID: o.SessionID}
	switch {
	case o.complete != nil:
		o.fillOutput(&out)
	case o.paused != nil:
		out.Usage, out.Paused, out.NumTurns = new(usage), true, o.paused.NumTurns
	default:
		return nil, nil
	}
	return wire.Marshal(&out)
}

func (o *Outcome) fillOutput(out *output) {
	c := o.complete
	out.Text, out.StructuredOutput, out.StopReason = c.Result, c.StructuredOutput, c.StopReason
	if !c.UsageUnknown {
		out.Usage = &usage{
			InputTokens: c.Usage.InputTokens, OutputTokens: c.Usage.OutputTokens,
			CacheCreationInputTokens: c.Usage.CacheCreationInputTokens,
			CacheReadInputTokens:     c.Usage.CacheReadInputTokens,
		}
	}
	for name, m := range c.ModelUsage {
		if out.ModelUsage == nil {
			out.ModelUsage = make(map[string]modelUsage, len(c.ModelUsage))
		}
		out.ModelUsage[name] = modelUsage{InputTokens: m.InputTokens, OutputTokens: m.OutputTokens, CostUsd: m.CostUsd}
	}
	out.TotalCostUsd, out.DurationMs, out.NumTurns = c.TotalCostUsd, c.DurationMs, c.NumTurns
	out.PermissionDenials = c.Denials
}
