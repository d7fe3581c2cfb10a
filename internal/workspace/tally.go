//go:build unix

package workspace

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// scanTally is what a scan has counted, within limits, and what it has left out.
type scanTally struct {
	limits Limits
	before []LeftOut // by the last scan

	files   atomic.Int64
	bytes   atomic.Int64
	targets atomic.Int64 // bytes of what links lead to
	mu      sync.Mutex
	left    []LeftOut
}

// maxLeftOut bounds what is listed.
const maxLeftOut = 200

func (t *scanTally) leaveOut(path []string, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = append(t.left, LeftOut{strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD"), reason})
}

// sortLeft returns what was left out, in order.
func (t *scanTally) sortLeft() []LeftOut {
	slices.SortFunc(t.left, func(a, b LeftOut) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	return t.left
}

// leftBefore returns what the last scan left out of a folder.
func (t *scanTally) leftBefore(path []string) []LeftOut {
	inside := strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD") + "/"
	from, _ := slices.BinarySearchFunc(t.before, inside, func(l LeftOut, path string) int { return strings.Compare(l.Path, path) })
	to := from
	for to < len(t.before) && strings.HasPrefix(t.before[to].Path, inside) {
		to++
	}
	return t.before[from:to]
}

func (t *scanTally) countEntry(size int64) error {
	switch files, bytes := t.files.Add(1), t.bytes.Add(size); {
	case files > int64(t.limits.Files):
		return newRefusal("it has more than %d files", t.limits.Files)
	case bytes > t.limits.Bytes:
		return newRefusal("its files have more than %d MiB: what can be made again belongs into .wakeignore", t.limits.Bytes>>20)
	}
	return nil
}

// maxTargets bounds what the links of a folder lead to, in bytes: a runner holds it for as long as it has the folder.
const maxTargets = 32 << 20

func (t *scanTally) countLink(n *node) error {
	if t.targets.Add(int64(len(n.Target))) > maxTargets {
		return newRefusal("what its links lead to takes more than %d MiB", maxTargets>>20)
	}
	return t.countEntry(0)
}

// uncountEntry takes back what was counted of a file that isn't kept.
func (t *scanTally) uncountEntry(n *node) {
	t.files.Add(-1)
	t.bytes.Add(-n.Size)
}

func (t *scanTally) countAll(n *node) error {
	switch n.Type {
	case typeFile:
		return t.countEntry(n.Size)
	case typeLink:
		return t.countLink(n)
	}
	for _, child := range n.below {
		if err := t.countAll(child); err != nil {
			return err
		}
	}
	return t.countEntry(0)
}
