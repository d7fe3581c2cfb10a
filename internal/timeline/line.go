package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"wake/pkg/wire"
)

// Limits of a line's text, in characters.
const (
	MaxThinking = 300 // of a thinking line
	MaxSummary  = 200 // of what follows the first line of a tool line
)

// Of returns the line that e is, if it is one. Streamed pieces are none of
// their own: [Timeline] joins them. An event is at most one line.
func Of(e *wire.Event) (t wire.LineType, text string, ok bool) {
	t, text = lineOf(e)
	return t, text, text != ""
}

func lineOf(e *wire.Event) (wire.LineType, string) {
	switch p := e.Payload.(type) {
	case *wire.AgentText:
		return wire.LineText, p.Content
	case *wire.AgentThinking:
		return wire.LineThinking, cut(p.Content, MaxThinking)
	case *wire.AgentTool:
		return wire.LineTool, toolLine(p)
	case *wire.ToolSealed:
		return wire.LineTool, sealedLine(p)
	case *wire.ExecExit:
		return wire.LineTool, exitLine(p, "")
	case *wire.AgentStart:
		if prompt := promptText(p.Prompt); prompt != "" {
			return wire.LineUser, userLine("prompt", prompt)
		}
		return wire.LineSystem, join(": ", "Agent started", p.Model)
	case *wire.UserMessage:
		return wire.LineUser, userLine(p.Source, p.Content)
	case *wire.InputReceived:
		return wire.LineUser, userLine(orElse(p.By, "answer"), valueText(p.Content))
	}
	if t, text := errorLine(e); text != "" {
		return t, text
	}
	if text := runLine(e); text != "" {
		return wire.LineSystem, text
	}
	return wire.LineSystem, agentLine(e)
}

// errorLine returns the line of what went wrong.
func errorLine(e *wire.Event) (wire.LineType, string) {
	switch p := e.Payload.(type) {
	case *wire.AgentError:
		return wire.LineError, agentErrorText(p)
	case *wire.NodeError:
		return wire.LineError, join(": ", e.Node()+" failed"+took(p.DurationMs), orElse(p.Error, p.ErrorType))
	case *wire.FlowComplete:
		if p.Status == wire.FlowStatusFailed {
			return wire.LineError, join(": ", "Run failed"+took(p.DurationMs), p.Error)
		}
	case *wire.NodeScheduled:
		if p.Error != "" {
			return wire.LineError, e.Node() + " can't start: " + p.Error
		}
	case *wire.CommandReceived:
		if !p.Accepted {
			return wire.LineError, join(": ", commandText(p.Command)+" rejected", p.Reason)
		}
	case *wire.StorageFailure:
		return wire.LineError, join(", ", "Storage failure: "+p.Message, counted(p.Dropped, "event", "dropped"))
	case *wire.RawMessage:
		if p.Reason != "" {
			return wire.LineError, join(": ", "Unreadable "+orElse(p.Name, "message")+" from "+p.Source, p.Reason)
		}
	case *wire.AuditCheckpoint:
		if p.Result == wire.AuditFail {
			return wire.LineError, "Audit " + p.CheckpointID + " failed" + took(p.DurationMs)
		}
	}
	return "", ""
}

// agentErrorText follows the alerts of seeds/004: "rate limited (retry 2/5)". Some agents
// put the count of tries behind their message themselves.
func agentErrorText(p *wire.AgentError) string {
	s := p.Message
	if p.Attempt != nil && p.MaxAttempts > 0 {
		s = strings.TrimSuffix(s, fmt.Sprintf(": retry %d/%d", *p.Attempt, p.MaxAttempts))
	}
	if s == "" {
		s = p.ErrorType
	} else if !strings.Contains(s, p.ErrorType) {
		s = p.ErrorType + ": " + s
	}
	switch {
	case p.Attempt != nil && p.MaxAttempts > 0:
		s += fmt.Sprintf(" (retry %d/%d)", *p.Attempt, p.MaxAttempts)
	case p.Attempt != nil && *p.Attempt > 0:
		s += fmt.Sprintf(" (retry %d)", *p.Attempt)
	}
	return s
}

