// Package summary tells in short what happened in a run. It takes what the events
// say, in their words, and asks no model: what was asked, milestones, failures,
// files, builds, commits.
package summary

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// Bounds of a summary.
const (
	maxList  = 20  // entries of a list: the first ones, and more of the last ones
	maxFirst = 5   // of those
	maxEntry = 200 // characters of an entry
)

// Builder makes a summary of events. The zero value is ready.
type Builder struct {
	asked, milestones, failures, files, builds, commits list

	commands map[string]string   // of executions: their command
	done     map[string][]string // items that are completed, by node
	cwd      map[string]string
	failing  failureStreak
}

// failureStreak is calls of one tool that fail one after the other.
type failureStreak struct {
	node, tool, problem string
	n                   int
}

// list keeps the first entries and the last ones.
type list struct {
	entries []string
	omitted int
}

func (l *list) addEntry(text string) {
	text = timeline.Line(text, maxEntry)
	if text == "" {
		return
	}
	if len(l.entries) == maxList {
		l.entries = slices.Delete(l.entries, maxFirst, maxFirst+1)
		l.omitted++
	}
	l.entries = append(l.entries, text)
}

func (l *list) addOnce(text string) {
	if !slices.Contains(l.entries, timeline.Line(text, maxEntry)) {
		l.addEntry(text)
	}
}

// Add takes the next event. It should have its large fields.
func (b *Builder) Add(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.AgentTool:
		b.addTool(e, p)
		return
	case *wire.ExecStart:
		setEntry(&b.commands, e.ExecID, p.Command)
		return
	case *wire.ExecExit:
		b.addExit(e, p)
		return
	}
	b.flushFailure()
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		setEntry(&b.cwd, e.Node(), p.Cwd)
		if kind, text, _ := timeline.Of(e); kind == wire.LineUser && e.Parent == "" {
			b.asked.addEntry(e.Node() + ": " + strings.TrimPrefix(text, "[prompt] "))
		}
	case *wire.AgentInit:
		setEntry(&b.cwd, e.Node(), p.Cwd)
	case *wire.UserMessage, *wire.InputReceived:
		if _, text, ok := timeline.Of(e); ok && e.Parent == "" {
			b.asked.addEntry(e.Node() + ": " + text)
		}
	case *wire.TodoChanged:
		b.addTodos(e, p)
	case *wire.FileChanged:
		if !p.External {
			b.files.addOnce(b.relativePath(e, p.Path))
		}
	case *wire.NodeComplete:
		b.milestones.addEntry(e.Node() + " done")
	default:
		if kind, text, ok := timeline.Of(e); ok && kind == wire.LineError {
			b.failures.addEntry(e.Node() + ": " + text)
		}
	}
}

func setEntry(m *map[string]string, key, value string) {
	if value == "" {
		return
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// relativePath is a file relative to where the agent works.
func (b *Builder) relativePath(e *wire.Event, path string) string {
	if cwd := strings.TrimSuffix(b.cwd[e.Node()], "/"); cwd != "" {
		return strings.TrimPrefix(path, cwd+"/")
	}
	return path
}

func (b *Builder) addTool(e *wire.Event, p *wire.AgentTool) {
	failed := p.Error != "" || p.Denied
	command := p.ToolInput.TextAt("command")
	b.addCommand(command, failed, outputText(p.ToolOutput))
	if failed {
		problem := p.Error
		if p.Denied {
			problem = "denied"
		}
		b.countFailure(e.Node(), p.ToolName, problem)
		return
	}
	b.flushFailure()
	if changesFile(p.ToolName) {
		for _, key := range []string{"file_path", "notebook_path", "path"} {
			if path, ok := p.ToolInput.Get(key).Text(); ok {
				b.files.addOnce(b.relativePath(e, path))
				break
			}
		}
	}
}

// changesFile reports whether a tool writes the file that it names.
func changesFile(tool string) bool {
	switch tool {
	case "Edit", "MultiEdit", "Write", "NotebookEdit", "str_replace_based_edit_tool":
		return true
	}
	return false
}

func (b *Builder) addExit(e *wire.Event, p *wire.ExecExit) {
	command := b.commands[e.ExecID]
	delete(b.commands, e.ExecID)
	failed := p.ExitCode != 0 || p.TimedOut
	b.addCommand(command, failed, "")
	b.flushFailure()
	if _, text, ok := timeline.Of(e); ok && failed {
		b.failures.addEntry(e.Node() + ": " + command + ": " + text)
	}
}

// countFailure counts calls of one tool that fail in a row as one failure.
func (b *Builder) countFailure(node, tool, problem string) {
	if b.failing.node != node || b.failing.tool != tool {
		b.flushFailure()
	}
	b.failing = failureStreak{node, tool, problem, b.failing.n + 1}
}

func (b *Builder) flushFailure() {
	f := b.failing
	if b.failing = (failureStreak{}); f.n == 0 {
		return
	}
	times := ""
	if f.n > 1 {
		times = fmt.Sprintf(" %d times", f.n)
	}
	b.failures.addEntry(f.node + ": " + f.tool + " failed" + times + ": " + f.problem)
}

var (
	// building matches commands that build or test.
	building = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[;&|(\n]|\b(?:sudo|time|env|exec|then|do|-c) ["']?|\w=\S* )\s*((?:(?:npm|yarn|pnpm)(?: run)? (?:build|test)|npx tsc|tsc|jest|vitest|pytest|cargo (?:build|test)|go (?:build|test|vet)|make|mix test|gradle \S*(?:build|test)|mvn \S+)\b[^;&|\n]*)`)
	})
	// committing matches commands that commit, and header what git says then.
	committing = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bgit\b[^;&|]*\bcommit\b`) })
	header     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\[[^\]\n]* [0-9a-f]{7,40}\] (.+)$`) })
)

