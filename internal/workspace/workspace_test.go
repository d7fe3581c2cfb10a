package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// openStore returns a store of its own.
func openStore(t testing.TB, keys *seal.Keys, edits ...func(*jetstream.StreamConfig)) (*workspace.Store, jetstream.JetStream) {
	t.Helper()
	js, name := natstest.JetStream(t), subjects.Default.WorkspacesBucket()
	config := jetstream.StreamConfig{ // as wake init does
		Name: "OBJ_" + name, Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Discard: jetstream.DiscardNew, AllowRollup: true, AllowDirect: true,
	}
	for _, edit := range edits {
		edit(&config)
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s, err := workspace.Open(t.Context(), js, subjects.Default, keys)
	if err != nil {
		t.Fatal(err)
	}
	return s, js
}

// tree is what is in a folder: path → mode, and content or where a link leads.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text = "→ " + target
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(content)
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func take(t testing.TB, f *workspace.Folder, base string) workspace.Snapshot {
	t.Helper()
	s, err := f.Take(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func restore(t testing.TB, s *workspace.Store, id string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := s.Restore(t.Context(), id, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSilentStorage takes a snapshot while the server says nothing: work waits for it, so that it is given up soon, however many packs
// it has.
func TestSilentStorage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, _ := openStore(t, nil, func(c *jetstream.StreamConfig) { c.NoAck = true })
		dir, random := t.TempDir(), rand.NewChaCha8([32]byte{})
		for i := range 40 {
			data := make([]byte, 512<<10)
			_, _ = random.Read(data)
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		begun := time.Now()
		snapshot, err := s.Folder("r", dir, workspace.Limits{}).Take(ctx, "")
		if took := time.Since(begun); took > 6*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("snapshot %q after %s: %v", snapshot.ID, took, err)
		}
	})
}

// TestIdentity changes a folder in random ways and restores each snapshot: what is restored is what there was.
func TestIdentity(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	rapid.Check(t, func(r *rapid.T) {
		base := t.TempDir()
		dir := filepath.Join(base, "folder")
		if err := os.Mkdir(dir, 0o755); err != nil {
			r.Fatal(err)
		}
		f, last := s.Folder("run."+filepath.Base(base), dir, workspace.Limits{}), ""
		for i := range rapid.IntRange(1, 4).Draw(r, "steps") {
			for range rapid.IntRange(0, 8).Draw(r, "changes") {
				changeSomething(r, dir)
			}
			if rapid.Bool().Draw(r, "other process") {
				f = s.Folder("run."+filepath.Base(base), dir, workspace.Limits{})
			}
			snapshot, err := f.Take(t.Context(), last)
			if err != nil {
				r.Fatal(err)
			}
			last = snapshot.ID
			out := filepath.Join(base, fmt.Sprint("restored", i))
			if _, err := s.Restore(t.Context(), last, out); err != nil {
				r.Fatal(err)
			}
			if diff := cmp.Diff(tree(t, dir), tree(t, out)); diff != "" {
				r.Fatalf("restored differs (-was +is):\n%s", diff)
			}
			if again, err := f.Take(t.Context(), last); err != nil || again.ID != last {
				r.Fatalf("unchanged: %s, %v, want %s", again.ID, err, last)
			}
		}
	})
}

// changeSomething changes one thing in a folder, and nothing outside, where its links lead. What can't be done isn't.
func changeSomething(r *rapid.T, dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	names := []string{"a", "b", "c \n", "ä\xff", "-x", ".hidden"}
	path := ""
	for range rapid.IntRange(1, 3).Draw(r, "depth") {
		path = filepath.Join(path, rapid.SampledFrom(names).Draw(r, "name"))
	}
	mode := fs.FileMode(rapid.SampledFrom([]int{0o600, 0o644, 0o755, 0o400, 0o777}).Draw(r, "mode"))
	switch rapid.IntRange(0, 5).Draw(r, "change") {
	case 0, 1:
		size := rapid.SampledFrom([]int{0, 1, 100, 600_000, 1_100_000}).Draw(r, "size")
		fill := rapid.Byte().Draw(r, "fill")
		if root.MkdirAll(filepath.Dir(path), 0o755) == nil && root.WriteFile(path, bytes.Repeat([]byte{fill, byte(size)}, size/2+1), 0o600) == nil {
			_ = root.Chmod(path, mode)
		}
	case 2:
		_ = root.MkdirAll(path, 0o755)
	case 3:
		if root.MkdirAll(filepath.Dir(path), 0o755) == nil {
			_ = root.Symlink(rapid.SampledFrom([]string{"a", "..", "/etc/passwd", "nowhere", "../../../../etc"}).Draw(r, "target"), path)
		}
	case 4:
		_ = root.RemoveAll(path)
	case 5:
		if info, err := root.Lstat(path); err == nil && info.Mode().IsRegular() {
			_ = root.Chmod(path, mode)
		}
	}
}

// TestOnlyWhatChanged: a second snapshot stores what has changed, and a run elsewhere nothing that its base holds.
func TestOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	s, js := openStore(t, nil)
	dir, files := t.TempDir(), map[string]string{}
	for i := range 500 {
		files[fmt.Sprintf("d%d/f%d", i%20, i)] = strings.Repeat(fmt.Sprint(i, " "), 100)
	}
	write(t, dir, files)
	first := take(t, s.Folder("r1", dir, workspace.Limits{}), "")
	if first.Files != 520 {
		t.Errorf("%d files, want 520 with their folders", first.Files)
	}
	stored := func() uint64 {
		stream, err := js.Stream(t.Context(), "OBJ_"+subjects.Default.WorkspacesBucket())
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Bytes
	}
	before := stored()
	write(t, dir, map[string]string{"d3/f3": "new"})
	second := take(t, s.Folder("fork", dir, workspace.Limits{}), first.ID)
	if grown := stored() - before; grown > 8<<10 {
		t.Errorf("a changed file has cost %d bytes, the folder %d", grown, before)
	}
	if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, second.ID))); diff != "" {
		t.Error(diff)
	}
}

