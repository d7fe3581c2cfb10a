package alerter

import (
	"fmt"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// maxSaid is the length of a worker's message in its alert, in characters.
const maxSaid = 1500

// said finds what an agent has to say to whoever started it. It needs no memory.
func said(in input) []finding {
	if in.Event == nil {
		return nil
	}
	p, ok := in.Event.Payload.(*wire.CCMessage)
	if !ok {
		return nil
	}
	text := timeline.Line(p.Text, maxSaid)
	f := finding{
		Kind: kindMessage, Severity: wire.SeverityInfo, NodeID: in.Event.Node(), ExecID: in.Event.ExecID, Armed: in.Pos,
		Text:  fmt.Sprintf(textMessage, quoted(text)),
		Event: "cc_message", Data: map[string]any{"text": text, "priority": string(p.Priority)},
	}
	switch p.Priority {
	case wire.PriorityQuestion:
		f.Severity = wire.SeverityWarning
	case wire.PriorityBlocker:
		f.Severity = wire.SeverityError
	case wire.PriorityInfo:
	}
	return []finding{f}
}
