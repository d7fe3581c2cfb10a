package eventlog

import (
	"context"
	"errors"
	"fmt"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// sealedForm returns the stored form of an encoded event and its blobs, encrypted if
// the log has keys. Large fields leave the event before it is sealed: opening it
// needs no blob.
func (l *Log) sealedForm(data []byte) (stored []byte, blobs map[string][]byte, err error) {
	small, blobs, err := l.StoredForm(data)
	if err != nil {
		return nil, nil, err
	}
	return l.sealEvent(small, blobs)
}

// sealEvent encrypts an event and its blobs, if the log has keys.
func (l *Log) sealEvent(data []byte, blobs map[string][]byte) ([]byte, map[string][]byte, error) {
	if l.o.Keys == nil {
		return data, blobs, nil
	}
	boxes := make(map[string][]byte, len(blobs))
	for sum, content := range blobs {
		var err error
		if boxes[sum], err = l.o.Keys.Blob(sum, content); err != nil {
			return nil, nil, err
		}
	}
	stored, err := l.o.Keys.Event(data)
	return stored, boxes, err
}

// StoredForm returns an encoded event as this log would store it if it had no keys: as
// it is, or with its largest fields moved to the object store. The same event always
// has the same form.
func (l *Log) StoredForm(data []byte) (small []byte, blobs map[string][]byte, err error) {
	if len(data) <= l.inlineLimit() {
		return data, nil, nil
	}
	return wire.Externalize(data, l.inlineLimit())
}

// headroom is what a message may need beyond its event: headers and subject.
const headroom = 4 << 10

// inlineLimit is the size of an event above which it gives fields to the object store.
func (l *Log) inlineLimit() int {
	limit := min(l.o.BlobLimit, int(l.nc.MaxPayload())-headroom)
	if l.maxMsgSize > 0 {
		limit = min(limit, l.maxMsgSize-headroom)
	}
	if l.o.Keys != nil {
		limit = limit/4*3 - headroom // a box is base64
	}
	return limit
}

// Blob returns the content of a blob by its SHA-256, or [ErrBlobMissing].
func (l *Log) Blob(ctx context.Context, sha256 string) ([]byte, error) {
	data, err := l.StoredBlob(ctx, sha256)
	if err == nil {
		data, err = l.o.Keys.OpenBlob(sha256, data)
	}
	if errors.Is(err, seal.ErrForged) {
		err = fmt.Errorf("%w: %w", ErrBlobMissing, err)
	}
	if err != nil {
		return nil, fmt.Errorf("eventlog: blob %s: %w", sha256, err)
	}
	return data, nil
}

// StoredBlob is [Log.Blob] as it is stored: sealed, if the log has keys.
func (l *Log) StoredBlob(ctx context.Context, sha256 string) ([]byte, error) {
	return l.blobs.getBlob(ctx, sha256)
}

// Inline returns the event with its blobs put back, or as it is if it has none.
func (l *Log) Inline(ctx context.Context, e *wire.Event) (*wire.Event, error) {
	return Inline(ctx, l, e)
}

// Inline is [Log.Inline] of any reader.
func Inline(ctx context.Context, from Reader, e *wire.Event) (*wire.Event, error) {
	if len(e.Blobs) == 0 {
		return e, nil
	}
	data, err := wire.Encode(e)
	if err != nil {
		return nil, fmt.Errorf("eventlog: inline: %w", err)
	}
	data, err = wire.Inline(data, func(sum string) ([]byte, error) { return from.Blob(ctx, sum) })
	if err != nil {
		return nil, fmt.Errorf("eventlog: inline: %w", err)
	}
	whole, err := wire.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("eventlog: inline: %w", err)
	}
	return whole, nil
}