// TestLeftOut: what rules, bounds and kinds leave out is listed; tracked files stay, whatever the rules say.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		".gitignore": "*.log\n/build/\n.env\nvendor\n", ".wakeignore": "!.env\n*.tmp\n", "sub/.gitignore": "!keep.log\n",
		"a.log": "1", ".env": "2", "build/x": "3", "b.tmp": "4", "sub/keep.log": "5", "sub/c.log": "6", "sub/build/x": "7",
		"vendor/tracked.go": "8", "vendor/other.go": "9", "large": strings.Repeat("x", 2000),
	})
	git(t, dir, "init", "-q")
	git(t, dir, "add", "-f", "vendor/tracked.go")
	if err := os.Remove(filepath.Join(dir, ".git", "description")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	snapshot := take(t, s.Folder("r", dir, workspace.Limits{File: 1000}), "")
	reasons := map[string]string{}
	for _, l := range snapshot.LeftOut {
		if !strings.HasPrefix(l.Path, ".git/") {
			reasons[l.Path] = l.Reason
		}
	}
	want := map[string]string{
		"a.log": "ignored", "build/": "ignored", "b.tmp": "ignored", "sub/c.log": "ignored", "vendor/other.go": "ignored", "large": "larger than 0 MiB",
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	got := tree(t, restore(t, s, snapshot.ID))
	for _, name := range []string{".env", "sub/keep.log", "sub/build/x", "vendor/tracked.go"} {
		if _, there := got[name]; !there {
			t.Errorf("%s isn't restored", name)
		}
	}
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestRepository: commits, the index, a stash and a merge that isn't done travel; what names commands doesn't.
func TestRepository(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	write(t, dir, map[string]string{"a": "1\n", "b": "1\n"})
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "one")
	git(t, dir, "checkout", "-qb", "side")
	write(t, dir, map[string]string{"a": "side\n"})
	git(t, dir, "commit", "-qam", "side")
	git(t, dir, "checkout", "-q", "main")
	write(t, dir, map[string]string{"b": "stashed\n"})
	git(t, dir, "stash", "-q")
	write(t, dir, map[string]string{"a": "main\n"})
	git(t, dir, "commit", "-qam", "two")
	write(t, dir, map[string]string{"staged": "x"})
	git(t, dir, "add", "staged")
	asked := [][]string{{"log", "--all", "--format=%H %s"}, {"stash", "list"}, {"status", "--porcelain"}, {"fsck", "--no-progress"}}
	var wants []string
	for _, args := range asked {
		wants = append(wants, git(t, dir, args...))
	}
	git(t, dir, "config", "core.fsmonitor", "touch evil")
	git(t, dir, "config", "filter.x.clean", "touch evil")
	git(t, dir, "config", "core.hooksPath", "/evil")
	git(t, dir, "config", "remote.origin.url", "https://user:secret@example.com/x")
	git(t, dir, "config", "remote.up.url", "https://example.com/x")
	git(t, dir, "config", "alias.st", "!touch evil")
	git(t, dir, "config", "user.name", "me")
	write(t, dir, map[string]string{".git/hooks/pre-commit": "evil"})
	snapshot := take(t, s.Folder("r", dir, workspace.Limits{}), "")
	out := restore(t, s, snapshot.ID)
	for i, args := range asked {
		if want, got := wants[i], git(t, out, args...); want != got {
			t.Errorf("git %v:\n%s\nwant\n%s", args, got, want)
		}
	}
	config, err := os.ReadFile(filepath.Join(out, ".git", "config"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"evil", "secret", "hooksPath", "alias", "filter"} {
		if bytes.Contains(config, []byte(bad)) {
			t.Errorf("the configuration has %s:\n%s", bad, config)
		}
	}
	if got := git(t, out, "config", "--local", "remote.up.url") + git(t, out, "config", "--local", "user.name"); got != "https://example.com/xme" {
		t.Errorf("kept: %s", got)
	}
	if _, err := os.Lstat(filepath.Join(out, ".git", "hooks", "pre-commit")); err == nil {
		t.Error("a hook is restored")
	}
}

// TestWorktree: a linked worktree is restored as a repository of its own, with its own place in it, and the next snapshot has what was
// committed since; that of another repository, which doesn't name it, isn't read.
func TestWorktree(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	for name, arg := range map[string]string{"plain": "", "bare": "--bare"} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			main, dir := filepath.Join(base, "main"), filepath.Join(base, "linked")
			git(t, base, "init", "-q", "main")
			write(t, main, map[string]string{"a": "1\n", ".gitignore": "*.log\n", "kept.log": "x"})
			git(t, main, "add", "-f", ".")
			git(t, main, "commit", "-qm", "one")
			if arg != "" {
				git(t, base, "clone", "-q", arg, "main", "bare")
				main = filepath.Join(base, "bare")
			}
			git(t, main, "worktree", "add", "-q", "-b", "side", dir)
			git(t, main, "config", "core.fsmonitor", "touch evil")
			if arg == "" {
				write(t, main, map[string]string{"staged-in-main": "x"})
				git(t, main, "add", ".")
			}
			write(t, dir, map[string]string{"a": "2\n", "b": "1\n", "left.log": "x"})
			git(t, dir, "-c", "core.fsmonitor=false", "add", "b")
			f := s.Folder("r"+name, dir, workspace.Limits{})
			base1 := ""
			for i := range 2 {
				before := tree(t, main)
				snapshot := take(t, f, base1)
				if again := take(t, f, base1); again.ID != snapshot.ID {
					t.Error("nothing has changed, and it is another one")
				}
				base1 = snapshot.ID
				if !maps.Equal(before, tree(t, main)) {
					t.Error("the repository was written to")
				}
				out := restore(t, s, snapshot.ID)
				for _, args := range [][]string{
					{"log", "side", "--format=%H %s"},
					{"status", "--porcelain"},
					{"branch", "--show-current"},
					{"stash", "list"},
					{"reflog"},
					{"fsck", "--no-progress"},
				} {
					at := append([]string{"-c", "core.fsmonitor=false"}, args...)
					if want, got := git(t, dir, at...), git(t, out, at...); want != got {
						t.Errorf("%d: git %v:\n%s\nwant\n%s", i, args, got, want)
					}
				}
				if got := git(t, out, "rev-parse", "--git-common-dir"); got != ".git" {
					t.Errorf("its repository is %s", got)
				}
				if found := tree(t, out); found["kept.log"] == "" || found["left.log"] != "" || found["evil"] != "" {
					t.Errorf("it has %v", slices.Sorted(maps.Keys(found)))
				}
				git(t, dir, "-c", "core.fsmonitor=false", "commit", "--allow-empty", "-qam", "more")
			}
			other := filepath.Join(base, "other")
			pointer, err := os.ReadFile(filepath.Join(dir, ".git"))
			if err != nil {
				t.Fatal(err)
			}
			write(t, other, map[string]string{".git": string(pointer)})
			if _, err := s.Folder("x"+name, other, workspace.Limits{}).Take(t.Context(), ""); !errors.As(err, new(*workspace.RefusedError)) {
				t.Errorf("a folder that the repository doesn't name: %v", err)
			}
		})
	}
}

