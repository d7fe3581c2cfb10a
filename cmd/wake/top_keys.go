package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// fleetScreen is the fleet on a terminal, with keys. It has no connection: what it asks for comes as messages.
type fleetScreen struct {
	ask     func(run string)   // for what waits in a run: a waitsMsg
	order   func(wire.Command) // gives a command: an outcomeMsg
	fleet   wire.TopResponse   // as it was told
	view    fleetView
	asking  keyMode
	input   editor
	filter  string
	sorting int             // index into sortings
	about   string          // the run of which something is asked, which stays it whatever is selected meanwhile
	waits   []wire.Approval // of that run
	shownAt time.Time       // when those have come
	note    string
	open    string // the run to attach to
	own     string // what the runs of this installation are named with before their ids, where several are shown
	known   bool   // a fleet has been told
}

// keyMode is what keys are about.
type keyMode int

const (
	keysSelect keyMode = iota
	keysFilter
	keysAnswer // what waits is fetched, and answered by a text
	keysDecide // what waits is fetched, and allowed or refused
)

type (
	fleetMsg struct {
		fleet wire.TopResponse
		err   error
	}
	waitsMsg struct {
		run   string
		waits []wire.Approval
		err   error
	}
)

// runSortings are the orders of runs: as the recorder has them, and by what.
func runSortings() []struct {
	name string
	by   func(a, b wire.TopRun) int
} {
	return []struct {
		name string
		by   func(a, b wire.TopRun) int
	}{
		{"attention", nil},
		{"cost", func(a, b wire.TopRun) int { return cmp.Compare(b.CostUsd, a.CostUsd) }},
		{"tokens", func(a, b wire.TopRun) int { return cmp.Compare(b.TokensIn+b.TokensOut, a.TokensIn+a.TokensOut) }},
		{"last activity", func(a, b wire.TopRun) int { return cmp.Compare(b.LastActivityAt, a.LastActivityAt) }},
	}
}

// Init implements [tea.Model].
func (m *fleetScreen) Init() tea.Cmd { return nil }

// Update implements [tea.Model].
func (m *fleetScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.view.columns, m.view.rows = msg.Width, msg.Height
	case fleetMsg:
		if msg.err != nil {
			m.note = errorNote(msg.err)
			break
		}
		m.fleet, m.known = msg.fleet, true
		m.keepSelected()
	case waitsMsg:
		m.takeWaits(msg)
	case outcomeMsg:
		m.note = msg.orderOutcome()
	case noteMsg:
		m.note = string(msg)
	case tea.PasteMsg:
		if m.asking == keysFilter || m.asking == keysAnswer {
			m.input.insert(msg.Content)
		}
	case tea.KeyPressMsg:
		if m.press(msg) {
			return m, tea.Quit
		}
	}
	return m, nil
}

// shown are the runs that are wanted, in the order that is.
func (m *fleetScreen) shown() wire.TopResponse {
	f := m.fleet
	f.Runs = slices.DeleteFunc(slices.Clone(f.Runs), func(r wire.TopRun) bool {
		line := strings.Join(topRow(r.RunID, r.AgentID, r.FlowName, r.AgentStatus, 0), " ")
		return !strings.Contains(strings.ToLower(line), strings.ToLower(m.filter))
	})
	if by := runSortings()[m.sorting].by; by != nil {
		slices.SortStableFunc(f.Runs, by)
	}
	return f
}

// keepSelected selects the first run if the selected one isn't shown any more.
func (m *fleetScreen) keepSelected() {
	runs := m.shown().Runs
	if m.index(runs) < 0 {
		m.view.selected = ""
		if len(runs) > 0 {
			m.view.selected = runs[0].RunID
		}
	}
}

func (m *fleetScreen) index(runs []wire.TopRun) int {
	return slices.IndexFunc(runs, func(r wire.TopRun) bool { return r.RunID == m.view.selected })
}

// takeWaits takes what waits in the run that is asked about.
func (m *fleetScreen) takeWaits(msg waitsMsg) {
	if msg.run != m.about || m.asking != keysAnswer && m.asking != keysDecide {
		return
	}
	m.waits = slices.DeleteFunc(msg.waits, func(w wire.Approval) bool { return (w.Kind == wire.ApprovalCall) != (m.asking == keysDecide) })
	m.shownAt, m.note = time.Now(), ""
	switch {
	case msg.err != nil:
		m.asking, m.note = keysSelect, errorNote(msg.err)
	case m.asking == keysDecide && len(m.waits) == 0:
		m.asking, m.note = keysSelect, "no call waits for a decision there: r replies to what is asked"
	}
}

