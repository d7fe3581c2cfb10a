package alerter

import (
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// messages finds what an agent has to say to its parent: its messages, and calls of
// the tool for messages that left none in the log, since another server served them.
type messages struct {
	Calls map[string]bool `json:"calls,omitempty"` // open, by node and id; true: the message was told
}

// notifyTool is the tool for messages, also behind the name of a server.
const notifyTool = "notify_parent"

// maxSaid is the length of a worker's message in its alert, in characters.
const maxSaid = 1500

// detect is a [detector].
func (s messages) detect(in input) (messages, []finding) {
	e := in.Event
	call := e.Node() + "\n" + e.CallID
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		if strings.HasSuffix(p.ToolName, notifyTool) {
			s.Calls = withCall(s.Calls, call, false)
		}
	case *wire.CCMessage:
		for _, open := range sortedKeys(s.Calls) {
			if open == call || e.CallID == "" && strings.HasPrefix(open, call) {
				s.Calls = withKey(s.Calls, open, true)
			}
		}
		return s, []finding{messageFinding(in, p)}
	case *wire.AgentTool:
		told, open := s.Calls[call]
		s.Calls = withoutKey(s.Calls, call)
		text := p.ToolInput.TextAt("message")
		if open && !told && p.Error == "" && !p.Denied && text != "" {
			priority := wire.Priority(p.ToolInput.TextAt("priority"))
			return s, []finding{messageFinding(in, &wire.CCMessage{Text: text, Priority: priority})}
		}
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Calls = withoutNode(s.Calls, e.Node())
	}
	return s, nil
}

func messageFinding(in input, p *wire.CCMessage) finding {
	text := timeline.Line(p.Text, maxSaid)
	f := in.finding(kindMessage, wire.SeverityInfo, fmt.Sprintf(textMessage, quoteText(text)), map[string]any{"text": text, "priority": string(wire.PriorityInfo)})
	if p.Priority != wire.PriorityInfo && in.Event.CallID != "" {
		f.Data["callId"] = nameLine(in.Event.CallID) // by which it is answered
	}
	switch p.Priority {
	case wire.PriorityQuestion:
		f.Severity, f.Data["priority"] = wire.SeverityWarning, string(p.Priority)
	case wire.PriorityBlocker:
		f.Severity, f.Data["priority"] = wire.SeverityError, string(p.Priority)
	case wire.PriorityInfo:
	}
	return f
}
