//go:build unix

package workspace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// racyTime is how long after a change another one may leave no trace: the clock of file systems ticks.
const racyTime = 50 * time.Millisecond

// scan is one pass over a folder. It opens what it reads by descriptors of the folders above, and follows no link. Folders are
// read beside each other.
type scan struct {
	scanTally

	root   string  // path of the folder
	hidden []stamp // folders that aren't part of it
	begun  time.Time
	slots  chan struct{} // one token for each goroutine
	watch  *watch
	full   bool        // each folder is read
	locked atomic.Bool // a repository is being written
}

// keepFolder takes over what the last scan has found in a folder.
func (s *scan) keepFolder(folder *node, left []LeftOut) error {
	folder.change = false
	s.mu.Lock()
	s.left = append(s.left, left...)
	s.mu.Unlock()
	return s.countAll(folder)
}

// runTask does a task, beside others if there is a slot.
func (s *scan) runTask(tasks *sync.WaitGroup, task func()) {
	select {
	case s.slots <- struct{}{}:
		tasks.Go(func() {
			defer func() { <-s.slots }()
			task()
		})
	default:
		task()
	}
}

// scanPlace is where a scan stands.
type scanPlace struct {
	path  []string
	rules rules
	moved bool     // the rules aren't those of the last scan
	fresh bool     // nor is the index
	git   []string // below .git: the path in there; nil elsewhere
	index *repository
	above *mark // that of the folder above
	// linked says, below .git, that the repository is that of a linked worktree or a submodule.
	linked bool
	// worktree is where the repository of the folder is, if its .git is a file.
	worktree *worktree
}

// scanFolder fills n, a folder that is open as dir. before is the node of the last scan, or nil.
func (s *scan) scanFolder(ctx context.Context, dir *os.File, n, before *node, at scanPlace) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(at.path) > maxDepth {
		return newRefusal("%q is too deep", strings.Join(at.path, "/")[:200])
	}
	s.watchFolder(dir, n, before, at.above)
	at.above = n.mark
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	if at.git == nil {
		if at, err = s.enterFolder(dir, names, n, before, at); err != nil {
			return err
		}
	}
	var old []*node
	if before != nil {
		old = before.below
	}
	n.below = make([]*node, len(names))
	failed := make([]error, len(names))
	at.path = append(make([]string, 0, len(at.path)+1), at.path...)
	e := entrance{fd: int(dir.Fd()), at: at}
	var tasks sync.WaitGroup
	for i, name := range names {
		if failed[i] = ctx.Err(); failed[i] != nil {
			break
		}
		for len(old) > 0 && string(old[0].Name) < name {
			old = old[1:]
		}
		var known *node
		if len(old) > 0 && string(old[0].Name) == name {
			known = old[0]
		}
		if name == gitFolder && at.worktree != nil {
			e.loose = true
			if n.below[i], failed[i] = s.scanWorktree(ctx, *at.worktree, known, at); failed[i] != nil {
				break
			}
			continue
		}
		child, err := s.scanEntry(&e, name, known)
		if n.below[i], failed[i] = child, err; err != nil {
			break
		}
		if child != nil && child != known && child.Type == typeFolder {
			path := append(slices.Clip(at.path), name)
			s.runTask(&tasks, func() { n.below[i], failed[i] = s.scanBelow(ctx, dir, child, known, path, at) })
		}
	}
	tasks.Wait()
	n.settled = n.mark != nil && !e.loose
	n.below = slices.DeleteFunc(n.below, func(child *node) bool { return child == nil })
	n.change = before == nil || len(before.below) != len(n.below) || slices.ContainsFunc(n.below, func(child *node) bool { return child.change })
	n.settled = n.settled && !slices.ContainsFunc(n.below, func(child *node) bool { return child.Type == typeFolder && !child.settled })
	return errors.Join(failed...)
}

// watchFolder has a folder watched from before it is read.
func (s *scan) watchFolder(dir *os.File, n, before *node, above *mark) {
	if before == nil || before.mark == nil || before.mark.gone || before.stamp.dev != n.stamp.dev || before.stamp.ino != n.stamp.ino {
		n.mark = s.watch.addFolder(int(dir.Fd()), above)
		return
	}
	n.mark = before.mark
	*n.mark = mark{above: above}
}