// TestSubmodules: a submodule, and one in it, are restored as repositories of their own, with what was committed and staged there; one
// whose repository doesn't name it isn't read.
func TestSubmodules(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	base := t.TempDir()
	main := filepath.Join(base, "main")
	for _, name := range []string{"inner", "lib", "main"} {
		git(t, base, "init", "-q", name)
		write(t, filepath.Join(base, name), map[string]string{"of-" + name: "1\n"})
		git(t, filepath.Join(base, name), "add", ".")
		git(t, filepath.Join(base, name), "commit", "-qm", name)
	}
	add := func(dir, source, at string) {
		git(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, at)
		git(t, dir, "commit", "-qm", "has "+at)
	}
	add(filepath.Join(base, "lib"), "../inner", "inner")
	add(main, "../lib", "sub/lib")
	git(t, main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")
	linked := filepath.Join(base, "linked")
	git(t, main, "worktree", "add", "-q", "-b", "side", linked)
	git(t, linked, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")

	asked := func(dir string) (told []string) {
		for _, below := range []string{".", "sub/lib", "sub/lib/inner"} {
			for _, args := range [][]string{{"status", "--porcelain"}, {"log", "--all", "--format=%H %s"}, {"submodule", "status", "--recursive"}, {"fsck", "--no-progress"}} {
				told = append(told, below+" "+args[0]+": "+git(t, filepath.Join(dir, below), args...))
			}
		}
		return told
	}
	for name, dir := range map[string]string{"plain": main, "linked": linked} {
		f, last := s.Folder("r"+name, dir, workspace.Limits{}), ""
		for step := range 2 {
			sub := filepath.Join(dir, "sub", "lib")
			write(t, sub, map[string]string{fmt.Sprint("staged", step): name, "inner/left": "x"})
			git(t, sub, "add", fmt.Sprint("staged", step))
			git(t, filepath.Join(sub, "inner"), "commit", "--allow-empty", "-qm", fmt.Sprint("more ", step))
			before := tree(t, base)
			snapshot := take(t, f, last)
			if again := take(t, f, last); again.ID != snapshot.ID {
				t.Errorf("%s: nothing has changed, and it is another one", name)
			}
			last = snapshot.ID
			if !maps.Equal(before, tree(t, base)) {
				t.Errorf("%s: the repositories were written to", name)
			}
			out := restore(t, s, last)
			if diff := cmp.Diff(asked(dir), asked(out)); diff != "" {
				t.Errorf("%s: what git says (-was +restored):\n%s", name, diff)
			}
			for _, below := range []string{"sub/lib", "sub/lib/inner"} {
				if got := git(t, filepath.Join(out, below), "rev-parse", "--git-common-dir"); got != ".git" {
					t.Errorf("%s: the repository of %s is %s", name, below, got)
				}
			}
			if config := tree(t, out)["sub/lib/.git/config"]; strings.Contains(config, "worktree") || !strings.Contains(config, `[submodule "inner"]`) {
				t.Errorf("%s: its configuration is %s", name, config)
			}
		}
	}
	take(t, s.Folder("inside", filepath.Join(main, "sub", "lib"), workspace.Limits{}), "") // the folder of a run may be a submodule

	other := filepath.Join(base, "other")
	write(t, other, map[string]string{".git": "gitdir: " + filepath.Join(main, ".git", "modules", "sub", "lib") + "\n"})
	if _, err := s.Folder("x", other, workspace.Limits{}).Take(t.Context(), ""); !errors.As(err, new(*workspace.RefusedError)) {
		t.Errorf("a folder that the repository doesn't name: %v", err)
	}
}

// TestRefusedClones: what git makes that has its objects elsewhere, or not all of its files, is refused, and says why.
func TestRefusedClones(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	base := t.TempDir()
	git(t, base, "init", "-q", "main")
	write(t, filepath.Join(base, "main"), map[string]string{"a/b": "1\n", "c/d": "2\n"})
	git(t, filepath.Join(base, "main"), "add", ".")
	git(t, filepath.Join(base, "main"), "commit", "-qm", "one")
	git(t, filepath.Join(base, "main"), "config", "uploadpack.allowFilter", "true")
	for want, args := range map[string][]string{
		"alternates":      {"clone", "-q", "--shared", "main"},
		"partial clone":   {"clone", "-q", "--filter=blob:none", "file://" + filepath.Join(base, "main")},
		"sparse checkout": {"clone", "-q", "--sparse", "file://" + filepath.Join(base, "main")},
		"doesn't name it": {"clone", "-q", "--separate-git-dir", filepath.Join(base, "separate"), "main"},
	} {
		name := strings.ReplaceAll(want, " ", "-")
		git(t, base, append(args, name)...)
		_, err := s.Folder("r", filepath.Join(base, name), workspace.Limits{}).Take(t.Context(), "")
		if !errors.As(err, new(*workspace.RefusedError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("git %v: %v, want %s", args, err, want)
		}
	}
}

// TestRefused: repositories that live elsewhere in part have no snapshot.
func TestRefused(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	for _, tt := range []struct {
		name, want string
		files      map[string]string
	}{
		{"elsewhere", "doesn't name it", map[string]string{"sub/.git": "gitdir: /elsewhere"}},
		{"alternates", "alternates", map[string]string{".git/HEAD": "x", ".git/objects/info/alternates": "/elsewhere"}},
		{"partial", "partial clone", map[string]string{".git/config": "[remote \"o\"]\n\tpromisor = true\n"}},
		{"sparse", "sparse", map[string]string{".git/config": "[core]\n\tsparseCheckout = true\n"}},
		{"core.worktree", "core.worktree", map[string]string{".git/config": "[core]\n\tworktree = /etc\n"}},
		{"large", "more than 0 MiB", map[string]string{"a": strings.Repeat("x", 3000)}},
	} {
		dir := t.TempDir()
		write(t, dir, tt.files)
		_, err := s.Folder("r", dir, workspace.Limits{Bytes: 2500}).Take(t.Context(), "")
		if !errors.As(err, new(*workspace.RefusedError)) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestLocked: a repository that is being written is waited for, within bounds.
func TestLocked(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	write(t, dir, map[string]string{".git/index.lock": ""})
	snapshot := take(t, s.Folder("r", dir, workspace.Limits{}), "")
	if !snapshot.Unstable {
		t.Error("taken under a lock, and not called unstable")
	}
	if _, there := tree(t, restore(t, s, snapshot.ID))[".git/index.lock"]; there {
		t.Error("the lock is restored")
	}
}

// TestLinksLeadNowhere: nothing outside is read through a link, and nothing written.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	outside, dir := t.TempDir(), t.TempDir()
	write(t, outside, map[string]string{"secret": "of somebody else"})
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink("../"+filepath.Base(outside), filepath.Join(dir, "relative")),
		os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, ".gitignore"))); err != nil {
		t.Fatal(err)
	}
	snapshot := take(t, s.Folder("r", dir, workspace.Limits{}), "")
	if snapshot.Files != 3 || snapshot.Bytes != 0 {
		t.Errorf("%+v, want three links and nothing of what they lead to", snapshot)
	}
	if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, snapshot.ID))); diff != "" {
		t.Error(diff)
	}
}

