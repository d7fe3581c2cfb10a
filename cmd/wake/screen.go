package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// screen shows the events of a run as they come, in lines that are never
// changed again: nodes that work at the same time are told apart by a column,
// and what streams is shown by the line.
//
//	12:03:45 coder      ✅ Bash (2.1s)
//	                      go test ./...
type screen struct {
	w      io.Writer
	color  bool
	zone   *time.Location
	panes  map[string]*pane // by node
	fenced claims
	mu     sync.Mutex // of all but w, which only the screen uses meanwhile
	err    error      // of the first write that failed

	wants func(node string, p growingLine) bool  // which lines, or parts of them, are shown; nil: all
	emit  func(node string, p growingLine) error // writes them instead; nil: they are for people
}

// pane is the column of one node.
type pane struct {
	lines timeline.Timeline
	open  []growingLine // begun and not shown to their end, the oldest first
	calls []runningCall // that have no result yet
}

// runningCall is a call at work.
type runningCall struct {
	id, tool, input string
	at              time.Time
	next            time.Duration // after which it is shown
	asks            bool          // it doesn't run: a person has to allow it
}

// growingLine is a line of the log that may still grow.
type growingLine struct {
	pos    uint64
	at     time.Time
	class  wire.LineType
	exec   string
	parent string
	text   string // what isn't shown yet
	call   timeline.Call
	begun  bool      // a part of it is shown
	grown  time.Time // when, by our clock
}

// maxHeld bounds what is held back in wait of the end of a line.
const maxHeld = 4 << 10

func (a *app) newScreen() *screen {
	return &screen{w: a.out, color: useColor(a.out), zone: time.Local, panes: map[string]*pane{}, fenced: claims{}}
}

// useColor reports whether w is a terminal and the user hasn't asked for no
// colours (no-color.org).
func useColor(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && canDraw(w)
}

// canDraw reports whether w is a terminal on which a cursor moves.
func canDraw(w io.Writer) bool { return os.Getenv("TERM") != "dumb" && service.IsTerminal(w) }

// How long what is said waits for the end of its line, and after how long a call is shown that has no
// result yet: then after five times as long, and so on.
const (
	maxPause  = time.Second
	firstCall = 2 * time.Second
)

// startClock shows what goes on while no event comes, until the function that it returns is called.
func (s *screen) startClock() (stop func()) {
	done, over := make(chan struct{}), make(chan struct{})
	ticker := time.NewTicker(maxPause)
	go func() {
		defer close(over)
		for {
			select {
			case <-done:
				return
			case now := <-ticker.C:
				s.showOpen(now)
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(done)
		<-over
	}
}

// showOpen shows texts that have waited for the end of their line, and calls that take long.
func (s *screen) showOpen(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(s.panes)) {
		p := s.panes[node]
		for i := range p.open {
			if o := &p.open[i]; o.text != "" && o.class != wire.LineThinking && now.Sub(o.grown) >= maxPause {
				s.writePiece(node, *o)
				o.text, o.begun = "", true
			}
		}
		for i := range p.calls {
			c := &p.calls[i]
			took := now.Sub(c.at)
			if took < c.next || c.asks {
				continue
			}
			text := "⏳ " + c.tool + " (" + timeline.Span(took.Milliseconds()) + " so far)"
			if c.next == firstCall && c.input != "" {
				text += "\n" + c.input
			}
			for c.next <= took {
				c.next *= 5
			}
			s.writePiece(node, growingLine{at: now, class: wire.LineTool, text: text})
		}
	}
}

// noteCall follows the calls that have no result yet.
func (p *pane) noteCall(e *wire.Event) {
	switch b := e.Payload.(type) {
	case *wire.ToolIntent:
		at := time.Now()
		if told := time.UnixMilli(e.Timestamp); told.Before(at) {
			at = told
		}
		p.calls = append(p.calls, runningCall{id: e.CallID, tool: b.ToolName, input: timeline.Input(b.ToolInput), at: at, next: firstCall})
	case *wire.PermissionRequired, *wire.PermissionDecided:
		if i := slices.IndexFunc(p.calls, func(c runningCall) bool { return c.id == e.CallID }); i >= 0 {
			_, p.calls[i].asks = b.(*wire.PermissionRequired)
			p.calls[i].at, p.calls[i].next = time.Now(), firstCall
		}
	case *wire.AgentTool, *wire.ToolSealed:
		p.calls = slices.DeleteFunc(p.calls, func(c runningCall) bool { return c.id == e.CallID })
	case *wire.AgentStart, *wire.AgentComplete, *wire.NodeComplete, *wire.NodeError, *wire.AgentPaused, *wire.AgentAborted:
		if e.Parent == "" {
			p.calls = nil
		}
	}
}

// showEvent takes the run's next event. What a fenced writer left is not shown.
func (s *screen) showEvent(pos uint64, e *wire.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paneOf(e.NodeID)
	if s.fenced.isVoid(e) {
		return s.err
	}
	p.noteCall(e)
	step := p.lines.Step(pos, e)
	at := time.UnixMilli(e.Timestamp)
	if step.Op == timeline.Add && e.Type().Kind() != wire.KindDelta {
		s.endPieces(e.Node(), p, func(growingLine) bool { return true })
		call := timeline.CallOf(e, func(string) string { return "" })
		s.writeWhole(e.Node(), growingLine{pos: pos, at: at, class: step.Type, exec: e.ExecID, parent: e.Parent, text: step.Text, call: call})
		return s.err
	}
	switch step.Op {
	case timeline.None:
	case timeline.Add:
		s.endPieces(e.Node(), p, func(o growingLine) bool { return o.parent == e.Parent })
		p.open = append(p.open, growingLine{pos: pos, at: at, class: step.Type, exec: e.ExecID, parent: e.Parent, text: step.Text, grown: time.Now()})
	case timeline.Extend, timeline.Replace:
		if i := slices.IndexFunc(p.open, func(o growingLine) bool { return o.pos == step.Pos }); i >= 0 {
			p.open[i].applyStep(step)
		}
	}
	s.wholeLines(e.Node(), p)
	return s.err
}

// applyStep lengthens a piece. A line that is replaced as a whole is shown as it was
// streamed if a part of it is on the screen already.
func (o *growingLine) applyStep(step timeline.Step) {
	o.grown = time.Now()
	switch {
	case step.Op == timeline.Extend:
		o.text += step.Text
	case !o.begun:
		o.text = step.Text
	}
}

// wholeLines shows what has come to the end of a line.
func (s *screen) wholeLines(node string, p *pane) {
	for i := range p.open {
		o := &p.open[i]
		if o.class == wire.LineThinking {
			continue // it is short, and is replaced while it grows
		}
		cut := strings.LastIndexByte(o.text, '\n') + 1
		if cut == 0 && len(o.text) > maxHeld {
			cut = len(strings.ToValidUTF8(o.text, ""))
		}
		if cut == 0 {
			continue
		}
		piece := *o
		piece.text = strings.TrimSuffix(o.text[:cut], "\n")
		s.writePiece(node, piece)
		o.text, o.begun = o.text[cut:], true
	}
}

// endPieces shows the rest of pieces and forgets them.
func (s *screen) endPieces(node string, p *pane, which func(growingLine) bool) {
	p.open = slices.DeleteFunc(p.open, func(o growingLine) bool {
		if !which(o) {
			return false
		}
		if o.text != "" {
			s.writeWhole(node, o)
		}
		return true
	})
}

// close shows what is left.
func (s *screen) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, p := range s.panes {
		s.endPieces(node, p, func(growingLine) bool { return true })
	}
	return s.err
}

