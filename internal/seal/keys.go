package seal

import (
	"bytes"
	"cmp"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/durable"
)

// maxID is the length of the longest id of a key.
const maxID = 64

var idForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`) })

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
		if len(words) != 2 || !idForm().MatchString(words[0]) {
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
		k.write = cmp.Or(k.write, words[0])
	}
	if k.write == "" {
		return nil, errors.New("there is no key: make one with wake auth key")
	}
	return k, nil
}

// Load reads a file of keys, which only its owner may read.
func Load(path string) (*Keys, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	k, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", path, err)
	}
	return k, nil
}

// Add puts a new key into a file, which it makes if there is none, and returns its id.
// The key is the one for writing, unless it is for reading only, as every reader has
// to have it before the first writer uses it. The others are kept for reading.
func Add(path string, reading bool) (id string, err error) {
	before, err := readKeyFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id = hex.EncodeToString(randomBytes(4))
	line := id + " " + base64.StdEncoding.EncodeToString(randomBytes(keySize)) + "\n"
	if !reading {
		return id, replaceFile(path, line+before)
	}
	if before != "" && !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	return id, replaceFile(path, before+line)
}

// Use makes a key of a file the one for writing. It fails if the file lacks it.
func Use(path, id string) error {
	text, err := readKeyFile(path)
	if err != nil {
		return err
	}
	var first string
	var rest strings.Builder
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); first == "" && len(words) > 0 && words[0] == id {
			first = strings.TrimSuffix(line, "\n") + "\n"
			continue
		}
		rest.WriteString(line)
	}
	if first == "" {
		return fmt.Errorf("keys: %s has no key %q", path, id)
	}
	return replaceFile(path, first+rest.String())
}

func readKeyFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	if _, err := Load(path); err != nil {
		return "", err
	}
	return string(text), nil
}

// replaceFile writes a file of keys at once. It is on disk before anything is sealed by a key of it.
func replaceFile(path, text string) error {
	if err := durable.Write(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}

// WriteID returns the id of the key for writing.
func (k *Keys) WriteID() string { return k.write }
