// Package durable writes files that are whole, and on disk, or as they were.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file, or makes one. A crash, or a power cut, leaves what was there before or all of the content; behind an error it is one
// of the two. A link in the file's place isn't followed: it is replaced.
func Write(path string, content []byte, mode fs.FileMode) error {
	next, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = next.Write(content)
	if err = errors.Join(err, next.Chmod(mode), next.Sync(), next.Close()); err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return Sync(filepath.Dir(path))
}

// Sync has a file be on disk, or the names in a folder.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
