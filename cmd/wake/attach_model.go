package main

import (
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	fold "code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// attachment is what a user who is attached to a run sees and does. It has no connection: events come to it
// as messages, and what the user types leaves it as orders.
type attachment struct {
	node  string // only this node and its items; "": all
	state *wire.State
	order func(wire.Command) // gives a command, meanwhile; its outcome comes as a message

	lines  *screen       // turns events into pieces of lines
	blocks []attachBlock // what has been said and done, the oldest first
	back   int           // by how many lines the view is scrolled back
	heard  map[speaker]*shownAgent

	input   editor
	to      string // the node that is spoken to; "": the only one that is at work
	asked   string // id of what waits first, as it is shown
	shownAt time.Time
	note    string // what became of the last order
	leaving time.Time
	halting time.Time
	gone    bool // nothing more comes
	left    bool
	last    *wire.Event
	err     error

	now           time.Time
	columns, rows int
	color         bool
}

// The messages of an attachment.
type (
	// eventMsg is the next event of the run.
	eventMsg struct{ entry eventlog.Entry }
	// pageMsg are lines of its log that came before.
	pageMsg wire.LogResponse
	// diffsMsg is what the calls among them have changed, by their positions.
	diffsMsg map[uint64][]string
	// overMsg says that nothing more comes: the run has ended, or can't be followed.
	overMsg struct {
		last *wire.Event
		err  error
	}
	// outcomeMsg says what became of an order.
	outcomeMsg struct {
		text string
		err  error
	}
	// noteMsg is something to know that isn't of the run.
	noteMsg string
	tickMsg time.Time
)

const (
	// tick is how often running times are shown anew.
	tick = time.Second
	// confirmWithin is how soon a key that ends or stops something has to be pressed once more.
	confirmWithin = 3 * time.Second
	// minShown is how long what waits for a decision has been on the screen before a key decides about it.
	minShown = 500 * time.Millisecond
)

// newAttachment is attached to a run that has come to a state.
func newAttachment(state *wire.State, node string, lines *screen, order func(wire.Command)) *attachment {
	m := &attachment{node: node, to: node, state: state, order: order, lines: lines, heard: map[speaker]*shownAgent{}, color: lines.color, now: time.Now()}
	lines.wants = func(n string, _ growingLine) bool { return m.isShown(n) }
	lines.emit = func(n string, p growingLine) error {
		m.addBlock(attachBlock{by: speaker{n, p.parent}, piece: p})
		return nil
	}
	for _, c := range state.Tools {
		m.heard[speaker{c.Node, c.CallID}] = &shownAgent{by: speaker{c.Node, c.Parent}, title: timeline.Line(agentTitle(c.Input), maxMessage)}
	}
	m.noteWaiting()
	return m
}

// Init implements [tea.Model].
func (m *attachment) Init() tea.Cmd { return nextTick() }

func nextTick() tea.Cmd { return tea.Tick(tick, func(at time.Time) tea.Msg { return tickMsg(at) }) }

// Update implements [tea.Model].
func (m *attachment) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.resize(msg.Width, msg.Height)
	case tea.KeyPressMsg:
		m.press(msg)
	case tea.PasteMsg:
		m.input.insert(msg.Content)
	case tickMsg:
		m.now = time.Time(msg)
		return m, nextTick()
	case pageMsg:
		m.showPage(wire.LogResponse(msg))
	case diffsMsg:
		m.addDiffs(msg)
	case eventMsg:
		m.takeEvent(msg.entry)
	case outcomeMsg:
		m.note = msg.orderOutcome()
	case noteMsg:
		m.note = string(msg)
	case overMsg:
		m.last, m.err = msg.last, msg.err
		_ = m.lines.close()
		m.gone, m.note = true, "run "+m.state.RunID+" has ended: any key leaves"
		if msg.err != nil {
			m.note = errorNote(msg.err) + ": any key leaves"
		}
	}
	if m.left {
		return m, tea.Quit
	}
	return m, nil
}

// isShown reports whether a node is of those that are shown.
func (m *attachment) isShown(node string) bool {
	return m.node == "" || node == m.node || strings.HasPrefix(node, m.node+"/") || node == wire.RunNode
}

func (m *attachment) showPage(page wire.LogResponse) {
	for _, l := range page.Lines {
		m.lines.writePiece(l.Node, growingLine{pos: l.Pos, at: time.UnixMilli(l.TS), class: l.Type, exec: l.Exec, parent: l.Parent, text: strings.TrimRight(l.Text, "\n")})
	}
}

func (m *attachment) takeEvent(entry eventlog.Entry) {
	e := entry.Event
	void := m.lines.fenced.isVoid(e)
	m.noteSubAgents(e)
	_ = m.lines.showEvent(entry.Pos, e)
	if p, ok := e.Payload.(*wire.AgentTool); ok && !void && m.isShown(e.Node()) {
		if diff := timeline.Diff(p); len(diff) > 0 {
			m.addBlock(attachBlock{by: speaker{e.Node(), e.Parent}, diff: diff})
		}
	}
	pos := wire.Position{Incarnation: m.state.Position.Incarnation, Seq: entry.Pos}
	_ = fold.Apply(m.state, pos, e) // what doesn't fit is the runners' to tell: here it is shown
	m.noteWaiting()
}

