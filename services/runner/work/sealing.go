package work

import (
	"cmp"
	"slices"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// sealing collects the events that close open calls.
type sealing struct {
	policy  string
	begun   bool // calls may have begun although nothing says so
	note    string
	session string
	past    *run.Past
	events  []*wire.Event
}

func (s *sealing) addEvent(c wire.ToolCall, p wire.Payload) {
	s.events = append(s.events, &wire.Event{CallID: c.CallID, Parent: c.Parent, SessionID: s.session, Payload: p})
}

// sealCall closes a call; decided tells of the decision about it since it was interrupted, if there is one.
func (s *sealing) sealCall(c wire.ToolCall, decided string) {
	p := run.Seal(c, s.policy, s.begun || slices.Contains(s.past.Unseen, c.CallID))
	p.Message += decided + s.note
	s.addEvent(c, p)
	s.closeCall(c, run.SealResult(c, p))
	s.past.Sealed = append(s.past.Sealed, c.CallID)
}

func (s *sealing) closeCall(c wire.ToolCall, result *wire.AgentTool) {
	s.addEvent(c, result)
	s.past.Close(c.CallID, result)
}

// decideCall records the decision on a call that came when its agent was gone. A
// denied call has come to its end by that; of one that isn't waiting any more the
// decision is only noted.
func (s *sealing) decideCall(c wire.ToolCall, cmd wire.Command) {
	p := &wire.PermissionDecided{Decision: wire.DecisionAllow, By: decidedBy(cmd), Note: cmd.Note, UpdatedInput: cmd.UpdatedInput}
	if cmd.Type == "deny" {
		p.Decision, p.UpdatedInput = wire.DecisionDeny, nil
	}
	waits := c.State == wire.ToolApprovalRequired || c.State == wire.ToolPending && !s.begun
	switch {
	case !waits:
		s.sealCall(c, laterDecision(p))
		p.Note = cmp.Or(p.Note, "the call had been interrupted before")
		s.addEvent(c, p)
	case p.Decision == wire.DecisionDeny:
		s.addEvent(c, p)
		s.closeCall(c, run.DeniedResult(c, p))
	case c.Tool == ask.Tool && ask.Answered(p.UpdatedInput):
		s.addEvent(c, p)
		result := &wire.AgentTool{ToolName: c.Tool, ToolInput: p.UpdatedInput, ToolOutput: wire.RawString(ask.Result(p.UpdatedInput))}
		s.addEvent(c, result)
		s.past.Answer(result)
	default:
		s.addEvent(c, p)
		c.State = wire.ToolApproved
		s.sealCall(c, "")
	}
}

// laterDecision tells of a decision that came when the call had been interrupted.
func laterDecision(p *wire.PermissionDecided) string {
	text := " It was approved since: it may be made again."
	if p.Decision == wire.DecisionDeny {
		text = " It was denied since: don't make it again."
	}
	if p.Note != "" {
		text += " Said to that: " + p.Note
	}
	return text
}

// rollBack takes the agent's session back to its last safe point; without one
// the seals say so.
func (s *sealing) rollBack(n nodeEntry) {
	if n.Point == "" {
		s.note = " The session could not be taken back: it has no safe point."
		return
	}
	s.events = append(s.events, &wire.Event{
		SessionID: s.session, Payload: &wire.LogTruncated{AtSeq: s.past.PointSeq, Reason: run.SealRollback},
	})
	s.past.RollBack(s.past.PointSeq)
}
