package timeline_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func TestDiff(t *testing.T) {
	value := func(v any) wire.Raw {
		r, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	edit := value(map[string]any{"file_path": "a.go", "old_string": "one\ntwo\nthree", "new_string": "one\n2\x1b[2J\nthree"})
	tests := []struct {
		name string
		call wire.AgentTool
		want string
	}{
		{"what an edit was given", wire.AgentTool{ToolInput: edit}, " one\n-two\n+2\n three"},
		{"a failed one changes nothing", wire.AgentTool{ToolInput: edit, Error: "no such text"}, ""},
		{"nor does a denied one", wire.AgentTool{ToolInput: edit, Denied: true}, ""},
		{"the agent's own diff", wire.AgentTool{ToolInput: edit, Structured: value(map[string]any{"structuredPatch": []any{
			map[string]any{"oldStart": 1, "lines": []any{" a", "-b", "+c\r"}}, map[string]any{"oldStart": 90, "lines": []any{"+--- d\x1b]0;t\a"}},
		}})}, " a\n-b\n+c\n@@\n+--- d"},
		{"a diff of ACP", wire.AgentTool{Structured: value(map[string]any{"content": []any{
			map[string]any{"type": "content"}, map[string]any{"type": "diff", "path": "b", "newText": "new\n"},
		}})}, "+new"},
		{"a new file of Claude Code's", wire.AgentTool{
			ToolInput: value(map[string]any{"file_path": "b", "content": "one\ntwo"}), Structured: value(map[string]any{"type": "create", "structuredPatch": []any{}}),
		}, "+one\n+two"},
		{"lines that look like the head of a diff", wire.AgentTool{ToolInput: value(map[string]any{"old_string": "x\n-- y", "new_string": "x\n++ z"})}, " x\n--- y\n+++ z"},
		{"also at the beginning", wire.AgentTool{ToolInput: value(map[string]any{"old_string": "-- y", "new_string": "++ z"})}, "--- y\n+++ z"},
		{"another call", wire.AgentTool{ToolInput: value(map[string]any{"command": "ls"})}, ""},
		{"nonsense", wire.AgentTool{Structured: value(map[string]any{"structuredPatch": []any{7, map[string]any{"lines": "x"}}, "content": "y"})}, ""},
		{"what is too long", wire.AgentTool{ToolInput: value(map[string]any{"old_string": strings.Repeat("a\n", 1<<16), "new_string": "b"})}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, strings.Join(timeline.Diff(&tt.call), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
