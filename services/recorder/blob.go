package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// fields copies the large fields of an event into the file: the object store may
// forget them, the record doesn't.
func (w *writer) fields(run *runRow, e *wire.Event) error {
	for _, b := range e.Blobs {
		data, ok := w.batch.Blobs[b.SHA256]
		var value any
		if ok {
			value = data
		}
		if err := w.exec(addBlob, b.SHA256, b.Size, value); err != nil {
			return err
		}
		if err := w.exec(addUse, b.SHA256, run.id); err != nil {
			return err
		}
	}
	return nil
}

// inline returns the entry's event with its large fields.
func (w *writer) inline(e *eventlog.Entry) (*wire.Event, error) {
	return inline(e.Event, e.Data, func(sha string) ([]byte, error) { return findBlob(w.ctx, w.tx, sha) })
}

// inline puts the blobs back that can be found. A missing one never fails: it is
// shown as missing.
func inline(e *wire.Event, data []byte, fetch func(sha256 string) ([]byte, error)) (*wire.Event, error) {
	if len(e.Blobs) == 0 {
		return e, nil
	}
	whole, err := wire.Inline(data, fetch)
	if errors.Is(err, fs.ErrNotExist) {
		return showMissing(e), nil
	}
	if err != nil {
		return nil, err
	}
	return wire.Decode(whole)
}

// findBlob returns the content of a blob, or [fs.ErrNotExist].
func findBlob(ctx context.Context, t *tx, sha256 string) ([]byte, error) {
	var data []byte
	err := t.row(ctx, `SELECT data FROM blobs WHERE sha256 = ?1 AND data IS NOT NULL`, sha256).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fs.ErrNotExist
	}
	return data, err
}

func missingNote(b wire.Blob) string {
	return fmt.Sprintf("[%s is missing: %d bytes, sha256 %s]", b.Field, b.Size, b.SHA256)
}

// showMissing returns a copy of e whose missing text says so.
func showMissing(e *wire.Event) *wire.Event {
	c := *e
	b := e.Blobs[0]
	note := missingNote(b)
	switch p := e.Payload.(type) {
	case *wire.AgentText:
		t := *p
		t.Content = orElse(t.Content, note)
		c.Payload = &t
	case *wire.AgentThinking:
		t := *p
		t.Content = orElse(t.Content, note)
		c.Payload = &t
	case *wire.UserMessage:
		t := *p
		t.Content = orElse(t.Content, note)
		c.Payload = &t
	case *wire.AgentStart:
		if len(p.Prompt) == 0 {
			t := *p
			t.Prompt = wire.RawString(note)
			c.Payload = &t
		}
	}
	return &c
}
