package alerter

import (
	"cmp"
	"fmt"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// completions finds that a run has reached its end.
type completions struct {
	Result string `json:"result,omitempty"` // what the last node said
}

// detect is a [detector].
func (s completions) detect(in input) (completions, []finding) {
	switch p := in.Event.Payload.(type) {
	case *wire.AgentComplete:
		s.Result = cmp.Or(timeline.Line(p.Result, maxResult), s.Result)
	case *wire.NodeComplete:
		s.Result = cmp.Or(timeline.Line(outputText(p.Output), maxResult), s.Result)
	case *wire.FlowComplete:
		if p.Status != wire.FlowStatusComplete {
			break
		}
		text := textCompleted
		if s.Result != "" {
			text = fmt.Sprintf(textCompletedWith, s.Result)
		}
		return s, []finding{{
			Kind: kindCompletion, Severity: wire.SeverityInfo, NodeID: wire.RunNode, Armed: in.Pos,
			Text: text, Data: map[string]any{"result": s.Result},
		}}
	}
	return s, nil
}

// outputText returns the text of a node's output: the output itself, or what
// agents call text and commands stdout.
func outputText(output wire.Raw) string {
	if s, ok := output.Text(); ok {
		return s
	}
	if s, ok := output.Get("text").Text(); ok {
		return s
	}
	return output.TextAt("stdout")
}
