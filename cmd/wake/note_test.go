package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What the parts of a verb log is a note to a person, which no terminal obeys, or JSON for a program.
func TestVerbLogger(t *testing.T) {
	for _, tt := range []struct {
		json bool
		want string
	}{
		{false, "large fields are left out (verb export, run r1, missing 3): no answer\n"},
		{true, `"msg":"large fields are left out"`},
	} {
		var out strings.Builder
		log := (&app{json: tt.json, errOut: &out}).verbLogger(slog.LevelWarn).With("verb", "export")
		log.Info("opened")
		log.Warn("large fields are left out", "run", "r1\x1b[2J", "error", errors.New("no answer"), "missing", 3)
		if got := out.String(); !strings.Contains(got, tt.want) || strings.ContainsAny(got, "\x1b") || strings.Count(got, "\n") != 1 {
			t.Errorf("json %v: %q, want %q", tt.json, got, tt.want)
		}
	}
}
