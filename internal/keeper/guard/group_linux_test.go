package guard_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/keeper/guard"
)

// host is a fake of what a kernel shows of control groups.
type host struct {
	*testing.T
	root string
}

func (h host) write(name, content string) {
	h.Helper()
	name = filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		h.Fatal(err)
	}
}

func (h host) read(name string) string {
	h.Helper()
	b, err := os.ReadFile(filepath.Join(h.root, name))
	if err != nil {
		h.Fatal(err)
	}
	return string(b)
}

// mkdir makes a group as the kernel does, with its files.
func (h host) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"memory.max": "max\n", "memory.swap.max": "max\n", "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// TestBound shows what is written where the memory controller is one of cgroup v2, in a group that systemd has delegated.
func TestBound(t *testing.T) {
	t.Parallel()
	h := host{t, t.TempDir()}
	h.write("proc/self/mounts", "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
	h.write("proc/self/cgroup", "0::/system.slice/wake.service/runner\n")
	const service, own = "sys/fs/cgroup/system.slice/wake.service", "sys/fs/cgroup/system.slice/wake.service/runner"
	h.write(own+"/cgroup.controllers", "")
	h.write(service+"/cgroup.controllers", "cpu memory pids\n")
	h.write(service+"/cgroup.subtree_control", "")
	if got, want := guard.Candidates(h.root), []guard.Groups{{Tree: filepath.Join(h.root, own)}, {Tree: filepath.Join(h.root, own)}}; !cmp.Equal(want, got) {
		t.Errorf("beside a group that isn't delegated: %+v", got)
	}
	if err := unix.Setxattr(filepath.Join(h.root, service), "user.delegate", []byte("1"), 0); err != nil {
		t.Skip(err)
	}
	best := guard.Candidates(h.root)[0]
	if want := filepath.Join(h.root, service); best.Tree != want || best.Memory != want {
		t.Fatalf("the best candidate is %+v", best)
	}
	if got := h.read(service + "/cgroup.subtree_control"); got != "+memory" {
		t.Errorf("cgroup.subtree_control is %q", got)
	}
	kills, err := guard.MakeGroup(best, "wake-1", 64<<20, h.mkdir)
	if err != nil || kills != 2 {
		t.Errorf("%d kills, error %v", kills, err)
	}
	for name, want := range map[string]string{"memory.max": strconv.Itoa(64 << 20), "memory.swap.max": "0"} {
		if got := h.read(service + "/wake-1/" + name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if _, err := guard.MakeGroup(guard.Groups{Tree: best.Tree}, "wake-2", 1<<20, h.mkdir); err == nil {
		t.Error("a group without the controller has a bound")
	}
}
