//go:build unix

package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stamp tells two contents of a file apart without reading it.
type stamp struct {
	dev, ino             uint64
	size, mtime, changed int64
	mode, owner          uint32
}

func stampOf(s *unix.Stat_t) stamp {
	return stamp{
		dev: uint64(s.Dev), ino: s.Ino, size: s.Size, mode: uint32(s.Mode), owner: s.Uid, //nolint:unconvert // their types differ by system
		mtime: s.Mtim.Nano(), changed: s.Ctim.Nano(),
	}
}

const openFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// errTooLarge is returned for files that have grown beyond a bound.
var errTooLarge = errors.New("too large")

// readFile reads a file of a folder that is no larger than a bound. It follows no link, and waits for no writer. What is no
// regular file is EINVAL.
func readFile(dir int, name string, most int64) (content []byte, at stamp, err error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, at, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, at, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, at, unix.EINVAL
	}
	content = make([]byte, 0, min(st.Size, most)+1)
	for {
		if len(content) == cap(content) {
			content = slices.Grow(content, 64<<10)
		}
		n, err := unix.Read(fd, content[len(content):cap(content)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, at, err
		}
		content = content[:len(content)+n]
		if int64(len(content)) > most {
			return nil, at, errTooLarge
		}
		if n == 0 {
			break
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, at, err
	}
	return content, stampOf(&st), nil
}

// home is a folder with a part of a repository, away from the repository's files; it may be outside of the folder that is read.
type home struct {
	path  string
	owner uint32
}

// openHome opens the folder if it belongs to owner; it may be any user that has put it there.
func (h home) openHome() (*os.File, error) {
	fd, err := unix.Open(h.path, openFolder, 0)
	if err != nil {
		return nil, fmt.Errorf("workspace: %s: %w", h.path, err)
	}
	dir := os.NewFile(uintptr(fd), h.path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Uid != h.owner {
		_ = dir.Close()
		return nil, cmp.Or(err, newRefusal("%s belongs to another user than the files of the repository", h.path))
	}
	return dir, nil
}

// resolvePath returns what a file in it names.
func (h home) resolvePath(text []byte) home {
	path := strings.TrimSpace(string(text))
	if !filepath.IsAbs(path) {
		path = filepath.Join(h.path, path)
	}
	return home{filepath.Clean(path), h.owner}
}

func (h home) join(name string) home { return home{filepath.Join(h.path, name), h.owner} }
