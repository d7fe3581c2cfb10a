package runner_test

import (
	"os"
	"path/filepath"
	"testing"
)

func makeFolder(t *testing.T, elem ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(elem...), 0o700); err != nil {
		t.Fatal(err)
	}
}