func (s *screen) paneOf(node string) *pane {
	p := s.panes[node]
	if p == nil {
		p = &pane{}
		s.panes[node] = p
	}
	return p
}

const nodeColumn = 12

// writeWhole writes a line of the log to its end. Of a long prompt it is enough to
// see the beginning; `wake log` has the rest.
func (s *screen) writeWhole(node string, o growingLine) {
	o.text = strings.TrimRight(o.text, "\n")
	if lines := strings.Split(o.text, "\n"); o.class == wire.LineUser && len(lines) > maxPrompt {
		o.text = strings.Join(lines[:maxPrompt-1], "\n") + fmt.Sprintf("\n… %d more lines", len(lines)-maxPrompt+1)
	}
	s.writePiece(node, o)
}

// maxPrompt bounds what is shown of what an agent was told, in lines.
const maxPrompt = 8

// writePiece writes a line of the log or a part of one, which may be several lines on
// the screen.
func (s *screen) writePiece(node string, o growingLine) {
	if s.wants != nil && !s.wants(node, o) {
		return
	}
	if s.emit != nil {
		if s.err == nil {
			s.err = s.emit(node, o)
		}
		return
	}
	lead := o.at.In(s.zone).Format(time.TimeOnly) + " " + padText(timeline.Line(node, nodeColumn), nodeColumn)
	for i, text := range strings.Split(timeline.Sanitize(o.text), "\n") {
		if i > 0 || o.begun {
			lead = padText("", len(time.TimeOnly)+1+nodeColumn)
		}
		s.writeLine(s.paintText(dim, lead) + " " + s.paintText(lineColor(o.class), lineMark(o.class)+text))
	}
}

func (s *screen) writeLine(line string) {
	if s.err == nil {
		_, s.err = fmt.Fprintln(s.w, strings.TrimRight(line, " "))
	}
}

// lineMark tells lines apart where there are no colours.
func lineMark(t wire.LineType) string {
	switch t {
	case wire.LineThinking:
		return "· "
	case wire.LineError:
		return "! "
	case wire.LineUser:
		return "> "
	case wire.LineText:
		return "  "
	case wire.LineSystem, wire.LineTool:
	}
	return ""
}

// The colours, as parameters of SGR.
const (
	dim     = "2"
	bold    = "1"
	reverse = "7"
	red     = "31"
	green   = "32"
	yellow  = "33"
	cyan    = "36"
)

func lineColor(t wire.LineType) string {
	switch t {
	case wire.LineThinking:
		return dim
	case wire.LineError:
		return red
	case wire.LineUser:
		return green
	case wire.LineSystem:
		return cyan
	case wire.LineText, wire.LineTool:
	}
	return ""
}

func (s *screen) paintText(sgr, text string) string {
	if !s.color {
		return text
	}
	return sgrText(sgr, text)
}

func sgrText(sgr, text string) string {
	if sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

func padText(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
