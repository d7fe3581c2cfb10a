//go:build unix

package workspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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
		dev: uint64(s.Dev), ino: s.Ino, size: s.Size, mode: uint32(s.Mode), owner: s.Uid, //nolint:gosec,unconvert // their types differ by system
		mtime: s.Mtim.Nano(), changed: s.Ctim.Nano(),
	}
}

// node is a file, folder or link as it was last seen.
type node struct {
	entry
	stamp  stamp
	racy   bool     // it was written so shortly before it was read that its stamp may not tell
	chunks []*chunk // of a file or a list
	below  []*node  // of a folder, by name
	change bool     // its list or content differs from the last snapshot's
	patch  []byte   // stands for the content of a file

	meaning digest // of a folder: what is in it, wherever that is kept
}

// isSame reports whether a file is as it was when it was read.
func (n *node) isSame(at stamp, links uint64) bool {
	return n.Type == typeFile && n.stamp == at && !n.racy && n.patch == nil && links == 1
}

// racyTime is how long after a change another one may leave no trace: the clock of file systems ticks.
const racyTime = 50 * time.Millisecond

// scan is one pass over a folder. It opens what it reads by descriptors of the folders above, and follows no link.
type scan struct {
	limits  Limits
	hidden  []stamp // folders that aren't part of it
	files   int
	bytes   int64
	left    []LeftOut
	omitted int
	locked  bool // a repository is being written
	begun   time.Time
	status  unix.Stat_t // of the entry that is looked at
}

// maxLeftOut bounds what is listed.
const maxLeftOut = 200

