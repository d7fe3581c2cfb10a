package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// workspace is the folder to which the tools for files are confined. Links are
// followed as long as they stay within it.
type workspace struct {
	dir  string
	user *process.User // whose its files are; nil: this process's own
}

// maxFile is the size of the largest file that is read, written or searched.
const maxFile = 16 << 20

// openPath opens the folder, and the path as one within it.
func (w workspace) openPath(path string) (*os.Root, string, error) {
	rel, err := w.relPath(path)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return nil, "", fmt.Errorf("open the workspace: %w", err)
	}
	return root, rel, nil
}

// relPath returns a path within the workspace, for one that is relative to it or absolute.
func (w workspace) relPath(path string) (string, error) {
	rel := filepath.Clean(path)
	if filepath.IsAbs(path) {
		rel = w.pathBelow(rel)
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is outside the workspace %s: use a path within it", path, w.dir)
	}
	return rel, nil
}

// pathBelow returns an absolute path relative to the workspace, by either of its names.
func (w workspace) pathBelow(path string) string {
	dirs := []string{w.dir}
	if resolved, err := filepath.EvalSymlinks(w.dir); err == nil {
		dirs = append(dirs, resolved)
	}
	for _, dir := range dirs {
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return path
}

// loadFile reads a regular file.
func (w workspace) loadFile(path string) (content []byte, err error) {
	root, rel, err := w.openPath(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return loadIn(root, rel)
}

// tooLarge is the error for a file that isn't read.
type tooLarge struct {
	path string
	size int64
}

func (e *tooLarge) Error() string {
	return fmt.Sprintf("%s has %d bytes, more than %d: use bash with grep, head or sed", e.path, e.size, maxFile)
}

func loadIn(root *os.Root, rel string) ([]byte, error) {
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us
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
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", rel)
	case info.Size() > maxFile:
		return nil, &tooLarge{rel, info.Size()}
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// saveFile writes a file, and the folders in which it is.
func (w workspace) saveFile(path string, content []byte) (change string, err error) {
	root, rel, err := w.openPath(path)
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
	return change, w.user.OwnWay(root, rel)
}

// fileTools are the tools that read and write files.
func (w workspace) fileTools() []*tool {
	return []*tool{
		defineTool("read", "Reads a text file of the workspace. Each line is preceded by its number and a tab.",
			`{"type":"object","properties":{"path":{"type":"string","description":"relative to the workspace"},"offset":{"type":"integer","description":"first line, from 1"},"limit":{"type":"integer","description":"number of lines, 2000 by default"}},"required":["path"]}`,
			true, w.readFile),
		defineTool("write", "Writes a file of the workspace, and makes the folders it is in. What the file held is replaced.",
			`{"type":"object","properties":{"path":{"type":"string","description":"relative to the workspace"},"content":{"type":"string"}},"required":["path","content"]}`,
			false, w.writeFile),
		defineTool("edit", "Replaces a text in a file of the workspace. The text must occur exactly once, unless replace_all is set.",
			`{"type":"object","properties":{"path":{"type":"string","description":"relative to the workspace"},"old_string":{"type":"string","description":"without line numbers"},"new_string":{"type":"string"},"replace_all":{"type":"boolean"}},"required":["path","old_string","new_string"]}`,
			false, w.editFile),
	}
}

type readInput struct {
	Path          string
	Offset, Limit int
}

// readLines is how many lines are read if the model doesn't say.
const readLines = 2000

func (w workspace) readFile(_ context.Context, _ string, in readInput) (result, error) {
	content, err := w.loadText(in.Path)
	if err != nil {
		return result{}, err
	}
	if content == "" {
		return textResult("The file is empty."), nil
	}
	lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	first := max(in.Offset, 1)
	if first > len(lines) {
		return result{}, fmt.Errorf("the file has only %d lines", len(lines))
	}
	if in.Limit <= 0 {
		in.Limit = readLines
	}
	last := min(len(lines), first-1+min(in.Limit, len(lines)))
	var b strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&b, "%d\t%s\n", i, lines[i-1])
	}
	if last < len(lines) {
		fmt.Fprintf(&b, "[%d more lines: go on with offset %d]\n", len(lines)-last, last+1)
	}
	return textResult(b.String()), nil
}

func (w workspace) loadText(path string) (string, error) {
	if path == "" {
		return "", errors.New("path is required")
	}
	content, err := w.loadFile(path)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(content) {
		return "", fmt.Errorf("%s is not a text file (%d bytes)", path, len(content))
	}
	return string(content), nil
}

type writeInput struct {
	Path    string
	Content *string
}

func (w workspace) writeFile(_ context.Context, _ string, in writeInput) (result, error) {
	if in.Path == "" || in.Content == nil {
		return result{}, errors.New("path and content are required")
	}
	return w.saveText(in.Path, *in.Content)
}

func (w workspace) saveText(path, content string) (result, error) {
	if len(content) > maxFile {
		return result{}, fmt.Errorf("the content has %d bytes, more than %d", len(content), maxFile)
	}
	change, err := w.saveFile(path, []byte(content))
	if err != nil {
		return result{}, err
	}
	r := textResult(fmt.Sprintf("%s: %s, %d bytes", path, change, len(content)))
	r.told = []wire.Payload{&wire.FileChanged{Path: path, Change: change}}
	return r, nil
}

type editInput struct {
	Path string
	Old  string `json:"old_string"`
	New  string `json:"new_string"`
	All  bool   `json:"replace_all"`
}

func (w workspace) editFile(_ context.Context, _ string, in editInput) (result, error) {
	content, err := w.loadText(in.Path)
	if err != nil {
		return result{}, err
	}
	switch n := strings.Count(content, in.Old); {
	case in.Old == "":
		return result{}, errors.New("old_string is required; use write for a new file")
	case in.Old == in.New:
		return result{}, errors.New("old_string and new_string are the same")
	case n == 0:
		return result{}, errors.New("old_string does not occur in the file: read it again")
	case n > 1 && !in.All:
		return result{}, fmt.Errorf("old_string occurs %d times: make it longer, or set replace_all", n)
	}
	return w.saveText(in.Path, strings.ReplaceAll(content, in.Old, in.New))
}
