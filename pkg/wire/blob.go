package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// BlobLimit is the default size in bytes above which payload fields are moved
// to the object store.
const BlobLimit = 256 << 10

// minBlob is the size below which moving a field saves nothing.
const minBlob = 1 << 10

// Externalize moves the largest payload fields of an encoded event out of it
// until it is no longer than limit, and returns what is left with the fields by
// their SHA-256. The same event always yields the same bytes. An event within
// the limit is returned as it is. It fails if the limit can't be reached.
func Externalize(encoded []byte, limit int) (small []byte, blobs map[string][]byte, err error) {
	if len(encoded) <= limit {
		return encoded, nil, nil
	}
	e, err := Decode(encoded)
	if err != nil {
		return nil, nil, err
	}
	values, err := payloadValues(encoded)
	if err != nil {
		return nil, nil, err
	}
	moved := map[string]bool{}
	blobs = map[string][]byte{}
	size := len(encoded)
	for size > limit {
		name := largest(values, moved)
		if name == "" || len(values[name]) < minBlob {
			return nil, nil, fmt.Errorf("wire: %s: %d bytes remain when all large fields are moved, the limit is %d", e.Type(), size, limit)
		}
		moved[name] = true
		sum := sha256.Sum256(values[name])
		hash := hex.EncodeToString(sum[:])
		blobs[hash] = values[name]
		e.Blobs = append(e.Blobs, Blob{Field: name, SHA256: hash, Size: int64(len(values[name]))})
		if small, err = encodeWithout(e, encoded, moved); err != nil {
			return nil, nil, err
		}
		size = len(small)
	}
	return small, blobs, nil
}

// Inline is the reverse of [Externalize]: it puts back the fields that fetch
// returns for a SHA-256. An event without blobs is returned as it is.
func Inline(encoded []byte, fetch func(sha256 string) ([]byte, error)) ([]byte, error) {
	e, err := Decode(encoded)
	if err != nil {
		return nil, err
	}
	if len(e.Blobs) == 0 {
		return encoded, nil
	}
	values, err := payloadValues(encoded)
	if err != nil {
		return nil, err
	}
	for _, b := range e.Blobs {
		data, err := fetch(b.SHA256)
		if err != nil {
			return nil, fmt.Errorf("wire: blob %s of %s: %w", b.SHA256, b.Field, err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != b.SHA256 {
			return nil, fmt.Errorf("wire: blob %s of %s: its content has another hash", b.SHA256, b.Field)
		}
		values[b.Field] = data
	}
	delete(values, "blobs")
	return assemble(values)
}

// payloadValues returns the encoded fields of an event.
func payloadValues(encoded []byte) (map[string][]byte, error) {
	n, rest, err := readMapHeader(encoded)
	if err != nil {
		return nil, ErrSyntax
	}
	values := make(map[string][]byte, n)
	for range n {
		key, value, err := readString(rest)
		if err != nil {
			return nil, ErrSyntax
		}
		if rest, err = skip(value); err != nil {
			return nil, err
		}
		values[string(key)] = value[:len(value)-len(rest)]
	}
	return values, nil
}

// largest names the largest field that has not been moved; of equal ones the
// first by name. Fields of the envelope stay.
func largest(values map[string][]byte, moved map[string]bool) string {
	best := ""
	for _, name := range sortedKeys(values) {
		if moved[name] || envelopeNames[name] {
			continue
		}
		if best == "" || len(values[name]) > len(values[best]) {
			best = name
		}
	}
	return best
}

// envelopeNames are the fields that stay in an event whatever their size.
var envelopeNames = map[string]bool{
	"v": true, "type": true, "runId": true, "nodeId": true, "seq": true, "epoch": true,
	"timestamp": true, "execId": true, "agentId": true, "sessionId": true, "turn": true,
	"step": true, "callId": true, "cause": true, "parent": true, "redactions": true, "blobs": true,
}

// encodeWithout encodes e, whose Blobs are set, without the moved fields.
func encodeWithout(e *Event, encoded []byte, moved map[string]bool) ([]byte, error) {
	values, err := payloadValues(encoded)
	if err != nil {
		return nil, err
	}
	for name := range moved {
		delete(values, name)
	}
	if values["blobs"], err = encodeBlobs(e.Blobs); err != nil {
		return nil, err
	}
	return assemble(values)
}

func encodeBlobs(blobs []Blob) ([]byte, error) {
	f := fields{mode: encoding}
	f.buf = appendArrayHeader(nil, len(blobs))
	for i := range blobs {
		f.writeRecord("blobs", &blobs[i])
	}
	return f.buf, f.err
}

// assemble returns the canonical event that has the given fields.
func assemble(values map[string][]byte) ([]byte, error) {
	b := appendMapHeader(nil, len(values))
	for _, name := range sortedKeys(values) {
		b = append(appendString(b, name), values[name]...)
	}
	e, err := Decode(b)
	if err != nil {
		return nil, err
	}
	return Encode(e)
}
