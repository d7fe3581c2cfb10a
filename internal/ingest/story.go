package ingest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

// story makes events of what a program has recorded of its session.
type story struct {
	program string // such as gemini
	kept    bool   // it is of a file that tells when what it tells came
	blocks  agent.Blocks

	session, model, cwd, version string

	at       int64
	line     int
	begun    bool
	inTurn   bool
	answered bool // in the turn the agent has done something
	turnAt   int64
	turn     int
	block    int
	text     strings.Builder // of the last message
	calls    map[string]*openCall
	called   int             // calls so far
	counted  map[string]bool // model calls whose tokens are told
	used     wire.TokenUsage
	cost     *float64
	told     bool // the program tells its tokens
	time     int64
	stop     string
	failed   *wire.AgentError
	out      []*wire.Event
}

// openCall is a call without a result.
type openCall struct {
	id     string
	number int
	name   string
	input  wire.Raw
	at     int64
}

// maxID bounds ids of sessions and calls, in bytes.
const maxID = 512

// newStory begins one of a format. first is the first time that a session file tells, Unix ms; 0: none.
func newStory(format Format, first int64, o Options) *story {
	s := &story{program: format.program(), kept: format.isSession(), blocks: o.Blocks, calls: map[string]*openCall{}, counted: map[string]bool{}}
	if s.kept {
		s.at = first
	}
	return s
}

// beginLine notes when a line came. A line that tells a time of its own says so with tellTime; one of a file that doesn't came with the one before.
func (s *story) beginLine(at int64) {
	s.line++
	if !s.kept || s.at == 0 {
		s.at = at
	}
}

// tellTime takes the time of a line, Unix ms; 0: it tells none.
func (s *story) tellTime(at int64) {
	if at = validTime(at); at > 0 {
		s.at = at
	}
}

// maxTime is the end of the year 9999, Unix ms.
const maxTime = 253402300799999

// validTime is a time that an input tells, or 0 where it can't be one.
func validTime(ms int64) int64 {
	if ms < 0 || ms > maxTime {
		return 0
	}
	return ms
}

func (s *story) emit(call string, p wire.Payload) {
	s.out = append(s.out, &wire.Event{Timestamp: s.at, SessionID: cmp.Or(s.session, unnamed), Turn: s.turn, CallID: call, Payload: p})
}

func (s *story) takeEvents() []*wire.Event {
	out := s.out
	s.out = nil
	return out
}

// beginSession tells of the agent, once.
func (s *story) beginSession() {
	if s.begun {
		return
	}
	s.begun = true
	s.emit("", &wire.AgentStart{Model: s.model, Prompt: wire.RawString(""), Provider: s.program, Cwd: s.cwd})
	s.emit("", &wire.AgentInit{Model: s.model, Cwd: s.cwd, Version: s.version, PermissionMode: "unknown"})
}

// unnamed stands for the session until its id is told.
const unnamed = "unnamed"

func (s *story) nameSession(id string) {
	if s.session != "" || id == "" || len(id) > maxID {
		return
	}
	s.session = strings.ToValidUTF8(id, "�")
	if s.begun {
		s.emit("", &wire.SessionBound{OldSession: unnamed, NewSession: s.session})
	}
}

// hear takes what the agent was told. What the program itself has told it is synthetic, and begins no turn.
func (s *story) hear(text string, synthetic bool) {
	s.beginSession()
	if synthetic {
		s.emit("", &wire.UserMessage{Content: text, Source: "synthetic"})
		return
	}
	if s.answered {
		s.endTurn("")
	}
	s.emit("", &wire.UserMessage{Content: text, Source: "replay"})
	s.openTurn()
}

// beginTurn notes that the agent does something, in a turn that begins with that unless it was told something.
func (s *story) beginTurn() {
	s.openTurn()
	s.answered = true
}

func (s *story) openTurn() {
	s.beginSession()
	if s.inTurn {
		return
	}
	s.inTurn, s.turnAt, s.failed, s.stop = true, s.at, nil, ""
	s.text.Reset()
	s.turn++
	s.emit("", &wire.TurnStart{Model: s.model})
}

// say takes a message of the agent, whole.
func (s *story) say(text string) {
	if s.beginTurn(); text == "" {
		return
	}
	s.block++
	s.text.Reset()
	s.text.WriteString(text)
	if s.blocks == agent.BlocksNever {
		s.emit("", &wire.AgentTextDelta{Content: text, Block: s.block})
		return
	}
	s.emit("", &wire.AgentText{Content: text, Block: s.block})
}

// sayPiece takes a piece of a message.
func (s *story) sayPiece(text string, follows bool) {
	if s.beginTurn(); text == "" {
		return
	}
	if !follows {
		s.block++
		s.text.Reset()
	}
	s.text.WriteString(text)
	s.emit("", &wire.AgentTextDelta{Content: text, Block: s.block})
}

func (s *story) think(text string) {
	if s.beginTurn(); text == "" {
		return
	}
	s.block++
	if s.blocks == agent.BlocksNever {
		s.emit("", &wire.AgentThinkingDelta{Content: text, Block: s.block})
		return
	}
	s.emit("", &wire.AgentThinking{Content: text, Block: s.block})
}

