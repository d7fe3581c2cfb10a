package wire

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"unicode/utf8"
	"unsafe"
)

var (
	// writers recycles writers with their buffers, readers the ids that they share.
	writers = sync.Pool{New: func() any { return &writer{packer: newPacker()} }}
	readers = sync.Pool{New: func() any { return new(reader) }}
)

// Encode returns the canonical encoding of e. It fails with a [*FieldError] if
// e violates its type.
func Encode(e *Event) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.returnToPool()
	if err := w.writeEvent(e); err != nil {
		return nil, err
	}
	return bytes.Clone(w.buf), nil
}

func (w *writer) returnToPool() {
	w.empty()
	w.fault = fault{path: w.path[:0]}
	writers.Put(w)
}

func (w *writer) writeEvent(e *Event) error {
	if e.Payload == nil || e.Payload.Type() == "" {
		return &FieldError{Field: "type", Problem: "is required"}
	}
	known := lookUpType(e.Type())
	payload := reflect.ValueOf(e.Payload)
	if payload.Type() != known.pointer {
		return &FieldError{Type: e.Type(), Field: "type", Problem: fmt.Sprintf("has the payload %s, not %s", known.pointer, payload.Type())}
	}
	w.event, w.count = e, inHeader
	start := w.leaveRoom()
	all := envelope()
	w.buf = append(w.buf, all.fields[0].key...)
	w.putUint(Version)
	w.buf = append(w.buf, all.fields[1].key...)
	w.writeText("type", string(e.Type()))
	blobs := len(all.fields) - 1
	w.writeFields(all.fields[inHeader:blobs], unsafe.Pointer(e), e.Blobs)
	w.requireID(known.requires)
	w.writeFields(known.shape.fields, payload.UnsafePointer(), e.Blobs)
	if len(e.Blobs) > 0 {
		w.writeFields(all.fields[blobs:], unsafe.Pointer(e), e.Blobs)
		w.checkBlobs()
	}
	if len(e.Unknown) > 0 {
		w.writeUnknown(e.Unknown, all, known.shape)
	}
	w.endMap(start)
	return w.err
}

// requireID refuses an event that lacks an id which is optional in the envelope, but which its type requires.
func (e *fault) requireID(name string) {
	if name == "sessionId" && e.event.SessionID == "" || name == "callId" && e.event.CallID == "" {
		e.failField(name, "is required")
	}
}

// checkBlobs refuses references to what can't have been moved.
func (e *fault) checkBlobs() {
	for i, b := range e.event.Blobs {
		switch {
		case !isHash(b.SHA256):
			e.failField("blobs.sha256", "must be 64 hexadecimal digits, lower-case")
		case b.Size < 0:
			e.failField("blobs.size", "must not be negative")
		case envelope().findField(b.Field) >= 0:
			e.failField("blobs.field", "must be a field of the payload")
		case isMoved(e.event.Blobs[:i], b.Field):
			e.failField("blobs.field", "occurs twice")
		case slices.ContainsFunc(e.event.Unknown, func(f Field) bool { return f.Name == b.Field }):
			e.failField(b.Field, moved)
		}
	}
}

// Decode reads an event. It fails with [ErrSyntax], [ErrTrailing] or
// [ErrVersion], or with a [*FieldError] if the event violates its type. The
// event doesn't share memory with b.
func Decode(b []byte) (*Event, error) {
	v, t, err := peekType(b)
	if err != nil {
		return nil, err
	}
	if v > Version {
		return nil, fmt.Errorf("%w: %d; this program reads up to %d", ErrVersion, v, Version)
	}
	known := lookUpType(t)
	e := &Event{Payload: known.newPayload(t)}
	r := readers.Get().(*reader)
	defer r.returnToPool()
	rest, err := r.readEvent(e, known, b)
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, ErrTrailing
	}
	return e, nil
}

func (r *reader) returnToPool() {
	r.fault = fault{path: r.path[:0]}
	readers.Put(r)
}

func (r *reader) readEvent(e *Event, known *knownType, in []byte) (rest []byte, err error) {
	r.event = e
	n, in, err := readMapHeader(in)
	if err != nil {
		return nil, err
	}
	parts := [...]part{
		{shape: envelope(), at: unsafe.Pointer(e)},
		{shape: known.shape, at: reflect.ValueOf(e.Payload).UnsafePointer()},
	}
	if rest = r.readMap(in, n, parts[:]); r.err != nil {
		return nil, r.err
	}
	r.checkPresence(&parts[0], e.Blobs)
	r.requireID(known.requires)
	r.checkPresence(&parts[1], e.Blobs)
	r.checkBlobs()
	return rest, r.err
}

// peekType finds the version and the type of an encoded event. They are its first
// fields unless another program encoded it. The type is a part of b.
func peekType(b []byte) (v uint64, t []byte, err error) {
	n, rest, err := readMapHeader(b)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: not a map", ErrSyntax)
	}
	for range n {
		key, value, err := readString(rest)
		if err != nil {
			return 0, nil, errKey
		}
		switch string(key) {
		case "v":
			if v, rest, err = readUint(value); err != nil || v == 0 {
				return 0, nil, &FieldError{Field: "v", Problem: "must be a positive integer"}
			}
		case "type":
			if t, rest, err = readString(value); err != nil || len(t) == 0 || !utf8.Valid(t) {
				return 0, nil, &FieldError{Field: "type", Problem: "must be a string, valid UTF-8 and not empty"}
			}
		default:
			if rest, err = skipValue(value); err != nil {
				return 0, nil, err
			}
		}
		if v != 0 && t != nil {
			return v, t, nil
		}
	}
	if t == nil {
		return 0, nil, &FieldError{Field: "type", Problem: "is required"}
	}
	return 0, nil, &FieldError{Type: Type(t), Field: "v", Problem: "is required"}
}

func isHash(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 2*sha256.Size
}
