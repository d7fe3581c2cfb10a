package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Of Claude Code its version is known, or why it isn't: hooks are left out for different reasons.
func TestClaudeVersion(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(fifo, os.O_RDWR, 0) // until the test ends, readers wait
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	for name, c := range map[string]struct {
		script  string
		limit   time.Duration
		version []int
		doubt   string
	}{
		"none":          {doubt: "no claude is in PATH"},
		"new":           {script: "echo '2.1.330 (Claude Code)'", version: []int{2, 1, 330}},
		"old":           {script: "echo '2.0.76 (Claude Code)'", version: []int{2, 0, 76}},
		"child":         {script: "read x <" + fifo + " & echo '2.1.197 (Claude Code)'", version: []int{2, 1, 197}},
		"hangs":         {script: "read x <" + fifo, limit: 100 * time.Millisecond, doubt: "gave no answer"},
		"hangs, child":  {script: "(read x <" + fifo + ")\nexit 1", limit: 100 * time.Millisecond, doubt: "gave no answer"},
		"fails":         {script: "echo 2.1.330; exit 3", doubt: "failed: exit status 3"},
		"hostile words": {script: `printf '\033]0;x\007'`, doubt: `says "\x1b]0;x\a", which is no version`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.script != "" {
				if err := os.WriteFile(filepath.Join(dir, "claude"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir)
			ctx := t.Context()
			if c.limit > 0 {
				limited, stop := context.WithTimeout(ctx, c.limit)
				defer stop()
				ctx = limited
			}
			version, doubt := claudeVersion(ctx)
			if !slices.Equal(version, c.version) || !strings.Contains(doubt, c.doubt) || (doubt == "") != (c.doubt == "") {
				t.Errorf("%v, %q; want %v, %q", version, doubt, c.version, c.doubt)
			}
		})
	}
}
