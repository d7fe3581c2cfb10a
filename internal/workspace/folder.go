//go:build unix

package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Folder is the folder of a run, of which snapshots are taken. What it remembers of the last one makes the next one cheap. It is
// safe for concurrent use.
type Folder struct {
	store  *Store
	run    string
	path   string
	limits Limits
	hidden []string

	turn  chan struct{} // holds a token while the rest is in use, also while the store is waited for
	root  *node
	known known
	last  Snapshot
	says  string // what the last one says, wherever that is kept
	left  []LeftOut
	watch *watch    // nil: each file is looked at
	many  int       // files from which on it is watched
	full  time.Time // when that was done last
}

// known is what is kept already: chunks by their content, and lists by what they mean. The bytes of a list won't do, as they
// say where things are.
type known struct {
	chunks map[digest]chunk
	lists  map[digest][]*chunk
}

func newKnown() known { return known{map[digest]chunk{}, map[digest][]*chunk{}} }

// Folder returns the folder of a run at a path. Folders that are hidden are no part of it, wherever they are in it.
func (s *Store) Folder(run, path string, limits Limits, hidden ...string) *Folder {
	return &Folder{turn: make(chan struct{}, 1), store: s, run: run, path: path, limits: limits.withDefaults(), hidden: hidden, known: newKnown(), many: watchFrom}
}

const (
	// takes is how often a folder is read that changes meanwhile.
	takes = 3
	// takePause is how long a repository that is being written is waited for.
	takePause = 50 * time.Millisecond
	// watchFrom is from how many files on a folder is watched: to look at fewer takes some milliseconds, and a system has few watches
	// (128 for all programs of a user), which agents and their tools want, too.
	watchFrom = 2000
	// fullPause is after how long each file is looked at again, in case the watch has missed something.
	fullPause = time.Minute
)

// Recheck forgets what was stored if that isn't kept any more: what a run has packed is dropped when nothing needs it, and the run may go
// on all the same. A worker that begins to work in the folder calls it.
func (f *Folder) Recheck(ctx context.Context) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.unlock()
	kept, err := f.known.isKept(ctx, f.store, f.last.ID)
	if err == nil && !kept {
		f.forgetLast()
	}
	return err
}

func (f *Folder) lock(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Folder) unlock() { <-f.turn }

func (f *Folder) forgetLast() { f.root, f.known, f.says = nil, newKnown(), "" }

