// Package seal encrypts what is stored of runs, with keys that the server doesn't
// have: events here, everything else as values (value.go).
//
// A sealed event is an event of type "sealed" with the envelope of the original,
// so that order, fencing and filters work as ever, and the original in a box:
// AES-256-GCM under a key that is derived for the run. The box is bound to its
// place: run, node, seq, epoch and type. A writer of the log without the key
// can neither read a box nor change or move one without being found out.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// Type is the type of sealed events. To readers without this package it is an
// event of a type that they don't know.
const Type wire.Type = "sealed"

// The fields of a sealed event's payload, in their order.
const (
	fieldBox = "box" // nonce and ciphertext, base64
	fieldKey = "key" // id of the key
	fieldOf  = "of"  // type of the original
)

var (
	// ErrNoKey is returned for what was sealed under a key that isn't at hand.
	ErrNoKey = errors.New("it is sealed, and the key isn't at hand: give --encryption-keys a file that has it")
	// ErrForged is returned for a box that is damaged, or at another place than it
	// was made for.
	ErrForged = errors.New("what is sealed here is damaged or was moved")
)

// keySize is the length of a key in bytes.
const keySize = 32

// Keys are keys by their ids: one for writing, all for reading. Nil Keys seal
// nothing and open nothing. They may be used by many goroutines.
type Keys struct {
	write string
	keys  map[string][]byte

	mu      sync.Mutex
	derived map[derivation]cipher.AEAD
}

type derivation struct{ id, run string }

// maxDerived bounds the memory of keys of runs.
const maxDerived = 1000

// runCipher returns the cipher of a run under a key. Each run has its own, so that
// random nonces stay far from colliding.
func (k *Keys) runCipher(id, run string) (cipher.AEAD, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := derivation{id, run}
	if a := k.derived[d]; a != nil {
		return a, nil
	}
	a, err := k.deriveCipher(id, "wake seal 1\x00"+run)
	if err != nil {
		return nil, err
	}
	if len(k.derived) >= maxDerived {
		clear(k.derived)
	}
	k.derived[d] = a
	return a, nil
}

func (k *Keys) deriveCipher(id, purpose string) (cipher.AEAD, error) {
	key, ok := k.keys[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrNoKey, id)
	}
	own, err := hkdf.Key(sha256.New, key, nil, purpose, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// boxPlace returns what a box is bound to.
func boxPlace(e *wire.Event, of string) []byte {
	var b []byte
	for _, s := range []string{"event", e.RunID, e.NodeID, of} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, e.Seq), e.Epoch)
}

// Sealed reports whether an event is sealed.
func Sealed(e *wire.Event) bool { return e.Type() == Type }

// Event returns an encoded event as it is stored. Claims, which only name the
// writer, stay open, and so does what is sealed already.
func (k *Keys) Event(encoded []byte) ([]byte, error) {
	if k == nil {
		return encoded, nil
	}
	e, err := wire.Decode(encoded)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	switch e.Payload.(type) {
	case *wire.RunClaimed, *wire.NodeClaimed:
		return encoded, nil
	}
	if Sealed(e) {
		return encoded, nil
	}
	a, err := k.runCipher(k.write, e.RunID)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	of := string(e.Type())
	box := a.Seal(nil, nil, encoded, boxPlace(e, of))
	e.Payload, e.Blobs = &wire.Opaque{Name: Type}, nil
	e.Unknown = []wire.Field{
		{Name: fieldBox, Value: wire.RawString(base64.StdEncoding.EncodeToString(box))},
		{Name: fieldKey, Value: wire.RawString(k.write)},
		{Name: fieldOf, Value: wire.RawString(of)},
	}
	return wire.Encode(e)
}

// Open returns the original of a sealed event; any other event as it is. It fails
// with [ErrNoKey] or [ErrForged].
func (k *Keys) Open(e *wire.Event) (*wire.Event, error) {
	if !Sealed(e) {
		return e, nil
	}
	in, _, err := k.Original(e)
	return in, err
}

// Original returns the original of a sealed event, decoded and encoded. It fails with
// [ErrNoKey] or [ErrForged].
func (k *Keys) Original(e *wire.Event) (in *wire.Event, encoded []byte, err error) {
	fields := map[string]string{}
	for _, f := range e.Unknown {
		fields[f.Name], _ = f.Value.Text()
	}
	if k == nil {
		return nil, nil, fmt.Errorf("%w: %q", ErrNoKey, fields[fieldKey])
	}
	box, err := base64.StdEncoding.DecodeString(fields[fieldBox])
	if err != nil {
		return nil, nil, ErrForged
	}
	a, err := k.runCipher(fields[fieldKey], e.RunID)
	if err != nil {
		return nil, nil, err
	}
	encoded, err = a.Open(nil, nil, box, boxPlace(e, fields[fieldOf]))
	if err != nil {
		return nil, nil, ErrForged
	}
	in, err = wire.Decode(encoded)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrForged, err)
	}
	return in, encoded, nil
}

// OpenEncoded is [Keys.Open] of encoded events.
func (k *Keys) OpenEncoded(encoded []byte) ([]byte, error) {
	e, err := wire.Decode(encoded)
	if err != nil {
		return nil, err
	}
	in, err := k.Open(e)
	if err != nil {
		return nil, err
	}
	return wire.Encode(in)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
