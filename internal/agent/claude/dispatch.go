package claude

import (
	"bytes"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// Line returns the events of one line, which arrived at the given time (Unix ms). The events don't
// share memory with line. Lines of a transcript have their own time.
func (n *Normalizer) Line(at int64, line []byte) []*wire.Event {
	n.beginLine(at)
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	m, err := wire.RawFromJSON(line)
	if err != nil {
		n.emitMalformed(line, err.Error())
		return n.releaseEvents()
	}
	if len(line) > maxName && hasLongName(m) {
		n.emitMalformed(line, fmt.Sprintf("a name or an id in it has more than %d bytes", maxName))
		return n.releaseEvents()
	}
	n.dispatchLine(m, line)
	return n.releaseEvents()
}

// maxName bounds names and ids, in bytes. They stand in events as they are, and what is too large for one is never stored.
const maxName = 4096

// hasLongName reports whether a name or an id of a line is longer than [maxName]. What tools are given, and give, may be long.
func hasLongName(m wire.Raw) bool {
	long := func(m wire.Raw, names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return len(m.TextAt(name)) > maxName })
	}
	message, event, request := m.Get("message"), m.Get("event"), m.Get("request")
	return long(m, "type", "subtype", "uuid", "session_id", "sessionId", "parent_tool_use_id", "parentUuid", "agentId", "request_id", "tool_use_id", "hook_event", "hook_name", "model") ||
		long(message, "id", "model", "role", "stop_reason") ||
		slices.ContainsFunc(message.Get("content").Items(), func(b wire.Raw) bool { return long(b, "type", "id", "name", "tool_use_id") }) ||
		long(event, "type") || long(event.Get("message"), "id", "model") || long(event.Get("content_block"), "type", "id", "name") ||
		long(request, "subtype", "tool_use_id", "tool_name", "agent_id") || long(request.Get("input"), "agent_id", "tool_use_id", "tool_name", "hook_event_name")
}

// TooLong returns the event of a line that was too long to be read.
func (n *Normalizer) TooLong(at int64, e *LineTooLongError) []*wire.Event {
	n.beginLine(at)
	n.emitMalformed(e.Head, e.Error())
	return n.releaseEvents()
}

func (n *Normalizer) beginLine(at int64) {
	n.forgetPast()
	n.line++
	n.out = nil
	if n.opt.Format == Stream {
		n.setTime(at)
	}
}

func (n *Normalizer) dispatchLine(m wire.Raw, line []byte) {
	typ := m.TextAt("type")
	if n.opt.Format == Transcript {
		if t := parseMillis(m.TextAt("timestamp")); t != 0 {
			n.setTime(t)
		}
	}
	n.flushTokens(typ, m)
	uuid := m.TextAt("uuid")
	if uuid == "" || typ == "stream_event" {
		if !n.readKnownLine(typ, m) {
			n.emitRaw(m, "")
		}
		return
	}
	hash := digestOf(line)
	switch before, again := n.seen[uuid]; {
	case again && before.Hash == hash:
	case again && before.Known:
		n.emitRaw(m, "the uuid occurs twice")
	case n.readKnownLine(typ, m):
		n.seen[uuid] = lineSighting{Line: n.line, Hash: hash, Known: true}
	default:
		n.seen[uuid] = lineSighting{Line: n.line, Hash: hash}
		n.emitRaw(m, "")
	}
}

// readKnownLine handles the lines that have events of their own. It reports false for
// a line that is to be passed on.
func (n *Normalizer) readKnownLine(typ string, m wire.Raw) bool {
	switch typ {
	case "stream_event":
		return n.streamEvent(m)
	case "assistant":
		return n.readAssistant(m)
	case "user":
		return n.readUser(m)
	case "system":
		return n.readSystem(m)
	case "result":
		return n.readResult(m)
	case "control_request":
		return n.controlRequest(m)
	case "attachment":
		return n.readAttachment(m)
	case "cost-state":
		n.costState(m)
	case "rate_limit_event":
		n.noteLimit(m)
	}
	return false
}
