package claude_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
)

// TestSubAgents finds the files of sub-agents where the versions of the program have them, and no others.
func TestSubAgents(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	fsys := fstest.MapFS{
		"p/s.jsonl":                        file(`{"sessionId":"s"}`),
		"p/s/subagents/agent-a.jsonl":      file("one"),
		"p/s/subagents/agent-a.meta.json":  file(`{"agentType":"Explore","toolUseId":"t1"}`),
		"p/s/subagents/deep/agent-b.jsonl": file("two"),
		"p/s/subagents/agent-b.txt":        file("no session file"),
		"p/s/tool-results/agent-c.jsonl":   file("of no sub-agent"),
		"p/s2/subagents/agent-d.jsonl":     file("of another session"),
		"p/agent-e.jsonl":                  file(`{"sessionId":"s"}` + "\nthree"),
		"p/agent-f.jsonl":                  file(`{"sessionId":"s2"}`),
		"p/agent-g.jsonl":                  file("no JSON"),
		"p/sub/agent-h.jsonl":              file(`{"sessionId":"s"}`),
	}
	got, err := claude.SubAgents(fsys, "p/s.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want := []agent.SubAgent{
		{File: "agent-a.jsonl", Call: "t1", Content: []byte("one")},
		{File: "agent-b.jsonl", Content: []byte("two")},
		{File: "agent-e.jsonl", Content: []byte(`{"sessionId":"s"}` + "\nthree")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := claude.SubAgents(fsys, "p/none.jsonl"); err != nil || len(got) > 0 {
		t.Errorf("of no session %v, %v", got, err)
	}
}

// TestProviderSubAgents: the provider looks where the program of a request has its files, whatever folder it worked in.
func TestProviderSubAgents(t *testing.T) {
	config := t.TempDir()
	dir := filepath.Join(config, "projects", "-another-folder")
	if err := os.MkdirAll(filepath.Join(dir, "s", "subagents"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"s.jsonl": "main", "s/subagents/agent-a.jsonl": "one"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &claude.Provider{}
	o := agent.Options{Cwd: t.TempDir(), Env: map[string]string{"CLAUDE_CONFIG_DIR": config}}
	for session, want := range map[string]int{"s": 1, "none": 0} {
		got, err := p.Capabilities().SubAgents(o, session)
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", session, got, err)
		}
	}
	o.Env["CLAUDE_CONFIG_DIR"] = filepath.Join(config, "nowhere")
	if got, err := p.Capabilities().SubAgents(o, "s"); err != nil || len(got) > 0 {
		t.Errorf("no folder: %v, %v", got, err)
	}
}