// enterFolder takes in what a folder says of itself: rules, a repository.
func (s *scan) enterFolder(dir *os.File, names []string, n, before *node, at scanPlace) (scanPlace, error) {
	var texts [][]byte
	for _, name := range []string{gitIgnore, wakeIgnore} {
		if _, there := slices.BinarySearch(names, name); there {
			text, _, err := readFile(int(dir.Fd()), name, maxRulesFile)
			if errors.Is(err, errTooLarge) {
				return at, newRefusal("%q is larger than %d MiB", strings.Join(append(slices.Clip(at.path), name), "/"), maxRulesFile>>20)
			} else if err == nil {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) > 0 {
		if at.rules = at.rules.withFiles(at.path, texts...); len(at.rules.list) > maxRules {
			return at, newRefusal("%q has more than %d rules of what is left out", cmp.Or(strings.Join(at.path, "/"), "."), maxRules)
		}
		n.rules = sha256.Sum256(bytes.Join(texts, []byte{0}))
	}
	at.moved = at.moved || before == nil || before.rules != n.rules
	if _, there := slices.BinarySearch(names, gitFolder); !there {
		return at, nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), gitFolder, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return at, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w, err := findWorktree(s.root, dir, at.path)
		if err != nil {
			return at, err
		}
		at.worktree = &w
	}
	open := func() (*os.File, error) {
		if at.worktree != nil {
			return at.worktree.own.openHome()
		}
		fd, err := unix.Openat(int(dir.Fd()), gitFolder, openFolder, 0)
		return os.NewFile(uintptr(fd), gitFolder), err
	}
	if git, err := open(); err == nil {
		if unix.Fstatat(int(git.Fd()), "index", &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			n.index = stampOf(&st)
		}
		_ = git.Close() // it was only looked at
	}
	at.fresh = at.fresh || before == nil || before.index != n.index
	at.index = &repository{depth: len(at.path), tracked: sync.OnceValue(func() tracked {
		git, err := open()
		if err != nil {
			return nil
		}
		defer func() { _ = git.Close() }()
		content, _, err := readFile(int(git.Fd()), "index", 256<<20)
		if err != nil {
			return nil
		}
		return parseIndex(content)
	})}
	return at, nil
}

// entrance is a folder of which entries are scanned.
type entrance struct {
	fd     int
	at     scanPlace
	status unix.Stat_t // of the entry that is looked at
	loose  bool        // something in it may change without notice, or means something else later
}

// scanEntry returns the node of a name in a folder, nil if that is left out. What is in a folder is still to be scanned.
func (s *scan) scanEntry(e *entrance, name string, known *node) (*node, error) {
	st, at := &e.status, e.at
	if err := unix.Fstatat(e.fd, name, st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil, nil // it went meanwhile
	} else if err != nil {
		return nil, err
	}
	stamp, kind, links := stampOf(st), st.Mode&unix.S_IFMT, uint64(st.Nlink) //nolint:unconvert // its type differs by system
	e.loose = e.loose || kind == unix.S_IFREG && links > 1
	isSame := known != nil && known.isSame(stamp, links) && at.git == nil && stamp.size <= s.limits.File
	if isSame && !at.moved && !known.forced {
		known.change = false
		return known, s.countEntry(known.Size)
	}
	path := append(at.path, name) // the place of one entry at a time
	leave, forced := s.isLeftOut(path, name, kind == unix.S_IFDIR, stamp, at)
	if e.loose = e.loose || forced || at.git != nil && strings.HasSuffix(name, ".lock"); leave {
		return nil, nil
	}
	if kind == unix.S_IFDIR && known != nil && !s.full && !at.moved && known.isQuiet(stamp) {
		if left := s.leftBefore(path); len(left) == 0 || !at.fresh {
			return known, s.keepFolder(known, left)
		}
	}
	if isSame {
		known.change, known.forced = false, forced
		return known, s.countEntry(known.Size)
	}
	n := &node{stamp: stamp, forced: forced}
	n.Name = []byte(name)
	switch {
	case !isName(n.Name):
		s.leaveOut(path, "its name can't be kept")
		return nil, nil
	case kind == unix.S_IFLNK:
		return s.scanLink(e.fd, n, known, path)
	case kind == unix.S_IFDIR:
		n.Type, n.Mode = typeFolder, stamp.mode&0o777
		return n, nil
	case kind == unix.S_IFREG:
		return s.scanFile(e.fd, n, known, path, at, links)
	}
	s.leaveOut(path, "neither a file nor a folder nor a link")
	return nil, nil
}

// isLeftOut reports whether an entry is left out, and says so, or whether only the index of its repository keeps it.
func (s *scan) isLeftOut(path []string, name string, isFolder bool, of stamp, at scanPlace) (leave, forced bool) {
	if at.git != nil {
		switch {
		case strings.HasSuffix(name, ".lock"):
			s.locked.Store(true)
			return true, false
		case len(at.git) > 0 || isGitState(name):
			return false, false
		case name == "modules":
			s.leaveOut(path, "the repository of a submodule goes with its files")
			return true, false
		}
		s.leaveOut(path, "isn't the state of a repository")
		return true, false
	}
	if isFolder && slices.ContainsFunc(s.hidden, func(h stamp) bool { return h.dev == of.dev && h.ino == of.ino }) {
		return true, false
	}
	if name == gitFolder || !at.rules.excludes(path, isFolder) {
		return false, false
	}
	if at.index.isTracked(path) {
		return false, true
	}
	if isFolder {
		s.leaveOut(append(slices.Clip(path[:len(path)-1]), name+"/"), "ignored")
	} else {
		s.leaveOut(path, "ignored")
	}
	return true, false
}

func (s *scan) scanLink(dir int, n, known *node, path []string) (*node, error) {
	var target [maxTarget + 1]byte
	size, err := unix.Readlinkat(dir, string(n.Name), target[:])
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil, nil // it went meanwhile
	}
	if err != nil {
		return nil, err
	}
	if size == 0 || size > maxTarget {
		s.leaveOut(path, "leads too far")
		return nil, nil
	}
	n.Type = typeLink
	if n.change = known == nil || known.Type != typeLink || !bytes.Equal(known.Target, target[:size]); n.change {
		n.Target = bytes.Clone(target[:size])
	} else {
		n.Target = known.Target
	}
	return n, s.countLink(n)
}

