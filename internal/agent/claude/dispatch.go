package claude

import (
	"bytes"

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
	n.dispatchLine(m, line)
	return n.releaseEvents()
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