// press takes a key, and reports whether the screen is left by it.
func (m *fleetScreen) press(k tea.KeyPressMsg) (leaves bool) {
	key := k.String()
	if key == "ctrl+c" {
		return true
	}
	switch m.asking {
	case keysSelect:
		return m.pressSelect(key)
	case keysFilter:
		m.pressFilter(k)
	case keysAnswer:
		m.pressAnswer(k)
	case keysDecide:
		m.pressDecide(key)
	}
	return false
}

func (m *fleetScreen) pressSelect(key string) (leaves bool) {
	runs := m.shown().Runs
	i := m.index(runs)
	m.note = ""
	switch key {
	case "q":
		return true
	case "up", "k":
		i--
	case "down", "j":
		i++
	case "home", "g":
		i = 0
	case "end", "G", "shift+g":
		i = len(runs) - 1
	case "s":
		m.sorting = (m.sorting + 1) % len(runSortings())
		m.note = "by " + runSortings()[m.sorting].name
		return false
	case "/":
		m.asking, m.input = keysFilter, editor{}
		m.input.insert(m.filter)
		return false
	case "enter", "a", "r":
		return m.begin(key)
	}
	if len(runs) > 0 {
		m.view.selected = runs[max(0, min(i, len(runs)-1))].RunID
	}
	return false
}

// begin begins what is done to the selected run.
func (m *fleetScreen) begin(key string) (leaves bool) {
	switch {
	case m.view.selected == "":
		m.note = "no run is selected"
	case !strings.HasPrefix(m.view.selected, m.own):
		m.note = lineFor("attach", m.view.selected, true) + " opens it"
	case key == "enter":
		m.open = strings.TrimPrefix(m.view.selected, m.own)
		return true
	default:
		m.asking, m.waits, m.input, m.note = keysDecide, nil, editor{}, "…"
		if key == "r" {
			m.asking = keysAnswer
		}
		m.shownAt, m.about = time.Time{}, m.view.selected
		m.ask(m.about)
	}
	return false
}

func (m *fleetScreen) pressFilter(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.asking = keysSelect
	case "esc":
		m.asking, m.filter = keysSelect, ""
	default:
		m.input.take(k)
		m.filter = m.input.value()
	}
	m.keepSelected()
}

func (m *fleetScreen) pressAnswer(k tea.KeyPressMsg) {
	switch k.String() {
	case "esc":
		m.asking = keysSelect
	case "enter":
		text := m.input.value()
		if text == "" || m.shownAt.IsZero() {
			return // it isn't known yet what that would answer
		}
		c := wire.Command{Type: "send", Message: text}
		if len(m.waits) > 0 {
			c = replyTo(m.waits[0], text)
		}
		m.giveCommand(c)
	default:
		m.input.take(k)
	}
}

func (m *fleetScreen) pressDecide(key string) {
	switch key {
	case "esc", "q":
		m.asking = keysSelect
	case "y", "n":
		switch {
		case len(m.waits) == 0 || time.Since(m.shownAt) < minShown:
			return // it hasn't been seen
		case !isReadable(m.view.columns, m.view.rows):
			m.note = tooSmall
			return
		}
		asked := m.waits[0]
		c := wire.Command{Type: "deny", RunID: asked.RunID, NodeID: asked.NodeID, CallID: asked.CallID}
		if key == "y" {
			c.Type = "approve"
		}
		m.giveCommand(c)
	}
}

// giveCommand gives a command to the run that the command names, which may be a child of the run on the line; if it names none, to
// the run on the line.
func (m *fleetScreen) giveCommand(c wire.Command) {
	c.RunID = cmp.Or(c.RunID, strings.TrimPrefix(m.about, m.own))
	m.asking, m.note = keysSelect, "…"
	m.order(c)
}

// View implements [tea.Model].
func (m *fleetScreen) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	if m.view.columns == 0 || !m.known {
		v.SetContent(cutCells(timeline.Line(m.note, maxMessage), max(1, m.view.columns-1)))
		return v
	}
	foot := m.footLines()
	foot = foot[max(0, len(foot)-m.view.rows):]
	shape := m.view
	shape.rows = max(1, shape.rows-len(foot)+1)
	body := strings.Split(strings.TrimSuffix(fleetText(m.shown(), shape), "\n"), "\n")
	body = body[:min(len(body), max(0, m.view.rows-len(foot)))] // the foot goes first
	v.SetContent(strings.Join(append(body, foot...), "\n"))
	return v
}

