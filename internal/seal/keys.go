package seal

import (
	"bytes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// maxID is the length of the longest id of a key.
const maxID = 64

var idForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Parse reads keys: a line "ID KEY" for each, KEY being 32 bytes in base64. The
// first is the one for writing. Empty lines and those that begin with # don't
// count. The errors don't show keys.
func Parse(text []byte) (*Keys, error) {
	k := &Keys{keys: map[string][]byte{}, derived: map[derivation]cipher.AEAD{}}
	for i, line := range bytes.Split(text, []byte("\n")) {
		words := strings.Fields(string(line))
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 2 || !idForm.MatchString(words[0]) {
			return nil, fmt.Errorf("line %d is no id and key: make keys with wake auth key", i+1)
		}
		key, err := base64.StdEncoding.DecodeString(words[1])
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("line %d: a key is %d bytes in base64", i+1, keySize)
		}
		if k.keys[words[0]] != nil {
			return nil, fmt.Errorf("line %d: key %s occurs twice", i+1, words[0])
		}
		k.keys[words[0]] = key
		if k.write == "" {
			k.write = words[0]
		}
	}
	if k.write == "" {
		return nil, errors.New("there is no key: make one with wake auth key")
	}
	return k, nil
}

// Load reads a file of keys, which nobody but its owner may read.
func Load(path string) (*Keys, error) {
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
	k, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", path, err)
	}
	return k, nil
}

// Add puts a new key for writing before those of a file, which are kept for
// reading, and returns its id. It makes the file if there is none.
func Add(path string) (id string, err error) {
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", fmt.Errorf("keys: %w", err)
	default:
		if _, err := Load(path); err != nil {
			return "", err
		}
	}
	id = hex.EncodeToString(random(4))
	line := id + " " + base64.StdEncoding.EncodeToString(random(keySize)) + "\n"
	part := path + ".part"
	if err := os.WriteFile(part, append([]byte(line), before...), 0o600); err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	return id, nil
}

// WriteID returns the id of the key for writing.
func (k *Keys) WriteID() string { return k.write }
