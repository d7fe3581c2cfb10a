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
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// stamp tells two contents of a file apart without reading it.
type stamp struct {
	dev, ino             uint64
	size, mtime, changed int64
	mode, owner          uint32
}

func stampOf(s *unix.Stat_t) stamp {
	return stamp{
		dev: uint64(s.Dev), ino: s.Ino, size: s.Size, mode: uint32(s.Mode), owner: s.Uid, //nolint:gosec,unconvert // their types differ by system
		mtime: s.Mtim.Nano(), changed: s.Ctim.Nano(),
	}
}

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

func (m *mark) change() {
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

// racyTime is how long after a change another one may leave no trace: the clock of file systems ticks.
const racyTime = 50 * time.Millisecond

// scan is one pass over a folder. It opens what it reads by descriptors of the folders above, and follows no link. Folders are
// read beside each other.
type scan struct {
	root   string // path of the folder
	limits Limits
	hidden []stamp // folders that aren't part of it
	begun  time.Time
	slots  chan struct{} // one token for each goroutine
	watch  *watch
	full   bool      // each folder is read
	before []LeftOut // by the last scan

	files  atomic.Int64
	bytes  atomic.Int64
	locked atomic.Bool // a repository is being written
	mu     sync.Mutex
	left   []LeftOut
}

func newScan(limits Limits) *scan {
	return &scan{limits: limits, begun: time.Now(), slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// maxLeftOut bounds what is listed.
const maxLeftOut = 200

func (s *scan) leaveOut(path []string, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, LeftOut{strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD"), reason})
}

// sortLeft returns what was left out, in order.
func (s *scan) sortLeft() []LeftOut {
	slices.SortFunc(s.left, func(a, b LeftOut) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	return s.left
}

// leftBefore returns what the last scan left out of a folder.
func (s *scan) leftBefore(path []string) []LeftOut {
	inside := strings.ToValidUTF8(strings.Join(path, "/"), "\uFFFD") + "/"
	from, _ := slices.BinarySearchFunc(s.before, inside, func(l LeftOut, path string) int { return strings.Compare(l.Path, path) })
	to := from
	for to < len(s.before) && strings.HasPrefix(s.before[to].Path, inside) {
		to++
	}
	return s.before[from:to]
}

// keep takes over what the last scan has found in a folder.
func (s *scan) keep(folder *node, left []LeftOut) error {
	folder.change = false
	s.mu.Lock()
	s.left = append(s.left, left...)
	s.mu.Unlock()
	return s.countAll(folder)
}

func (s *scan) countAll(n *node) error {
	if n.Type != typeFolder {
		return s.count(n.Size)
	}
	for _, child := range n.below {
		if err := s.countAll(child); err != nil {
			return err
		}
	}
	return s.count(0)
}

// do does a task, beside others if there is a slot.
func (s *scan) do(tasks *sync.WaitGroup, task func()) {
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

// repository is one with files that are scanned.
type repository struct {
	depth   int // of its folder
	tracked func() tracked
}

func (r *repository) isTracked(path []string) bool {
	return r != nil && r.tracked()[strings.Join(path[r.depth:], "/")]
}

const openFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// scanFolder fills n, a folder that is open as dir. before is the node of the last scan, or nil.
func (s *scan) scanFolder(ctx context.Context, dir *os.File, n, before *node, at scanPlace) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(at.path) > maxDepth {
		return refuse("%q is too deep", strings.Join(at.path, "/")[:200])
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
			s.do(&tasks, func() { n.below[i], failed[i] = s.scanBelow(ctx, dir, child, known, path, at) })
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
		n.mark = s.watch.add(int(dir.Fd()), above)
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
			if text, _, err := readFile(int(dir.Fd()), name, 1<<20); err == nil {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) > 0 {
		at.rules = at.rules.below(at.path, texts...)
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
		w, err := s.findWorktree(dir, at.path)
		if err != nil {
			return at, err
		}
		at.worktree = &w
	}
	open := func() (*os.File, error) {
		if at.worktree != nil {
			return at.worktree.own.open()
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
		return nil, nil //nolint:nilnil // it went meanwhile
	} else if err != nil {
		return nil, err
	}
	stamp, kind, links := stampOf(st), st.Mode&unix.S_IFMT, uint64(st.Nlink) //nolint:unconvert // its type differs by system
	e.loose = e.loose || kind == unix.S_IFREG && links > 1
	isSame := known != nil && known.isSame(stamp, links) && at.git == nil && stamp.size <= s.limits.File
	if isSame && !at.moved && !known.forced {
		known.change = false
		return known, s.count(known.Size)
	}
	path := append(at.path, name) //nolint:gocritic // the place of one entry at a time
	leave, forced := s.isLeftOut(path, name, kind == unix.S_IFDIR, stamp, at)
	if e.loose = e.loose || forced || at.git != nil && strings.HasSuffix(name, ".lock"); leave {
		return nil, nil //nolint:nilnil // as it says
	}
	if kind == unix.S_IFDIR && known != nil && !s.full && !at.moved && known.isQuiet(stamp) {
		if left := s.leftBefore(path); len(left) == 0 || !at.fresh {
			return known, s.keep(known, left)
		}
	}
	if isSame {
		known.change, known.forced = false, forced
		return known, s.count(known.Size)
	}
	n := &node{stamp: stamp, forced: forced}
	n.Name = []byte(name)
	switch {
	case !isName(n.Name):
		s.leaveOut(path, "its name can't be kept")
		return nil, nil //nolint:nilnil // as it says
	case kind == unix.S_IFLNK:
		return s.scanLink(e.fd, n, known, path)
	case kind == unix.S_IFDIR:
		n.Type, n.Mode = typeFolder, stamp.mode&0o777
		return n, nil
	case kind == unix.S_IFREG:
		return s.scanFile(e.fd, n, known, path, at, links)
	}
	s.leaveOut(path, "neither a file nor a folder nor a link")
	return nil, nil //nolint:nilnil // as it says
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

func (s *scan) count(size int64) error {
	switch files, bytes := s.files.Add(1), s.bytes.Add(size); {
	case files > int64(s.limits.Files):
		return refuse("it has more than %d files", s.limits.Files)
	case bytes > s.limits.Bytes:
		return refuse("its files have more than %d MiB: what can be made again belongs into .wakeignore", s.limits.Bytes>>20)
	}
	return nil
}

// forget takes back what was counted of a file that isn't kept.
func (s *scan) forget(n *node) {
	s.files.Add(-1)
	s.bytes.Add(-n.Size)
}

func (s *scan) scanLink(dir int, n, known *node, path []string) (*node, error) {
	target := make([]byte, maxTarget+1)
	size, err := unix.Readlinkat(dir, string(n.Name), target)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil, nil //nolint:nilnil // it went meanwhile
	}
	if err != nil {
		return nil, err
	}
	if size == 0 || size > maxTarget {
		s.leaveOut(path, "leads too far")
		return nil, nil //nolint:nilnil // as it says
	}
	n.Type, n.Target = typeLink, target[:size:size]
	n.change = known == nil || known.Type != typeLink || !bytes.Equal(known.Target, n.Target)
	return n, s.count(0)
}

// scanBelow fills the node of a folder; it returns nil if that is left out.
func (s *scan) scanBelow(ctx context.Context, dir *os.File, n, known *node, path []string, at scanPlace) (*node, error) {
	fd, err := unix.Openat(int(dir.Fd()), string(n.Name), openFolder, 0)
	switch {
	case errors.Is(err, unix.EACCES):
		s.leaveOut(path, "can't be read")
		return nil, nil //nolint:nilnil // as it says
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil //nolint:nilnil // it went meanwhile
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
	if err := s.count(0); err != nil {
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
		return nil, nil //nolint:nilnil // as it says
	case n.Size > s.limits.File:
		s.leaveOut(path, fmt.Sprintf("larger than %d MiB", s.limits.File>>20))
		return nil, nil //nolint:nilnil // as it says
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
		return n, s.count(n.Size)
	}
	n.change = true
	return n, s.count(n.Size)
}

// maxConfig bounds the files that say what a repository is.
const maxConfig = 1 << 20

// scanSpecial reads a file of .git that says what the repository is. It reports whether the file is kept.
func (s *scan) scanSpecial(dir int, n *node, path, gitPath []string, isLinked bool) (keep bool, err error) {
	content, _, err := readFile(dir, string(n.Name), maxConfig)
	if err != nil {
		return false, err
	}
	if isLinked && gitPath[0] == "config" {
		content = ownConfig(content)
	}
	if problem := gitProblem(gitPath, content); problem != "" {
		return false, refuse("repository %q %s", cmp.Or(strings.Join(path[:len(path)-len(gitPath)-1], "/"), "."), problem)
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

// errTooLarge is returned for files that have grown beyond a bound.
var errTooLarge = errors.New("too large")

// readFile reads a file of a folder that is no larger than a bound. It follows no link, and waits for no writer. What is no
// regular file is EINVAL.
func readFile(dir int, name string, most int64) (content []byte, at stamp, err error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, at, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, at, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, at, unix.EINVAL
	}
	content = make([]byte, 0, min(st.Size, most)+1)
	for {
		if len(content) == cap(content) {
			content = slices.Grow(content, 64<<10)
		}
		n, err := unix.Read(fd, content[len(content):cap(content)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, at, err
		}
		content = content[:len(content)+n]
		if int64(len(content)) > most {
			return nil, at, errTooLarge
		}
		if n == 0 {
			break
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, at, err
	}
	return content, stampOf(&st), nil
}
