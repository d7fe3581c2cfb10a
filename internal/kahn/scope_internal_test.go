package kahn

import (
	"testing"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// ** stands for any number of parts, wherever it is, and * for a part of one.
func TestMatchesPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"**", "a", true}, {"**", "a/b/c", true}, {"**/*.go", "a.go", true}, {"**/*.go", "x/y/a.go", true}, {"**/*.go", "x/y/a.md", false},
		{"**/b/**", "b", true}, {"**/b/**", "a/b/c/d", true}, {"**/b/**", "a/c", false}, {"**/b/c", "b/b/c", true}, {"**/b/*/d", "x/b/b/c/d", true},
		{"src/**", "src", true}, {"src/**", "src/a/b", true}, {"src/**", "srcs/a", false}, {"src/**", "a/src/b", false}, {"src/**/x", "src/x", true}, {"src/**/x", "src/a/b/x", true}, {"src/**/x", "src/a/b", false},
		{"src/*", "src/a", true}, {"src/*", "src/a/b", false}, {"src/*", "src", false}, {"a*/b", "ab/b", true}, {"[", "[", false},
	} {
		if got := matchesAny([]string{"none", tt.pattern}, tt.name); got != tt.want {
			t.Errorf("%s of %s: %t", tt.name, tt.pattern, got)
		}
	}
}

// Whatever a call names a file by, and however, it is in the scope or it isn't.
func TestIsInScope(t *testing.T) {
	t.Parallel()
	s := &flow.Scope{Tools: []string{"Read", "Edit*"}, Paths: []string{"src/**", "/tmp/*"}}
	for _, tt := range []struct {
		cwd, tool, field, file string
		want                   bool
	}{
		{"/work", "Read", "file_path", "/work/src/a.go", true},
		{"/work", "Read", "file_path", "src/a.go", true},
		{"/work", "Read", "notebook_path", "/etc/passwd", false},
		{"/work", "Read", "path", "/work/other", false},
		{"/work", "Read", "file_path", "src/../other", false},
		{"/work", "Read", "file_path", "../src/a.go", false},
		{"/work", "Read", "file_path", "/tmp/a", true},
		{"/work", "Read", "file_path", "/tmp/a/b", false},
		{"/work", "Read", "pattern", "/etc", true}, // no file
		{"/work", "Read", "file_path", "", true},
		{"", "Read", "file_path", "src/a.go", true},
		{"", "Read", "file_path", "/etc/passwd", false},
		{"/work", "EditAll", "file_path", "src/a.go", true},
		{"/work", "Bash", "file_path", "src/a.go", false},
	} {
		call := conversation.Call{Tool: tt.tool, Input: wire.RawOf(map[string]any{tt.field: tt.file})}
		if got := isInScope(s, tt.cwd, call); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
	if call := (conversation.Call{Tool: "Bash"}); !isInScope(&flow.Scope{Paths: []string{"src/**"}}, "/work", call) || !isInScope(&flow.Scope{Tools: []string{"B*"}}, "/work", call) {
		t.Error("a scope bounds what it doesn't name")
	}
}