// runLine returns the line of what happened to the run or one of its nodes.
func runLine(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		return join(" ", "Run started:", orElse(p.FlowName, "unnamed flow")+from(p.ParentRun))
	case *wire.RunForked:
		return fmt.Sprintf("Forked from %s at %s", p.ParentRun, orElse(p.Label, strconv.FormatUint(p.ParentPos, 10)))
	case *wire.FlowComplete:
		return "Run complete" + took(p.DurationMs)
	case *wire.FlowPaused:
		return join(": ", "Run paused"+bracketed(p.Reason), p.Message)
	case *wire.FlowResumed:
		return resumedText(p)
	case *wire.FlowAborted:
		return join(": ", "Run aborted", p.Reason)
	case *wire.NodeScheduled:
		if p.Attempt > 1 {
			return fmt.Sprintf("Retry of %s: attempt %d", e.Node(), p.Attempt)
		}
	case *wire.LoopIterate:
		return fmt.Sprintf("Loop %s: iteration %d", p.EdgeID, p.Iteration)
	case *wire.NodeSkipped:
		return e.Node() + " skipped (" + p.Reason + ")"
	case *wire.NodeCancelled:
		return join(": ", e.Node()+" cancelled", p.Reason)
	case *wire.NodeStart:
		return e.Node() + " started" + bracketed(p.NodeType)
	case *wire.NodeComplete:
		return e.Node() + " done" + took(p.DurationMs)
	case *wire.InputRequested:
		return join(" ", "Question: "+p.Prompt, choices(p.Choices))
	case *wire.LogTruncated:
		return join(": ", truncatedText(p), p.Reason)
	case *wire.CommandReceived:
		return join(": ", commandText(p.Command), aboutCommand(p.Command))
	}
	return ""
}

// commandText names a command, whom it is for and who sends it.
func commandText(command wire.Raw) string {
	s := join(" ", "Command", text(command.Get("type")))
	if node := text(command.Get("nodeId")); node != "" {
		s += " to " + node
	}
	return s + by(text(command.Get("by")))
}

// aboutCommand is what a command says, in its most telling field.
func aboutCommand(command wire.Raw) string {
	for _, key := range []string{"message", "content", "reason", "label", "callId", "at"} {
		if s := valueText(command.Get(key)); s != "" {
			return cut(s, MaxSummary)
		}
	}
	return ""
}

// resumedText says how a run goes on.
func resumedText(p *wire.FlowResumed) string {
	s := "Run resumed"
	if p.Hold {
		s = "Open calls are closed, the run stays paused"
	}
	return join(", ", join(": ", s+bracketed(p.Strategy), p.Message),
		listed("again", p.Rerun), listed("given up", p.Fail), overridden(p.Overrides))
}

func overridden(settings wire.Raw) string {
	if s := valueText(settings); s != "" && s != "{}" {
		return "with " + cut(s, MaxSummary)
	}
	return ""
}

func listed(what string, nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return what + ": " + strings.Join(nodes, ", ")
}

func truncatedText(p *wire.LogTruncated) string {
	if p.Lost > 0 {
		return counted(int64(p.Lost), "event", "lost")
	}
	return fmt.Sprintf("Log hidden after %d", p.AtSeq)
}

