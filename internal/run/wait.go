package run

import "code.wake.dev/wake/pkg/wire"

// measureWaiting measures how long something of the run waits for a person: what waits at the same
// time counts once. Timestamps of several writers may go back; that counts for nothing.
func (f *fold) measureWaiting() {
	switch f.e.Payload.(type) {
	case *wire.PermissionRequired, *wire.ToolState, *wire.CCMessage, *wire.InputRequested, *wire.RunForked:
		if f.s.WaitsSince == 0 && Waits(f.s) {
			f.s.WaitsSince = f.e.Timestamp
		}
	}
	if f.s.WaitsSince == 0 {
		return
	}
	switch f.e.Payload.(type) {
	case *wire.PermissionDecided, *wire.ToolState, *wire.ToolSealed, *wire.AgentTool, *wire.UserMessage, *wire.InputReceived,
		*wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled, *wire.FlowComplete, *wire.FlowAborted:
		if !Waits(f.s) {
			f.s.WaitedMs += max(0, f.e.Timestamp-f.s.WaitsSince)
			f.s.WaitsSince = 0
		}
	}
}

// Waits reports whether something of a run that goes on waits for a person: a call for a
// decision, or an agent or an ask node for an answer.
func Waits(s *wire.State) bool {
	if s.Status != wire.RunRunning && s.Status != wire.RunPaused {
		return false
	}
	for _, c := range s.Tools {
		if c.State == wire.ToolApprovalRequired {
			return true
		}
	}
	for _, n := range s.Nodes {
		if n.Open() && (n.PromptID != "" || len(n.Asked) > 0) {
			return true
		}
	}
	return false
}

// firstChars returns at most so many characters of a text.
func firstChars(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i]
		}
	}
	return s
}
