package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// speaker is the author of a line: a node, or the sub-agent that a call of the node has begun.
type speaker struct{ node, call string }

// shownAgent is a call that has begun a sub-agent, or may.
type shownAgent struct {
	by    speaker
	title string
	spoke bool
}

// maxDepth bounds how far sub-agents of sub-agents are indented.
const maxDepth = 6

// depth is how many agents stand between a speaker and its node.
func (m *attachment) depth(s speaker) int {
	n := 0
	for s.call != "" && n < maxDepth {
		n++
		sub := m.heard[s]
		if sub == nil {
			break
		}
		s = sub.by
	}
	return n
}

// agentTitle says what a sub-agent is to do, in the fields that tools have for it.
func agentTitle(input wire.Raw) string {
	kind := input.TextAt("subagent_type")
	what := input.TextAt("description")
	return cmp.Or(strings.Trim(kind+": "+what, ": "), timeline.Input(input))
}

// Bounds of what is shown of a change, and of what goes on.
const (
	maxDiffLines = 24
	maxOpenCalls = 6
	maxTextLines = 4
	maxAskLines  = 8
)

func cellsOf(s string) int { return ansi.StringWidth(s) }

func cutCells(s string, width int) string { return ansi.Truncate(s, width, "…") }

// attachBlock is something that was said or done: a piece of a line, or what a call has changed.
type attachBlock struct {
	by    speaker
	piece growingLine
	diff  []string
	lines []string // as they are shown at the present width
}

// maxBlocks bounds what can be scrolled back to; wake log has the rest.
const maxBlocks = 4000

// addBlock shows a block below the others. A user who has scrolled back goes on seeing the same lines.
func (m *attachment) addBlock(b attachBlock) {
	var before speaker
	if n := len(m.blocks); n > 0 {
		before = m.blocks[n-1].by
	}
	b.lines = m.blockLines(before, b)
	if m.back > 0 {
		m.back += len(b.lines)
	}
	if len(m.blocks) >= 2*maxBlocks {
		m.blocks = slices.Delete(m.blocks, 0, maxBlocks)
	}
	m.blocks = append(m.blocks, b)
}

// addDiffs shows below each call what it has changed. A user who has scrolled back goes on seeing the same lines.
func (m *attachment) addDiffs(diffs map[uint64][]string) {
	below := 0
	for i, call := range slices.Backward(m.blocks) {
		if diff := diffs[call.piece.pos]; call.piece.class == wire.LineTool && len(diff) > 0 {
			b := attachBlock{by: call.by, diff: diff}
			b.lines = m.blockLines(b.by, b)
			if below < m.back {
				m.back += len(b.lines)
			}
			m.blocks = slices.Insert(m.blocks, i+1, b)
			below += len(b.lines)
		}
		below += len(call.lines)
	}
}

// resize lays out anew what is shown.
func (m *attachment) resize(columns, rows int) {
	m.rows = rows
	if columns == m.columns {
		return
	}
	m.columns, m.back = columns, 0
	var before speaker
	for i, b := range m.blocks {
		m.blocks[i].lines = m.blockLines(before, b)
		before = b.by
	}
}

// scroll moves through what was said and done.
func (m *attachment) scroll(key string) {
	by := 3
	if key == "pgup" || key == "pgdown" {
		by = max(1, m.rows/2)
	}
	if key == "down" || key == "pgdown" {
		by = -by
	}
	all := 0
	for _, b := range m.blocks {
		all += len(b.lines)
	}
	m.back = max(0, min(m.back+by, all-1))
}

// blockLines are the lines of a block: below the speaker's name, if another spoke before, indented by how far
// the speaker is from the node's own agent.
func (m *attachment) blockLines(before speaker, b attachBlock) []string {
	var lines []string
	indent := strings.Repeat("  ", m.depth(b.by))
	if b.by != before {
		lines = append(lines, cutCells(indent+m.paint(bold, "● "+m.speakerName(b.by))+" "+m.paint(dim, b.piece.at.In(m.lines.zone).Format(time.TimeOnly)), m.width()))
	}
	if b.diff != nil {
		return append(lines, m.diffLines(indent+"    ", b.diff)...)
	}
	mark := strings.TrimLeft(lineMark(b.piece.class), " ")
	if b.piece.begun {
		mark = ""
	}
	return append(lines, m.wrap(indent+"  ", mark+timeline.Sanitize(b.piece.text), lineColor(b.piece.class))...)
}

// diffLines are the lines of what a call has changed.
func (m *attachment) diffLines(indent string, diff []string) []string {
	more := len(diff) - maxDiffLines
	if more > 0 {
		diff = diff[:maxDiffLines]
	}
	var lines []string
	for _, line := range diff {
		color := dim
		switch line[:min(1, len(line))] {
		case "+":
			color = green
		case "-":
			color = red
		}
		text := cutCells(strings.ReplaceAll(line, "\t", "    "), max(1, m.width()-len(indent)))
		lines = append(lines, indent+m.paint(color, text))
	}
	if more > 0 {
		lines = append(lines, indent+m.paint(dim, fmt.Sprintf("… %d more lines", more)))
	}
	return lines
}