// agentLine returns the line of what happened to an agent.
func agentLine(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.AgentInit:
		return "Session initialized: " + join(", ", e.SessionID, p.Model)
	case *wire.SessionBound:
		return "Session changed: " + join(" → ", p.OldSession, p.NewSession)
	case *wire.AgentResumed:
		return join(", ", "Agent resumed"+bracketed(p.Strategy), counted(int64(len(p.Sealed)), "open call", "sealed"))
	case *wire.AgentComplete:
		return join(" · ", "Agent complete", counted(p.NumTurns, "turn", ""), dollars(p.TotalCostUsd), duration(p.DurationMs))
	case *wire.AgentPaused:
		return join(": ", "Agent paused", p.Reason)
	case *wire.AgentAborted:
		return join(": ", "Agent aborted", p.Reason)
	case *wire.TurnEnd:
		if p.IsError {
			return join(" · ", "Turn complete ("+orElse(p.Subtype, "error")+")", dollars(p.TurnCostUsd))
		}
	case *wire.Compaction:
		return compactionText(p)
	case *wire.CCMessage:
		return fmt.Sprintf("💬 %q%s", Line(p.Text, 4*MaxSummary), bracketed(string(p.Priority)))
	case *wire.TodoChanged:
		return todoText(p)
	case *wire.PermissionRequired:
		if s := question(p.ToolName, p.ToolInput); s != "" {
			return "Question: " + s
		}
		return join("\n", "Permission needed: "+p.ToolName, cut(orElse(p.Description, Input(p.ToolInput)), MaxSummary))
	case *wire.PermissionDecided:
		return join(": ", "Permission "+decided(p.Decision)+by(p.By), p.Note)
	case *wire.HookFired:
		return hookText(p)
	case *wire.ExecStart:
		return "$ " + cut(p.Command, MaxSummary)
	case *wire.Checkpoint:
		if p.Kind == wire.CheckpointLabelled {
			return "Bookmark " + p.Label
		}
	case *wire.AuditCheckpoint:
		return fmt.Sprintf("Audit %s: %s%s", p.CheckpointID, p.Result, took(p.DurationMs))
	}
	return ""
}

func compactionText(p *wire.Compaction) string {
	if p.Error != "" {
		return "Compaction failed: " + p.Error
	}
	s := "Auto-compacted"
	if p.Trigger == "manual" {
		s = "Compacted"
	}
	if p.PreTokens == 0 {
		return s
	}
	was := "was " + tokens(p.PreTokens) + " tokens"
	if p.PostTokens > 0 {
		was += ", now " + tokens(p.PostTokens)
	}
	return s + bracketed(was)
}

// todoText names the item that is worked on, else the next one.
func todoText(p *wire.TodoChanged) string {
	s := fmt.Sprintf("📋 [%d/%d]", p.Done, p.Total)
	next := " all done"
	for _, item := range slices.Backward(p.Items) {
		if item.Status == "in_progress" {
			return s + " " + cut(orElse(item.ActiveForm, item.Content), MaxSummary)
		}
		if item.Status != "completed" {
			next = " next: " + cut(item.Content, MaxSummary)
		}
	}
	return s + next
}

// hookText is a line only if the hook changed what happened.
func hookText(p *wire.HookFired) string {
	name := orElse(p.HookName, p.HookEvent)
	switch {
	case p.Error != "":
		return "Hook " + name + " failed: " + cut(p.Error, MaxSummary)
	case p.Decision != "" && p.Decision != "allow" && p.Decision != "continue":
		return join("\n", "Hook "+name+": "+p.Decision, cut(p.Output, MaxSummary))
	}
	return ""
}

func userLine(source, text string) string { return "[" + source + "] " + text }

// promptText returns the text of a prompt: a string, or messages whose content
// is a string or a list of blocks.
func promptText(prompt wire.Raw) string {
	if s, ok := prompt.Text(); ok {
		return s
	}
	var parts []string
	collectText(prompt.Any(), &parts)
	if len(parts) == 0 && prompt.Any() != nil {
		return valueText(prompt)
	}
	return strings.Join(parts, "\n")
}

func collectText(v any, parts *[]string) {
	switch v := v.(type) {
	case string:
		*parts = append(*parts, v)
	case []any:
		for _, item := range v {
			collectText(item, parts)
		}
	case map[string]any:
		for _, key := range []string{"message", "content", "text"} {
			if inner, ok := v[key]; ok {
				collectText(inner, parts)
				return
			}
		}
	}
}
