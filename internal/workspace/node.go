//go:build unix

package workspace

import (
	"slices"
	"strings"
)

// node is a file, folder or link as it was last seen.
type node struct {
	entry
	stamp  stamp
	racy   bool     // it was written so shortly before it was read that its stamp may not tell
	chunks []*chunk // of a file or a list
	below  []*node  // of a folder, by name
	change bool     // its list or content differs from the last snapshot's
	patch  []byte   // stands for the content of a file
	forced bool     // rules leave it out, but the index of its repository names it
	home   *home    // where it is, if not in the folder above
	joined bool     // a folder with parts that are elsewhere

	// Of a folder:
	meaning digest // what is in it, wherever that is kept
	rules   digest // the rules that it has itself
	index   stamp  // of its repository's index
	mark    *mark  // nil: it isn't watched
	settled bool   // all that may change in it is watched
}

// mark says what has changed in a folder since it was read.
type mark struct {
	above                *mark
	changed, below, gone bool
}

func (m *mark) markChanged() {
	if m == nil {
		return
	}
	m.changed = true
	for m = m.above; m != nil; m = m.above {
		m.below = true
	}
}

// isQuiet reports whether nothing in a folder has changed since it was read.
func (n *node) isQuiet(at stamp) bool {
	return n.Type == typeFolder && n.settled && !n.mark.changed && !n.mark.below && n.stamp.dev == at.dev && n.stamp.ino == at.ino && n.stamp.mode == at.mode
}

// isSame reports whether a file is as it was when it was read.
func (n *node) isSame(at stamp, links uint64) bool {
	return n.Type == typeFile && n.stamp == at && !n.racy && n.patch == nil && links == 1
}

// childNamed returns what had a name in a folder.
func childNamed(n *node, name string) *node {
	if n == nil || n.Type != typeFolder {
		return nil
	}
	if i := slices.IndexFunc(n.below, func(child *node) bool { return string(child.Name) == name }); i >= 0 {
		return n.below[i]
	}
	return nil
}

// addChild adds what is in a folder, in order.
func (n *node) addChild(child *node) {
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

func (n *node) hasChangedSince(at int64) bool {
	return n.stamp.changed > at || slices.ContainsFunc(n.below, func(child *node) bool { return child.hasChangedSince(at) })
}

// toEntry returns the entry of a node as it is written in a list. The chunks of the pack that is open have no name yet.
func (n *node) toEntry() entry {
	e := n.entry
	e.Chunks = nil
	for _, c := range n.chunks {
		e.Chunks = append(e.Chunks, *c)
	}
	return e
}

// isKept reports whether a folder has been read, and nothing in it has changed since.
func (n *node) isKept() bool { return !n.change && n.meaning != digest{} }
