package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/pkg/wire"
)

// workspace are the tools for files, which are confined to the folder. Links are
// followed as long as they stay within it.
type workspace struct{ workdir.Folder }

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
	content = strings.TrimSuffix(content, "\n")
	lines, first := strings.Count(content, "\n")+1, max(in.Offset, 1)
	if first > lines {
		return result{}, fmt.Errorf("the file has only %d lines", lines)
	}
	if in.Limit <= 0 {
		in.Limit = readLines
	}
	last := min(lines, first-1+min(in.Limit, lines))
	var b strings.Builder
	number := 0
	for line := range strings.SplitSeq(content, "\n") {
		if number++; number > last {
			break
		}
		if number >= first {
			fmt.Fprintf(&b, "%d\t%s\n", number, line)
		}
	}
	if last < lines {
		fmt.Fprintf(&b, "[%d more lines: go on with offset %d]\n", lines-last, last+1)
	}
	return textResult(b.String()), nil
}

func (w workspace) loadText(path string) (string, error) {
	if path == "" {
		return "", errors.New("path is required")
	}
	content, err := w.LoadFile(path)
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
	if len(content) > workdir.MaxFile {
		return result{}, fmt.Errorf("the content has %d bytes, more than %d", len(content), workdir.MaxFile)
	}
	change, err := w.SaveFile(path, []byte(content))
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
	case len(content)+n*(len(in.New)-len(in.Old)) > workdir.MaxFile: // before it is made
		return result{}, fmt.Errorf("the content would have %d bytes, more than %d", len(content)+n*(len(in.New)-len(in.Old)), workdir.MaxFile)
	}
	return w.saveText(in.Path, strings.ReplaceAll(content, in.Old, in.New))
}
