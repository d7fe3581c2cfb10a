//go:build claudecli

package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/export"
)

// Each version of the real CLI resumes what was written: the model gets the
// conversation as it was, and then the new message.
func TestCLIResumes(t *testing.T) {
	binaries := os.Getenv("WAKE_CLAUDE_BINARIES")
	if binaries == "" {
		t.Fatal("WAKE_CLAUDE_BINARIES isn't set: run WAKE_CLAUDE_PACKAGE=./internal/export test/claude/run")
	}
	for entry := range strings.SplitSeq(binaries, ":") {
		version, binary, _ := strings.Cut(entry, "=")
		for file, want := range map[string][]string{
			"stream/tools.jsonl": {
				"user text Do it.", "assistant text Let me start by listing the files.", "assistant tool_use Bash", "user tool_result one",
				"assistant text Now I'll write a file.", "assistant tool_use Write", "user tool_result File created successfully",
				"assistant tool_use Read", "user tool_result 1\tprint('hello')", "assistant tool_use Edit", "user tool_result The file",
				"assistant text This next command fails on purpose.", "assistant tool_use Bash", "user tool_result Exit code 3",
				"assistant tool_use Read", "user tool_result File does not exist.", "assistant tool_use Edit", "user tool_result <tool_use_error>String to replace",
				"assistant tool_use NoSuchTool", "user tool_result <tool_use_error>Error: No such tool", "assistant tool_use Bash",
				"user tool_result <tool_use_error>InputValidationError", "assistant text All done: one file written",
			},
			"stream/subagents.jsonl": {
				"user text Do it.", "assistant text I'll delegate to two sub-agents.", "assistant tool_use Agent", "assistant tool_use Agent",
				"user tool_result Child two: tests fail.", "user tool_result Child one: two python files found.",
				"assistant text Both sub-agents reported",
			},
			"transcript/compact-manual.jsonl": {"user text This session is being continued from a previous conversation"},
		} {
			t.Run(version+"/"+file, func(t *testing.T) { resumes(t, binary, recorded(t, file), want) })
		}
	}
}

func resumes(t *testing.T, binary string, h *history, want []string) {
	home, cwd, requests := t.TempDir(), must(filepath.EvalSymlinks(t.TempDir())), t.TempDir()
	c := must(export.Conversations(h.events()))[0]
	var b bytes.Buffer
	if _, err := export.Claude(&b, h.run, h.events(), c); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(home, ".claude")
	session := filepath.Join(config, claude.SessionFile(cwd, c.Session))
	if err := os.MkdirAll(filepath.Dir(session), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(session, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-p", "Lab run [[scn:plain]]", "--resume", c.Session,
		"--model", "claude-opus-4-8", "--output-format", "stream-json", "--verbose")
	cmd.Dir = cwd
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CLAUDE_CONFIG_DIR=" + config, "TMPDIR=" + t.TempDir(), "IS_SANDBOX=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1",
		"ANTHROPIC_BASE_URL=" + apitest.Program(t, requests), "ANTHROPIC_API_KEY=dummy",
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(`"subtype":"success"`)) || !bytes.Contains(out, []byte(c.Session)) {
		t.Fatalf("%v: %.2000s", err, out)
	}
	if after := must(os.ReadFile(session)); !bytes.HasPrefix(after, b.Bytes()) || len(after) == b.Len() {
		t.Error("the session didn't go on in the file")
	}
	got := asked(t, requests)
	if len(got) < len(want) {
		t.Fatalf("the model was told %q", got)
	}
	for i := range want {
		got[i] = got[i][:min(len(got[i]), len(want[i]))]
	}
	if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
		t.Errorf("what the model was told (-want +got):\n%s", diff)
	}
}

// asked is the conversation of the first request, less what the CLI adds to it.
func asked(t *testing.T, requests string) (lines []string) {
	t.Helper()
	files, err := filepath.Glob(requests + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing was asked: %v", err)
	}
	var request struct {
		Messages []struct {
			Role    string
			Content any
		}
	}
	if err := json.Unmarshal(must(os.ReadFile(files[0])), &request); err != nil {
		t.Fatal(err)
	}
	for _, m := range request.Messages {
		blocks, is := m.Content.([]any)
		if !is {
			blocks = []any{map[string]any{"type": "text", "text": m.Content}}
		}
		for _, block := range blocks {
			f, _ := block.(map[string]any)
			text := fmt.Sprint(firstOf(f, "text", "name", "content"))
			if inner, is := f["content"].([]any); is && len(inner) > 0 {
				first, _ := inner[0].(map[string]any)
				text = fmt.Sprint(first["text"])
			}
			if strings.HasPrefix(text, "<system-reminder>") {
				continue
			}
			lines = append(lines, fmt.Sprintf("%s %v %s", m.Role, f["type"], text))
		}
	}
	return lines
}

func firstOf(f map[string]any, names ...string) any {
	for _, name := range names {
		if f[name] != nil {
			return f[name]
		}
	}
	return ""
}