// TestDamaged: a pack that isn't what its name says is named, and nothing is restored by half.
func TestDamaged(t *testing.T) {
	t.Parallel()
	keys, err := seal.Parse([]byte("a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []*seal.Keys{nil, keys} {
		s, js := openStore(t, k)
		dir := t.TempDir()
		write(t, dir, map[string]string{"a": strings.Repeat("a", 700_000), "b": "small", "c/d": "e"})
		snapshot := take(t, s.Folder("r", dir, workspace.Limits{}), "")
		if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, snapshot.ID))); diff != "" {
			t.Fatal(diff)
		}
		stream, err := js.Stream(t.Context(), "OBJ_"+subjects.Default.WorkspacesBucket())
		if err != nil {
			t.Fatal(err)
		}
		for seq := range stream.CachedInfo().State.LastSeq {
			m, err := stream.GetMsg(t.Context(), seq+1)
			if err != nil {
				continue // another took its place
			}
			_, pack, _ := strings.Cut(m.Subject, ".C.")
			if seal.IsValue(m.Data) != (k != nil) {
				t.Errorf("pack %s is sealed: %t", pack, k == nil)
			}
			for _, bad := range []func() error{
				func() error {
					data := bytes.Clone(m.Data)
					data[len(data)-1] ^= 1
					_, err := js.Publish(t.Context(), m.Subject, data)
					return err
				},
				func() error {
					return stream.Purge(context.WithoutCancel(t.Context()), jetstream.WithPurgeSubject(m.Subject))
				},
			} {
				if err := bad(); err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), "restored")
				_, err := s.Restore(t.Context(), snapshot.ID, out)
				if err == nil || !strings.Contains(err.Error(), pack) {
					t.Errorf("%v, want it to name %s", err, pack)
				}
				if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
			if _, err := js.Publish(t.Context(), m.Subject, m.Data); err != nil {
				t.Fatal(err)
			}
		}
		restore(t, s, snapshot.ID)
	}
}

