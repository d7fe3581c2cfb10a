//go:build unix

package workspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// home is a folder with a part of a repository, away from the repository's files; it may be outside of the folder that is read.
type home struct {
	path  string
	owner uint32
}

// open opens the folder if it belongs to owner; it may be any user that has put it there.
func (h home) open() (*os.File, error) {
	fd, err := unix.Open(h.path, openFolder, 0)
	if err != nil {
		return nil, fmt.Errorf("workspace: %s: %w", h.path, err)
	}
	dir := os.NewFile(uintptr(fd), h.path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Uid != h.owner {
		_ = dir.Close()
		return nil, cmp.Or(err, refuse("%s belongs to another user than the files of the repository", h.path))
	}
	return dir, nil
}

// worktree is where the repository of a linked worktree is: what is its own, and what it shares with others. That of a submodule shares
// nothing.
type worktree struct {
	own, shared home
	submodule   bool
}

// maxPointer bounds the files that say where a repository is.
const maxPointer = 16 << 10

// findWorktree returns where the repository of a folder is if its .git is a file. The agent may have written that file: the repository
// has to name the folder, too, and all belongs to one owner.
func (s *scan) findWorktree(dir *os.File, path []string) (worktree, error) {
	name := cmp.Or(strings.Join(path, "/"), ".")
	text, _, err := readFile(int(dir.Fd()), gitFolder, maxPointer)
	var file, found unix.Stat_t
	if err == nil {
		err = unix.Fstatat(int(dir.Fd()), gitFolder, &file, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return worktree{}, refuse("%q has a .git that can't be read: %v", name, err)
	}
	place := home{filepath.Join(append([]string{s.root}, path...)...), file.Uid}
	w := worktree{own: place.resolve(bytes.TrimPrefix(text, []byte("gitdir:")))}
	unsure := refuse("%q has a .git that names a repository which doesn't name it (git worktree repair mends that of a linked worktree): a clone of it (git clone) can be kept", name)
	own, err := w.own.open()
	if err != nil {
		return worktree{}, cmp.Or(refusedBy(err), unsure)
	}
	defer func() { _ = own.Close() }()
	pointer, err := w.findPointer(own)
	if err != nil || file.Nlink != 1 || unix.Lstat(pointer, &found) != nil || found.Dev != file.Dev || found.Ino != file.Ino {
		return worktree{}, unsure
	}
	if w.submodule {
		return w, nil
	}
	to, _, err := readFile(int(own.Fd()), "commondir", maxPointer)
	if err != nil {
		return worktree{}, unsure
	}
	w.shared = w.own.resolve(to)
	shared, err := w.shared.open()
	if err != nil {
		return worktree{}, cmp.Or(refusedBy(err), unsure)
	}
	_ = shared.Close() // it was only looked for
	switch {
	case unix.Fstatat(int(own.Fd()), "info/sparse-checkout", &found, 0) == nil:
		return worktree{}, refuse("repository %q is a sparse checkout", name)
	case unix.Fstatat(int(own.Fd()), "reftable", &found, 0) == nil:
		return worktree{}, refuse("%q is a linked worktree whose references are tables (reftable): a clone of it (git clone) can be kept", name)
	}
	return w, nil
}

// findPointer returns the path of the .git that a repository says is its own: a linked worktree's in a file, a submodule's by its
// configuration.
func (w *worktree) findPointer(own *os.File) (string, error) {
	back, _, err := readFile(int(own.Fd()), "gitdir", maxPointer)
	if err == nil {
		return w.own.resolve(back).path, nil
	}
	config, _, err := readFile(int(own.Fd()), "config", maxConfig)
	if err != nil {
		return "", err
	}
	at := worktreeLine.FindSubmatch(config)
	if at == nil {
		return "", unix.ENOENT
	}
	w.submodule = true
	return filepath.Join(w.own.resolve(at[1]).path, gitFolder), nil
}

func refusedBy(err error) error {
	if refused, is := errors.AsType[*RefusedError](err); is {
		return refused
	}
	return nil
}

// resolve returns what a file in it names.
func (h home) resolve(text []byte) home {
	path := strings.TrimSpace(string(text))
	if !filepath.IsAbs(path) {
		path = filepath.Join(h.path, path)
	}
	return home{filepath.Clean(path), h.owner}
}

// isSharedState reports whether linked worktrees of a repository have a part of it in common.
func isSharedState(name string) bool {
	switch strings.TrimSuffix(name, ".lock") {
	case "objects", "refs", "packed-refs", "config", "info", "shallow", "description", "modules", "reftable":
		return true
	}
	return false
}

// scanWorktree returns the .git of a linked worktree or a submodule as that of a repository of its own.
func (s *scan) scanWorktree(ctx context.Context, w worktree, known *node, at scanPlace) (*node, error) {
	path := append(slices.Clip(at.path), gitFolder)
	inside := scanPlace{path: path, moved: at.moved, git: []string{}, linked: true}
	if w.submodule {
		return s.joinFolders(ctx, gitFolder, known, inside, folderPart{w.own, func(name string) bool { return isGitState(name) || strings.HasSuffix(name, ".lock") }})
	}
	isOwn := func(name string) bool {
		return !isSharedState(name) && name != "logs" && (isGitState(name) || strings.HasSuffix(name, ".lock"))
	}
	logs, err := s.joinFolders(ctx, "logs", below(known, "logs"), inside.below("logs"),
		folderPart{w.own.below("logs"), func(name string) bool { return name == "HEAD" }}, folderPart{w.shared.below("logs"), func(name string) bool { return name == "refs" }})
	if err != nil {
		return nil, err
	}
	n, err := s.joinFolders(ctx, gitFolder, known, inside, folderPart{w.own, isOwn}, folderPart{w.shared, isSharedState})
	if err != nil {
		return nil, err
	}
	n.add(logs)
	n.compareBelow(known)
	return n, nil
}

// folderPart is some of what is in a folder.
type folderPart struct {
	home  home
	holds func(name string) bool
}

func (h home) below(name string) home { return home{filepath.Join(h.path, name), h.owner} }

func (p scanPlace) below(name string) scanPlace {
	p.path, p.git = append(slices.Clip(p.path), name), append(slices.Clip(p.git), name)
	return p
}

// below returns what had a name in a folder.
func below(n *node, name string) *node {
	if n == nil || n.Type != typeFolder {
		return nil
	}
	if i := slices.IndexFunc(n.below, func(child *node) bool { return string(child.Name) == name }); i >= 0 {
		return n.below[i]
	}
	return nil
}

// joinFolders returns a folder of parts of others. It isn't watched. A folder that isn't there has nothing in it.
func (s *scan) joinFolders(ctx context.Context, name string, known *node, at scanPlace, parts ...folderPart) (*node, error) {
	n := &node{joined: true}
	n.Name, n.Type, n.Mode = []byte(name), typeFolder, 0o755
	for _, p := range parts {
		dir, err := p.home.open()
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = s.joinPart(ctx, dir, p, n, known, at)
		_ = dir.Close() // it was only read
		if err != nil {
			return nil, err
		}
	}
	n.compareBelow(known)
	return n, s.count(0)
}

func (s *scan) joinPart(ctx context.Context, dir *os.File, p folderPart, n, known *node, at scanPlace) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	e := entrance{fd: int(dir.Fd()), at: at}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !p.holds(name) {
			continue
		}
		before := below(known, name)
		child, err := s.scanEntry(&e, name, before)
		if err == nil && child != nil && child != before && child.Type == typeFolder {
			child, err = s.scanBelow(ctx, dir, child, before, append(slices.Clip(at.path), name), at)
		}
		if err != nil {
			return err
		}
		if child != nil {
			child.home = &p.home
			n.add(child)
		}
	}
	return nil
}

// add adds what is in a folder, in order.
func (n *node) add(child *node) {
	i, _ := slices.BinarySearchFunc(n.below, child, func(a, b *node) int { return strings.Compare(string(a.Name), string(b.Name)) })
	n.below = slices.Insert(n.below, i, child)
}

// compareBelow notes whether what is in a folder differs from the last snapshot's.
func (n *node) compareBelow(before *node) {
	n.change = before == nil || before.Type != typeFolder || len(before.below) != len(n.below) ||
		slices.ContainsFunc(n.below, func(child *node) bool { return child.change })
	if before != nil && before.Type == typeFolder {
		n.chunks, n.meaning = before.chunks, before.meaning
	}
}