// scanBelow fills the node of a folder; it returns nil if that is left out.
func (s *scan) scanBelow(ctx context.Context, dir *os.File, n, known *node, path []string, at scanPlace) (*node, error) {
	fd, err := unix.Openat(int(dir.Fd()), string(n.Name), openFolder, 0)
	switch {
	case errors.Is(err, unix.EACCES):
		s.leaveOut(path, "can't be read")
		return nil, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil // it went meanwhile
	case err != nil:
		return nil, err
	}
	folder := os.NewFile(uintptr(fd), string(n.Name))
	defer func() { _ = folder.Close() }()
	below := scanPlace{path: path, rules: at.rules, moved: at.moved, fresh: at.fresh, index: at.index, above: at.above}
	switch {
	case at.git != nil:
		below.git, below.linked = append(slices.Clip(at.git), string(n.Name)), at.linked
	case string(n.Name) == gitFolder:
		below.git = []string{}
	}
	if known != nil && known.Type != typeFolder {
		known = nil
	}
	if err := s.countEntry(0); err != nil {
		return nil, err
	}
	if err := s.scanFolder(ctx, folder, n, known, below); err != nil {
		return nil, err
	}
	if known != nil {
		n.chunks, n.meaning = known.chunks, known.meaning
		n.change = n.change || known.Mode != n.Mode
	}
	return n, nil
}

func (s *scan) scanFile(dir int, n, known *node, path []string, at scanPlace, links uint64) (*node, error) {
	n.Type, n.Mode, n.Size = typeFile, n.stamp.mode&0o777, n.stamp.size
	var home unix.Stat_t
	if links > 1 {
		if err := unix.Fstat(dir, &home); err != nil {
			return nil, err
		}
	}
	switch {
	case links > 1 && home.Uid != n.stamp.owner:
		s.leaveOut(path, "a hard link to another user's file")
		return nil, nil
	case n.Size > s.limits.File:
		s.leaveOut(path, fmt.Sprintf("larger than %d MiB", s.limits.File>>20))
		return nil, nil
	}
	if at.git != nil {
		gitPath := append(slices.Clip(at.git), string(n.Name))
		if special := strings.Join(gitPath, "/"); special == "config" || special == "info/sparse-checkout" || strings.HasPrefix(special, "objects/info/") {
			if keep, err := s.scanSpecial(dir, n, path, gitPath, at.linked); !keep || err != nil {
				return nil, err
			}
		}
	}
	if known != nil && known.Type == typeFile && known.stamp == n.stamp && !known.racy && bytes.Equal(known.patch, n.patch) {
		n.chunks, n.Sum = known.chunks, known.Sum
		return n, s.countEntry(n.Size)
	}
	n.change = true
	return n, s.countEntry(n.Size)
}

