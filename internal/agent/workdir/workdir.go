// Package workdir is the folder that an agent works in, for what is done there in its name: nothing
// outside of it is read or written.
package workdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"code.wake.dev/wake/internal/process"
)

// Folder is what an agent's files are confined to. Links are
// followed as long as they stay within it.
type Folder struct {
	Dir  string
	User *process.User // owns its files; nil: this process's own
}

// MaxFile is the size of the largest file that is read, written or searched.
const MaxFile = 16 << 20

// OpenPath opens the folder, and the path as one within it.
func (f Folder) OpenPath(path string) (*os.Root, string, error) {
	rel, err := f.relPath(path)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, "", fmt.Errorf("open the workspace: %w", err)
	}
	return root, rel, nil
}

// relPath returns a path within the workspace, for one that is relative to it or absolute.
func (f Folder) relPath(path string) (string, error) {
	rel := filepath.Clean(path)
	if filepath.IsAbs(path) {
		rel = f.pathBelow(rel)
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is outside the workspace %s: use a path within it", path, f.Dir)
	}
	return rel, nil
}

// pathBelow returns an absolute path relative to the workspace, by either of its names.
func (f Folder) pathBelow(path string) string {
	dirs := []string{f.Dir}
	if resolved, err := filepath.EvalSymlinks(f.Dir); err == nil {
		dirs = append(dirs, resolved)
	}
	for _, dir := range dirs {
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return path
}

// LoadFile reads a regular file.
func (f Folder) LoadFile(path string) (content []byte, err error) {
	root, rel, err := f.OpenPath(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return LoadIn(root, rel)
}

// TooLargeError is the error for a file that isn't read.
type TooLargeError struct {
	Path string
	Size int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, more than %d: use bash with grep, head or sed", e.Path, e.Size, MaxFile)
}

// OpenIn opens a file or a folder below root. Anything else that an agent may have put there, such as a pipe, is an error, and doesn't
// hold who opens it.
func OpenIn(root *os.Root, rel string) (*os.File, error) {
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return checkKind(f, err)
}

// OpenFile is [OpenIn] for the path of a file.
func OpenFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return checkKind(f, err)
}

func checkKind(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", info.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// FS are the files of a folder, opened by [OpenIn].
type FS struct{ *os.Root }

// Open implements [fs.FS].
func (f FS) Open(name string) (fs.File, error) {
	file, err := OpenIn(f.Root, name)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// LoadIn reads a regular file of a folder that is open.
func LoadIn(root *os.Root, rel string) ([]byte, error) {
	f, err := OpenIn(root, rel)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder: use glob to list it", rel)
	case info.Size() > MaxFile:
		return nil, &TooLargeError{rel, info.Size()}
	}
	return io.ReadAll(io.LimitReader(f, MaxFile))
}

// SaveFile writes a file, and the folders in which it is.
func (f Folder) SaveFile(path string, content []byte) (change string, err error) {
	root, rel, err := f.OpenPath(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	change = "modified"
	if info, err := root.Stat(rel); err != nil {
		change = "created"
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if err := root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
		return "", err
	}
	if err := root.WriteFile(rel, content, 0o644); err != nil {
		return "", err
	}
	return change, f.User.OwnWay(root, rel)
}
