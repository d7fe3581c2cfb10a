package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	slash "path"
	"path/filepath"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
)

// folders makes the folders of runs.
type folders struct {
	root   string
	user   *process.User // works in them; nil: this process's own
	logger *slog.Logger
}

// pathOf returns the folder of a run; "" is one of the runner's own.
func (f folders) pathOf(run, dir string) string {
	if dir == "" {
		dir = filepath.Join(f.root, subjects.Escape(run))
	}
	return dir
}

// createFolder makes the folder of a run, see [folders.pathOf].
func (f folders) createFolder(run, dir string) (string, error) {
	dir = f.pathOf(run, dir)
	if err := f.user.MakeDir(dir); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	return dir, nil
}

// copyFolder makes the folder of a forked run: a copy of its parent's, which has to be here if it has one.
func (f folders) copyFolder(run, parent string) (string, error) {
	dir := filepath.Join(f.root, subjects.Escape(run))
	// An owner may have died over it. Nothing works in it before the run has begun.
	if err := workspace.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	if parent == "" { // nothing has worked there
		return f.createFolder(run, "")
	}
	if !isFolder(parent) {
		return "", fmt.Errorf("copy the workspace: this runner has no %s: %w", parent, fs.ErrNotExist)
	}
	from, err := os.OpenRoot(parent) // an agent's user may put a link in the place of a file meanwhile
	if err != nil {
		return "", fmt.Errorf("copy the workspace %s: %w", parent, err)
	}
	err = errors.Join(os.CopyFS(dir, f.copiableFiles(parent, from.FS())), from.Close())
	if err == nil {
		err = f.relinkFiles(run, dir, parent)
	}
	if err != nil {
		return "", fmt.Errorf("copy the workspace %s: %w", parent, err)
	}
	if err := f.user.Own(dir); err != nil {
		return "", fmt.Errorf("copy the workspace %s: %w", parent, err)
	}
	return dir, nil
}

// relinkFiles has links of a copy that lead into the folder that it is a copy of lead into the copy: what works there would change the
// other one. One that can't be replaced stays, and is told of.
func (f folders) relinkFiles(run, dir, from string) error {
	if !filepath.IsAbs(from) {
		return nil
	}
	origins := []string{filepath.Clean(from)}
	if resolved, err := filepath.EvalSymlinks(from); err == nil && resolved != origins[0] {
		origins = append(origins, resolved)
	}
	root, err := os.OpenRoot(dir) // an agent's user may work beside
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only looked into
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return err
		}
		old, err := root.Readlink(name)
		to, inside := movedTarget(old, origins, dir)
		if err != nil || !inside {
			return err
		}
		err = root.Remove(name)
		if err == nil {
			err = root.Symlink(to, name)
		}
		if errors.Is(err, fs.ErrPermission) {
			f.logger.Warn("a link in the folder of the run leads into the folder that this is a copy of, and can't be replaced", "run", run, "link", name)
			return nil
		}
		return err
	})
}

// movedTarget is where a link leads in a copy of a folder that goes by one of some names. inside says that it leads into that folder.
func movedTarget(target string, origins []string, dir string) (to string, inside bool) {
	for _, from := range origins {
		rest, found := strings.CutPrefix(target, from)
		if below := strings.TrimPrefix(rest, string(filepath.Separator)); found && (below == "" || below != rest && filepath.IsLocal(below)) {
			return dir + rest, true
		}
	}
	return "", false
}

// copiableFiles are those of the files of a folder that can be copied: without sockets, pipes and
// devices, and without the folders of runs that may be below it, as a copy must not
// contain itself.
func (f folders) copiableFiles(dir string, files fs.FS) fs.FS {
	all, ok := files.(linkFS)
	if !ok {
		return files
	}
	w := filteredFS{linkFS: all}
	if below, err := filepath.Rel(dir, f.root); err == nil && filepath.IsLocal(below) {
		w.hidden = filepath.ToSlash(below)
	}
	return w
}

type linkFS interface {
	fs.ReadDirFS
	fs.ReadLinkFS
}

// filteredFS hides a folder, and what is neither file, folder nor link.
type filteredFS struct {
	linkFS

	hidden string
}

// ReadDir implements [fs.ReadDirFS].
func (w filteredFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := w.linkFS.ReadDir(name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return e.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 || slash.Join(name, e.Name()) == w.hidden
	}), err
}
