package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// Stamp vouches for values that aren't secret: only a holder of its key can make the stamp of
// another value, or of the same one at another place. A nil Stamp vouches for nothing.
type Stamp struct{ key []byte }

// NewStamp returns a stamp with a key of its own.
func NewStamp() *Stamp { return &Stamp{randomBytes(keySize)} }

// LoadStamp reads the key of a stamp from a file that only its owner may read.
func LoadStamp(path string) (*Stamp, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("keys: %s: a key is %d bytes in base64", path, keySize)
	}
	return &Stamp{key}, nil
}

// Write writes the key to a file.
func (s *Stamp) Write(path string) error {
	return replaceFile(path, base64.StdEncoding.EncodeToString(s.key)+"\n")
}

// Of returns the stamp of a value at a place, see [Keys.Value].
func (s *Stamp) Of(place string, value []byte) string {
	sum := hmac.New(sha256.New, s.key)
	sum.Write(binary.AppendUvarint([]byte("wake stamp 1\x00"), uint64(len(place))))
	sum.Write([]byte(place))
	sum.Write(value)
	return hex.EncodeToString(sum.Sum(nil))
}

// IsOf reports whether a stamp is that of a value at a place.
func (s *Stamp) IsOf(stamp, place string, value []byte) bool {
	return hmac.Equal([]byte(stamp), []byte(s.Of(place, value)))
}

// readPrivate reads a file that only its owner may read or write.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return nil, fmt.Errorf("keys: others may read or write %s: chmod 600 it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return text, nil
}
