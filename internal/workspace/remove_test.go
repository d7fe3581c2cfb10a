package workspace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"code.wake.dev/wake/internal/workspace"
)

// What works beside in a folder that is removed, such as another agent of the same user, puts links in the place of folders in it: nothing
// outside gets other permissions.
func TestRemoveAllFollowsNoLinks(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.Mkdir(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	const folders = 100
	for range 10 {
		dir := filepath.Join(t.TempDir(), "run")
		name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("d%03d", i)) }
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range folders {
			_ = os.Mkdir(name(i), 0o755)
		}
		stop := make(chan struct{})
		var beside sync.WaitGroup
		for w := range 2 {
			beside.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					i := n % folders
					if w == 0 {
						_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", n)), nil, 0o600)
						_ = os.Mkdir(name(i), 0o755)
						continue
					}
					if os.Remove(name(i)) == nil {
						_ = os.Symlink(victim, name(i))
						_ = os.Remove(name(i))
					}
					_ = os.Mkdir(name(i), 0o755)
				}
			})
		}
		_ = workspace.RemoveAll(dir)
		close(stop)
		beside.Wait()
		_ = os.RemoveAll(dir)
		if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o755 {
			t.Fatalf("a folder elsewhere has the permissions %s: %v", info.Mode(), err)
		}
	}
}

// A folder is removed, whatever permissions what worked in it has left.
func TestRemoveAllClosedFolders(t *testing.T) {
	for _, closed := range []string{".", "a", "a/b"} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.MkdirAll(filepath.Join(dir, "a", "b", "c"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, closed), 0); err != nil {
			t.Fatal(err)
		}
		if err := workspace.RemoveAll(dir); err != nil {
			t.Errorf("%s: %v", closed, err)
			_ = os.Chmod(filepath.Join(dir, closed), 0o700) //nolint:gosec // for the test's own removal
		}
	}
}
