//go:build shareddata

package completeness_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/completeness"
)

// TestSharedData compares each recorded stream with its session file.
func TestSharedData(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	files, _ := filepath.Glob(filepath.Join(root, "claude-stream", "*.jsonl"))
	pairs, got := 0, map[string]string{}
	for _, file := range files {
		stream, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		transcript, err := os.ReadFile(filepath.Join(root, "claude-transcripts", filepath.Base(file)))
		if err != nil {
			continue
		}
		pairs++
		v := completeness.Compare(
			completeness.Read(claude.Lines(bytes.NewReader(stream), claude.MaxLine)),
			completeness.Read(claude.Lines(bytes.NewReader(transcript), claude.MaxLine)))
		if v.Verdict != completeness.Complete {
			got[filepath.Base(file)] = v.String()
		}
	}
	// Killed before the stream had the last message; interrupted before the session had the last
	// result. The others have no message of a model.
	none := "can't tell: one of them has no message"
	want := map[string]string{
		"kill9.jsonl": "stream short by 1", "sigint.jsonl": "transcript short by 1",
		"compact-manual.jsonl": none, "fatal400.jsonl": none, "fatal500.jsonl": none, "noapi.jsonl": none,
		"resume-othercwd.jsonl": none, "slash-context.jsonl": none,
	}
	if d := cmp.Diff(want, got); d != "" || pairs < 40 {
		t.Errorf("%d pairs:\n%s", pairs, d)
	}
}
