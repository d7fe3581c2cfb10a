//go:build unix

package workspace

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// worktree is where the repository of a linked worktree is: what is its own, and what it shares with others. That of a submodule shares
// nothing.
type worktree struct {
	own, shared home
	submodule   bool
}

// maxPointer bounds the files that say where a repository is.
const maxPointer = 16 << 10

// findWorktree returns where the repository of a folder, at a path below root, is if its .git is a file. The agent may have written that file: the repository
// has to name the folder, too, the one that it is shared with has it among its worktrees, and all belongs to one owner.
func findWorktree(root string, dir *os.File, path []string) (worktree, error) {
	name := cmp.Or(strings.Join(path, "/"), ".")
	text, _, err := readFile(int(dir.Fd()), gitFolder, maxPointer)
	var file, found unix.Stat_t
	if err == nil {
		err = unix.Fstatat(int(dir.Fd()), gitFolder, &file, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return worktree{}, newRefusal("%q has a .git that can't be read: %v", name, err)
	}
	place := home{filepath.Join(append([]string{root}, path...)...), file.Uid}
	w := worktree{own: place.resolvePath(bytes.TrimPrefix(text, []byte("gitdir:")))}
	unsure := newRefusal("%q has a .git that names a repository which doesn't name it (git worktree repair mends that of a linked worktree): a clone of it (git clone) can be kept", name)
	own, err := w.own.openHome()
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
	w.shared = w.own.resolvePath(to)
	shared, err := w.shared.openHome()
	if err != nil {
		return worktree{}, cmp.Or(refusedBy(err), unsure)
	}
	isListed := w.isListed(own, shared)
	_ = shared.Close() // it was only looked for
	switch {
	case !isListed:
		return worktree{}, unsure
	case unix.Fstatat(int(own.Fd()), "info/sparse-checkout", &found, 0) == nil:
		return worktree{}, newRefusal("repository %q is a sparse checkout", name)
	case unix.Fstatat(int(own.Fd()), "reftable", &found, 0) == nil:
		return worktree{}, newRefusal("%q is a linked worktree whose references are tables (reftable): a clone of it (git clone) can be kept", name)
	}
	return w, nil
}

// isListed reports whether the repository that a worktree says it shares has it among its worktrees: what an agent has written in its folder
// may name any other one.
func (w *worktree) isListed(own, shared *os.File) bool {
	var there, here unix.Stat_t
	err := unix.Fstatat(int(shared.Fd()), "worktrees/"+filepath.Base(w.own.path), &there, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && unix.Fstat(int(own.Fd()), &here) == nil && there.Dev == here.Dev && there.Ino == here.Ino
}

// findPointer returns the path of the .git that a repository says is its own: a linked worktree's in a file, a submodule's by its
// configuration.
func (w *worktree) findPointer(own *os.File) (string, error) {
	back, _, err := readFile(int(own.Fd()), "gitdir", maxPointer)
	if err == nil {
		return w.own.resolvePath(back).path, nil
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
	return filepath.Join(w.own.resolvePath(at[1]).path, gitFolder), nil
}

func refusedBy(err error) error {
	if refused, is := errors.AsType[*RefusedError](err); is {
		return refused
	}
	return nil
}
