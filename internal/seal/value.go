package seal

import (
	"bytes"
	"fmt"
	"strings"
)

// What is sealed and no event is a value: that of a key of a bucket, a message, a
// piece of a file. It says under which key and for which place it was sealed:
//
//	"\xc1wake sealed 2\n" id "\n" place "\n" nonce ciphertext tag
//
// Each place has a key of its own, and the place is the associated data, so that a
// value that was moved to another one doesn't open. Nothing that isn't sealed begins
// like that: msgpack never has the byte c1, nor has JSON.
const (
	valueMagic = "\xc1wake sealed 2\n"
	blobMagic  = "\xc1wake sealed 1\n" // of older blobs: no place, key of no run
)

// valueOverhead is what a value grows by, beside its place and the id of the key.
const valueOverhead = len(valueMagic) + len("\n\n") + 12 + 16

// maxPlace bounds the length of a place in bytes: none is longer than a subject.
const maxPlace = 4 << 10

// Value returns what is stored of a value at a place, which is the subject that it is
// stored on, or, where that says too little, a name that nothing else has. A place
// has no line feeds.
func (k *Keys) Value(place string, value []byte) ([]byte, error) {
	if k == nil {
		return value, nil
	}
	if len(place) > maxPlace || strings.Contains(place, "\n") {
		return nil, fmt.Errorf("seal: %.100q is no place", place)
	}
	a, err := k.deriveCipher(k.write, valuePurpose+place)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	stored := make([]byte, 0, valueOverhead+len(k.write)+len(place)+len(value))
	stored = append(stored, valueMagic+k.write+"\n"+place+"\n"...)
	return a.Seal(stored, nil, value, []byte(place)), nil
}

const valuePurpose = "wake value 1\x00"

// IsValue reports whether what is stored somewhere is sealed.
func IsValue(stored []byte) bool { return bytes.HasPrefix(stored, []byte(valueMagic)) }

// OpenValue returns the value of what is stored at a place; what isn't sealed as it
// is. It fails with [ErrNoKey] or [ErrForged].
func (k *Keys) OpenValue(place string, stored []byte) ([]byte, error) {
	if !IsValue(stored) {
		return stored, nil
	}
	at, value, err := k.Reveal(stored)
	if err == nil && at != place {
		return nil, ErrForged
	}
	return value, err
}

// Reveal opens a sealed value wherever it was found, and returns the place that it
// says it was sealed for. It fails with [ErrNoKey] or [ErrForged].
func (k *Keys) Reveal(stored []byte) (place string, value []byte, err error) {
	id, place, box := parseLabel(stored)
	switch {
	case id == "":
		return "", nil, ErrForged
	case k == nil:
		return place, nil, fmt.Errorf("%w: %q", ErrNoKey, id)
	}
	a, err := k.deriveCipher(id, valuePurpose+place)
	if err != nil {
		return place, nil, err
	}
	if value, err = a.Open(nil, nil, box, []byte(place)); err != nil {
		return place, nil, ErrForged
	}
	return place, value, nil
}

// Label returns what a sealed value says of itself, "" if it isn't one: the id of its
// key and its place.
func Label(stored []byte) (id, place string) {
	id, place, _ = parseLabel(stored)
	return id, place
}

func parseLabel(stored []byte) (id, place string, box []byte) {
	rest, sealed := bytes.CutPrefix(stored, []byte(valueMagic))
	first, rest, ok := bytes.Cut(rest, []byte("\n"))
	second, box, placed := bytes.Cut(rest, []byte("\n"))
	if !sealed || !ok || !placed || len(first) > maxID || len(second) > maxPlace {
		return "", "", nil
	}
	return string(first), string(second), box
}

// Blob returns the content of a blob as it is stored, sealed for its name, the
// SHA-256 of the content.
func (k *Keys) Blob(name string, content []byte) ([]byte, error) {
	return k.Value(blobPlace+name, content)
}

const blobPlace = "blob "

// OpenBlob returns the content of a stored blob; of one that isn't sealed, what is
// stored. It fails with [ErrNoKey] or [ErrForged].
func (k *Keys) OpenBlob(name string, stored []byte) ([]byte, error) {
	if bytes.HasPrefix(stored, []byte(blobMagic)) {
		return k.openOldBlob(name, stored)
	}
	return k.OpenValue(blobPlace+name, stored)
}

func (k *Keys) openOldBlob(name string, stored []byte) ([]byte, error) {
	id, box, ok := bytes.Cut(stored[len(blobMagic):], []byte("\n"))
	switch {
	case !ok, len(id) > maxID:
		return nil, ErrForged
	case k == nil:
		return nil, fmt.Errorf("%w: %q", ErrNoKey, id)
	}
	a, err := k.runCipher(string(id), "")
	if err != nil {
		return nil, err
	}
	content, err := a.Open(nil, nil, box, []byte(blobPlace+name))
	if err != nil {
		return nil, ErrForged
	}
	return content, nil
}
