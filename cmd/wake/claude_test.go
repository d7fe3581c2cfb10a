//go:build claudecli

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"code.wake.dev/wake/internal/agent/native/apitest"
)

// TestClaude plays the scripts with the real Claude CLI in them, each version of it.
// The script test/claude/run sets up what is needed.
func TestClaude(t *testing.T) {
	binaries := os.Getenv("WAKE_CLAUDE_BINARIES")
	if binaries == "" {
		t.Fatal("WAKE_CLAUDE_BINARIES isn't set: run test/claude/run")
	}
	api := apitest.Program(t, t.TempDir())
	for entry := range strings.SplitSeq(binaries, ":") {
		version, binary, _ := strings.Cut(entry, "=")
		t.Run(version, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir: "testdata/claude",
				Setup: func(env *testscript.Env) error {
					for _, kv := range [][2]string{
						{"CLAUDE", binary},
						{"ANTHROPIC_BASE_URL", api},
						{"ANTHROPIC_API_KEY", "dummy"},
						{"HOME", env.WorkDir},
						{"TZ", "UTC"},
						{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"},
						{"DISABLE_AUTOUPDATER", "1"},
						{"IS_SANDBOX", "1"},
					} {
						env.Setenv(kv[0], kv[1])
					}
					return nil
				},
				Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "waitfor": waitfor},
				RequireExplicitExec: true,
			})
		})
	}
}