// lastLines are the last lines of what was said and done, as many as there is room for, and how many stand below them.
func (m *attachment) lastLines(room int) (lines []string, below int) {
	need := room + m.back
	first := len(m.blocks)
	for n := 0; first > 0 && n < need; {
		first--
		n += len(m.blocks[first].lines)
	}
	for _, b := range m.blocks[first:] {
		lines = append(lines, b.lines...)
	}
	below = min(m.back, max(0, len(lines)-room))
	lines = lines[:len(lines)-below]
	return lines[max(0, len(lines)-room):], below
}

func (m *attachment) speakerName(s speaker) string {
	name := timeline.Line(s.node, maxMessage)
	if s.node == wire.RunNode {
		name = "run"
	}
	if s.call == "" {
		return name
	}
	title := timeline.Line(s.call, nodeColumn)
	if sub := m.heard[s]; sub != nil && sub.title != "" {
		title = sub.title
	}
	return name + " ▸ " + title
}

// wrap breaks a text into lines of the terminal, each behind an indentation.
func (m *attachment) wrap(indent, text, color string) []string {
	room := max(8, m.width()-len(indent))
	var lines []string
	for line := range strings.SplitSeq(ansi.Wrap(strings.ReplaceAll(text, "\t", "    "), room, ""), "\n") {
		lines = append(lines, strings.TrimRight(indent+m.paint(color, strings.TrimRight(line, " ")), " "))
	}
	return lines
}

func (m *attachment) width() int { return cmp.Or(m.columns, 80) }

func (m *attachment) paint(sgr, text string) string {
	if !m.color {
		return text
	}
	return sgrText(sgr, text)
}

// View implements [tea.Model]: above stands what was said and done, then what goes on, what waits, and the line for typing.
func (m *attachment) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	if m.columns == 0 || m.rows == 0 {
		return v
	}
	foot := []string{m.statusLine()}
	foot = append(foot, m.waitLines()...)
	foot = append(foot, m.typedLine())
	foot = append(foot, m.helpLines()...)
	foot = foot[max(0, len(foot)-m.rows):]
	live := m.liveLines()
	live = live[:min(len(live), max(0, (m.rows-len(foot))/2))]
	lines, below := m.lastLines(m.rows - len(foot) - len(live))
	if below > 0 && len(lines) > 0 {
		lines[len(lines)-1] = m.paint(yellow, cutCells(fmt.Sprintf("↓ %d more lines below: page down", below+1), m.width()-1))
	}
	free := make([]string, max(0, m.rows-len(foot)-len(live)-len(lines)))
	v.SetContent(strings.Join(slices.Concat(free, lines, live, foot), "\n"))
	return v
}

// typedLine is the line in which the user types, behind the node that gets it.
func (m *attachment) typedLine() string {
	to := cmp.Or(m.to, m.onlyAgent())
	if waits := m.waitingApprovals(); m.to == "" && len(waits) > 0 {
		to = waits[0].NodeID
	}
	lead := cutCells(timeline.Line(to, maxMessage), max(1, m.width()/4)) + "> "
	return m.paint(bold, lead) + m.input.view(m.width()-cellsOf(lead)-1, m.color)
}

// onlyAgent is the one that a message goes to which names none.
func (m *attachment) onlyAgent() string {
	found := "run"
	for id, n := range m.state.Nodes {
		if n.Open() && n.Type == "agent" && m.isShown(id) {
			if found != "run" {
				return "tab chooses"
			}
			found = id
		}
	}
	return found
}

// liveLines are the texts that still come, and the calls at work with how long they have been.
func (m *attachment) liveLines() []string {
	var lines []string
	for node, p := range m.lines.panes {
		if !m.isShown(node) {
			continue
		}
		for _, o := range p.open {
			if o.text == "" {
				continue
			}
			indent := strings.Repeat("  ", m.depth(speaker{node, o.parent})) + "  "
			text := m.wrap(indent, strings.TrimSpace(lineMark(o.class)+timeline.Sanitize(o.text)), lineColor(o.class))
			lines = append(lines, text[max(0, len(text)-maxTextLines):]...)
		}
	}
	calls := m.openCalls()
	for i, c := range calls {
		if i == maxOpenCalls {
			lines = append(lines, m.paint(dim, fmt.Sprintf("  … %d more calls at work", len(calls)-i)))
			break
		}
		took := timeline.Span(m.now.UnixMilli() - c.Since)
		indent := strings.Repeat("  ", m.depth(speaker{c.Node, c.Parent}))
		text := fmt.Sprintf("  ⏳ %s %s  %s", timeline.Line(c.Tool, max(nodeColumn, m.width()/3)), took, timeline.Line(timeline.Input(c.Input), maxMessage))
		lines = append(lines, cutCells(indent+m.paint(yellow, text), m.width()-1))
	}
	return lines
}

