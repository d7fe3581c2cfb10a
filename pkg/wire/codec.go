package wire

import (
	"fmt"
	"sync"
)

// visitors recycles encoding visitors with their buffers.
var visitors = sync.Pool{New: func() any { return new(fields) }}

// maxPooled bounds the buffers that are kept: one huge event must not stay in
// memory for ever.
const maxPooled = 1 << 20

// Encode returns the canonical encoding of e. It fails with a [*FieldError] if
// e violates its type.
func Encode(e *Event) ([]byte, error) {
	f := visitors.Get().(*fields)
	defer release(f)
	if err := f.encode(e); err != nil {
		return nil, err
	}
	out := make([]byte, len(f.buf))
	copy(out, f.buf)
	return out, nil
}

// Validate reports whether e can be encoded.
func Validate(e *Event) error {
	f := visitors.Get().(*fields)
	defer release(f)
	return f.encode(e)
}

func release(f *fields) {
	buf := f.buf[:0]
	if cap(buf) > maxPooled {
		buf = nil
	}
	*f = fields{buf: buf}
	visitors.Put(f)
}

func (f *fields) encode(e *Event) error {
	f.mode, f.event = encoding, e
	if e.Payload == nil || e.Payload.Type() == "" {
		return &FieldError{Field: "type", Problem: "is required"}
	}
	f.writeRecord("", e)
	return f.err
}

// fields visits the whole event, except for its version and type when decoding:
// those are known by then.
func (e *Event) fields(f *fields) {
	v, t := Version, string(e.Payload.Type())
	f.int("v", &v, required)
	f.str("type", &t, nonEmpty)
	e.envelope(f)
	e.Payload.fields(f)
	objects(f, "blobs", &e.Blobs, optional)
}

func (e *Event) unknown() *[]Field { return &e.Unknown }

// Decode reads an event. It fails with [ErrSyntax], [ErrTrailing] or
// [ErrVersion], or with a [*FieldError] if the event violates its type. The
// event doesn't share memory with b.
func Decode(b []byte) (*Event, error) {
	v, t, err := peek(b)
	if err != nil {
		return nil, err
	}
	if v > Version {
		return nil, fmt.Errorf("%w: %d; this program reads up to %d", ErrVersion, v, Version)
	}
	e := &Event{Payload: newPayload(t)}
	f := fields{mode: decoding, event: e, in: b}
	f.readRecord("", e)
	if f.err != nil {
		return nil, f.err
	}
	if len(f.in) > 0 {
		return nil, ErrTrailing
	}
	return e, nil
}

// peek finds the version and the type of an encoded event. They are its first
// fields unless somebody else encoded it.
func peek(b []byte) (v int64, t Type, err error) {
	n, rest, err := readMapHeader(b)
	if err != nil {
		return 0, "", fmt.Errorf("%w: not a map", ErrSyntax)
	}
	for range n {
		key, value, err := readString(rest)
		if err != nil {
			return 0, "", fmt.Errorf("%w: a key is not a string", ErrSyntax)
		}
		switch string(key) {
		case "v":
			if v, rest, err = readInt(value); err != nil || v < 1 {
				return 0, "", &FieldError{Type: t, Field: "v", Problem: "must be a positive integer"}
			}
		case "type":
			var s []byte
			if s, rest, err = readString(value); err != nil || len(s) == 0 {
				return 0, "", &FieldError{Field: "type", Problem: "must be a string, not empty"}
			}
			t = Type(s)
		default:
			if rest, err = skip(value); err != nil {
				return 0, "", err
			}
		}
		if v != 0 && t != "" {
			return v, t, nil
		}
	}
	if t == "" {
		return 0, "", &FieldError{Field: "type", Problem: "is required"}
	}
	return 0, "", &FieldError{Type: t, Field: "v", Problem: "is required"}
}
