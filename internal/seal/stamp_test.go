package seal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/seal"
)

// A stamp is that of one value at one place under one key, whoever has read the key from its file.
func TestStampOfOneValue(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stamp")
	s := seal.NewStamp()
	if err := s.Write(path); err != nil {
		t.Fatal(err)
	}
	read, err := seal.LoadStamp(path)
	if err != nil {
		t.Fatal(err)
	}
	const place = "$KV.WAKE_SNAPSHOTS.r1"
	stamp := s.Of(place, []byte("the state"))
	if !read.IsOf(stamp, place, []byte("the state")) {
		t.Error("who has read the key doesn't know the stamp")
	}
	for name, is := range map[string]bool{
		"another key":            seal.NewStamp().IsOf(stamp, place, []byte("the state")),
		"another place":          read.IsOf(stamp, place[:len(place)-1]+"2", []byte("the state")),
		"another value":          read.IsOf(stamp, place, []byte("a state")),
		"no stamp":               read.IsOf("", place, []byte("the state")),
		"a part of the stamp":    read.IsOf(stamp[:len(stamp)-2], place, []byte("the state")),
		"a place that ends late": read.IsOf(stamp, place+"the ", []byte("state")),
		"one that ends early":    read.IsOf(stamp, place[:len(place)-1], []byte("1the state")),
	} {
		if is {
			t.Errorf("%s has it, too", name)
		}
	}
}

// The key of a stamp is its owner's alone, and a whole one.
func TestStampKeyIsPrivate(t *testing.T) {
	t.Parallel()
	const key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	path := filepath.Join(t.TempDir(), "stamp")
	for _, tt := range []struct {
		text string
		mode os.FileMode
		want string // of the error; "": none
	}{
		{key + "\n", 0o600, ""},
		{key, 0o400, ""},
		{key, 0o640, "chmod 600"},
		{key, 0o602, "chmod 600"},
		{key[:20], 0o600, "32 bytes"},
		{key[:43] + "?", 0o600, "32 bytes"},
		{"", 0o600, "32 bytes"},
	} {
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		_, err := seal.LoadStamp(path)
		if got := err == nil; got != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || tt.text != "" && strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%q with mode %o: %v, want %q", tt.text, tt.mode, err, tt.want)
		}
	}
	if _, err := seal.LoadStamp(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that isn't there has a key")
	}
	if err := seal.NewStamp().Write(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A key that couldn't be written isn't taken for one that was.
func TestStampNotWritten(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, path := range map[string]string{"a folder is there": folder, "no folder": filepath.Join(folder, "none", "stamp")} {
		if err := seal.NewStamp().Write(path); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}