// scanSpecial reads a file of .git that says what the repository is. It reports whether the file is kept.
func (s *scan) scanSpecial(dir int, n *node, path, gitPath []string, isLinked bool) (keep bool, err error) {
	content, _, err := readFile(dir, string(n.Name), maxConfig)
	if err != nil {
		return false, err
	}
	if isLinked && gitPath[0] == "config" {
		content = worktreeLine.ReplaceAll(bareLine.ReplaceAll(content, nil), nil)
	}
	if problem := gitProblem(gitPath, content); problem != "" {
		return false, newRefusal("repository %q %s", cmp.Or(strings.Join(path[:len(path)-len(gitPath)-1], "/"), "."), problem)
	}
	if gitPath[0] != "config" {
		return true, nil
	}
	kept, dropped, _ := filterConfig(content)
	for _, key := range dropped {
		s.leaveOut(path, "key "+key)
	}
	n.patch, n.Size = kept, int64(len(kept))
	return true, nil
}

// scanWorktree returns the .git of a linked worktree or a submodule as that of a repository of its own.
func (s *scan) scanWorktree(ctx context.Context, w worktree, known *node, at scanPlace) (*node, error) {
	path := append(slices.Clip(at.path), gitFolder)
	inside := scanPlace{path: path, moved: at.moved, git: []string{}, linked: true}
	if w.submodule {
		return s.joinFolders(ctx, gitFolder, known, inside, folderPart{w.own, func(name string) bool { return isGitState(name) || strings.HasSuffix(name, ".lock") }})
	}
	isOwn := func(name string) bool {
		return !isSharedState(name) && name != "logs" && (isGitState(name) || strings.HasSuffix(name, ".lock"))
	}
	logs, err := s.joinFolders(ctx, "logs", childNamed(known, "logs"), inside.inGit("logs"),
		folderPart{w.own.join("logs"), func(name string) bool { return name == "HEAD" }}, folderPart{w.shared.join("logs"), func(name string) bool { return name == "refs" }})
	if err != nil {
		return nil, err
	}
	n, err := s.joinFolders(ctx, gitFolder, known, inside, folderPart{w.own, isOwn}, folderPart{w.shared, isSharedState})
	if err != nil {
		return nil, err
	}
	n.addChild(logs)
	n.compareBelow(known)
	return n, nil
}

// folderPart is some of what is in a folder.
type folderPart struct {
	home  home
	holds func(name string) bool
}

func (p scanPlace) inGit(name string) scanPlace {
	p.path, p.git = append(slices.Clip(p.path), name), append(slices.Clip(p.git), name)
	return p
}

// joinFolders returns a folder of parts of others. It isn't watched. A folder that isn't there has nothing in it.
func (s *scan) joinFolders(ctx context.Context, name string, known *node, at scanPlace, parts ...folderPart) (*node, error) {
	n := &node{joined: true}
	n.Name, n.Type, n.Mode = []byte(name), typeFolder, 0o755
	for _, p := range parts {
		dir, err := p.home.openHome()
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = s.joinPart(ctx, dir, p, n, known, at)
		_ = dir.Close() // it was only read
		if err != nil {
			return nil, err
		}
	}
	n.compareBelow(known)
	return n, s.countEntry(0)
}

func (s *scan) joinPart(ctx context.Context, dir *os.File, p folderPart, n, known *node, at scanPlace) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	e := entrance{fd: int(dir.Fd()), at: at}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !p.holds(name) {
			continue
		}
		before := childNamed(known, name)
		child, err := s.scanEntry(&e, name, before)
		if err == nil && child != nil && child != before && child.Type == typeFolder {
			child, err = s.scanBelow(ctx, dir, child, before, append(slices.Clip(at.path), name), at)
		}
		if err != nil {
			return err
		}
		if child != nil {
			child.home = &p.home
			n.addChild(child)
		}
	}
	return nil
}
