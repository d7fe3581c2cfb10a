//go:build unix

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/workspace"
)

// What an agent writes into its folder has no other repository read: a repository that its .git names has to know the folder.
func TestWorktreeOfAnotherRepository(t *testing.T) {
	s, _ := openStore(t, nil)
	other := filepath.Join(t.TempDir(), "other")
	write(t, other, map[string]string{"key.txt": "the secret"})
	git(t, other, "init", "-q")
	git(t, other, "add", ".")
	git(t, other, "commit", "-q", "-m", "secret")
	dir := filepath.Join(t.TempDir(), "agent")
	write(t, dir, map[string]string{
		".git":           "gitdir: fake\n",
		"fake/gitdir":    filepath.Join(dir, ".git") + "\n",
		"fake/commondir": filepath.Join(other, ".git") + "\n",
		"fake/HEAD":      "ref: refs/heads/main\n",
	})
	snapshot, err := s.Folder("r", dir, workspace.Limits{}).Take(t.Context(), "")
	if !errors.As(err, new(*workspace.RefusedError)) {
		t.Errorf("%v; it has %q", err, git(t, restore(t, s, snapshot.ID), "show", "HEAD:key.txt"))
	}
}

// linkTo puts links into a folder.
func linkTo(tb testing.TB, dir, target string, links int) {
	tb.Helper()
	for i := range links {
		if err := os.Symlink(target, filepath.Join(dir, fmt.Sprintf("l%06d", i))); err != nil {
			tb.Fatal(err)
		}
	}
}

// A link takes no more memory than what it leads to, and a name.
func TestLinksAreSmall(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	const links = 10_000
	linkTo(t, dir, "x", links)
	before := heap()
	f := s.Folder("r", dir, workspace.Limits{})
	take(t, f, "")
	after := heap()
	runtime.KeepAlive(f)
	if size := (int64(after) - int64(before)) / links; size > 2500 {
		t.Errorf("%d bytes per link", size)
	}
}

// Links that lead farther than a list can tell are refused.
func TestLongLinks(t *testing.T) {
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	linkTo(t, dir, strings.Repeat("x", 4000), 9000)
	if _, err := s.Folder("r", dir, workspace.Limits{}).Take(t.Context(), ""); !errors.As(err, new(*workspace.RefusedError)) {
		t.Errorf("Take = %v, want a refusal", err)
	}
}

// Files of rules that would have each file held against too many rules, or that are too large to be read, are refused; a long line keeps none of
// the others from counting, and a snapshot ends when its time is over.
func TestRulesAreBounded(t *testing.T) {
	s, _ := openStore(t, nil)
	rules := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "q%d\n", i)
		}
		return b.String()
	}
	for name, text := range map[string]string{"many": rules(20_001), "large": strings.Repeat("# nothing\n", 110_000)} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"below/.gitignore": text, "below/f": "x"})
		if _, err := s.Folder(name, dir, workspace.Limits{}).Take(t.Context(), ""); !errors.As(err, new(*workspace.RefusedError)) || !strings.Contains(err.Error(), `"below`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{".gitignore": "a\n" + strings.Repeat("b", 70_000) + "\nsecret\n", "a": "", "b": "", "secret": ""})
	out := restore(t, s, take(t, s.Folder("long", dir, workspace.Limits{}), "").ID)
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{".gitignore", "b"}) {
		t.Errorf("kept %q", names)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Folder("over", dir, workspace.Limits{}).Take(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Take behind its time = %v", err)
	}
}
