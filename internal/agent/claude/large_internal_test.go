package claude

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// An agent makes its session's files as large as it likes, which takes no room on its disk: none of that is read.
func TestLargeSessionFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, 100<<30); err != nil {
			t.Fatal(err)
		}
	}
	put("projects/x/s.jsonl")
	put("projects/x/t/subagents/agent-a.jsonl")
	files := sessionFiles{projects: filepath.Join(dir, "projects"), folder: "x"}
	k := newFileSaver(files, "s", func(context.Context, string, int64, []byte) error { return errors.New("it is kept") }, slog.New(slog.DiscardHandler))
	k.saving = "s"
	if err := k.saveGrowth(t.Context()); !errors.Is(err, errLargeSession) {
		t.Errorf("kept: %v", err)
	}
	if _, _, err := files.bestVersion("s", nil); !errors.Is(err, errLargeSession) {
		t.Errorf("read: %v", err)
	}
	if content, here, err := files.bestVersion("s", []byte("{}\n")); err != nil || here || string(content) != "{}\n" {
		t.Errorf("what is kept of it: %q %v", content, err)
	}
	if all, err := SubAgents(os.DirFS(files.projects), "x/t.jsonl"); !errors.Is(err, errLargeSession) {
		t.Errorf("%d sub-agents, %v", len(all), err)
	}
}

// A session file is kept in pieces of whole lines, however long the lines are.
func TestSessionIsKeptInPieces(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "projects", "x", "s.jsonl")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	var content, kept []byte
	for i, size := range []int{10, 3 << 20, 100, 9 << 20, 4<<20 - 1, 1, 0, 70} {
		content = append(content, bytes.Repeat([]byte{byte('a' + i)}, size)...)
		content = append(content, '\n')
	}
	save := func(_ context.Context, _ string, offset int64, data []byte) error {
		if offset != int64(len(kept)) || !bytes.HasSuffix(data, []byte("\n")) {
			return fmt.Errorf("%d bytes at %d", len(data), offset)
		}
		kept = append(kept, data...)
		return nil
	}
	k := newFileSaver(sessionFiles{projects: filepath.Join(dir, "projects"), folder: "x"}, "s", save, slog.New(slog.DiscardHandler))
	k.saving = "s"
	for _, more := range []string{"", "half a li", "ne\nand one\n"} {
		content = append(content, more...)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := k.saveGrowth(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(kept, wholeLines(content)) {
			t.Fatalf("%d of %d bytes are kept", len(kept), len(content))
		}
	}
}
