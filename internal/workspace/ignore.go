package workspace

import (
	"bufio"
	"bytes"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/go-git/go-git/v5/plumbing/format/index"
)

// The files that say what is left out. A later rule counts for more, so that .wakeignore can take back what .gitignore says.
const (
	gitIgnore  = ".gitignore"
	wakeIgnore = ".wakeignore"
)

// rules say what is left out of a folder and of those below it.
type rules struct{ list []gitignore.Pattern }

// withFiles returns the rules of a folder at a path that has files of rules itself.
func (r rules) withFiles(path []string, files ...[]byte) rules {
	list := slices.Clip(r.list)
	for _, text := range files {
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			line := strings.TrimSuffix(lines.Text(), "\r")
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
				list = append(list, gitignore.ParsePattern(line, slices.Clone(path)))
			}
		}
	}
	return rules{list}
}

func (r rules) excludes(path []string, isFolder bool) bool {
	for _, p := range slices.Backward(r.list) {
		switch p.Match(path, isFolder) {
		case gitignore.Exclude:
			return true
		case gitignore.Include:
			return false
		case gitignore.NoMatch:
		}
	}
	return false
}

// tracked are the files of a repository that its index names, and the folders that they are in: rules don't leave them out.
type tracked map[string]bool

// parseIndex reads an index of git. One that can't be read tracks nothing.
func parseIndex(content []byte) tracked {
	var x index.Index
	if err := index.NewDecoder(bytes.NewReader(content)).Decode(&x); err != nil {
		return nil
	}
	t := make(tracked, len(x.Entries))
	for _, e := range x.Entries {
		for name := e.Name; name != "" && !t[name]; {
			t[name] = true
			name = name[:max(0, strings.LastIndexByte(name, '/'))]
		}
	}
	return t
}

// repository is one with files that are scanned.
type repository struct {
	depth   int // of its folder
	tracked func() tracked
}

func (r *repository) isTracked(path []string) bool {
	return r != nil && r.tracked()[strings.Join(path[r.depth:], "/")]
}
