package archive

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"code.wake.dev/wake/pkg/wire"
)

// Inline puts the blobs back that can be found. A missing one never fails: it is
// shown as missing.
func Inline(e *wire.Event, data []byte, fetch func(sha256 string) ([]byte, error)) (*wire.Event, error) {
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

// Blob returns the content of a blob, or [fs.ErrNotExist].
func (t *Tx) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	var data []byte
	err := t.Row(ctx, `SELECT data FROM blobs WHERE sha256 = ?1 AND data IS NOT NULL`, sha256).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fs.ErrNotExist
	}
	return data, err
}

// MissingNote says that a large field is missing.
func MissingNote(b wire.Blob) string {
	return fmt.Sprintf("[%s is missing: %d bytes, sha256 %s]", b.Field, b.Size, b.SHA256)
}

// showMissing returns a copy of e with a note in place of the missing text.
func showMissing(e *wire.Event) *wire.Event {
	c := *e
	b := e.Blobs[0]
	note := MissingNote(b)
	switch p := e.Payload.(type) {
	case *wire.AgentText:
		t := *p
		t.Content = cmp.Or(t.Content, note)
		c.Payload = &t
	case *wire.AgentThinking:
		t := *p
		t.Content = cmp.Or(t.Content, note)
		c.Payload = &t
	case *wire.UserMessage:
		t := *p
		t.Content = cmp.Or(t.Content, note)
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
