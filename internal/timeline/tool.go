package timeline

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

// toolLine is "✅ Bash (2.1s)" and, on lines of its own, what was asked for and
// why it failed.
func toolLine(p *wire.AgentTool) string {
	head := DoneCall + p.ToolName
	if p.Error != "" || p.Denied {
		head = FailedCall + p.ToolName
	}
	switch {
	case p.Denied:
		head += " (denied)"
	case p.DurationMs != nil:
		head += durationNote(*p.DurationMs)
	}
	return joinNonEmpty("\n", head, callSummary(Input(p.ToolInput), p.Error))
}

// sealedLine says in which state a crash found a call, what that means, and what
// to do about it.
func sealedLine(p *wire.ToolSealed) string {
	head := FailedCall + cmp.Or(p.ToolName, "tool call") + " (interrupted"
	if p.From != "" {
		head += ", was " + string(p.From)
	}
	return joinNonEmpty("\n", head+")", cutText(p.Message, MaxSummary), cutText(strings.Join(p.Recommendations, "; "), MaxSummary))
}

// callSummary is what was asked for and, in the room that is left, why it failed.
func callSummary(input, problem string) string {
	if problem == "" {
		return cutText(input, MaxSummary)
	}
	problem = cutText(strings.Join(strings.Fields(problem), " "), MaxSummary/2)
	return joinNonEmpty("\n", cutText(input, MaxSummary-len([]rune(problem))-1), problem)
}

// exitLine is the line of a command that ended; command is "" if unknown.
func exitLine(p *wire.ExecExit, command string) string {
	problem := ""
	switch {
	case p.TimedOut:
		problem = "timed out"
	case p.Signal != "":
		problem = "ended by " + p.Signal
	case p.ExitCode != 0:
		problem = fmt.Sprintf("exit code %d", p.ExitCode)
	}
	head := DoneCall + "exec"
	if problem != "" {
		head = FailedCall + "exec"
	}
	return joinNonEmpty("\n", head+durationNote(p.DurationMs), callSummary(command, problem))
}

// tellingFields are the fields of a tool's input that say best what it does, most
// telling first.
func tellingFields() []string {
	return []string{
		"command", "file_path", "notebook_path", "pattern", "url", "query",
		"description", "path", "subject", "message", "prompt",
	}
}

// tellingField returns the field of an input that says best what the tool does, and its text; "": none does.
func tellingField(input wire.Raw) (key, said string) {
	for _, key := range tellingFields() {
		if said := input.TextAt(key); said != "" {
			return key, said
		}
	}
	return "", ""
}

// Input says in short what a tool was asked to do.
func Input(input wire.Raw) string {
	if questions, err := ask.Questions(input); err == nil {
		return strings.TrimSpace(ask.Line(questions))
	}
	if _, said := tellingField(input); said != "" {
		return strings.TrimSpace(said)
	}
	if s := input.Plain(); s != "{}" && s != "null" {
		return s
	}
	return ""
}

// WholeInput says all that a call is given, for the person who decides on it, safe for a terminal: what says best what the tool does, and
// below it the other fields, each with its name. Nothing of it is hidden: texts are spelled, and what is too long says of how much it is the beginning. Only
// the description of a shell's command is left out, which does nothing.
func WholeInput(tool string, input wire.Raw) string {
	if tool == ask.Tool || !input.IsMap() {
		return spellField(Input(input))
	}
	first, said := tellingField(input)
	lines := []string{spellField(said)}
	for key, value := range input.Fields() {
		name := string(key)
		if said != "" && name == first || name == "description" && (tool == "Bash" || tool == "bash") {
			continue
		}
		lines = append(lines, Spell(strings.ReplaceAll(name, "\n", `\n`))+": "+strings.ReplaceAll(spellField(value.Plain()), "\n", "\n  "))
	}
	return joinNonEmpty("\n", lines...)
}

// maxField bounds what is shown of a field of a call, in bytes.
const maxField = 16 << 10

