package timeline

import (
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"code.wake.dev/wake/pkg/wire"
)

// Bounds of what is compared and shown of a change.
const (
	maxCompared = 64 << 10 // bytes of each side
	maxHunks    = 16       // of an agent's own diff
)

// Diff returns what a call has changed in a text, as lines that begin with +, - or a space, or with @@ where another
// part of the text begins; safe for a terminal. It is nil for a call that failed, changed nothing, or doesn't say what: it
// is taken from the diff that the agent tells (Claude Code, ACP), else from what its tool was given.
func Diff(p *wire.AgentTool) []string {
	if p.Error != "" || p.Denied {
		return nil
	}
	if lines := patchLines(p.Structured.Get("structuredPatch")); len(lines) > 0 {
		return lines
	}
	var lines []string
	parts, _ := p.Structured.Get("content").Any().([]any)
	for _, part := range parts {
		if m, ok := part.(map[string]any); ok && m["type"] == "diff" {
			before, _ := m["oldText"].(string)
			after, _ := m["newText"].(string)
			lines = append(lines, changedLines(before, after)...)
		}
	}
	if len(lines) > 0 {
		return lines
	}
	if kind := p.Structured.TextAt("type"); kind == "create" { // Claude Code tells no diff of a file that is new
		content := p.ToolInput.TextAt("content")
		return changedLines("", content)
	}
	before, isEdit := p.ToolInput.Get("old_string").Text()
	after, told := p.ToolInput.Get("new_string").Text()
	if !isEdit || !told {
		return nil
	}
	return changedLines(before, after)
}

// patchLines returns the lines of a diff as Claude Code tells it: hunks with lines.
func patchLines(patch wire.Raw) []string {
	hunks, _ := patch.Any().([]any)
	var all []string
	for i, hunk := range hunks[:min(len(hunks), maxHunks)] {
		m, _ := hunk.(map[string]any)
		lines, _ := m["lines"].([]any)
		if i > 0 && len(lines) > 0 {
			all = append(all, "@@")
		}
		for _, line := range lines {
			if text, ok := line.(string); ok {
				all = append(all, diffLine(text))
			}
		}
	}
	return all
}

// changedLines compares two texts. What is too long to be compared is not shown.
func changedLines(before, after string) []string {
	if before == after || len(before) > maxCompared || len(after) > maxCompared {
		return nil
	}
	_, hunks, _ := strings.Cut(udiff.Unified("", "", wholeLines(before), wholeLines(after)), "\n@@") // before that are the names
	var all []string
	for line := range strings.Lines("@@" + hunks) {
		switch {
		case !strings.HasPrefix(line, "@@"):
			all = append(all, diffLine(line))
		case len(all) > 0:
			all = append(all, "@@")
		}
	}
	return all
}

// wholeLines ends a text with the end of a line: whether it had one is no change that is worth a line.
func wholeLines(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// diffLine makes a line of a diff safe, and one line.
func diffLine(s string) string {
	return strings.ReplaceAll(Sanitize(strings.TrimRight(s, "\r\n")), "\n", " ")
}