// TestDrop: what a run has packed goes, what others have stays.
func TestDrop(t *testing.T) {
	t.Parallel()
	s, js := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	one, two := take(t, s.Folder("run.1", dir, workspace.Limits{}), ""), take(t, s.Folder("run", dir, workspace.Limits{}), "")
	if err := workspace.Drop(t.Context(), js.Conn(), subjects.Default, "run"); err != nil {
		t.Fatal(err)
	}
	restore(t, s, one.ID)
	if _, err := s.Restore(t.Context(), two.ID, filepath.Join(t.TempDir(), "x")); !errors.Is(err, workspace.ErrMissing) {
		t.Errorf("what was dropped: %v", err)
	}
}

// TestDroppedMeanwhile: a runner that goes on with a folder whose snapshots were dropped stores all of it anew, by whatever way it was known.
func TestDroppedMeanwhile(t *testing.T) {
	t.Parallel()
	s, js := openStore(t, nil)
	drop := func(run string) {
		if err := workspace.Drop(t.Context(), js.Conn(), subjects.Default, run); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": strings.Repeat("a", 700_000), "b/c": "1", "d/e": "2"})
	f := s.Folder("run", dir, workspace.Limits{})
	first := take(t, f, "")
	drop("run")
	if err := f.Recheck(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, files := range []map[string]string{nil, {"d/e": "3"}} {
		write(t, dir, files)
		if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, take(t, f, first.ID).ID))); diff != "" {
			t.Errorf("after %v: %s", files, diff)
		}
	}
	base := take(t, f, "").ID
	fork := s.Folder("fork", dir, workspace.Limits{})
	write(t, dir, map[string]string{"d/e": "4"})
	last := take(t, fork, base) // it refers to what the run has packed
	drop("run")
	if _, err := s.Restore(t.Context(), last.ID, filepath.Join(t.TempDir(), "x")); !errors.Is(err, workspace.ErrMissing) {
		t.Fatalf("the fork's snapshot needs nothing of its parent: %v", err)
	}
	write(t, dir, map[string]string{"d/e": "5"})
	for name, f := range map[string]*workspace.Folder{"the same process": fork, "another": s.Folder("fork", dir, workspace.Limits{})} {
		if err := f.Recheck(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, take(t, f, last.ID).ID))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestDroppedManifest: of a fork, all that was dropped may be what its snapshot lists: the content is its parent's.
