package workspace

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

// The files that say what is left out. A later rule counts for more, so that .wakeignore can take back what .gitignore says.
const (
	gitIgnore  = ".gitignore"
	wakeIgnore = ".wakeignore"
)

// Bounds of rules: agents write them, and each is held against each file.
const (
	maxRulesFile = 1 << 20
	maxRules     = 20_000   // that hold in one folder
	maxRule      = 16 << 10 // bytes of one; a longer one can't name a path that a system has
)

// rules say what is left out of a folder and of those below it.
type rules struct{ list []gitignore.Pattern }

// withFiles returns the rules of a folder at a path that has files of rules itself.
func (r rules) withFiles(path []string, files ...[]byte) rules {
	list := slices.Clip(r.list)
	for _, text := range files {
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") && len(line) <= maxRule {
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

// Bounds of an index: the names of files that a system has, and all that their folders come to. An agent can write one that claims more.
const (
	maxIndexName  = 4096
	maxIndexNames = 256 << 20
)

// parseIndex reads an index of git, of version 2 to 4; see gitformat-index(5). One that can't be read, or goes beyond its bounds,
// tracks nothing.
func parseIndex(content []byte) tracked {
	const header, fixed, flagsAt, extended = 12, 62, 60, 0x4000
	if len(content) < header || string(content[:4]) != "DIRC" {
		return nil
	}
	version, count := binary.BigEndian.Uint32(content[4:]), binary.BigEndian.Uint32(content[8:])
	if version < 2 || version > 4 {
		return nil
	}
	t, name, sum := tracked{}, []byte(nil), 0
	rest := content[header:]
	for range count {
		at := fixed
		if len(rest) > at && version > 2 && binary.BigEndian.Uint16(rest[flagsAt:])&extended != 0 {
			at += 2
		}
		begin := at
		if len(rest) <= at {
			return nil
		}
		kept := 0
		if version == 4 { // names begin as the one before does
			strip, size := readStrip(rest[at:])
			if size == 0 || strip > len(name) {
				return nil
			}
			kept, at = len(name)-strip, at+size
		}
		end := bytes.IndexByte(rest[at:], 0)
		if end < 0 || kept+end > maxIndexName {
			return nil
		}
		name = append(name[:kept], rest[at:at+end]...)
		size := at + end + 1
		if version < 4 {
			size = (begin + end + 8) &^ 7
		}
		if size > len(rest) {
			return nil
		}
		rest = rest[size:]
		for path := string(name); path != "" && !t[path]; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
			t[path] = true
			if sum += len(path); sum > maxIndexNames {
				return nil
			}
		}
	}
	return t
}

// readStrip reads how much of a name the next one doesn't begin with, and the size of that number; 0: it can't be read.
func readStrip(b []byte) (strip, size int) {
	for i, c := range b[:min(len(b), 4)] {
		if strip |= int(c & 0x7f); c&0x80 == 0 {
			return strip, i + 1
		}
		strip = (strip + 1) << 7
	}
	return 0, 0
}

// repository is one with files that are scanned.
type repository struct {
	depth   int // of its folder
	tracked func() tracked
}

func (r *repository) isTracked(path []string) bool {
	return r != nil && r.tracked()[strings.Join(path[r.depth:], "/")]
}
