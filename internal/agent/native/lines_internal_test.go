package native

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"code.wake.dev/wake/internal/agent/workdir"
)

// To search or read a file takes about the memory of the file, however many lines it has.
func TestManyLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), bytes.Repeat([]byte("\n"), workdir.MaxFile), 0o644); err != nil {
		t.Fatal(err)
	}
	w := workspace{workdir.Folder{Dir: dir}}
	for name, f := range map[string]func() error{
		"grep": func() error { _, err := w.grepFiles(t.Context(), "", grepInput{Pattern: "x"}); return err },
		"read": func() error { _, err := w.readFile(t.Context(), "", readInput{Path: "f", Limit: 1}); return err },
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		if err := f(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if after.TotalAlloc-before.TotalAlloc > 100<<20 {
			t.Errorf("%s: %d MiB", name, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
	}
}
