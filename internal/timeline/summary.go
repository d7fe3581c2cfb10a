package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Widths of the columns of a [Summary], in characters.
const (
	nodeWidth = 14
	typeWidth = 19
	textWidth = 160
)

// Summary returns one line about any event: the node, the type and what
// happened, in columns, without colours. It is safe for a terminal.
func Summary(e *wire.Event) string {
	s := padColumn(e.Node(), nodeWidth) + " " + padColumn(string(e.Type()), typeWidth) + " " + Line(eventText(e), textWidth)
	return strings.TrimRight(s, " ")
}

// Class returns the line type that an event belongs to, also for events that
// aren't lines: what to colour it by.
func Class(e *wire.Event) wire.LineType {
	switch e.Payload.(type) {
	case *wire.AgentTextDelta, *wire.ExecOutput:
		return wire.LineText
	case *wire.AgentThinkingDelta:
		return wire.LineThinking
	case *wire.ToolIntent, *wire.ToolState:
		return wire.LineTool
	}
	t, _, ok := Of(e)
	if !ok {
		return wire.LineSystem
	}
	return t
}

// padColumn pads s to width characters, or cuts it.
func padColumn(s string, width int) string {
	s = Line(s, width)
	return s + strings.Repeat(" ", max(0, width-len([]rune(s))))
}

// eventText says what happened, for every type of event.
func eventText(e *wire.Event) string {
	if _, text, ok := Of(e); ok {
		return text
	}
	if s := pieceText(e); s != "" {
		return s
	}
	return detailText(e)
}

func pieceText(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		return p.Content
	case *wire.AgentThinkingDelta:
		return p.Content
	case *wire.ExecOutput:
		return p.Content
	case *wire.ToolIntent:
		return joinNonEmpty(": ", p.ToolName, Input(p.ToolInput))
	case *wire.ToolState:
		return joinNonEmpty(": ", joinNonEmpty(" ", e.CallID, string(p.From)+" → "+string(p.To))+byText(p.By), p.Note)
	}
	return ""
}

// detailText is for events that are no line of a log.
func detailText(e *wire.Event) string {
	switch p := e.Payload.(type) {
	case *wire.RunClaimed:
		return fmt.Sprintf("by %s, epoch %d", p.Runner, e.Epoch)
	case *wire.NodeClaimed:
		return fmt.Sprintf("by %s, epoch %d", p.Runner, e.Epoch)
	case *wire.NodeScheduled:
		return e.ExecID
	case *wire.EdgeFire:
		return p.From + " → " + p.To
	case *wire.EdgeSkip:
		return joinNonEmpty(" ", p.From+" → "+p.To, InBrackets(p.Reason))
	case *wire.StatePatch:
		return joinNonEmpty(" ", string(p.Patch.Op), p.Patch.Path, "= "+p.Patch.Value.Plain())
	case *wire.TurnStart:
		return fmt.Sprintf("turn %d %s", e.Turn, p.Model)
	case *wire.TurnEnd:
		return joinNonEmpty(" · ", cmp.Or(p.StopReason, p.Subtype), formatDollars(p.TurnCostUsd), formatDuration(p.DurationMs))
	case *wire.Usage:
		return joinNonEmpty(" · ", p.Model, formatTokens(p.InputTokens)+" in", formatTokens(p.OutputTokens)+" out", formatDollars(p.CostUsd))
	case *wire.PromptSystem:
		return fmt.Sprintf("%d bytes, sha256 %.12s", p.Bytes, p.SHA256)
	case *wire.FileChanged:
		return joinNonEmpty(" ", p.Change, p.Path)
	case *wire.WorkspaceSnapshot:
		if p.Refused != "" {
			return "none: " + p.Refused
		}
		return fmt.Sprintf("%d files, %d bytes", p.Files, p.Bytes)
	case *wire.TranscriptRead:
		return joinNonEmpty(", ", fmt.Sprintf("%s to %d", p.File, p.Offset), formatCount(int64(len(p.Removed)), "line", "removed"))
	case *wire.SessionCompared:
		return joinNonEmpty(": ", p.Verdict, joinNonEmpty("; ", append([]string{p.Reason}, slices.Concat(p.StreamLacks, p.TranscriptLacks)...)...))
	case *wire.BreakpointChanged:
		return p.Previous + " → " + p.Current
	case *wire.HookFired:
		return joinNonEmpty(" ", p.HookEvent, p.HookName, p.Decision)
	case *wire.RawMessage:
		return joinNonEmpty(": ", joinNonEmpty(" ", p.Source, p.Name), p.Data.Plain())
	case *wire.Checkpoint:
		return joinNonEmpty(" ", string(p.Kind), p.Label)
	}
	return ""
}
