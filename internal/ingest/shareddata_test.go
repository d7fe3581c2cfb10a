//go:build shareddata

package ingest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"wake/internal/ingest"
	"wake/pkg/wire"
)

// TestSharedData makes a run of every recording: it folds without a complaint
// and has ended, whatever is in it.
func TestSharedData(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	log := openLog(t)
	files, events := 0, 0
	err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err != nil || ext != ".jsonl" && ext != ".ndjson" && ext != ".traj" {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		name, _ := filepath.Rel(root, file)
		files++
		t.Run(name, func(t *testing.T) {
			id := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(name, "-")
			res, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"})
			if err != nil {
				t.Fatal(err)
			}
			events += res.Events
			state, _ := fold(t, log, id)
			if state.Status != wire.RunComplete || len(state.Tools) > 0 || state.VoidEvents > 0 {
				t.Errorf("run is %s, %d calls open, %d events void", state.Status, len(state.Tools), state.VoidEvents)
			}
		})
		return nil
	})
	if err != nil || files < 150 {
		t.Fatalf("%d recordings, %v", files, err)
	}
	t.Logf("%d recordings, %d events", files, events)
}
