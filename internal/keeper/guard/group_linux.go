package guard

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The kinds of folders in which groups are made.
const (
	unified   = "cgroup2" // of cgroup v2
	memoryOne = "memory"  // of the memory controller of cgroup v1
)

// Candidates returns where groups can be made below root, which is / but in tests, the best first: in this process's own
// group, or beside it if that is delegated as systemd does it (Delegate=, DelegateSubgroup=).
func Candidates(root string) []Groups {
	mounts, paths := findCgroups(root)
	var all []Groups
	bounded := Groups{}
	if mount, path := mounts[memoryOne], paths[memoryOne]; mount != "" && path != "" {
		bounded.Memory = filepath.Join(root, mount, path)
	}
	if mount, path := mounts[unified], paths[unified]; mount != "" && path != "" {
		own := filepath.Join(root, mount, path)
		dirs := []string{own}
		if isDelegated(filepath.Dir(own)) {
			dirs = append(dirs, filepath.Dir(own))
		}
		for _, dir := range dirs {
			if isBoundable(dir) {
				all = append(all, Groups{Tree: dir, Memory: dir})
			}
		}
		for _, dir := range dirs {
			all = append(all, Groups{Tree: dir, Memory: bounded.Memory}, Groups{Tree: dir})
		}
	}
	all = append(all, bounded)
	return slices.DeleteFunc(all, func(g Groups) bool { return g == Groups{} })
}

// findCgroups returns where cgroup v2 and v1's memory controller are mounted, and which groups of them this process is in.
func findCgroups(root string) (mounts, paths map[string]string) {
	mounts, paths = map[string]string{}, map[string]string{}
	table, _ := os.ReadFile(filepath.Join(root, "proc/self/mounts"))
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line) // device, folder, type, options
		if len(f) < 4 {
			continue
		}
		switch {
		case f[2] == unified:
			mounts[unified] = f[1]
		case f[2] == "cgroup" && slices.Contains(strings.Split(f[3], ","), memoryOne):
			mounts[memoryOne] = f[1]
		}
	}
	own, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		switch {
		case len(f) < 3:
		case f[0] == "0":
			paths[unified] = f[2]
		case slices.Contains(strings.Split(f[1], ","), memoryOne):
			paths[memoryOne] = f[2]
		}
	}
	return mounts, paths
}

// isDelegated reports whether systemd has left what is below a group to others.
func isDelegated(dir string) bool {
	var value [1]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, value[:]); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// isBoundable reports whether the memory of groups below one of v2 can be bounded. It can't below one that has processes of
// its own.
func isBoundable(dir string) bool {
	control := filepath.Join(dir, "cgroup.subtree_control")
	return fileHasWord(control, memoryOne) || fileHasWord(filepath.Join(dir, "cgroup.controllers"), memoryOne) && writeControl(control, "+"+memoryOne) == nil
}

func fileHasWord(file, word string) bool {
	b, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(b)), word)
}

// writeControl writes to a file of a group, which is there.
func writeControl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Group is the control group of a keeper's tree. Nil: it has none.
type Group struct {
	tree   string // its folder of cgroup v2, with one for each program; "": it can't be frozen and ended as a whole
	memory string // where its memory is bounded; "": it isn't
	mkdir  func(string) error
}

// nameFile is a file in a keeper's folder. It has the name of the keeper's group, which no other keeper has, not even the next
// one of a folder that was removed.
const (
	nameFile    = "group"
	groupPrefix = "wake-"
)

// toArguments are those with which a guard is told of the group; see groupOf.
func (t *Group) toArguments() []string {
	if t == nil {
		return []string{"", ""}
	}
	return []string{t.tree, t.memory}
}

// groupOf returns the group that arguments tell of, nil for none.
func groupOf(tree, memory string) *Group {
	if tree == "" && memory == "" {
		return nil
	}
	return &Group{tree: tree, memory: memory, mkdir: makeDir}
}

// makeDir makes a folder as the kernel does those of groups.
func makeDir(dir string) error { return os.Mkdir(dir, 0o755) } // of no file of wake's

// MakeGroup makes the group of the keeper of a folder. Its memory is bounded unless limit is 0. Nil: none can be made.
func (g Groups) MakeGroup(dir string, limit int64) (*Group, error) {
	name := groupPrefix + rand.Text()
	t := g.groupNamed(name)
	if t != nil {
		if err := os.WriteFile(filepath.Join(dir, nameFile), []byte(name), 0o600); err != nil {
			return nil, fmt.Errorf("guard: control group: %w", err)
		}
	}
	if err := t.makeFolders(limit); err != nil {
		return nil, errors.Join(err, t.EndAll())
	}
	return t, nil
}

// GroupOf returns the group that the keeper of a folder has, or had; nil if there is none.
func (g Groups) GroupOf(dir string) *Group {
	name, err := os.ReadFile(filepath.Join(dir, nameFile))
	if err != nil || !strings.HasPrefix(string(name), groupPrefix) || !filepath.IsLocal(string(name)) {
		return nil
	}
	return g.groupNamed(string(name))
}

func (g Groups) groupNamed(name string) *Group {
	if g == (Groups{}) {
		return nil
	}
	t := &Group{mkdir: makeDir}
	if g.Tree != "" {
		t.tree = filepath.Join(g.Tree, name)
	}
	if g.Memory != "" {
		t.memory = filepath.Join(g.Memory, name)
	}
	return t
}

