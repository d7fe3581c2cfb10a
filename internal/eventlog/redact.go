package eventlog

import (
	"context"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// textKey names a text that comes in pieces: what one agent or command says, of one
// kind.
type textKey struct {
	exec, agent, parent, call string
	kind                      wire.Type
	stream                    string // of a command
	block                     int
}

// heldText is the end of a text that may be the beginning of a secret: it waits for
// the next piece.
type heldText struct {
	of   textKey
	text string
	last *wire.Event // the last piece, as it was stored
}

// textPiece returns the text of a piece and what it is a piece of; nil for an event
// that isn't a piece.
func textPiece(e *wire.Event) (*string, textKey) {
	of := textKey{exec: e.ExecID, agent: e.AgentID, parent: e.Parent, call: e.CallID, kind: e.Type()}
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

// encodeRedacted returns what is stored of an event, encoded. A piece of a text begins
// with what was held of it, and its own end may be held; the caller holds turn.
func (w *Writer) encodeRedacted(e *wire.Event) ([]byte, error) {
	secrets := w.log.o.Redact
	if secrets == nil {
		return wire.Encode(e)
	}
	text, of := textPiece(e)
	if text == nil {
		data, err := wire.Encode(e)
		if err != nil {
			return nil, err
		}
		return secrets.Event(e, data)
	}
	return wire.Encode(w.cutSecrets(e, *text, of))
}

// cutSecrets returns what is stored of a piece of a text, and holds the end of it that may be the
// beginning of a secret. The caller holds turn, and puts back what was held if the
// piece isn't stored after all.
func (w *Writer) cutSecrets(e *wire.Event, text string, of textKey) *wire.Event {
	secrets, whole := w.log.o.Redact, text
	if at := slices.IndexFunc(w.held, func(h heldText) bool { return h.of == of }); at >= 0 {
		whole = w.held[at].text + whole
		w.held = slices.Delete(slices.Clone(w.held), at, at+1)
	}
	end := wordStart(whole, len(whole)-secrets.Held(whole))
	clean, n := secrets.Text(whole[:end])
	stored := e
	if n > 0 || clean != text {
		stored = withText(e, clean)
		stored.Redactions += n
	}
	if end < len(whole) {
		w.held = append(slices.Clip(w.held), heldText{of: of, text: whole[end:], last: stored})
	}
	return stored
}

// maxWord bounds how much more of a text is held so that no word is cut, in bytes.
const maxWord = 64

// wordStart returns where the word begins in which a text is to be cut.
func wordStart(text string, cut int) int {
	if cut == len(text) {
		return cut
	}
	from := max(0, cut-maxWord)
	if at := strings.LastIndexAny(text[from:cut], " \t\n"); at >= 0 {
		return from + at + 1
	}
	if from == 0 {
		return 0
	}
	return cut
}

// Prime takes an event that the log has already, and stores nothing: a program's journal
// that is read again yields it once more, and a text that goes on in the next event may have
// a secret that begins in this one. Events must come in the order of the log. whole says
// that the log has all of the piece: what was held of it is an event of its own there, in the same place of the
// journal.
func (w *Writer) Prime(ctx context.Context, e *wire.Event, whole bool) error {
	text, of := textPiece(e)
	if text == nil || w.log.o.Redact == nil {
		return nil
	}
	if err := w.lock(ctx); err != nil {
		return w.writeError("prime", err)
	}
	defer w.unlock()
	w.cutSecrets(e, *text, of)
	if whole {
		w.held = slices.DeleteFunc(slices.Clone(w.held), func(h heldText) bool { return h.of == of })
	}
	return nil
}

// restEvents returns what is held of texts as pieces of their own: no more is to come, or other
// events follow. In a journal they have the place of the piece that they end.
func (w *Writer) restEvents(held []heldText) []*wire.Event {
	var events []*wire.Event
	for _, h := range held {
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

// storeRest queues what is held of texts that are over when these events follow, all if there are none. The caller holds turn.
func (w *Writer) storeRest(ctx context.Context, events ...*wire.Event) error {
	return w.storeTexts(ctx, func(h heldText) bool { return len(events) == 0 || h.isOver(events) })
}

// storeTexts queues what is held of texts that are over. The caller holds turn.
func (w *Writer) storeTexts(ctx context.Context, isOver func(heldText) bool) error {
	before := w.held
	var over []heldText
	for _, h := range before {
		if isOver(h) {
			over = append(over, h)
		}
	}
	if len(over) == 0 {
		return nil
	}
	unit, err := w.encodeFrames(w.restEvents(over), true)
	if err == nil {
		_, err = w.lane.queueUnit(ctx, unit, false, w.writerState)
	}
	if err != nil {
		return err
	}
	w.held = slices.DeleteFunc(slices.Clone(before), func(h heldText) bool { return slices.Contains(over, h) })
	w.next += uint64(len(unit))
	return nil
}

// isOver reports whether nothing more is to come of a text before the last of these events: one isn't a piece, or is one of a later
// block of the same agent. Streams of a command go on side by side.
func (h heldText) isOver(events []*wire.Event) bool {
	over := false
	for _, e := range events {
		_, of := textPiece(e)
		if of == h.of {
			return false
		}
		later := h.of.block > 0 && of.block > h.of.block && of.exec == h.of.exec && of.agent == h.of.agent && of.parent == h.of.parent
		over = over || later || e.Type().Kind() != wire.KindDelta
	}
	return over
}

// Secrets returns where in a payload there is what Options.Redact takes out.
func (l *Log) Secrets(p wire.Payload) ([]string, error) { return l.o.Redact.Where(p) }

// Redacted returns a text without the secrets of Options.Redact, for what is stored
// beside events.
func (l *Log) Redacted(text string) string {
	clean, _ := l.o.Redact.Text(text)
	return clean
}
