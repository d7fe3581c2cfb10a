//go:build unix

package process_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"code.wake.dev/wake/internal/process"
)

// What root makes for a user becomes that user's, and what a link leads to doesn't.
func TestUserOwns(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		if _, err := process.FindUser("nobody"); err == nil {
			t.Error("whoever isn't root may start programs as nobody")
		}
		return
	}
	u, err := process.FindUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	secret, given := filepath.Join(dir, "secret"), filepath.Join(dir, "given")
	for _, err := range []error{
		os.WriteFile(secret, nil, 0o600), os.MkdirAll(filepath.Join(given, "a"), 0o700),
		os.WriteFile(filepath.Join(given, "a", "b"), nil, 0o600), os.Symlink(secret, filepath.Join(given, "link")),
		u.Own(given), u.MakeDir(filepath.Join(dir, "deep", "made")), u.MakeDir(dir), // which is there
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.MkdirAll(filepath.Join(dir, "way", "to"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := u.OwnWay(root, filepath.Join("way", "to")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{
		"secret": 0, "given": u.UID, "given/a": u.UID, "given/a/b": u.UID, "given/link": u.UID, "way": u.UID, "way/to": u.UID, ".": 0,
		"deep": 0, "deep/made": u.UID,
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Uid; got != want {
			t.Errorf("%s is %d's, want %d's", name, got, want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "deep")); err != nil || len(left) != 1 {
		t.Errorf("a folder was made, and there are %v (%v)", left, err)
	}
	if err := u.MakeDir(secret); err == nil {
		t.Error("a file is a folder")
	}
}

func TestUserEnviron(t *testing.T) {
	t.Parallel()
	env := []string{"HOME=/root", "PATH=/bin", "USER=root", "HOMEPAGE=x", "LOGNAME=root"}
	u := &process.User{Name: "ann", Home: "/home/ann"}
	if got, want := u.Environ(env), []string{"PATH=/bin", "HOMEPAGE=x", "HOME=/home/ann", "USER=ann", "LOGNAME=ann"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (*process.User)(nil).Environ(env); !slices.Equal(got, env) {
		t.Errorf("of this process's own: %q", got)
	}
}
