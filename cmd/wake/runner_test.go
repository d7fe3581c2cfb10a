package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCheckDrain(t *testing.T) {
	tests := []struct {
		drain, stop time.Duration
		ok          bool
	}{
		{20 * time.Second, 25 * time.Second, true},
		{25 * time.Second, 25 * time.Second, false},
		{time.Minute, 25 * time.Second, false},
		{0, 25 * time.Second, false},
		{-time.Second, 25 * time.Second, false},
	}
	for _, tt := range tests {
		err := checkDrain(tt.drain, tt.stop)
		if (err == nil) != tt.ok {
			t.Errorf("drain %s, stop %s: %v", tt.drain, tt.stop, err)
		}
		if err != nil && exitCode(apiError(err).Code) != exitUsage {
			t.Errorf("drain %s, stop %s: %v is no usage error", tt.drain, tt.stop, err)
		}
	}
}

// The name stays, and an empty file is as good as none.
func TestRunnerID(t *testing.T) {
	dir := t.TempDir()
	first, err := runnerID(dir)
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	again, err := runnerID(dir)
	if err != nil || again != first {
		t.Errorf("%q, want %q, %v", again, first, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "runner-id"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := runnerID(dir); err != nil || other == "" || other == first {
		t.Errorf("%q after %q, %v", other, first, err)
	}
}
