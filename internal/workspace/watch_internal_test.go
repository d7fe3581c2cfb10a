//go:build unix

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Whatever happens in a folder, the next snapshot of one that is watched is that of one that is read anew.
func TestWatchMissesNothing(t *testing.T) {
	s := hostileStore(t)
	ctx, all, n := t.Context(), t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(all, fmt.Sprint(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		elsewhere := dir + ".link"
		watched := s.Folder(fmt.Sprint("w", n), dir, Limits{})
		watched.many = 0
		paths := []string{"a", "a/b", "a/b/c", "d", "d/e", ".gitignore", "a/.gitignore", ".git", ".git/index.lock", "d/e/f"}
		for range rapid.IntRange(1, 8).Draw(t, "takes") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				path := filepath.Join(dir, rapid.SampledFrom(paths).Draw(t, "path"))
				to := filepath.Join(dir, rapid.SampledFrom(paths).Draw(t, "to"))
				var err error
				switch rapid.SampledFrom([]string{"write", "write", "mkdir", "mkdir", "remove", "rename", "chmod", "link", "through"}).Draw(t, "what") {
				case "write":
					err = os.WriteFile(path, []byte(rapid.SampledFrom([]string{"", "c\n", "e\n", "b/\n"}).Draw(t, "text")), 0o600)
				case "mkdir":
					err = os.Mkdir(path, 0o700)
				case "remove":
					err = os.RemoveAll(path)
				case "rename":
					err = os.Rename(path, to)
				case "chmod":
					err = os.Chmod(path, rapid.SampledFrom([]fs.FileMode{0o700, 0o711}).Draw(t, "mode"))
				case "link":
					_ = os.Remove(elsewhere)
					if err = os.Link(path, elsewhere); err == nil {
						err = os.Chmod(path, 0o600) // the system tells nobody of a link from outside: see watch
					}
				case "through":
					err = os.WriteFile(elsewhere, []byte(rapid.StringMatching("[a-z]{3}").Draw(t, "content")), 0o600)
				}
				if err != nil && !errors.As(err, new(*fs.PathError)) && !errors.As(err, new(*os.LinkError)) {
					t.Fatal(err)
				}
			}
			compareTakes(ctx, t, watched, s.Folder(fmt.Sprint("f", n), dir, Limits{}))
		}
	})
}

func compareTakes(ctx context.Context, t *rapid.T, watched, anew *Folder) {
	got, gotErr := watched.Take(ctx, "")
	want, wantErr := anew.Take(ctx, "")
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		t.Fatalf("%v, read anew %v", gotErr, wantErr)
	}
	if gotErr != nil {
		return
	}
	got.ID, want.ID, got.Stored, want.Stored = "", "", 0, 0
	if diff := cmp.Diff(want, got); diff != "" || watched.root.meaning != anew.root.meaning {
		t.Errorf("another tree (%v), -read anew +watched:\n%s", watched.root.meaning != anew.root.meaning, diff)
	}
}
