package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"
)

// BlobLimit is the default size in bytes above which payload fields are moved
// to the object store.
const BlobLimit = 256 << 10

// minBlob is the size below which moving a field saves nothing.
const minBlob = 1 << 10

// Externalize moves the largest payload fields of an encoded event out of it
// until it is no longer than limit, and returns what is left with the fields by
// their SHA-256. The same event always yields the same bytes. An event within
// the limit is returned as it is. It fails with a [*FieldError] if the limit can't be
// reached.
func Externalize(encoded []byte, limit int) (small []byte, blobs map[string][]byte, err error) {
	if len(encoded) <= limit {
		return encoded, nil, nil
	}
	e, err := Decode(encoded)
	if err != nil {
		return nil, nil, err
	}
	if small, err = Encode(e); err != nil { // another encoder may have written it
		return nil, nil, err
	}
	values, err := eventValues(small)
	if err != nil {
		return nil, nil, err
	}
	blobs = map[string][]byte{}
	for len(small) > limit {
		name := largestField(values)
		if name == "" {
			return nil, nil, &FieldError{Type: e.Type(), Field: "event", Problem: fmt.Sprintf(
				"is too large: %d bytes remain when all large fields are moved, the limit is %d", len(small), limit)}
		}
		b := Blob{Field: name, SHA256: sha256Hex(values[name]), Size: int64(len(values[name]))}
		blobs[b.SHA256] = values[name]
		e.Blobs = append(e.Blobs, b)
		delete(values, name)
		if values["blobs"], err = encodeBlobs(e.Blobs); err != nil {
			return nil, nil, err
		}
		if small, err = assembleEvent(values); err != nil {
			return nil, nil, err
		}
	}
	return small, blobs, nil
}

// Inline is the reverse of [Externalize]: it puts back the fields that fetch
// returns for a SHA-256. An event without blobs is returned as it is. It fails
// if what fetch returns isn't what was moved.
func Inline(encoded []byte, fetch func(sha256 string) ([]byte, error)) ([]byte, error) {
	e, err := Decode(encoded)
	if err != nil {
		return nil, err
	}
	if len(e.Blobs) == 0 {
		return encoded, nil
	}
	values, err := eventValues(encoded)
	if err != nil {
		return nil, err
	}
	for _, b := range e.Blobs {
		data, err := fetch(b.SHA256)
		if err == nil {
			err = b.verifyContent(data)
		}
		if err != nil {
			return nil, fmt.Errorf("wire: blob %s of %s: %w", b.SHA256, quoteName(b.Field), err)
		}
		values[b.Field] = data
	}
	delete(values, "blobs")
	return assembleEvent(values)
}

// verifyContent reports whether data is the value that was moved.
func (b *Blob) verifyContent(data []byte) error {
	if int64(len(data)) != b.Size || sha256Hex(data) != b.SHA256 {
		return errors.New("its content is another")
	}
	rest, _, err := scanValue(data, maxDocument)
	if err == nil && len(rest) > 0 {
		err = ErrTrailing
	}
	return err
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func eventValues(encoded []byte) (map[string][]byte, error) {
	n, rest, err := readMapHeader(encoded)
	if err != nil {
		return nil, errEnd
	}
	values := make(map[string][]byte, n)
	for range n {
		key, value, err := readString(rest)
		if err != nil {
			return nil, errKey
		}
		if rest, err = skipValue(value); err != nil {
			return nil, err
		}
		values[string(key)] = value[:len(value)-len(rest)]
	}
	return values, nil
}

// largestField names the largest field of the payload that is worth moving; of equal
// ones the first by name.
func largestField(values map[string][]byte) string {
	best, size := "", minBlob-1
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if envelope().findField(name) < 0 && len(values[name]) > size {
			best, size = name, len(values[name])
		}
	}
	return best
}

func encodeBlobs(blobs []Blob) (Raw, error) {
	return packWith(func(p *packer) error {
		w, fields := &writer{packer: p}, envelope().fields
		writeObjects[Blob](w, &fields[len(fields)-1], unsafe.Pointer(&blobs))
		return w.err
	})
}

// assembleEvent returns the canonical event that has the given fields.
func assembleEvent(values map[string][]byte) ([]byte, error) {
	b, _ := packWith(func(p *packer) error {
		p.putMapLen(len(values))
		for _, name := range slices.Sorted(maps.Keys(values)) {
			p.putString(name)
			p.buf = append(p.buf, values[name]...)
		}
		return nil
	})
	e, err := Decode(b)
	if err != nil {
		return nil, err
	}
	return Encode(e)
}
