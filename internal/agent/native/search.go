package native

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	slash "path"
	"regexp"
	"strings"

	"code.wake.dev/wake/internal/agent/workdir"
)

// The most that a search tells.
const (
	maxFound = 1000
	maxWidth = 500 // bytes of a line
)

var errEnough = errors.New("enough")

// searchTools are the tools that look for files and in them.
func (w workspace) searchTools() []*tool {
	return []*tool{
		defineTool("glob", "Lists the files of the workspace whose path matches a pattern such as **/*.go. At most 1000, by name; .git is left out.",
			`{"type":"object","properties":{"pattern":{"type":"string","description":"with *, ?, ** and {a,b}, relative to path"},"path":{"type":"string","description":"folder to look in; the workspace by default"}},"required":["pattern"]}`,
			true, w.globFiles),
		defineTool("grep", "Looks for a regular expression (RE2) in the text files of the workspace, line by line. Tells path:line:text, at most 1000 lines.",
			`{"type":"object","properties":{"pattern":{"type":"string"},"path":{"type":"string","description":"file or folder; the workspace by default"},"glob":{"type":"string","description":"only files that match, such as *.go"},"ignore_case":{"type":"boolean"}},"required":["pattern"]}`,
			true, w.grepFiles),
	}
}

// globExpression makes a regular expression of a glob pattern. One without a slash
// matches the name alone, anywhere below the folder, if anywhere is set.
func globExpression(pattern string, anywhere bool) (*regexp.Regexp, error) {
	if anywhere && !strings.Contains(pattern, "/") {
		pattern = "**/" + pattern
	}
	var b strings.Builder
	b.WriteString("^")
	depth := 0
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case strings.HasPrefix(rest, "**"):
			b.WriteString(".*")
			i++
		case rest[0] == '*':
			b.WriteString("[^/]*")
		case rest[0] == '?':
			b.WriteString("[^/]")
		case rest[0] == '{':
			depth++
			b.WriteString("(?:")
		case rest[0] == '}' && depth > 0:
			depth--
			b.WriteString(")")
		case rest[0] == ',' && depth > 0:
			b.WriteString("|")
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("pattern %q has an open brace", pattern)
	}
	return regexp.Compile(b.String() + "$")
}

// walkFiles visits the files below a folder of the workspace by their paths, relative to
// the workspace and to the folder.
func (w workspace) walkFiles(ctx context.Context, folder string, visit func(root *os.Root, path, below string) error) error {
	root, rel, err := w.OpenPath(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, err := root.Stat(rel); err != nil {
		return err
	}
	err = fs.WalkDir(root.FS(), rel, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil //nolint:nilerr // a folder that can't be read hides what is in it
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular(): // what a link within leads to is found by its own name
			return nil
		}
		below := strings.TrimPrefix(strings.TrimPrefix(path, rel), "/")
		if rel == "." {
			below = path
		}
		below = cmp.Or(below, slash.Base(path))
		return visit(root, path, below)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

type globInput struct{ Pattern, Path string }

func (w workspace) globFiles(ctx context.Context, _ string, in globInput) (result, error) {
	if in.Pattern == "" {
		return result{}, errors.New("pattern is required")
	}
	match, err := globExpression(in.Pattern, false)
	if err != nil {
		return result{}, err
	}
	var found []string
	err = w.walkFiles(ctx, in.Path, func(_ *os.Root, path, below string) error {
		if match.MatchString(below) {
			found = append(found, path)
		}
		if len(found) == maxFound {
			return errEnough
		}
		return nil
	})
	switch {
	case err != nil:
		return result{}, err
	case len(found) == 0:
		return textResult("No file matches."), nil
	}
	return textResult(strings.Join(found, "\n")), nil
}

type grepInput struct {
	Pattern, Path, Glob string
	IgnoreCase          bool `json:"ignore_case"`
}

func (w workspace) grepFiles(ctx context.Context, _ string, in grepInput) (result, error) {
	if in.Pattern == "" {
		return result{}, errors.New("pattern is required")
	}
	if in.IgnoreCase {
		in.Pattern = "(?i)" + in.Pattern
	}
	match, err := regexp.Compile(in.Pattern)
	if err != nil {
		return result{}, err
	}
	only, err := globExpression(in.Glob, true)
	if err != nil {
		return result{}, err
	}
	var found, large []string
	err = w.walkFiles(ctx, in.Path, func(root *os.Root, path, below string) error {
		if in.Glob != "" && !only.MatchString(below) {
			return nil
		}
		content, err := workdir.LoadIn(root, path)
		if _, is := errors.AsType[*workdir.TooLargeError](err); is {
			large = append(large, path)
		}
		if err != nil || bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			return nil // what can't be read, or is no text, has no lines
		}
		number := 0
		for line := range bytes.SplitSeq(bytes.TrimSuffix(content, []byte("\n")), []byte("\n")) {
			if number++; !match.Match(line) {
				continue
			}
			found = append(found, fmt.Sprintf("%s:%d:%s", path, number, runeCut(string(line[:min(len(line), maxWidth)]), false)))
			if len(found) == maxFound {
				return errEnough
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return result{}, err
	case len(found) == 0:
		found = []string{"Nothing matches."}
	}
	if len(large) > 0 {
		found = append(found, fmt.Sprintf("[%d files were not searched, such as %s: they have more than %d bytes; use bash with grep]", len(large), large[0], workdir.MaxFile))
	}
	return textResult(strings.Join(found, "\n")), nil
}
