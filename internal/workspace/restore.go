//go:build unix

package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// unpacker reads a snapshot from its packs.
type unpacker struct {
	store   *Reader
	entries int   // that were read
	bytes   int64 // of their files
	most    manifest
	name    string // of the pack that was read last
	pack    []byte
}

func (r *unpacker) readManifest(ctx context.Context, id string) (manifest, error) {
	if id == "" {
		return manifest{V: manifestVersion, Root: entry{Type: typeFolder, Mode: 0o700}}, nil
	}
	content, err := r.store.getPack(ctx, id)
	if err != nil {
		return manifest{}, err
	}
	r.most, err = parseManifest(content, id)
	return r.most, err
}

// readChunks returns what chunks hold. One pack is kept: lists lie beside each other.
func (r *unpacker) readChunks(ctx context.Context, chunks []chunk) (all []byte, err error) {
	for _, c := range chunks {
		if c.Pack != r.name {
			if r.pack, err = r.store.getPack(ctx, c.Pack); err != nil {
				return nil, err
			}
			r.name = c.Pack
		}
		part, err := c.cutFrom(r.pack)
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

func (r *unpacker) readList(ctx context.Context, folder entry, depth int) ([]entry, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: it is too deep", ErrDamaged)
	}
	if len(folder.Chunks) == 0 {
		return nil, nil
	}
	content, err := r.readChunks(ctx, folder.Chunks)
	if err != nil {
		return nil, err
	}
	pack := ""
	if len(folder.Chunks) == 1 {
		pack = folder.Chunks[0].Pack
	}
	list, err := parseEntries(content, pack)
	r.entries += len(list)
	for _, e := range list {
		r.bytes += e.Size
	}
	if err == nil && (r.entries > r.most.Files || r.bytes > r.most.Bytes) {
		err = fmt.Errorf("%w: it has more than its manifest says", ErrDamaged)
	}
	return list, err
}

// walkFolder visits all that is in a folder, folders before what is in them.
func (r *unpacker) walkFolder(ctx context.Context, folder entry, path []string, visit func(path []string, e entry) error) error {
	if err := visit(path, folder); err != nil {
		return err
	}
	list, err := r.readList(ctx, folder, len(path))
	if err != nil {
		return err
	}
	for _, e := range list {
		below := append(slices.Clip(path), string(e.Name))
		if e.Type == typeFolder {
			err = r.walkFolder(ctx, e, below, visit)
		} else {
			err = visit(below, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Restore makes dir, which must not be there or be empty, what the folder was. It is made beside it and renamed when it is
// whole; an error leaves nothing behind.
func (r *Reader) Restore(ctx context.Context, id, dir string) (_ Snapshot, err error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return Snapshot{}, fmt.Errorf("workspace: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, ".restore-")
	if err != nil {
		return Snapshot{}, fmt.Errorf("workspace: %w", err)
	}
	defer func() { _ = RemoveAll(tmp) }() // gone if it was renamed
	from := unpacker{store: r}
	m, err := from.readManifest(ctx, id)
	if err != nil {
		return Snapshot{}, err
	}
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return Snapshot{}, fmt.Errorf("workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	b := building{store: r, root: root, packs: map[string][]chunkPlace{}}
	if err := from.walkFolder(ctx, m.Root, nil, b.planEntry); err != nil {
		return Snapshot{}, err
	}
	if err := b.fillFiles(ctx); err != nil {
		return Snapshot{}, err
	}
	if err := b.setModes(); err != nil {
		return Snapshot{}, err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, fmt.Errorf("workspace: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return Snapshot{}, fmt.Errorf("workspace: %w", err)
	}
	return m.toSnapshot(id), nil
}

// RemoveAll removes a folder in which some folders may be read-only, as those of Go's module cache are. What works there meanwhile, such
// as an agent, may put links in the place of folders: nothing outside is changed.
func RemoveAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	if parent, err := os.OpenRoot(filepath.Dir(dir)); err == nil {
		_ = parent.Chmod(filepath.Base(dir), 0o700) // else it can't be opened
		_ = parent.Close()
	}
	if root, err := os.OpenRoot(dir); err == nil {
		_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = root.Chmod(name, 0o700) // what stays read-only isn't removed
			}
			return nil
		})
		_ = root.Close() // nothing was written
	}
	return os.RemoveAll(dir)
}

// building makes a folder of a snapshot. All names in a folder are different and nothing in it is there before, so that no
// link that the snapshot has is ever followed.
type building struct {
	store *Reader
	root  *os.Root
	packs map[string][]chunkPlace
	modes []folderMode
}

// chunkPlace is where a chunk belongs.
type chunkPlace struct {
	chunk

	folder, name string
	at           int64
	mode         uint32
	all          bool // it is the whole file
}

type folderMode struct {
	path string
	mode fs.FileMode
}

// planEntry makes folders, links and empty files, and notes where chunks belong.
func (b *building) planEntry(path []string, e entry) error {
	name := strings.Join(path, "/")
	mode := fs.FileMode(e.Mode)
	switch {
	case e.Type == typeFolder:
		b.modes = append(b.modes, folderMode{cmp.Or(name, "."), mode})
		if name == "" {
			return nil
		}
		return wrapRestore(b.root.Mkdir(name, 0o700))
	case e.Type == typeLink:
		return wrapRestore(b.root.Symlink(string(e.Target), name))
	case len(e.Chunks) != 1:
		f, err := b.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return wrapRestore(err)
		}
		if len(e.Chunks) == 0 {
			err = f.Chmod(mode)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return wrapRestore(err)
		}
	}
	at, folder := int64(0), cmp.Or(strings.Join(path[:len(path)-1], "/"), ".")
	for _, c := range e.Chunks {
		b.packs[c.Pack] = append(b.packs[c.Pack], chunkPlace{c, folder, string(e.Name), at, e.Mode, len(e.Chunks) == 1})
		at += int64(c.Size)
	}
	if len(e.Chunks) > 1 {
		b.modes = append(b.modes, folderMode{name, mode})
	}
	return nil
}

func wrapRestore(err error) error {
	if err != nil {
		return fmt.Errorf("workspace: restore: %w", err)
	}
	return nil
}

// fillFiles writes the chunks, pack by pack.
func (b *building) fillFiles(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	names := make(chan string)
	var tasks sync.WaitGroup
	for range transfers {
		tasks.Go(func() {
			for name := range names {
				if err := b.fillPack(ctx, name); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(b.packs)) {
		select {
		case names <- name:
		case <-ctx.Done():
		}
	}
	close(names)
	tasks.Wait()
	return context.Cause(ctx)
}

func (b *building) fillPack(ctx context.Context, name string) error {
	pack, err := b.store.getPack(ctx, name)
	if err != nil {
		return err
	}
	var folder *os.File // that of the last piece: they lie beside each other
	defer func() { _ = folder.Close() }()
	last := ""
	for _, p := range b.packs[name] {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part, err := p.cutFrom(pack)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", p.folder, p.name, err)
		}
		if p.folder != last {
			_ = folder.Close()
			if folder, err = b.root.Open(p.folder); err != nil {
				return wrapRestore(err)
			}
			last = p.folder
		}
		if err := p.writeChunk(int(folder.Fd()), part); err != nil {
			return wrapRestore(fmt.Errorf("%s/%s: %w", p.folder, p.name, err))
		}
	}
	return nil
}

// writeChunk writes a piece into its folder.
func (p chunkPlace) writeChunk(dir int, part []byte) (err error) {
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if p.all {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Openat(dir, p.name, flags, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for at := p.at; len(part) > 0; {
		n, err := unix.Pwrite(fd, part, at)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		at, part = at+int64(max(n, 0)), part[max(n, 0):]
	}
	if p.all && p.mode != 0o600 {
		return unix.Fchmod(fd, p.mode)
	}
	return nil
}

// setModes sets the modes of what had to be written to before: what is in a folder before the folder.
func (b *building) setModes() error {
	for _, m := range slices.Backward(b.modes) {
		if m.path == "." {
			m.mode |= 0o700 // its owner works in it
		}
		if err := b.root.Chmod(m.path, m.mode); err != nil {
			return wrapRestore(err)
		}
	}
	return nil
}
