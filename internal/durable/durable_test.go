package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"code.wake.dev/wake/internal/durable"
)

// A file is replaced as a whole, with its mode; a link in its place leads nowhere.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "key"), filepath.Join(dir, "other")
	for _, text := range []string{"a long text", "short"} {
		if err := durable.Write(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if info, _ := os.Stat(path); err != nil || string(got) != text || info.Mode() != 0o600 {
			t.Errorf("%q, %v, %v", got, info.Mode(), err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if err := durable.Write(path, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("what the link led to was written: %v", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// What can't be written leaves the file as it was, and nothing beside it.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.Write(folder, []byte("text"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if err := durable.Write(filepath.Join(dir, "missing", "file"), nil, 0o600); err == nil {
		t.Error("a file in no folder was written")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