func (t *Group) allFolders() []string {
	if t == nil {
		return nil
	}
	all := slices.DeleteFunc([]string{t.tree, t.memory}, func(dir string) bool { return dir == "" })
	return slices.Compact(all)
}

func (t *Group) makeFolders(limit int64) error {
	for _, dir := range t.allFolders() {
		if err := t.mkdir(dir); err != nil {
			return fmt.Errorf("guard: control group: %w", err)
		}
	}
	if limit == 0 {
		return nil
	}
	if t == nil || t.memory == "" {
		return ErrUnbounded
	}
	if err := t.boundMemory(limit); err != nil {
		return fmt.Errorf("%w: %w", ErrUnbounded, err)
	}
	return nil
}

// boundMemory bounds the group's memory, what is swapped out included where the kernel counts that.
func (t *Group) boundMemory(limit int64) error {
	most, swap, bytes := "memory.max", "memory.swap.max", strconv.FormatInt(limit, 10)
	noSwap := "0"
	if t.memory != t.tree {
		most, swap, noSwap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes
	}
	if err := writeControl(filepath.Join(t.memory, most), bytes); err != nil {
		return err
	}
	if err := writeControl(filepath.Join(t.memory, swap), noSwap); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CountKills returns how many processes of the group the kernel has killed for its bound.
func (t *Group) CountKills() int {
	if t == nil || t.memory == "" {
		return 0
	}
	name := "memory.events"
	if t.memory != t.tree {
		name = "memory.oom_control"
	}
	return readCount(filepath.Join(t.memory, name), "oom_kill")
}

// readCount returns a number of a file of lines "name number"; -1 if it has none of that name.
func readCount(file, name string) int {
	b, _ := os.ReadFile(file)
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 2 && f[0] == name {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	return -1
}

func (t *Group) programDir(program uint32) string {
	return filepath.Join(t.tree, "program-"+strconv.FormatUint(uint64(program), 10))
}

// placeProgram has a program that this thread is about to start begin in the group. leave is called when it was started.
func (t *Group) placeProgram(program uint32, attr *syscall.SysProcAttr) (leave func(), err error) {
	leave = func() {}
	if t == nil {
		return leave, nil
	}
	if t.tree != "" {
		dir := t.programDir(program)
		if err := t.mkdir(dir); err != nil {
			return leave, fmt.Errorf("control group: %w", err)
		}
		f, err := os.Open(dir)
		if err != nil {
			return leave, fmt.Errorf("control group: %w", err)
		}
		leave = func() { _ = f.Close() }
		attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	}
	if t.memory == "" || t.memory == t.tree {
		return leave, nil
	}
	// v1 has groups of threads: what this one starts is in its group.
	if err := writeControl(filepath.Join(t.memory, "tasks"), "0"); err != nil {
		leave()
		return func() {}, fmt.Errorf("control group: %w", err)
	}
	opened := leave
	return func() {
		opened()
		_ = writeControl(filepath.Join(filepath.Dir(t.memory), "tasks"), "0")
	}, nil
}

func (t *Group) hasProcess(pid int) bool {
	if t == nil || t.tree == "" {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	_, path, _ := strings.Cut(string(b), "0::")
	path, _, _ = strings.Cut(path, "\n")
	return slices.Contains(strings.Split(path, "/"), filepath.Base(t.tree))
}

// groupLook is how often a group is looked at that is to be frozen, or empty.
const groupLook = 2 * time.Millisecond

// freeze stops the group and reports whether all of it has stopped in time.
func (t *Group) freeze(patience time.Duration) bool {
	if t == nil || t.tree == "" || writeControl(filepath.Join(t.tree, "cgroup.freeze"), "1") != nil {
		return false
	}
	return t.awaitEvent("frozen", 1, patience)
}

// Thaw lets the group go on.
func (t *Group) Thaw() {
	if t != nil && t.tree != "" {
		_ = writeControl(filepath.Join(t.tree, "cgroup.freeze"), "0")
	}
}

// awaitEvent waits until an event of the group has that value, or there is no group.
func (t *Group) awaitEvent(event string, value int, patience time.Duration) bool {
	for until := time.Now().Add(patience); ; {
		if n := readCount(filepath.Join(t.tree, "cgroup.events"), event); n == value || n < 0 {
			return n == value
		}
		if time.Now().After(until) {
			return false
		}
		<-time.After(groupLook)
	}
}

// endWait bounds how long the kernel may take to end a group.
const endWait = 2 * time.Second

// endProgram ends what is left of a program.
func (t *Group) endProgram(program uint32) {
	if t != nil && t.tree != "" {
		(&Group{tree: t.programDir(program)}).remove()
	}
}

// KillAll ends all that is in the group, frozen or not.
func (t *Group) KillAll() {
	if t != nil && t.tree != "" {
		_ = writeControl(filepath.Join(t.tree, "cgroup.kill"), "1")
	}
}

// EndAll ends all that is in the group and removes it.
func (t *Group) EndAll() error {
	if t == nil {
		return nil
	}
	if t.tree != "" {
		t.KillAll()
		t.awaitEvent("populated", 0, endWait)
		programs, _ := fs.Glob(os.DirFS(t.tree), "program-*") // the pattern is right
		for _, name := range programs {
			(&Group{tree: filepath.Join(t.tree, name)}).remove()
		}
	}
	var errs []error
	for _, dir := range t.allFolders() {
		if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove ends what is in a group without groups below it, and removes it.
func (t *Group) remove() {
	t.KillAll()
	t.awaitEvent("populated", 0, endWait)
	_ = os.Remove(t.tree)
}
