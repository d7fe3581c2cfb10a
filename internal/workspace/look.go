//go:build unix

package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// File is a file, folder or link in a snapshot.
type File = wire.FolderFile

func (e entry) describeFile(path []string) File {
	f := File{Path: pathText(path), Mode: fmt.Sprintf("%03o", e.Mode), Size: e.Size}
	switch e.Type {
	case typeFolder:
		f.Type = "folder"
	case typeLink:
		f.Type, f.Mode, f.Target = "link", "", strings.ToValidUTF8(string(e.Target), "\uFFFD")
	default:
		f.Type = "file"
	}
	return f
}

func pathText(path []string) string { return strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD") }

// Content is what a snapshot holds.
type Content struct {
	Snapshot

	Tree  string // SHA-256 of names, types, modes and contents: two folders that are the same have the same
	Files []File // folders before what is in them
}

// List returns what a snapshot holds.
func (r *Reader) List(ctx context.Context, id string) (Content, error) {
	from := unpacker{store: r}
	m, err := from.readManifest(ctx, id)
	if err != nil {
		return Content{}, err
	}
	c := Content{Snapshot: m.toSnapshot(id)}
	sum, err := from.surveyFolder(ctx, m.Root, nil, func(path []string, e entry) { c.Files = append(c.Files, e.describeFile(path)) })
	c.Tree = hex.EncodeToString(sum[:])
	return c, err
}

// File returns a file, folder or link by its path, of a file the first bytes of its content, up to most or a little
// more. It fails with [fs.ErrNotExist].
func (r *Reader) File(ctx context.Context, id, path string, most int64) (File, []byte, error) {
	from := unpacker{store: r}
	m, err := from.readManifest(ctx, id)
	if err != nil {
		return File{}, nil, err
	}
	at, folder := []string(nil), m.Root
	for name := range strings.SplitSeq(path, "/") {
		var list []entry
		if folder.Type == typeFolder {
			if list, err = from.readList(ctx, folder, len(at)); err != nil {
				return File{}, nil, err
			}
		}
		i := slices.IndexFunc(list, func(e entry) bool { return strings.ToValidUTF8(string(e.Name), "\uFFFD") == name })
		if i < 0 {
			return File{}, nil, fmt.Errorf("workspace: %.200q: %w", path, fs.ErrNotExist)
		}
		at, folder = append(at, string(list[i].Name)), list[i]
	}
	f := folder.describeFile(at)
	if f.Type != "file" {
		return f, nil, nil
	}
	var content []byte
	for _, c := range folder.Chunks {
		if int64(len(content)) >= most {
			break
		}
		part, err := from.readChunks(ctx, []chunk{c})
		if err != nil {
			return f, nil, err
		}
		content = append(content, part...)
	}
	return f, content, nil
}

// surveyFolder visits all that is in a folder, folders before what is in them, and returns what the folder means.
func (r *unpacker) surveyFolder(ctx context.Context, folder entry, path []string, visit func([]string, entry)) (meaning digest, err error) {
	list, err := r.readList(ctx, folder, len(path))
	if err != nil {
		return meaning, err
	}
	sum := sha256.New()
	for _, e := range list {
		var below digest
		at := append(slices.Clip(path), string(e.Name))
		visit(at, e)
		if e.Type == typeFolder {
			if below, err = r.surveyFolder(ctx, e, at, visit); err != nil {
				return meaning, err
			}
		}
		e.writeMeaning(sum, below)
	}
	return digest(sum.Sum(nil)), nil
}

// Change is what differs between two snapshots at a path.
type Change = wire.FolderChange

// Compare returns how snapshot b differs from a, in order.
func (r *Reader) Compare(ctx context.Context, a, b string) ([]Change, error) {
	c := comparison{a: unpacker{store: r}, b: unpacker{store: r}}
	before, err := c.a.readManifest(ctx, a)
	if err != nil {
		return nil, err
	}
	after, err := c.b.readManifest(ctx, b)
	if err != nil {
		return nil, err
	}
	err = c.compareFolders(ctx, &before.Root, &after.Root, nil)
	return c.changes, err
}

// comparison compares two snapshots.
type comparison struct {
	a, b    unpacker
	changes []Change
}

// compareFolders compares what is in two folders, of which one may be nil. Lists that are the same aren't read.
func (c *comparison) compareFolders(ctx context.Context, a, b *entry, path []string) error {
	if a != nil && b != nil && sameContent(a, b) {
		return nil
	}
	var before, after []entry
	var err error
	if a != nil {
		if before, err = c.a.readList(ctx, *a, len(path)); err != nil {
			return err
		}
	}
	if b != nil {
		if after, err = c.b.readList(ctx, *b, len(path)); err != nil {
			return err
		}
	}
	for len(before)+len(after) > 0 {
		var x, y *entry
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = bytes.Compare(before[0].Name, after[0].Name)
		}
		if order <= 0 {
			x, before = &before[0], before[1:]
		}
		if order >= 0 {
			y, after = &after[0], after[1:]
		}
		if err := c.compareEntries(ctx, x, y, path); err != nil {
			return err
		}
	}
	return nil
}

// compareEntries compares what has a name in both folders, or in one.
func (c *comparison) compareEntries(ctx context.Context, x, y *entry, path []string) error {
	name := x
	if name == nil {
		name = y
	}
	path = append(slices.Clip(path), string(name.Name))
	if x == nil || y == nil || !x.looksLike(y) {
		change := Change{Path: pathText(path), Change: "changed"}
		if x != nil {
			f := x.describeFile(path)
			change.A = &f
		}
		if y != nil {
			f := y.describeFile(path)
			change.B = &f
		}
		switch {
		case x == nil:
			change.Change = "added"
		case y == nil:
			change.Change = "removed"
		}
		c.changes = append(c.changes, change)
	}
	if x != nil && x.Type != typeFolder {
		x = nil
	}
	if y != nil && y.Type != typeFolder {
		y = nil
	}
	if x == nil && y == nil {
		return nil
	}
	return c.compareFolders(ctx, x, y, path)
}

// looksLike reports whether two entries are the same, but for what is in a folder.
func (e *entry) looksLike(other *entry) bool {
	return e.Type == other.Type && e.Mode == other.Mode && e.Size == other.Size && bytes.Equal(e.Target, other.Target) &&
		(e.Type == typeFolder || sameContent(e, other))
}

// sameContent reports whether two entries have the same chunks, wherever they are.
func sameContent(a, b *entry) bool {
	return slices.EqualFunc(a.Chunks, b.Chunks, func(x, y chunk) bool { return x.Sum == y.Sum })
}
