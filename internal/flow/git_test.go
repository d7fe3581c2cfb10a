package flow_test

import (
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/flow"
)

func withWorkspace(workspace string) []byte {
	return fmt.Appendf(nil, "name: f\nworkspace: %q\nnodes: [{id: a, type: exec, input: {command: ls}}]\n", workspace)
}

func TestGitWorkspace(t *testing.T) {
	tests := []struct{ workspace, url, ref string }{
		{"git: https://example.org/team/repo.git@main", "https://example.org/team/repo.git", "main"},
		{"git:https://example.org/repo", "https://example.org/repo", ""},
		{"git: https://me:secret@example.org/repo.git", "https://me:secret@example.org/repo.git", ""},
		{"git: https://me@example.org/repo.git@feature/x-1", "https://me@example.org/repo.git", "feature/x-1"},
		{"git: ssh://git@example.org:22/repo@v1.2.3", "ssh://git@example.org:22/repo", "v1.2.3"},
		{"git: git@example.org:team/repo.git", "git@example.org:team/repo.git", ""},
		{"git: git@example.org:team/repo.git@0123abc", "git@example.org:team/repo.git", "0123abc"},
		{"git: file:///srv/repo.git@main", "file:///srv/repo.git", "main"},
		{"git: /srv/repo@main", "/srv/repo", "main"},
	}
	for _, tt := range tests {
		d, err := flow.Parse("f.yaml", withWorkspace(tt.workspace))
		if err != nil {
			t.Errorf("%s: %v", tt.workspace, err)
			continue
		}
		if g, ok := d.Git(); !ok || g.URL != tt.url || g.Ref != tt.ref {
			t.Errorf("%s is %+v, %t", tt.workspace, g, ok)
		}
		if again, err := flow.FromRaw(d.Raw()); err != nil || again.Workspace != tt.workspace {
			t.Errorf("%s doesn't survive the log: %v", tt.workspace, err)
		}
	}
}

// What git would take for an option or run as a program is refused.
func TestGitWorkspaceRefused(t *testing.T) {
	for _, workspace := range []string{
		"git:", "git: ", "git: repo", "git: ./repo", "git: ../repo@main",
		"git: --upload-pack=touch /tmp/x", "git: -u@main", "git: ext::sh -c id", "git: ext::sh@main",
		"git: ext://x", "git: ssh://-oProxyCommand=id/x", "git: -oProxyCommand=id:x",
		"git: https://example.org/r@--upload-pack=id", "git: https://example.org/r@", "git: https://example.org/r@a..b",
		"git: https://example.org/r\n@main", "git: https://exa mple.org/r", "git: https://%zz/r@main",
	} {
		_, err := flow.Parse("f.yaml", withWorkspace(workspace))
		if err == nil || !strings.Contains(err.Error(), "workspace") {
			t.Errorf("%q: %v", workspace, err)
		}
	}
	d, err := flow.Parse("f.yaml", withWorkspace("node"))
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := d.Git(); ok {
		t.Errorf("workspace node is %+v", g)
	}
}

func TestPolicyInterrupted(t *testing.T) {
	const source = "name: f\nnodes: [{id: a, type: agent, input: {prompt: x}, policy: {interrupted: %s}}]\n"
	for _, policy := range []string{"seal", "rollback", "rerun"} {
		d, err := flow.Parse("f.yaml", fmt.Appendf(nil, source, policy))
		if err != nil || d.Nodes[0].Policy.Interrupted != policy {
			t.Errorf("%s: %v", policy, err)
		}
	}
	if _, err := flow.Parse("f.yaml", fmt.Appendf(nil, source, "reroll")); err == nil || !strings.Contains(err.Error(), "seal, rollback, rerun") {
		t.Errorf("an unknown policy: %v", err)
	}
}