func TestDroppedManifest(t *testing.T) {
	t.Parallel()
	s, js := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{".gitignore": "out\n", "out/x": "1", "a": "2"})
	base := take(t, s.Folder("parent", dir, workspace.Limits{}), "").ID
	dir = restore(t, s, base) // without what was ignored
	f := s.Folder("fork", dir, workspace.Limits{})
	first := take(t, f, base).ID
	if first == base {
		t.Fatal("the fork has nothing of its own")
	}
	if err := workspace.Drop(t.Context(), js.Conn(), subjects.Default, "fork"); err != nil {
		t.Fatal(err)
	}
	if err := f.Recheck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, dir), tree(t, restore(t, s, take(t, f, first).ID))); diff != "" {
		t.Error(diff)
	}
}

// TestUsage: what snapshots take, and of which runs.
func TestUsage(t *testing.T) {
	t.Parallel()
	s, js := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	long := strings.Repeat("x.", 200) // its token is a hash
	for _, run := range []string{"r.1", long} {
		take(t, s.Folder(run, dir, workspace.Limits{}), "")
	}
	used, err := workspace.Used(t.Context(), js, subjects.Default)
	if err != nil || used.Packs != 2 || used.Bytes < 200 {
		t.Errorf("%+v, %v", used, err)
	}
	holds, err := workspace.Holders(t.Context(), js, subjects.Default)
	if err != nil || !holds("r.1") || !holds(long) || holds("r") || holds("r.1.2") {
		t.Errorf("%t %t %t, %v", holds("r.1"), holds(long), holds("r"), err)
	}
}