// addCommand looks for builds, tests and commits in what a shell was told.
func (b *Builder) addCommand(command string, failed bool, output string) {
	if m := building().FindStringSubmatch(withoutDocuments(command)); m != nil {
		outcome := "passed"
		if failed {
			outcome = "failed"
		}
		b.builds.addEntry(strings.TrimSpace(m[1]) + ": " + outcome)
	}
	if !failed && committing().MatchString(command) {
		if m := header().FindStringSubmatch(output); m != nil {
			b.commits.addEntry(m[1])
		}
	}
}

var document = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`<<-?\s*['"]?(\w+)['"]?`) })

// withoutDocuments drops the lines of here-documents: a message is no command.
func withoutDocuments(command string) string {
	var kept strings.Builder
	end := ""
	for line := range strings.Lines(command) {
		switch {
		case end == "":
			kept.WriteString(line)
			if m := document().FindStringSubmatch(line); m != nil {
				end = m[1]
			}
		case strings.TrimSpace(line) == end:
			end = ""
		}
	}
	return kept.String()
}

// outputText is what a tool gave, as far as it is text.
func outputText(v wire.Raw) string {
	switch v := v.Any().(type) {
	case string:
		return v
	case []any:
		var parts []string
		for _, item := range v {
			if block, ok := item.(map[string]any); ok {
				if s, ok := block["text"].(string); ok {
					parts = append(parts, s)
				}
			}
		}
		return strings.Join(parts, "\n")
	}
	for _, key := range []string{"stdout", "output", "text"} {
		if s, ok := v.Get(key).Text(); ok {
			return s
		}
	}
	return ""
}

// addTodos adds the items that have been completed since the list before.
func (b *Builder) addTodos(e *wire.Event, p *wire.TodoChanged) {
	if b.done == nil {
		b.done = map[string][]string{}
	}
	var done []string
	for _, item := range p.Items {
		if item.Status != "completed" {
			continue
		}
		done = append(done, item.Content)
		if !slices.Contains(b.done[e.Node()], item.Content) {
			b.milestones.addEntry(fmt.Sprintf("[%d/%d] %s ✅", p.Done, p.Total, item.Content))
		}
	}
	b.done[e.Node()] = done
}

// Summary returns what the events came to. What they don't say is the caller's.
func (b *Builder) Summary() wire.LogSummary {
	b.flushFailure()
	return wire.LogSummary{
		Asked: b.asked.entries, Milestones: b.milestones.entries, Failures: b.failures.entries,
		Files: b.files.entries, Builds: b.builds.entries, Commits: b.commits.entries,
		Omitted: b.asked.omitted + b.milestones.omitted + b.failures.omitted + b.files.omitted + b.builds.omitted + b.commits.omitted,
	}
}

// Text is a summary for people.
func Text(s wire.LogSummary) string {
	var t strings.Builder
	section := func(name string, entries []string) {
		if len(entries) == 0 {
			return
		}
		t.WriteString(name + ":\n")
		for _, entry := range entries {
			t.WriteString("  " + entry + "\n")
		}
	}
	cost := cmp.Or(timeline.Cost(s.CostUsd, s.CostBasis), "no cost")
	fmt.Fprintf(&t, "%s, %s, %d tokens in, %d out, %d tool calls", s.State, cost, s.TokensIn, s.TokensOut, s.ToolsUsed)
	if s.ToolErrors > 0 {
		fmt.Fprintf(&t, ", %d failed", s.ToolErrors)
	}
	t.WriteString("\n")
	section("Asked", s.Asked)
	section("Milestones", s.Milestones)
	section("Failures", s.Failures)
	section("Files", s.Files)
	section("Builds", s.Builds)
	section("Commits", s.Commits)
	if s.LastWords != "" {
		section("Last words", strings.Split(s.LastWords, "\n"))
	}
	if s.Omitted > 0 {
		fmt.Fprintf(&t, "… %d more\n", s.Omitted)
	}
	return strings.TrimSuffix(t.String(), "\n")
}