// noteWaiting follows what waits first: keys decide about what has been seen.
func (m *attachment) noteWaiting() {
	id := ""
	if waits := m.waitingApprovals(); len(waits) > 0 {
		id = waits[0].NodeID + "/" + waits[0].CallID
	}
	if id != m.asked {
		m.asked, m.shownAt = id, time.Now()
	}
}

// waitingApprovals lists what waits for a person of the node that is spoken to, or of all that are shown.
func (m *attachment) waitingApprovals() []wire.Approval {
	return slices.DeleteFunc(ask.Pending(m.state), func(w wire.Approval) bool {
		return !m.isShown(w.NodeID) || m.to != "" && w.NodeID != m.to && !strings.HasPrefix(w.NodeID, m.to+"/")
	})
}

func (m *attachment) press(k tea.KeyPressMsg) {
	now := time.Now()
	switch key := k.String(); key {
	case "pgup", "pgdown", "up", "down":
		m.scroll(key)
		return
	case "ctrl+c":
		m.left = m.gone || now.Sub(m.leaving) < confirmWithin
		m.leaving = now
		return
	case "ctrl+d":
		m.left = len(m.input.text) == 0
		return
	}
	if m.gone {
		m.left = true
		return
	}
	switch k.String() {
	case "enter":
		m.submit(false)
	case "esc":
		switch {
		case m.input.value() != "":
			m.submit(true)
		case now.Sub(m.halting) < confirmWithin:
			m.halting = time.Time{}
			m.giveCommand(wire.Command{Type: "pause", Reason: "stopped in wake attach"})
		default:
			m.halting = now
		}
	case "ctrl+y", "ctrl+n":
		m.decide(k.String() == "ctrl+y", now)
	case "tab":
		m.nextNode()
	default:
		if m.input.take(k) {
			m.note = ""
		}
	}
}

func (m *attachment) giveCommand(c wire.Command) {
	c.RunID = m.state.RunID
	m.note = "…"
	m.order(c)
}

// submit says what was typed: it answers what is asked, resumes a run that is paused, or is a message to the
// agent, which stops first if it is to.
func (m *attachment) submit(stop bool) {
	text := m.input.value()
	waits := slices.DeleteFunc(m.waitingApprovals(), func(w wire.Approval) bool { return w.Kind == wire.ApprovalCall })
	if text == "" && m.state.Status != wire.RunPaused {
		return
	}
	answers := len(waits) > 0 && !stop && text != ""
	if m.state.Imported != "" && !answers { // wake doesn't execute it
		m.note = toDo(m.state.RunID, wire.RunPaused, wire.PauseIdle, nil)
		return
	}
	m.input.clear()
	switch {
	case answers:
		m.giveCommand(replyTo(waits[0], text))
	case m.state.Status == wire.RunPaused:
		m.giveCommand(wire.Command{Type: "resume", Message: text})
	default:
		m.giveCommand(wire.Command{Type: "send", NodeID: m.to, Message: text, Interrupt: stop})
	}
}

// decide allows or refuses the call that waits first; what was typed is the note.
func (m *attachment) decide(allow bool, now time.Time) {
	waits := m.waitingApprovals()
	switch {
	case len(waits) == 0:
		m.note = "nothing waits for a decision"
		return
	case now.Sub(m.shownAt) < minShown:
		m.note = "this has just come: look at it, and press again"
		return
	case waits[0].Kind != wire.ApprovalCall && (allow || waits[0].Kind != wire.ApprovalQuestion):
		m.note = "it asks a question: type the answer"
		return
	case !isReadable(m.columns, m.rows):
		m.note = tooSmall
		return
	}
	c := wire.Command{Type: "deny", NodeID: waits[0].NodeID, CallID: waits[0].CallID, Note: m.input.value()}
	if allow {
		c.Type = "approve"
	}
	m.input.clear()
	m.giveCommand(c)
}

// nextNode speaks to the next agent that is at work.
func (m *attachment) nextNode() {
	nodes := []string{m.node}
	for id, n := range m.state.Nodes {
		if n.Open() && id != m.node && id != wire.RunNode && m.isShown(id) && (n.Type == "agent" || n.PromptID != "") {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	m.to = nodes[(slices.Index(nodes, m.to)+1)%len(nodes)]
	m.noteWaiting()
}

// noteSubAgents follows which calls may be sub-agents: their events name them.
func (m *attachment) noteSubAgents(e *wire.Event) {
	own := speaker{e.Node(), e.Parent}
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		m.heard[speaker{e.Node(), e.CallID}] = &shownAgent{by: own, title: timeline.Line(agentTitle(p.ToolInput), maxMessage)}
	case *wire.AgentTool:
		if sub := m.heard[speaker{e.Node(), e.CallID}]; sub != nil && !sub.spoke {
			delete(m.heard, speaker{e.Node(), e.CallID})
		}
	}
	if sub := m.heard[own]; sub != nil {
		sub.spoke = true
	}
}
