package codex_test

import (
	"os"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/pkg/wire"
)

// Programs of a thread number what they do from 0 on: calls and usages are told apart all the same, also if all lines come at once.
func TestStreamTellsProgramsApart(t *testing.T) {
	program, err := os.ReadFile("testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	s := codex.NewStream(agent.BlocksAlways)
	calls, usages := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(strings.Repeat(string(program), 3)) {
		for _, e := range s.Line(1000, []byte(line)) {
			switch p := e.Payload.(type) {
			case *wire.ToolIntent:
				calls[e.CallID] = true
			case *wire.Usage:
				usages[p.MessageID] = true
			}
		}
	}
	if len(calls) != 3 || len(usages) != 3 {
		t.Errorf("three programs have %d calls and %d usages", len(calls), len(usages))
	}
}