// isKept reports whether the store has what is known, and what is in a snapshot. What a run has packed goes as a whole; of a fork, that may
// be the snapshot alone.
func (k known) isKept(ctx context.Context, s *Store, snapshot string) (bool, error) {
	packs := map[string]string{} // one of each run
	note := func(pack string) {
		run, _, _ := strings.Cut(pack, ".")
		packs[run] = pack
	}
	if snapshot != "" {
		note(snapshot)
	}
	for _, c := range k.chunks {
		note(c.Pack)
	}
	for _, list := range k.lists {
		for _, c := range list {
			note(c.Pack)
		}
	}
	for _, pack := range packs {
		if _, err := s.Stored(ctx, pack); errors.Is(err, ErrMissing) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// Take takes a snapshot. base is the last one that is known of the run, or "": what it holds isn't stored again. It fails with
// a [*RefusedError] if the folder can't have one. A folder with nothing in it needs none: the snapshot has no name, and nothing is
// stored.
func (f *Folder) Take(ctx context.Context, base string) (Snapshot, error) {
	if err := f.lock(ctx); err != nil {
		return Snapshot{}, err
	}
	defer f.unlock()
	if f.root == nil && base != "" {
		if err := f.learnSnapshot(ctx, base); err != nil && ctx.Err() != nil {
			return Snapshot{}, err // else it is stored anew
		}
	}
	for n := 1; ; n++ {
		snapshot, again, err := f.takeOnce(ctx, n)
		if err != nil {
			f.forgetLast() // what was on its way may not be stored
			return Snapshot{}, err
		}
		if !again {
			return snapshot, nil
		}
		select {
		case <-time.After(takePause):
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		}
	}
}

func (f *Folder) takeOnce(ctx context.Context, n int) (_ Snapshot, again bool, err error) {
	if f.watch == nil && f.last.Files >= f.many {
		f.watch = openWatch()
	}
	s := &scan{scanTally: scanTally{limits: f.limits}, begun: time.Now(), slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	s.root = f.path
	s.watch, s.before = f.watch, f.left
	s.full = !f.watch.readChanges() || f.root == nil || n > 1 || time.Since(f.full) > fullPause // what was noted by a scan that is void isn't again
	for _, path := range f.hidden {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			s.hidden = append(s.hidden, stampOf(&st))
		}
	}
	fd, err := unix.Open(f.path, openFolder, 0)
	if err != nil {
		return Snapshot{}, false, fmt.Errorf("workspace: %s: %w", f.path, err)
	}
	dir := os.NewFile(uintptr(fd), f.path)
	defer func() { _ = dir.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return Snapshot{}, false, fmt.Errorf("workspace: %w", err)
	}
	root := &node{stamp: stampOf(&st)}
	root.Type, root.Mode = typeFolder, root.stamp.mode&0o777
	if f.root != nil {
		root.chunks, root.meaning = f.root.chunks, f.root.meaning
	}
	if err := s.scanFolder(ctx, dir, root, f.root, scanPlace{}); err != nil {
		return Snapshot{}, false, err
	}
	if s.locked.Load() && n < takes {
		return Snapshot{}, true, nil
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w := writing{scan: s, packer: newPacker(f.store, f.run, f.known.chunks, fail), lists: f.known.lists, unstable: s.locked.Load()}
	snapshot, says := Snapshot{}, ""
	if err = w.writeFolder(ctx, dir, root, nil); err == nil {
		snapshot, says, err = f.writeManifest(ctx, &w, root)
	}
	if e := w.packer.flush(ctx); err == nil {
		err = e
	}
	if err != nil {
		return Snapshot{}, false, err
	}
	if f.root, f.last, f.says, f.left = root, snapshot, says, s.left; s.full {
		f.full = s.begun
	}
	snapshot.Stored = w.packer.stored.Load()
	return snapshot, false, nil
}

// HasChangedSince reports whether something in the folder had changed since a time when it was last read. It may have, if ctx
// ends before another snapshot of the folder has been taken.
func (f *Folder) HasChangedSince(ctx context.Context, t time.Time) bool {
	if f.lock(ctx) != nil {
		return true
	}
	defer f.unlock()
	return f.root != nil && f.root.hasChangedSince(t.UnixNano())
}

// writeManifest packs the manifest, unless it says what the last one did or that the folder is empty.
func (f *Folder) writeManifest(ctx context.Context, w *writing, root *node) (snapshot Snapshot, says string, err error) {
	m := manifest{V: manifestVersion, Files: int(w.files.Load()), Bytes: w.bytes.Load(), Unstable: w.unstable}
	left := w.sortLeft()
	m.LeftOut = left[:min(len(left), maxLeftOut)]
	m.Omitted = len(left) - len(m.LeftOut)
	m.Root = root.toEntry()
	if says, err = m.describeMeaning(root.meaning); err != nil || says == f.says {
		return f.last, says, err
	}
	if len(root.below)+len(left) == 0 {
		return Snapshot{}, says, nil
	}
	for {
		content, err := m.encodePack()
		if err != nil {
			return Snapshot{}, "", err
		}
		if w.packer.fits(content) {
			id, err := w.packer.putLast(ctx, content)
			return m.toSnapshot(id), says, err
		}
		if len(w.packer.open) == 0 {
			return Snapshot{}, "", newRefusal("its manifest is too large")
		}
		if err := w.packer.closePack(ctx); err != nil { // it names what the manifest refers to
			return Snapshot{}, "", err
		}
		m.Root = root.toEntry()
	}
}

// writing reads what has changed and packs it.
type writing struct {
	*scan

	packer   *packer
	lists    map[digest][]*chunk
	unstable bool
}

// writeFolder packs what has changed in a folder, and its list.
func (w *writing) writeFolder(ctx context.Context, dir *os.File, n *node, path []string) error {
	if n.isKept() {
		return nil
	}
	gone := false
	for i, child := range n.below {
		there, err := w.writeChild(ctx, dir, child, append(slices.Clip(path), string(child.Name)))
		if err != nil {
			return err
		}
		if !there {
			n.below[i], gone, w.unstable = nil, true, true
		}
	}
	if gone {
		n.below = slices.DeleteFunc(n.below, func(n *node) bool { return n == nil })
	}
	return w.writeList(ctx, n)
}

// writeChild packs what has changed of what is in a folder. It reports false if that is gone.
func (w *writing) writeChild(ctx context.Context, dir *os.File, n *node, path []string) (there bool, err error) {
	if n.Type == typeLink || n.Type == typeFile && !n.change || n.Type == typeFolder && n.isKept() {
		return true, nil
	}
	if n.home != nil {
		if dir, err = n.home.openHome(); err != nil {
			return false, err
		}
		defer func() { _ = dir.Close() }()
	}
	switch {
	case n.joined:
		return true, w.writeFolder(ctx, dir, n, path)
	case n.Type == typeFolder:
		return w.writeBelow(ctx, dir, n, path)
	}
	return w.writeFile(ctx, dir, n, path)
}

// writeList packs the list of a folder.
func (w *writing) writeList(ctx context.Context, n *node) (err error) {
	sum := sha256.New()
	for _, child := range n.below {
		child.toEntry().writeMeaning(sum, child.meaning)
	}
	n.meaning = digest(sum.Sum(nil))
	if chunks, kept := w.lists[n.meaning]; kept || len(n.below) == 0 {
		n.chunks = chunks
		return nil
	}
	defer func() { w.lists[n.meaning] = n.chunks }()
	for {
		list := make([]entry, 0, len(n.below))
		for _, child := range n.below {
			list = append(list, child.toEntry())
		}
		content, err := json.Marshal(list)
		if err != nil {
			return err
		}
		if len(w.packer.open) > 0 && !w.packer.fits(content) {
			if err := w.packer.closePack(ctx); err != nil { // it names what the list refers to
				return err
			}
			continue
		}
		n.chunks, err = w.packer.add(ctx, content)
		return err
	}
}

func (w *writing) writeBelow(ctx context.Context, dir *os.File, n *node, path []string) (there bool, err error) {
	fd, err := unix.Openat(int(dir.Fd()), string(n.Name), openFolder, 0)
	if err != nil {
		return false, nil // it went meanwhile
	}
	folder := os.NewFile(uintptr(fd), string(n.Name))
	defer func() { _ = folder.Close() }()
	return true, w.writeFolder(ctx, folder, n, path)
}

// writeFile packs a file, read again if it changes meanwhile.
func (w *writing) writeFile(ctx context.Context, dir *os.File, n *node, path []string) (there bool, err error) {
	if n.patch != nil {
		n.chunks, err = w.packer.add(ctx, n.patch)
		return true, w.nameContent(n, n.patch, err)
	}
	for try := 1; ; try++ {
		content, at, err := readFile(int(dir.Fd()), string(n.Name), w.limits.File)
		switch {
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, errTooLarge):
			w.leaveOut(path, "can't be read: "+err.Error())
			w.uncountEntry(n)
			return false, nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENXIO):
			w.uncountEntry(n)
			return false, nil // it went meanwhile, or is something else
		case err != nil:
			return false, err
		}
		if at != n.stamp && try < takes {
			n.stamp = at
			continue
		}
		if at != n.stamp {
			w.unstable = true
			w.leaveOut(path, "unstable: it changed whenever it was read; what is kept may be no state that it ever had")
		}
		w.bytes.Add(int64(len(content)) - n.Size)
		n.stamp, n.Mode, n.Size = at, at.mode&0o777, int64(len(content))
		n.racy = max(at.changed, at.mtime) > w.begun.Add(-racyTime).UnixNano()
		n.chunks, err = w.packer.add(ctx, content)
		return true, w.nameContent(n, content, err)
	}
}

// nameContent names the content of a file of several chunks.
func (w *writing) nameContent(n *node, content []byte, err error) error {
	if n.Sum = nil; len(n.chunks) > 1 {
		sum := digest(sha256.Sum256(content))
		n.Sum = &sum
	}
	return err
}

// learnSnapshot takes over what a snapshot holds, so that it isn't stored again.
func (f *Folder) learnSnapshot(ctx context.Context, id string) error {
	r := unpacker{store: f.store.Reader}
	m, err := r.readManifest(ctx, id)
	if err != nil {
		return err
	}
	k := newKnown()
	meaning, err := k.learnFolder(ctx, &r, m.Root, 0)
	if err != nil {
		return err
	}
	if kept, err := k.isKept(ctx, f.store, id); err != nil || !kept {
		return err
	}
	says, err := m.describeMeaning(meaning)
	f.known, f.last, f.says = k, m.toSnapshot(id), says
	return err
}

func (k known) learnFolder(ctx context.Context, r *unpacker, folder entry, depth int) (meaning digest, err error) {
	list, err := r.readList(ctx, folder, depth)
	if err != nil {
		return meaning, err
	}
	sum := sha256.New()
	for _, e := range list {
		var below digest
		if e.Type == typeFolder {
			if below, err = k.learnFolder(ctx, r, e, depth+1); err != nil {
				return meaning, err
			}
		}
		for _, c := range e.Chunks {
			k.chunks[c.Sum] = c
		}
		e.writeMeaning(sum, below)
	}
	meaning = digest(sum.Sum(nil))
	var chunks []*chunk
	for _, c := range folder.Chunks {
		chunks = append(chunks, &c)
	}
	k.lists[meaning] = chunks
	return meaning, nil
}
