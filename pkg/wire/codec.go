package wire

import (
	"fmt"
	"reflect"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// visitors recycles visitors with their buffers.
var visitors = sync.Pool{New: func() any { return &fields{packer: newPacker()} }} //nolint:gochecknoglobals // a pool

// Encode returns the canonical encoding of e. It fails with a [*FieldError] if
// e violates its type.
func Encode(e *Event) ([]byte, error) {
	f := visitors.Get().(*fields)
	defer f.returnToPool()
	if err := f.encodeEvent(e); err != nil {
		return nil, err
	}
	out := make([]byte, len(f.buf))
	copy(out, f.buf)
	return out, nil
}

// Validate reports whether e can be encoded.
func Validate(e *Event) error {
	f := visitors.Get().(*fields)
	defer f.returnToPool()
	return f.encodeEvent(e)
}

func (f *fields) returnToPool() {
	f.empty()
	*f = fields{packer: f.packer, path: f.path[:0], ids: f.ids}
	visitors.Put(f)
}

func (f *fields) encodeEvent(e *Event) error {
	if e.Payload == nil || e.Payload.Type() == "" {
		return &FieldError{Field: "type", Problem: "is required"}
	}
	f.mode, f.event, f.known = encoding, e, lookUpType(e.Type())
	if got := reflect.TypeOf(e.Payload); got != f.known.pointer {
		return &FieldError{Type: e.Type(), Field: "type", Problem: fmt.Sprintf("has the payload %s, not %s", f.known.pointer, got)}
	}
	f.writeRecord("", e)
	return f.err
}

// visitFields visits the whole event.
func (e *Event) visitFields(f *fields) {
	e.visitHeader(f)
	f.visitShape(envelope(), unsafe.Pointer(e))
	f.visitPayload(e.Payload)
	objects(f, "blobs", &e.Blobs, optional)
	switch f.mode {
	case encoding, checking:
		e.checkBlobs(f)
	case decoding:
		f.rules = f.rules || len(e.Blobs) > 0
	case describing:
	}
}

func (f *fields) visitPayload(p Payload) {
	if f.known.requires != "" {
		f.requireID(f.known.requires)
	}
	f.visitShape(f.known.shape, reflect.ValueOf(p).UnsafePointer())
}

// visitHeader visits the version and the type. A decoder knows them by then.
func (e *Event) visitHeader(f *fields) {
	if f.mode != decoding {
		v, t := uint64(Version), string(e.Payload.Type())
		f.uint64("v", &v, nonEmpty)
		f.str("type", &t, nonEmpty)
		return
	}
	for _, name := range [...]string{"v", "type"} {
		if f.matchKey(name, required) {
			rest, err := skipValue(f.in)
			if err != nil {
				f.failValue(name, "a value", err)
				return
			}
			f.nextField(rest)
		}
	}
}

func (e *Event) checkBlobs(f *fields) {
	for i, b := range e.Blobs {
		if envelopeNames()[b.Field] {
			f.failField("blobs.field", "must be a field of the payload")
		}
		for _, other := range e.Blobs[:i] {
			if b.Field == other.Field {
				f.failField("blobs.field", "occurs twice")
			}
		}
	}
}

func (e *Event) unknownFields() *[]Field { return &e.Unknown }

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
	f := visitors.Get().(*fields)
	defer f.returnToPool()
	f.mode, f.event, f.known, f.in = decoding, e, known, b
	f.readRecord("", e)
	if f.err != nil {
		return nil, f.err
	}
	if len(f.in) > 0 {
		return nil, ErrTrailing
	}
	return e, nil
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
