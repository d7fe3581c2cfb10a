package alerter

import (
	"fmt"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// denials finds calls that a rule refused: the agent may not be able to go on.
// What a human refused is known to one. A tool that is refused again and again is
// told once, and again after it was allowed.
type denials struct {
	Human map[string]bool `json:"human,omitempty"` // calls that a human decided on, by node and call
	Told  map[string]bool `json:"told,omitempty"`  // tools, by agent and name
}

// detect is a [detector].
func (s denials) detect(in input) (denials, []finding) {
	e := in.Event
	call := e.Node() + "\n" + e.CallID
	switch p := e.Payload.(type) {
	case *wire.PermissionRequired: // a human is asked and decides
		s.Human = withCall(s.Human, call, true)
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Human, s.Told = withoutNode(s.Human, e.Node()), withoutNode(s.Told, e.Node())
	case *wire.AgentTool:
		human := s.Human[call] || isRejection(p.Error) || p.Error == wire.CallNotExecuted
		s.Human = withoutKey(s.Human, call)
		key := agentOf(e) + "\n" + nameLine(p.ToolName)
		switch {
		case !p.Denied && p.Error == "":
			s.Told = withoutKey(s.Told, key)
		case p.Denied && !human && !s.Told[key]:
			s.Told = withKey(s.Told, key, true)
			tool := nameLine(p.ToolName)
			data := map[string]any{"toolName": tool, "message": timeline.Line(p.Error, maxError)}
			return s, []finding{in.finding(kindBlocked, wire.SeverityError, fmt.Sprintf(textBlocked, tool), data)}
		}
	}
	return s, nil
}
