//go:build shareddata

package recorder_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestSharedDataSpending is [TestSpendingAgrees] of all recordings.
func TestSharedDataSpending(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	var files []string
	err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err == nil && (ext == ".jsonl" || ext == ".ndjson" || ext == ".traj") {
			files = append(files, file)
		}
		return err
	})
	if err != nil || len(files) < 150 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	if told := checkSpending(t, files); told < 50 {
		t.Errorf("%d of them cost anything", told)
	}
}
