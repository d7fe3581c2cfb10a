package main

import (
	"os"
	"path/filepath"
	"testing"

	"code.wake.dev/wake/internal/backup"
)

// What keepers and spools hold, and which events were set aside, when a backup is restored is of a time that hasn't been, whichever process they are of.
func TestRestorePutsAside(t *testing.T) {
	dir := t.TempDir()
	held := []string{"keepers/r1", "runner/keepers/r2", "spool/runner", "trial/up"}
	for _, name := range held {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := fileVerbs{app: &app{}}
	a.server.DataDir = dir
	if err := a.restoreFiles(dir, backup.Manifest{}, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range held {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still in its place", name)
		}
		if aside, err := filepath.Glob(filepath.Join(dir, filepath.Dir(name)+".before-*", filepath.Base(name))); err != nil || len(aside) != 1 {
			t.Errorf("%s is put aside as %v, %v", name, aside, err)
		}
	}
}
