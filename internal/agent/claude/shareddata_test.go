//go:build shareddata

package claude_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

// TestSharedData normalises every recording: no event is invalid, nothing that
// an agent, a tool or a user said is missing, whatever blocks are asked for.
func TestSharedData(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../../shared/data"
	}
	files := recordings(t, root)
	if len(files) < 150 {
		t.Fatalf("only %d recordings in %s", len(files), root)
	}
	for _, file := range files {
		name, _ := filepath.Rel(root, file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := load(t, file)
			for _, blocks := range []agent.Blocks{agent.BlocksFallback, agent.BlocksAlways, agent.BlocksNever} {
				events := rec.normalize(claude.NormalizerOptions{Format: formatOf(name), Blocks: blocks})
				check(t, events)
				for _, missing := range lost(rec.lines, events) {
					t.Errorf("blocks %s: lost %s", blocks, missing)
				}
				terminal(t, events)
				once(t, rec, events)
				denials(t, events)
			}
		})
	}
}

func recordings(t *testing.T, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		switch filepath.Ext(path) {
		case ".jsonl", ".ndjson", ".traj", ".json":
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func formatOf(name string) claude.Format {
	if strings.HasPrefix(name, "claude-stream") || strings.Contains(name, "gleam") {
		return claude.Stream
	}
	return claude.Transcript
}

// terminal requires one end of each execution: complete, paused or failed.
func terminal(t *testing.T, events []*wire.Event) {
	t.Helper()
	var ends, failures int
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.AgentComplete, *wire.AgentPaused:
			ends++
		case *wire.AgentError:
			if p.Severity == wire.SeverityError {
				failures++
			}
		}
	}
	if ends > 1 || ends == 0 && failures == 0 {
		t.Errorf("%d terminal events and %d errors", ends, failures)
	}
}

// once requires that the agent's text is there once and in order, whether it
// came in pieces or whole.
func once(t *testing.T, rec recording, events []*wire.Event) {
	t.Helper()
	var want, got strings.Builder
	seen := make(map[string]bool)
	for _, line := range rec.lines {
		m, err := wire.RawFromJSON(line)
		id := m.TextAt("uuid")
		if err != nil || id != "" && seen[id] {
			continue
		}
		seen[id] = true
		text := assistantText(m)
		if at := m.TextAt("timestamp"); at != "" && text != "" { // a file that was rewritten has it twice
			message := m.TextAt("message", "id")
			written := strings.Join([]string{"text of", at, message, text}, " ")
			if seen[written] {
				continue
			}
			seen[written] = true
		}
		want.WriteString(text)
	}
	blocks := make(map[int]bool) // that came in pieces
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.AgentTextDelta:
			blocks[p.Block] = true
			got.WriteString(p.Content)
		case *wire.AgentText:
			if !blocks[p.Block] {
				got.WriteString(p.Content)
			}
		}
	}
	if got.String() != want.String() {
		t.Errorf("text is\n%.400q, want\n%.400q", got.String(), want.String())
	}
}

// assistantText is the text of an assistant line that isn't an error.
func assistantText(m wire.Raw) string {
	line, _ := m.Any().(map[string]any)
	message, _ := line["message"].(map[string]any)
	if line["type"] != "assistant" || line["error"] != nil || line["isApiErrorMessage"] == true {
		return ""
	}
	if s, ok := message["content"].(string); ok {
		return s
	}
	var b strings.Builder
	blocks, _ := message["content"].([]any)
	for _, x := range blocks {
		if block, _ := x.(map[string]any); block["type"] == "text" {
			s, _ := block["text"].(string)
			b.WriteString(s)
		}
	}
	return b.String()
}

// denials requires that the calls which a result lists as refused, and no
// others, are.
func denials(t *testing.T, events []*wire.Event) {
	t.Helper()
	listed, told := make(map[string]bool), false
	for _, e := range events {
		if p, ok := e.Payload.(*wire.TurnEnd); ok {
			list, _ := p.Details.Get("permission_denials").Any().([]any)
			for _, x := range list {
				m, _ := x.(map[string]any)
				id, _ := m["tool_use_id"].(string)
				listed[id] = true
			}
			told = true
		}
	}
	for _, e := range events {
		if p, ok := e.Payload.(*wire.AgentTool); ok && told && p.Denied != listed[e.CallID] {
			t.Errorf("%s %s: denied %v, the result says %v", p.ToolName, e.CallID, p.Denied, listed[e.CallID])
		}
	}
}
