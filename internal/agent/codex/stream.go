package codex

import (
	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// Stream turns what `codex exec --json` has printed outside wake into events: of one program, or of several of a
// thread, one after the other. It is pure.
type Stream struct {
	f     *sessionFold
	begun bool
}

// NewStream returns one that has read nothing.
func NewStream(blocks agent.Blocks) *Stream {
	return &Stream{f: newFold(agent.Request{Options: agent.Options{Blocks: blocks, PermissionMode: modeUnknown}})}
}

// modeUnknown is the mode of an agent that wake hasn't started.
const modeUnknown = "unknown"

// Line takes a line.
func (s *Stream) Line(at int64, line []byte) []*wire.Event {
	s.f.at = at
	m, err := wire.RawFromJSON(line)
	if err == nil && m.TextAt("type") == threadStarted {
		if id := m.TextAt("thread_id"); len(id) <= maxID && s.f.thread == "" {
			s.f.session = id
		}
		s.f.beginProgram()
		s.f.failed = nil
		at = max(at, s.f.begun+1) // by which what it does is told apart from what others of the thread do
		s.f.at = at
	}
	s.beginAgent()
	s.f.takeLine(at, line)
	return s.f.takeEvents()
}

// TooLong takes a line that was too long to be read, of which the head is known.
func (s *Stream) TooLong(at int64, head []byte, reason string) []*wire.Event {
	s.f.at = at
	s.f.line++
	s.beginAgent()
	s.f.emitEvent("", &wire.RawMessage{Source: source, Name: "malformed", Data: wire.RawString(toValidUTF8(string(head))), Reason: reason, Line: s.f.line})
	return s.f.takeEvents()
}

// Finish ends the agent as its last program has.
func (s *Stream) Finish(at int64) []*wire.Event {
	s.f.at = at
	s.beginAgent()
	if s.f.ended && s.f.failed == nil {
		s.f.completeTurn(at)
	} else {
		s.f.fail(at, wire.ErrorProcessDied, "what Codex has printed ends before its turn does", nil)
	}
	return s.f.takeEvents()
}

func (s *Stream) beginAgent() {
	if !s.begun {
		s.begun = true
		s.f.emitEvent("", &wire.AgentStart{Prompt: wire.RawString(""), Provider: source})
	}
}
