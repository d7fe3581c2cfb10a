package eventlog

import (
	"context"
	"slices"

	"wake/pkg/wire"
)

// piece names a text that comes in pieces: what one agent or command says, of one
// kind.
type piece struct {
	exec, agent, parent, call string
	kind                      wire.Type
	stream                    string // of a command
	block                     int
}

// held is the end of a text that may be the beginning of a secret: it waits for
// the next piece.
type held struct {
	of   piece
	text string
	last *wire.Event // the last piece, as it was stored
}

// content returns the text of a piece and what it is a piece of; nil for an event
// that isn't one.
func content(e *wire.Event) (*string, piece) {
	of := piece{exec: e.ExecID, agent: e.AgentID, parent: e.Parent, call: e.CallID, kind: e.Type()}
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		of.block = p.Block
		return &p.Content, of
	case *wire.AgentThinkingDelta:
		of.block = p.Block
		return &p.Content, of
	case *wire.ExecOutput:
		of.stream = p.Stream
		return &p.Content, of
	}
	return nil, of
}

// withText returns a copy of a piece with another text.
func withText(e *wire.Event, text string) *wire.Event {
	c := *e
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		q := *p
		q.Content, c.Payload = text, &q
	case *wire.AgentThinkingDelta:
		q := *p
		q.Content, c.Payload = text, &q
	case *wire.ExecOutput:
		q := *p
		q.Content, c.Payload = text, &q
	}
	return &c
}

// redacted returns what is stored of an event, encoded. A piece of a text begins
// with what was held of it, and its own end may be held; the caller holds turn.
func (w *Writer) redacted(e *wire.Event) ([]byte, error) {
	secrets := w.log.o.Redact
	if secrets == nil {
		return wire.Encode(e)
	}
	text, of := content(e)
	if text == nil {
		data, err := wire.Encode(e)
		if err != nil {
			return nil, err
		}
		return secrets.Event(e, data)
	}
	whole := *text
	at := slices.IndexFunc(w.held, func(h held) bool { return h.of == of })
	if at >= 0 {
		whole = w.held[at].text + whole
		w.held = slices.Delete(slices.Clone(w.held), at, at+1)
	}
	cut := len(whole) - secrets.Held(whole)
	clean, n := secrets.Text(whole[:cut])
	stored := e
	if n > 0 || clean != *text {
		stored = withText(e, clean)
		stored.Redactions += n
	}
	data, err := wire.Encode(stored)
	if err == nil && cut < len(whole) {
		w.held = append(slices.Clip(w.held), held{of: of, text: whole[cut:], last: stored})
	}
	return data, err
}

// rest returns what is held as pieces of their own: no more is to come, or other
// events follow. The caller holds turn.
func (w *Writer) rest() []*wire.Event {
	var events []*wire.Event
	for _, h := range w.held {
		clean, n := w.log.o.Redact.Text(h.text)
		e := withText(h.last, clean)
		e.Redactions = n
		if p, ok := e.Payload.(*wire.AgentThinkingDelta); ok {
			p.TokenCount = nil
		}
		events = append(events, e)
	}
	return events
}

// storeRest queues what is held. The caller holds turn.
func (w *Writer) storeRest(ctx context.Context) error {
	events := w.rest()
	if len(events) == 0 {
		return nil
	}
	before := w.held
	w.held = nil
	unit, err := w.frames(events, true)
	if err == nil {
		_, err = w.lane.put(ctx, unit, false, w.fenced)
	}
	if err != nil {
		w.held = before
		return err
	}
	w.next += uint64(len(unit))
	return nil
}

// Secrets returns where in a payload there is what Options.Redact takes out.
func (l *Log) Secrets(p wire.Payload) ([]string, error) { return l.o.Redact.Where(p) }

// Redacted returns a text without the secrets of Options.Redact, for what is stored
// beside events.
func (l *Log) Redacted(text string) string {
	clean, _ := l.o.Redact.Text(text)
	return clean
}