// isReadable reports whether a window shows enough of a call to decide on it.
func isReadable(columns, rows int) bool { return columns >= 40 && rows >= 8 }

const tooSmall = "the window is too small to see what is decided: make it larger"

// footLines are what is asked for, and what the keys do.
func (m *fleetScreen) footLines() []string {
	width := m.view.columns
	var lines []string
	add := func(text string) { lines = append(lines, cutCells(text, width-1)) }
	if m.note != "" {
		add(timeline.Line(m.note, 4*maxMessage))
	}
	typed := func(lead string) { add(lead + m.input.view(max(1, width-cellsOf(lead)-1), m.view.color)) }
	switch m.asking {
	case keysFilter:
		typed("/")
		add("enter keeps it, esc shows all")
	case keysAnswer:
		if len(m.waits) > 0 {
			add("? " + timeline.Line(m.about+" "+m.waits[0].NodeID+": "+asksWhat(m.waits[0]), 4*maxMessage))
		} else {
			add("to " + timeline.Line(m.about, maxMessage))
		}
		typed("> ")
		add("enter sends, esc goes back")
	case keysDecide:
		if len(m.waits) > 0 {
			add("? " + timeline.Line(m.about, maxMessage))
			add(timeline.Line(fmt.Sprintf("%s wants to use %s (1 of %d)", m.waits[0].NodeID, m.waits[0].ToolName, len(m.waits)), maxMessage))
			asked := strings.Split(wholeCall(m.waits[0]), "\n")
			room := max(1, m.view.rows/2-1)
			for i, line := range asked {
				if i == room {
					add(fmt.Sprintf("  … %d more lines: enter opens the run", len(asked)-i))
					break
				}
				add("  " + strings.ReplaceAll(line, "\t", "    "))
			}
		}
		add("y allows, n refuses, esc goes back")
	case keysSelect:
		help := "enter opens · a allow · r reply · / find · s sort · q quit"
		if m.filter != "" {
			help = "/" + timeline.Line(m.filter, nodeColumn) + " · " + help
		}
		add(help)
	}
	return lines
}

// watchFleet shows the fleet on the terminal until it is left; a run that is opened comes in between.
func (a viewVerbs) watchFleet(ctx context.Context, q wire.TopRequest, also []string, every time.Duration) error {
	m := &fleetScreen{view: fleetView{color: useColor(os.Stdout)}}
	if len(also) > 0 {
		m.own = a.prefix + ":"
	}
	for {
		if err := a.runFleet(ctx, m, q, also, every); err != nil || m.open == "" {
			return err
		}
		run := m.open
		m.open, m.note = "", ""
		if _, err := a.attachRun(ctx, run, "", wire.DefaultLogLimit); err != nil {
			if ctx.Err() != nil {
				return err
			}
			m.note = errorNote(err)
		}
	}
}

// runFleet runs the screen once.
func (a viewVerbs) runFleet(ctx context.Context, m *fleetScreen, q wire.TopRequest, also []string, every time.Duration) error {
	s, err := a.openAttached(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	m.order = func(c wire.Command) { s.order(ctx, c) }
	m.ask = func(run string) {
		s.orders.Go(func() {
			r, err := api.Call[wire.ApprovalsResponse](ctx, s.conn, a.names, wire.VerbApprovals, wire.ApprovalsRequest{Run: strings.TrimPrefix(run, m.own)})
			s.program.Send(waitsMsg{run, r.Approvals, err})
		})
	}
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithoutSignalHandler(), tea.WithOutput(a.out), tea.WithInput(nil)}
	if service.IsTerminal(a.in) {
		options = append(options, tea.WithInput(a.in))
	}
	s.program = tea.NewProgram(m, options...)
	close(s.ready)
	asking, stop := context.WithCancel(ctx)
	s.orders.Go(func() {
		for {
			fleet, err := a.askFleets(asking, s.conn, q, also)
			if asking.Err() != nil {
				return
			}
			s.program.Send(fleetMsg{fleet, err})
			select {
			case <-time.After(every):
			case <-asking.Done():
				return
			}
		}
	})
	_, err = s.program.Run()
	stop()
	s.orders.Wait()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
