package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"code.wake.dev/wake/internal/durable"
)

// maxFile bounds the settings that are read.
const maxFile = 4 << 20

// Load reads settings that are to be changed; nil if there is no file. It fails for those that Save wouldn't change.
func Load(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		target, _ := os.Readlink(name) // else it stays unnamed
		return nil, fmt.Errorf("%s is a link to %s, which others may share: nothing is written", name, target)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file: nothing is written", name)
	case info.Mode()&0o200 == 0:
		return nil, fmt.Errorf("%s is read-only: nothing is written", name)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes, which no settings have: nothing is written", name, info.Size())
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if _, err := parseObject(text); err != nil {
		return nil, fmt.Errorf("%s: %w: nothing is written", name, err)
	}
	return text, nil
}

// Save changes settings at once; nil removes them. It fails if they aren't what they were when they were loaded.
func Save(name string, before, after []byte) error {
	there, err := Load(name)
	if err != nil {
		return err
	}
	if !bytes.Equal(there, before) || (there == nil) != (before == nil) {
		return fmt.Errorf("%s was changed meanwhile: nothing is written; try again", name)
	}
	if after == nil {
		return os.Remove(name)
	}
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(name); err == nil {
		mode = info.Mode().Perm()
	}
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return durable.Write(name, after, mode)
}
