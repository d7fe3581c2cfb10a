//go:build shareddata

package export_test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
)

// sharedData is the folder of recordings.
func sharedData() string {
	if dir := os.Getenv("WAKE_SHARED_DATA"); dir != "" {
		return dir
	}
	return "../../../shared/data"
}

// TestSharedData writes every recording in every format; what jsonl writes can be
// read back to the byte.
func TestSharedData(t *testing.T) {
	var files []string
	for _, dir := range []string{"claude-stream", "claude-transcripts"} {
		found, err := filepath.Glob(filepath.Join(sharedData(), dir, "*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 100 {
		t.Fatalf("only %d recordings in %s", len(files), sharedData())
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			h := newHistory(t)
			h.start("ingest")
			h.recordFile("coder", file, strings.Contains(file, "transcripts"), agent.BlocksFallback)
			h.complete()
			for format, write := range formats {
				if err := write(io.Discard, h); err != nil {
					t.Errorf("%s: %v", format, err)
				}
			}
			items, err := readAll(jsonl(t, h))
			if err != nil || len(items) != len(h.entries) {
				t.Fatalf("%d events of %d, %v", len(items), len(h.entries), err)
			}
			for i, e := range h.entries {
				if !bytes.Equal(items[i].Data, e.Data) {
					t.Errorf("event %d is another", i)
				}
			}
		})
	}
}

// What the text of the specification says is what the table of this package's
// tests has.
func TestSpecificationIsTheSeed(t *testing.T) {
	dir := sharedData()
	names, err := os.ReadDir(dir + "/../seeds")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	seed := string(must(os.ReadFile(dir + "/../seeds/" + names[0].Name())))
	for _, name := range slices.Sorted(maps.Keys(specification)) {
		block := regexp.MustCompile(`(?s)type: "` + name + `";\n(.*?)\n};`).FindStringSubmatch(seed)
		if block == nil {
			t.Errorf("the specification has no %s", name)
			continue
		}
		var fields []string
		for _, f := range regexp.MustCompile(`(?m)^  (\w+\??):`).FindAllStringSubmatch(block[1], -1) {
			fields = append(fields, f[1])
		}
		if got := strings.Join(fields, " "); got != specification[name] {
			t.Errorf("%s: %s, the table says %s", name, got, specification[name])
		}
	}
}