func spellField(s string) string {
	s, left := Cut(strings.TrimSpace(s), maxField)
	if s = Spell(s); left > 0 {
		s += fmt.Sprintf("\n… %d more bytes", left)
	}
	return s
}

// toolUse is what a tool call is called in an agent's own stream.
const toolUse = "tool_use"

// MeansTools reports whether a pattern, as of `--grep`, finds lines of tools, whatever they say: it matches all of "tool_use".
func MeansTools(pattern *regexp.Regexp) bool {
	whole := *pattern
	whole.Longest()
	return whole.FindString(toolUse) == toolUse
}

// The activities that are over: of a node that has ended, and of one that has failed, before why.
const (
	doneActivity   = "done"
	failedActivity = "failed: "
)

// IsOver reports whether an activity tells of an end.
func IsOver(activity string) bool {
	return activity == doneActivity || strings.HasPrefix(activity, failedActivity)
}

// Activity says what an agent does, such as "editing src/bridge.ts", if e tells
// it. Paths within cwd are relative to it; cwd may be "".
func Activity(e *wire.Event, cwd string) (string, bool) {
	s := ""
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		s = toolActivity(p.ToolName, p.ToolInput, cwd)
	case *wire.AgentTool:
		s = toolActivity(p.ToolName, p.ToolInput, cwd)
	case *wire.ExecStart:
		s = "running " + p.Command
	case *wire.AgentText, *wire.AgentTextDelta:
		s = "writing"
	case *wire.AgentThinking, *wire.AgentThinkingDelta:
		s = "thinking"
	case *wire.PermissionRequired:
		if asked := questionText(p.ToolName, p.ToolInput); asked != "" {
			return Line("waiting for an answer: "+asked, 120), true
		}
		s = "waiting for permission to use " + p.ToolName
	case *wire.InputRequested:
		s = "waiting for an answer: " + p.Prompt
	case *wire.NodeWaiting:
		s = "waiting until " + UTCText(p.Until)
	case *wire.Compaction:
		s = "compacting its context"
	case *wire.AgentStart, *wire.AgentInit, *wire.AgentResumed:
		s = "starting"
	case *wire.AgentError:
		if s = cmp.Or(p.Message, p.ErrorType); p.Severity != wire.SeverityWarning {
			s = "failing: " + s
		}
	case *wire.AgentComplete, *wire.NodeComplete:
		s = doneActivity
	case *wire.NodeError:
		s = failedActivity + cmp.Or(p.Error, p.ErrorType)
		if p.RetryAt != 0 {
			s = "waiting until " + UTCText(p.RetryAt) + ": " + cmp.Or(p.Error, p.ErrorType)
		}
	}
	return Line(s, 120), s != ""
}

// questionText is what a call asks a person, "" if it is another one.
func questionText(tool string, input wire.Raw) string {
	if tool != ask.Tool {
		return ""
	}
	questions, err := ask.Questions(input)
	if err != nil {
		return ""
	}
	return cutText(ask.Line(questions), 4*MaxSummary)
}

func toolActivity(tool string, input wire.Raw, cwd string) string {
	what := Input(input)
	if inside, ok := strings.CutPrefix(what, strings.TrimSuffix(cwd, "/")+"/"); ok && cwd != "" {
		what = inside
	}
	verb := ""
	switch tool {
	case "Edit", "MultiEdit", "NotebookEdit", "str_replace_based_edit_tool", "edit", "file_change":
		verb = "editing"
	case "Write", "write":
		verb = "writing"
	case "Read", "NotebookRead", "read":
		verb = "reading"
	case "Bash", "shell", "bash", "PowerShell", "execute", "command_execution":
		verb = "running"
	case "Grep", "Glob", "LS", "WebSearch", "ToolSearch", "grep", "glob", "search", "web_search":
		verb = "searching"
	case "WebFetch", "fetch":
		verb = "fetching"
	case "Task", "Agent", "agent":
		verb = "delegating"
	case ask.Tool:
		return joinNonEmpty(" ", "asking", questionText(tool, input))
	default:
		return joinNonEmpty(": ", "using "+tool, what)
	}
	return joinNonEmpty(" ", verb, what)
}