// call begins a tool call, unless it is known.
func (s *story) call(id, name string, input wire.Raw) {
	s.beginTurn()
	if s.calls[id] != nil || id == "" || len(id) > maxID {
		return
	}
	if len(input) == 0 {
		input = wire.Null
	}
	name = cmp.Or(name, "unknown")
	s.called++
	s.calls[id] = &openCall{id, s.called, name, input, s.at}
	sum := sha256.Sum256(input)
	s.emit(id, &wire.ToolIntent{ToolName: name, ToolInput: input, InputHash: hex.EncodeToString(sum[:])})
	s.emit(id, &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
}

// result ends a call. It reports whether there is such a call.
func (s *story) result(id string, output wire.Raw, failed string) bool {
	c := s.calls[id]
	if c == nil {
		return false
	}
	if len(output) == 0 {
		output = wire.Null
	}
	s.emit(id, &wire.AgentTool{ToolName: c.name, ToolInput: c.input, ToolOutput: output, DurationMs: new(max(0, s.at-c.at)), Error: failed})
	delete(s.calls, id)
	return true
}

func (s *story) closeCalls(why string) {
	for _, c := range slices.SortedFunc(maps.Values(s.calls), func(a, b *openCall) int { return cmp.Compare(a.number, b.number) }) {
		s.result(c.id, nil, why)
	}
	s.calls = map[string]*openCall{} // to look through an empty map costs what it once held
}

// count takes what a model call has used, once. input has no tokens of the cache.
func (s *story) count(id string, input, output, read, written int64, cost *float64) {
	if s.beginTurn(); id == "" || s.counted[id] {
		return
	}
	s.counted[id], s.told = true, true
	input, output, read, written = max(0, input), max(0, output), max(0, read), max(0, written)
	p := &wire.Usage{
		MessageID: id, Model: s.model, InputTokens: input, OutputTokens: output, CacheReadInputTokens: &read, CacheCreationInputTokens: &written,
		ContextTokens: input + read + written, CostUsd: cost,
	}
	u := &s.used
	u.InputTokens, u.OutputTokens = u.InputTokens+input, u.OutputTokens+output
	u.CacheReadInputTokens, u.CacheCreationInputTokens = new(wire.ValueOf(u.CacheReadInputTokens)+read), new(wire.ValueOf(u.CacheCreationInputTokens)+written)
	if cost != nil {
		if s.cost == nil {
			s.cost = new(0.0)
		}
		*s.cost += *cost
	}
	s.emit("", p)
}

// endTurn ends the turn well.
func (s *story) endTurn(stop string) {
	if !s.inTurn {
		return
	}
	s.closeCalls("the turn ended without the call's result")
	s.stop = cmp.Or(stop, "end_turn")
	s.closeTurn(&wire.TurnEnd{Subtype: "success", StopReason: s.stop, Result: s.text.String()})
}

func (s *story) failTurn(kind, message string) {
	s.beginTurn()
	s.closeCalls(wire.CallInterrupted)
	s.closeTurn(&wire.TurnEnd{Subtype: "error", IsError: true, Result: message})
	s.failed = &wire.AgentError{ErrorType: kind, Message: message, Severity: wire.SeverityError, Phase: "model"}
}

func (s *story) closeTurn(p *wire.TurnEnd) {
	p.NumTurns, p.DurationMs = 1, max(0, s.at-s.turnAt)
	s.time = min(s.time+p.DurationMs, maxTime)
	s.inTurn, s.answered = false, false
	s.emit("", p)
}

// warn tells of trouble that has passed.
func (s *story) warn(message string) {
	s.beginSession()
	s.emit("", &wire.AgentError{ErrorType: wire.ErrorExecution, Message: cmp.Or(message, "an error without a word"), Severity: wire.SeverityWarning, Phase: "model"})
}

// keep keeps a line, or a part of one, as it is.
func (s *story) keep(name string, data json.RawMessage, reason string) {
	s.beginSession()
	raw, err := wire.RawFromJSON(data)
	if err != nil {
		raw = wire.RawString(strings.ToValidUTF8(string(data), "�"))
		reason = cmp.Or(reason, err.Error())
	}
	p := &wire.RawMessage{Source: s.program, Name: name, Data: raw, Reason: strings.ToValidUTF8(reason, "�")}
	if reason != "" {
		p.Line = s.line
	}
	s.emit("", p)
}

// TooLong keeps the head of a line that is too long.
func (s *story) TooLong(at int64, line *claude.LineTooLongError) []*wire.Event {
	s.beginLine(at)
	s.beginSession()
	s.emit("", &wire.RawMessage{Source: s.program, Name: "malformed", Data: wire.RawString(strings.ToValidUTF8(string(line.Head), "�")), Reason: line.Error(), Line: s.line})
	return s.takeEvents()
}

// Finish ends the agent as its last turn has.
func (s *story) Finish(at int64) []*wire.Event {
	s.at = cmp.Or(s.at, at)
	s.beginSession()
	if s.inTurn {
		s.closeCalls(wire.CallInterrupted)
		s.failed = &wire.AgentError{
			ErrorType: wire.ErrorProcessDied, Message: fmt.Sprintf("what %s has recorded ends before its turn does", s.program), Severity: wire.SeverityError, Phase: "lifecycle",
		}
	}
	if s.failed != nil {
		s.emit("", s.failed)
		return s.takeEvents()
	}
	s.emit("", &wire.AgentComplete{
		Result: s.text.String(), Usage: s.used, UsageUnknown: !s.told, TotalCostUsd: s.cost, NumTurns: int64(s.turn), DurationMs: s.time, StopReason: s.stop,
	})
	return s.takeEvents()
}

// parseMillis is a time as programs write it, in Unix ms; 0: it is none.
func parseMillis(text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.IsZero() {
		return 0
	}
	return max(0, at.UnixMilli())
}

// textOf is a JSON value as the text that it is, or as JSON.
func textOf(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text
	}
	return strings.ToValidUTF8(string(v), "�")
}

// rawOf is a JSON value on the wire; one that is too deep is a text.
func rawOf(v json.RawMessage) wire.Raw {
	if len(v) == 0 {
		return nil
	}
	raw, err := wire.RawFromJSON(v)
	if err != nil {
		return wire.RawString(strings.ToValidUTF8(string(v), "�"))
	}
	return raw
}
