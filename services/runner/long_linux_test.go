package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// A turn that says more than a journal holds needs no more room than the log is behind: one of Codex, and one of Claude Code in
// which a sub-agent is at work all the time.
func TestLongTurnNeedsNoRoom(t *testing.T) {
	for name, lines := range map[string][3]string{
		"codex": {
			`{"type":"thread.started","thread_id":"0199a213-81c0-7800-8aa1-bbab2a035a53"}
{"type":"turn.started"}`,
			`{"type":"item.completed","item":{"id":"item_%d","type":"agent_message","text":%q}}`,
			`{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}`,
		},
		"claude": {
			`{"type":"system","subtype":"init","session_id":"s","uuid":"i"}
{"type":"assistant","uuid":"a0","session_id":"s","parent_tool_use_id":null,"message":{"id":"m0","role":"assistant","model":"x","content":[{"type":"tool_use","id":"t1","name":"Task","input":{"prompt":"p"}}]}}`,
			`{"type":"assistant","uuid":"u%[1]d","session_id":"s","parent_tool_use_id":"t1","message":{"id":"n%[1]d","role":"assistant","model":"x","content":[{"type":"text","text":%[2]q}]}}`,
			`{"type":"user","uuid":"r0","session_id":"s","parent_tool_use_id":null,"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"done"}]}}
{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"s","uuid":"z","duration_ms":1,"num_turns":1,"total_cost_usd":0,"usage":{"input_tokens":1,"output_tokens":1}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			const messages = 150
			said := []string{lines[0]}
			for i := range messages {
				said = append(said, fmt.Sprintf(lines[1], i, strings.Repeat("x", 10_000)))
			}
			dir := t.TempDir()
			said = append(said, lines[2], "")
			if err := os.WriteFile(filepath.Join(dir, "said"), []byte(strings.Join(said, "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, name)
			if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null &\nexec cat "+filepath.Join(dir, "said")+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			b := newBench(t)
			shelf, err := keeper.NewShelf(t.Context(), keeper.ShelfConfig{Dir: t.TempDir(), Fence: keeper.Watchdogs, Limit: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.quit(shelf) })
			environ := append(os.Environ(), "HOME="+dir)
			b.process("r1", nil, home{"h1", t.TempDir(), shelf}.edit, func(c *runner.Config) {
				c.Providers = map[string]agent.Provider{
					"codex": &codex.Provider{Binary: program, Environ: environ}, "claude": &claude.Provider{Binary: program, Environ: environ},
				}
			})
			b.submit("run1", "name: long\nnodes:\n  - {id: a, type: agent, input: {provider: "+name+", prompt: go}}\n")
			state, entries := b.ended("run1")
			if n := count(entries, wire.TypeAgentText); state.Result != wire.FlowStatusComplete || n != messages {
				t.Errorf("it ended as %s (%s) with %d of %d messages", state.Result, state.Error, n, messages)
			}
		})
	}
}