// TestRestoreReplacesNothing: a folder that has something in it stays.
func TestRestoreReplacesNothing(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	snapshot := take(t, s.Folder("r", dir, workspace.Limits{}), "")
	if _, err := s.Restore(t.Context(), snapshot.ID, dir); err == nil {
		t.Error("restored over a folder with something in it")
	}
	if got := tree(t, dir); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

// TestUnstable: a file that changes whenever it is read is kept as it was read last, and called unstable; when it rests, it isn't.
func TestUnstable(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, nil)
	dir := t.TempDir()
	write(t, dir, map[string]string{"log": strings.Repeat("x", 8<<20), "rests": "1"})
	f := s.Folder("r", dir, workspace.Limits{})
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		file, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND, 0)
		for err == nil {
			select {
			case <-stop:
				ended <- file.Close()
				return
			default:
				_, err = file.WriteString("y")
			}
		}
		ended <- err
	}()
	var snapshot workspace.Snapshot
	for try := 0; try < 1000 && !snapshot.Unstable; try++ { // as soon as the writer has been at work beside each of its readings
		snapshot = take(t, f, "")
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !snapshot.Unstable || len(snapshot.LeftOut) != 1 || !strings.HasPrefix(snapshot.LeftOut[0].Reason, "unstable") || snapshot.LeftOut[0].Path != "log" {
		t.Errorf("%+v", snapshot)
	}
	if found := tree(t, restore(t, s, snapshot.ID)); len(found) != 2 || !strings.HasSuffix(found["log"], "y") {
		t.Errorf("%d files are restored", len(found))
	}
	if last := take(t, f, snapshot.ID); last.Unstable || len(last.LeftOut) > 0 {
		t.Errorf("it rests, and is %+v", last)
	}
}