func (s *scan) leaveOut(path []string, reason string) {
	if len(s.left) >= maxLeftOut {
		s.omitted++
		return
	}
	s.left = append(s.left, LeftOut{strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD"), reason})
}

// place is where a scan stands.
type place struct {
	path  []string
	rules rules
	git   []string // below .git: the path in there; nil elsewhere
	index *repository
}

// repository is one whose files are scanned.
type repository struct {
	depth   int // of its folder
	read    bool
	content func() ([]byte, error)
	tracked tracked
}

func (r *repository) isTracked(path []string) bool {
	if r == nil {
		return false
	}
	if !r.read {
		r.read = true
		if content, err := r.content(); err == nil {
			r.tracked = parseIndex(content)
		}
	}
	return r.tracked[strings.Join(path[r.depth:], "/")]
}

const openFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// scanFolder fills n, a folder that is open as dir. before is the node of the last scan, or nil.
func (s *scan) scanFolder(ctx context.Context, dir *os.File, n, before *node, at place) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(at.path) > maxDepth {
		return refuse("%q is too deep", strings.Join(at.path, "/")[:200])
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	if at.git == nil {
		if at, err = s.enterFolder(dir, names, at); err != nil {
			return err
		}
	}
	var old []*node
	if before != nil {
		old = before.below
	}
	n.below = make([]*node, 0, len(names))
	at.path = append(make([]string, 0, len(at.path)+1), at.path...)
	fd := int(dir.Fd())
	for _, name := range names {
		var known *node
		for len(old) > 0 && string(old[0].Name) < name {
			old = old[1:]
		}
		if len(old) > 0 && string(old[0].Name) == name {
			known = old[0]
		}
		child, err := s.scanEntry(ctx, dir, fd, name, known, at)
		if err != nil {
			return err
		}
		if child == nil {
			continue
		}
		if n.below = append(n.below, child); child.change {
			n.change = true
		}
	}
	if before == nil || len(before.below) != len(n.below) {
		n.change = true
	}
	return nil
}

// enterFolder takes in what a folder says of itself: rules, a repository.
func (s *scan) enterFolder(dir *os.File, names []string, at place) (place, error) {
	var texts [][]byte
	for _, name := range []string{gitIgnore, wakeIgnore} {
		if _, there := slices.BinarySearch(names, name); there {
			if text, _, err := readFile(dir, name, 1<<20); err == nil {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) > 0 {
		at.rules = at.rules.below(at.path, texts...)
	}
	if _, there := slices.BinarySearch(names, gitFolder); !there {
		return at, nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), gitFolder, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return at, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return at, refuse("%q is a linked worktree or a submodule: its repository is elsewhere", cmp.Or(strings.Join(at.path, "/"), "."))
	}
	at.index = &repository{depth: len(at.path), content: func() ([]byte, error) {
		fd, err := unix.Openat(int(dir.Fd()), gitFolder, openFolder, 0)
		if err != nil {
			return nil, err
		}
		folder := os.NewFile(uintptr(fd), gitFolder)
		defer func() { _ = folder.Close() }()
		content, _, err := readFile(folder, "index", 256<<20)
		return content, err
	}}
	return at, nil
}

// scanEntry returns the node of a name in a folder, nil if that is left out.
func (s *scan) scanEntry(ctx context.Context, dir *os.File, fd int, name string, known *node, at place) (*node, error) {
	st := &s.status
	if err := unix.Fstatat(fd, name, st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil, nil //nolint:nilnil // it went meanwhile
	} else if err != nil {
		return nil, err
	}
	stamp, kind, links := stampOf(st), st.Mode&unix.S_IFMT, uint64(st.Nlink) //nolint:unconvert // its type differs by system
	path := append(at.path, name)                                            //nolint:gocritic // the place of one entry at a time
	if leave, err := s.isLeftOut(path, name, kind == unix.S_IFDIR, stamp, at); leave || err != nil {
		return nil, err
	}
	if known != nil && known.isSame(stamp, links) && at.git == nil && stamp.size <= s.limits.File {
		known.change = false
		return known, s.count(known.Size)
	}
	n := &node{stamp: stamp}
	n.Name = []byte(name)
	switch {
	case !isName(n.Name):
		s.leaveOut(path, "its name can't be kept")
		return nil, nil //nolint:nilnil // as it says
	case kind == unix.S_IFLNK:
		return s.scanLink(dir, n, known, path)
	case kind == unix.S_IFDIR:
		return s.scanBelow(ctx, dir, n, known, path, at)
	case kind == unix.S_IFREG:
		return s.scanFile(dir, n, known, path, at, links)
	}
	s.leaveOut(path, "neither a file nor a folder nor a link")
	return nil, nil //nolint:nilnil // as it says
}

// isLeftOut reports whether an entry is left out, and says so.
func (s *scan) isLeftOut(path []string, name string, isFolder bool, of stamp, at place) (bool, error) {
	if at.git != nil {
		switch {
		case strings.HasSuffix(name, ".lock"):
			s.locked = true
			return true, nil
		case len(at.git) > 0 || isGitState(name):
			return false, nil
		case name == "modules":
			return true, refuse("%q has submodules", cmp.Or(strings.Join(path[:len(path)-2], "/"), "."))
		}
		s.leaveOut(path, "isn't the state of a repository")
		return true, nil
	}
	if isFolder && slices.ContainsFunc(s.hidden, func(h stamp) bool { return h.dev == of.dev && h.ino == of.ino }) {
		return true, nil
	}
	if name == gitFolder || !at.rules.excludes(path, isFolder) || at.index.isTracked(path) {
		return false, nil
	}
	if isFolder {
		s.leaveOut(append(slices.Clip(path[:len(path)-1]), name+"/"), "ignored")
	} else {
		s.leaveOut(path, "ignored")
	}
	return true, nil
}

func (s *scan) count(size int64) error {
	s.files++
	s.bytes += size
	switch {
	case s.files > s.limits.Files:
		return refuse("it has more than %d files", s.limits.Files)
	case s.bytes > s.limits.Bytes:
		return refuse("its files have more than %d MiB: what can be made again belongs into .wakeignore", s.limits.Bytes>>20)
	}
	return nil
}

func (s *scan) scanLink(dir *os.File, n, known *node, path []string) (*node, error) {
	target := make([]byte, maxTarget+1)
	size, err := unix.Readlinkat(int(dir.Fd()), string(n.Name), target)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil, nil //nolint:nilnil // it went meanwhile
	}
	if err != nil {
		return nil, err
	}
	if size == 0 || size > maxTarget {
		s.leaveOut(path, "leads too far")
		return nil, nil //nolint:nilnil // as it says
	}
	n.Type, n.Target = typeLink, target[:size:size]
	n.change = known == nil || known.Type != typeLink || !bytes.Equal(known.Target, n.Target)
	return n, s.count(0)
}

func (s *scan) scanBelow(ctx context.Context, dir *os.File, n, known *node, path []string, at place) (*node, error) {
	fd, err := unix.Openat(int(dir.Fd()), string(n.Name), openFolder, 0)
	switch {
	case errors.Is(err, unix.EACCES):
		s.leaveOut(path, "can't be read")
		return nil, nil //nolint:nilnil // as it says
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil //nolint:nilnil // it went meanwhile
	case err != nil:
		return nil, err
	}
	folder := os.NewFile(uintptr(fd), string(n.Name))
	defer func() { _ = folder.Close() }()
	below := place{path: slices.Clone(path), rules: at.rules, index: at.index}
	switch {
	case at.git != nil:
		below.git = append(slices.Clip(at.git), string(n.Name))
	case string(n.Name) == gitFolder:
		below.git = []string{}
	}
	n.Type, n.Mode = typeFolder, n.stamp.mode&0o777
	if known != nil && known.Type != typeFolder {
		known = nil
	}
	if s.files++; s.files > s.limits.Files {
		return nil, refuse("it has more than %d files", s.limits.Files)
	}
	if err := s.scanFolder(ctx, folder, n, known, below); err != nil {
		return nil, err
	}
	if known != nil {
		n.chunks, n.meaning = known.chunks, known.meaning
		n.change = n.change || known.Mode != n.Mode
	}
	return n, nil
}

func (s *scan) scanFile(dir *os.File, n, known *node, path []string, at place, links uint64) (*node, error) {
	n.Type, n.Mode, n.Size = typeFile, n.stamp.mode&0o777, n.stamp.size
	var home unix.Stat_t
	if links > 1 {
		if err := unix.Fstat(int(dir.Fd()), &home); err != nil {
			return nil, err
		}
	}
	switch {
	case links > 1 && home.Uid != n.stamp.owner:
		s.leaveOut(path, "a hard link to another user's file")
		return nil, nil //nolint:nilnil // as it says
	case n.Size > s.limits.File:
		s.leaveOut(path, fmt.Sprintf("larger than %d MiB", s.limits.File>>20))
		return nil, nil //nolint:nilnil // as it says
	}
	if at.git != nil {
		gitPath := append(slices.Clip(at.git), string(n.Name))
		if special := strings.Join(gitPath, "/"); special == "config" || special == "info/sparse-checkout" || strings.HasPrefix(special, "objects/info/") {
			if keep, err := s.scanSpecial(dir, n, path, gitPath); !keep || err != nil {
				return nil, err
			}
		}
	}
	if known != nil && known.Type == typeFile && known.stamp == n.stamp && !known.racy && bytes.Equal(known.patch, n.patch) {
		n.chunks, n.Sum = known.chunks, known.Sum
		return n, s.count(n.Size)
	}
	n.change = true
	return n, s.count(n.Size)
}

// scanSpecial reads a file of .git that says what the repository is. It reports whether the file is kept.
func (s *scan) scanSpecial(dir *os.File, n *node, path, gitPath []string) (keep bool, err error) {
	content, _, err := readFile(dir, string(n.Name), 1<<20)
	if err != nil {
		return false, err
	}
	if problem := gitProblem(gitPath, content); problem != "" {
		return false, refuse("repository %q %s", cmp.Or(strings.Join(path[:len(path)-len(gitPath)-1], "/"), "."), problem)
	}
	if gitPath[0] != "config" {
		return true, nil
	}
	kept, dropped, _ := filterConfig(content)
	for _, key := range dropped {
		s.leaveOut(path, "key "+key)
	}
	n.patch, n.Size = kept, int64(len(kept))
	return true, nil
}

// errTooLarge is returned for files that have grown beyond a bound.
var errTooLarge = errors.New("too large")

// readFile reads a file of a folder that is no larger than a bound. It follows no link, and waits for nobody.
func readFile(dir *os.File, name string, most int64) (content []byte, at stamp, err error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, at, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
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
		n, err := f.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		if int64(len(content)) > most {
			return nil, at, errTooLarge
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, at, err
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, at, err
	}
	return content, stampOf(&st), nil
}