// openCalls lists the calls at work, the oldest first. Of a run that has ended there are none: how they end may come behind its end.
func (m *attachment) openCalls() []wire.ToolCall {
	var calls []wire.ToolCall
	if m.state.Status.Ended() {
		return nil
	}
	for _, c := range m.state.Tools {
		if c.State != wire.ToolApprovalRequired && m.isShown(c.Node) {
			calls = append(calls, c)
		}
	}
	slices.SortFunc(calls, func(a, b wire.ToolCall) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Exec, b.Exec), cmp.Compare(a.CallID, b.CallID))
	})
	return calls
}

// statusLine is a rule with how the run stands.
func (m *attachment) statusLine() string {
	s := m.state
	status := string(s.Status)
	if s.Status == wire.RunPaused {
		status += " (" + s.Reason + ")"
	}
	facts := []string{s.RunID, status}
	if s.StartedAt > 0 {
		facts = append(facts, timeline.Span(cmp.Or(s.EndedAt, m.now.UnixMilli())-s.StartedAt))
	}
	if cost := timeline.Cost(s.Usage.CostUsd, ""); cost != "" {
		facts = append(facts, cost)
	}
	if in := s.Usage.InputTokens + s.Usage.CacheCreationInputTokens + s.Usage.CacheReadInputTokens; in+s.Usage.OutputTokens > 0 {
		facts = append(facts, tokensText(in, s.Usage.OutputTokens))
	}
	text := cutCells("── "+timeline.Line(strings.Join(facts, " · "), maxMessage)+" ", m.width()-1)
	return m.paint(dim, text+strings.Repeat("─", max(0, m.width()-1-cellsOf(text))))
}

// waitLines say what waits first for a person.
func (m *attachment) waitLines() []string {
	waits := m.waitingApprovals()
	if len(waits) == 0 {
		return nil
	}
	w := waits[0]
	head := w.NodeID + " asks"
	what := asksWhat(w)
	if w.Kind == wire.ApprovalCall {
		head = w.NodeID + " wants to use " + w.ToolName
		what = wholeCall(w)
	}
	if len(waits) > 1 {
		head += fmt.Sprintf(" (1 of %d)", len(waits))
	}
	lines := m.wrap("", "? "+timeline.Line(head, maxMessage), yellow)
	lines = append(lines, m.wrap("  ", timeline.Sanitize(what), "")...)
	if room := min(maxAskLines, max(2, m.rows-6)); len(lines) > room {
		more := len(lines) - room + 1
		lines = append(lines[:room-1], m.paint(dim, fmt.Sprintf("  … %d more lines: wake approvals %s", more, ask.ShellWord(w.RunID))))
	}
	return lines
}

// helpLines say what the keys do, the most needed first, as far as there is room for them, and what became of the last
// order.
func (m *attachment) helpLines() []string {
	now := time.Now()
	var lines []string
	if m.note != "" {
		lines = append(lines, cutCells(timeline.Line(m.note, 4*maxMessage), m.width()-1))
	}
	switch {
	case m.gone:
		return lines
	case now.Sub(m.leaving) < confirmWithin:
		return append(lines, m.paint(yellow, cutCells("ctrl-c once more leaves: the run goes on", m.width()-1)))
	case now.Sub(m.halting) < confirmWithin:
		return append(lines, m.paint(yellow, cutCells("esc once more stops the agents of the run", m.width()-1)))
	}
	keys := []string{"ctrl-c twice leaves, the run goes on"}
	waits := m.waitingApprovals()
	switch {
	case len(waits) > 0 && waits[0].Kind == wire.ApprovalCall:
		keys = slices.Insert(keys, 0, "ctrl-y allows", "ctrl-n refuses")
	case len(waits) > 0:
		keys = slices.Insert(keys, 0, "enter answers")
	case m.state.Status == wire.RunPaused && m.state.Imported != "": // wake doesn't execute it
	case m.state.Status == wire.RunPaused:
		keys = slices.Insert(keys, 0, "enter resumes it, with what you type")
	case m.input.value() != "":
		keys = slices.Insert(keys, 0, "enter sends", "esc stops it first")
	default:
		keys = append(keys, "esc twice stops it", "tab: to whom", "alt-enter: a new line")
	}
	text := ""
	for _, key := range keys {
		next := strings.TrimPrefix(text+" · "+key, " · ")
		if cellsOf(next) < m.width() {
			text = next
		}
	}
	return append(lines, m.paint(dim, text))
}

// orderOutcome is what became of an order in a line.
func (m outcomeMsg) orderOutcome() string {
	if m.err != nil {
		return errorNote(m.err)
	}
	return m.text
}

// errorNote is an error in a line, with what to do about it.
func errorNote(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		text = e.Message
		if e.Hint != "" {
			text += " — " + e.Hint
		}
	}
	return "✗ " + text
}
