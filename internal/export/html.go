package export

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/graph"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

//go:embed page.css
var pageCSS string

//go:embed page.html
var pageHTML string

// HTML writes a page that shows the run: what it cost, what its nodes and tools
// did and when, and every line of its log with the tools' input and output. It
// needs nothing but itself: no script, no font, no request. The rows are written
// as the events come; the sums that stand above them in the page stand behind
// them in the file.
func HTML(w io.Writer, r Run, events Events) (Result, error) {
	page, err := template.New("page").Funcs(template.FuncMap{
		"number": groupDigits, "took": timeline.Took, "size": func(n int) string { return groupDigits(int64(n)) + " bytes" },
	}).Parse(graph.Template + pageHTML)
	if err != nil {
		return Result{}, err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	h := &pageWriter{
		out: out, page: page, run: r, state: run.New(r.ID), result: Result{RunID: r.ID},
		lines: map[string]*timeline.Timeline{}, tools: map[string]*toolSum{}, models: map[string]*modelSum{}, bars: map[string]*bar{},
	}
	return h.writePage(events)
}

// Bounds of a page.
const (
	maxHeld   = 512      // rows that may still grow
	maxText   = 64 << 10 // bytes of a row's text
	maxDetail = 16 << 10 // bytes of a tool's input, and of its output
	maxBars   = 300      // executions in the chart
	maxMarks  = 800      // marks in a bar, of calls that are one after the other
)

// pageWriter is a page under way.
type pageWriter struct {
	out    *bufio.Writer
	page   *template.Template
	run    Run
	result Result

	state  *wire.State
	folded int // events that are in state
	first  int64
	last   int64

	lines    map[string]*timeline.Timeline // by node
	held     []*row                        // not written yet, in order
	tools    map[string]*toolSum
	models   map[string]*modelSum
	accounts ledger.Accounts
	bars     map[string]*bar
	order    []*bar
	beyond   int // bars that are left out
}

// row is a line of the log.
type row struct {
	Pos    uint64
	At     string // since the beginning
	Clock  string // UTC
	Node   string
	Class  wire.LineType
	Sub    bool // of a sub-agent
	Failed bool // a call
	Text   string
	Cut    int // bytes that are left out
	Input  *detail
	Output *detail
}

// detail is a value that is shown on demand.
type detail struct {
	Text string
	Cut  int
}

type toolSum struct {
	Name                  string
	Calls, Failed, Denied int
	TotalMs, MaxMs        int64
}

type modelSum struct {
	Name                  string
	Calls                 int64
	In, Out, Write, Cache int64
	Usd, Computed         float64
	Unpriced              int64
}

// Cost is what the model's calls cost, and what is known of it.
func (m *modelSum) Cost() string { return costText(m.Usd, m.Computed, m.Unpriced) }

func costText(usd, computed float64, unpriced int64) string {
	basis := ledger.Basis(usd, computed, unpriced)
	switch {
	case basis == wire.CostPartly && usd <= 0:
		return "unknown"
	case basis == "":
		return "–"
	case basis == wire.CostReported:
		return formatDollars(usd)
	}
	return formatDollars(usd) + " (" + basis + ")"
}

// bar is an execution in the chart.
type bar struct {
	Node, Exec   string
	Begin, End   int64
	Failed, Open bool
	Tools        []toolMark
	X, W         float64
	Y            int

	width int64 // ms within which marks are put together
}

// toolMark is one or several tool calls in a bar.
type toolMark struct {
	Tool   string // of the first one
	N      int
	Begin  int64
	End    int64
	Failed bool // or denied
	X, W   float64
}

// addMark adds a call. When a bar has too many marks, those near each other are put together, but never one
// that failed with one that didn't.
func (b *bar) addMark(m toolMark) {
	if b.Tools = append(b.Tools, m); len(b.Tools) <= 2*maxMarks {
		return
	}
	for b.width = max(1, b.width); len(b.Tools) > maxMarks; b.width *= 2 {
		last := map[bool]int{} // place of the last mark, by whether it failed
		kept := b.Tools[:0]
		for _, m := range b.Tools {
			i, ok := last[m.Failed]
			if ok && kept[i].Begin/b.width == m.Begin/b.width {
				kept[i].End, kept[i].N = max(kept[i].End, m.End), kept[i].N+m.N
				continue
			}
			last[m.Failed] = len(kept)
			kept = append(kept, m)
		}
		b.Tools = kept
	}
}

// PagePolicy is what a page that [HTML] writes may do: have its own style.
func PagePolicy() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p *pageWriter) writePage(events Events) (Result, error) {
	err := p.page.ExecuteTemplate(p.out, "head", map[string]any{
		"Run": timeline.Sanitize(p.run.ID), "Style": template.CSS(pageCSS), // ours
		"Policy": template.HTMLAttr(`content="` + PagePolicy() + `"`), // ours
	})
	if err != nil {
		return p.result, err
	}
	if err := eachVisible(&p.result, events, func(e *eventlog.Entry) error { return p.addEvent(e.Pos, e.Event) }); err != nil {
		return p.result, err
	}
	if err := p.writeOldRows(0); err != nil {
		return p.result, err
	}
	if err := p.page.ExecuteTemplate(p.out, "foot", p.pageSummary()); err != nil {
		return p.result, err
	}
	return p.result, p.out.Flush()
}

func (p *pageWriter) addEvent(pos uint64, e *wire.Event) error {
	if !isClaim(e) {
		p.first = cmp.Or(p.first, e.Timestamp)
		p.last = max(p.last, e.Timestamp)
	}
	if run.Apply(p.state, wire.Position{Incarnation: p.run.Incarnation, Seq: pos}, e) == nil {
		p.folded++
	}
	p.countEvent(e)
	p.drawEvent(e)
	node := e.Node()
	t := p.lines[node]
	if t == nil {
		t = &timeline.Timeline{}
		p.lines[node] = t
	}
	p.applyStep(t.Step(pos, e), e)
	return p.writeOldRows(maxHeld)
}

// applyStep shows what an event does to the lines.
func (p *pageWriter) applyStep(s timeline.Step, e *wire.Event) {
	if s.Op == timeline.None {
		return
	}
	r := p.findRow(s.Pos)
	if s.Op == timeline.Add || r == nil { // a line that is written already goes on in another
		r = &row{
			Pos: s.Pos, Node: timeline.Sanitize(timeline.NodeName(e.Node())), Class: s.Type, Sub: e.Parent != "",
			At: elapsedText(p.first, e.Timestamp), Clock: time.UnixMilli(e.Timestamp).UTC().Format("2006-01-02 15:04:05.000"),
		}
		p.held = append(p.held, r)
		if call, is := e.Payload.(*wire.AgentTool); is {
			r.Input, r.Output, r.Failed = detailOf(call.ToolInput), detailOf(call.ToolOutput), call.Error != "" || call.Denied
		}
	}
	if s.Op == timeline.Replace {
		r.Text, r.Cut = "", 0
	}
	text, cut := timeline.Cut(timeline.Sanitize(timeline.PlainLine(s.Type, s.Text)), maxText-len(r.Text))
	r.Text, r.Cut = r.Text+text, r.Cut+cut
}

// findRow returns the row of a line that isn't written yet.
func (p *pageWriter) findRow(pos uint64) *row {
	for _, r := range slices.Backward(p.held) {
		if r.Pos == pos {
			return r
		}
	}
	return nil
}

// writeOldRows writes the oldest rows until most are left.
func (p *pageWriter) writeOldRows(most int) error {
	n := max(0, len(p.held)-most)
	for _, r := range p.held[:n] {
		if p.run.Redact != nil {
			r.Text = p.run.Redact(r.Text)
		}
		if err := p.page.ExecuteTemplate(p.out, "row", r); err != nil {
			return err
		}
		p.result.Written++
	}
	p.held = slices.Delete(p.held, 0, n)
	return nil
}

// countEvent adds an event to the sums.
func (p *pageWriter) countEvent(e *wire.Event) {
	if v, ok := e.Payload.(*wire.AgentTool); ok {
		s := p.tools[v.ToolName]
		if s == nil {
			s = &toolSum{Name: timeline.Sanitize(v.ToolName)}
			p.tools[v.ToolName] = s
		}
		s.addCall(v)
	}
	for _, x := range p.accounts.Apply(e) {
		m := p.sumOfModel(x.Model)
		m.Calls, m.In, m.Out = m.Calls+x.Calls, m.In+x.InputTokens, m.Out+x.OutputTokens
		m.Write, m.Cache = m.Write+x.CacheCreationInputTokens, m.Cache+x.CacheReadInputTokens
		m.Usd, m.Computed, m.Unpriced = m.Usd+x.CostUsd, m.Computed+x.ComputedUsd, m.Unpriced+x.Unpriced
	}
}

func (p *pageWriter) sumOfModel(name string) *modelSum {
	m := p.models[name]
	if m == nil {
		m = &modelSum{Name: timeline.Sanitize(name)}
		p.models[name] = m
	}
	return m
}

func (s *toolSum) addCall(v *wire.AgentTool) {
	s.Calls++
	switch {
	case v.Denied:
		s.Denied++
	case v.Error != "":
		s.Failed++
	}
	ms := wire.ValueOf(v.DurationMs)
	s.TotalMs, s.MaxMs = s.TotalMs+ms, max(s.MaxMs, ms)
}

// drawEvent adds an event to the chart.
func (p *pageWriter) drawEvent(e *wire.Event) {
	exec := execOf(e)
	b := p.bars[exec]
	switch v := e.Payload.(type) {
	case *wire.NodeStart:
		p.beginBar(e, exec)
	case *wire.AgentStart:
		if b == nil && e.Parent == "" {
			p.beginBar(e, exec)
		}
	case *wire.NodeComplete:
		b.end(e, false)
	case *wire.NodeError:
		b.end(e, true)
	case *wire.NodeCancelled:
		b.end(e, true)
	case *wire.AgentTool:
		if b != nil && e.Parent == "" {
			b.addMark(toolMark{
				Tool: timeline.Sanitize(v.ToolName), N: 1, Begin: e.Timestamp - wire.ValueOf(v.DurationMs), End: e.Timestamp, Failed: v.Error != "" || v.Denied,
			})
		}
	}
}

func (p *pageWriter) beginBar(e *wire.Event, exec string) {
	if _, begun := p.bars[exec]; begun {
		return
	}
	if len(p.order) == maxBars {
		p.bars[exec] = nil
		p.beyond++
		return
	}
	b := &bar{Node: timeline.Sanitize(e.Node()), Exec: timeline.Sanitize(exec), Begin: e.Timestamp, Open: true}
	p.bars[exec] = b
	p.order = append(p.order, b)
}

func (b *bar) end(e *wire.Event, failed bool) {
	if b != nil {
		b.End, b.Open, b.Failed = e.Timestamp, false, failed
	}
}

// The chart's heights, in pixels. Its widths are parts of a hundred: names and times stay legible on a phone.
const (
	barHeight  = 36
	axisHeight = 24
	thinnest   = 0.2 // part of the width that a bar or mark takes at least
)

// tick is a time below the chart.
type tick struct {
	X      float64
	Label  string
	Anchor string
}

// chartTicks divides the time of the chart.
func (p *pageWriter) chartTicks() []tick {
	const parts = 4
	all := make([]tick, parts+1)
	for i := range all {
		all[i] = tick{
			X: 100 * float64(i) / parts, Anchor: "middle",
			Label: elapsedText(p.first, p.first+(p.last-p.first)*int64(i)/parts),
		}
	}
	all[0].Anchor, all[parts].Anchor = "start", "end"
	return all
}

func (p *pageWriter) placeBars() []*bar {
	scale := 100 / float64(max(1, p.last-p.first))
	round := func(x float64) float64 { return math.Round(100*x) / 100 }
	place := func(begin, end int64) (x, w float64) {
		x, w = float64(begin-p.first)*scale, max(thinnest, float64(end-begin)*scale)
		return round(min(x, 100-thinnest)), round(w)
	}
	for i, b := range p.order {
		if b.Open {
			b.End = p.last
		}
		b.Y = i * barHeight
		b.X, b.W = place(b.Begin, b.End)
		for k := range b.Tools {
			m := &b.Tools[k]
			m.X, m.W = place(max(m.Begin, b.Begin), m.End)
		}
	}
	return p.order
}

// pageSummary is what stands above the rows.
func (p *pageWriter) pageSummary() map[string]any {
	s := p.state
	tools, models := make([]*toolSum, 0, len(p.tools)), make([]*modelSum, 0, len(p.models))
	for _, name := range sortedKeys(p.tools) {
		tools = append(tools, p.tools[name])
	}
	slices.SortStableFunc(tools, func(a, b *toolSum) int { return b.Calls - a.Calls })
	for _, name := range sortedKeys(p.models) {
		models = append(models, p.models[name])
	}
	status := string(s.Status)
	if s.Result != "" {
		status = string(s.Result)
	}
	end := cmp.Or(s.EndedAt, p.last)
	labels := make([][2]string, 0, len(s.Labels))
	for _, k := range sortedKeys(s.Labels) {
		labels = append(labels, [2]string{timeline.Sanitize(k), timeline.Sanitize(s.Labels[k])})
	}
	return map[string]any{
		"Run": timeline.Sanitize(p.run.ID), "Flow": timeline.Sanitize(s.FlowName), "Status": status,
		"Error": timeline.Sanitize(s.Error), "Reason": timeline.Sanitize(s.Reason), "Labels": labels, "Imported": s.Imported != "",
		"Began": time.UnixMilli(p.first).UTC().Format("2006-01-02 15:04:05 UTC"), "Took": end - p.first, "Over": s.EndedAt != 0,
		"Cost": costText(s.Usage.CostUsd, s.Usage.ComputedUsd, s.Usage.Unpriced), "Usage": s.Usage, "TokensIn": ledger.TotalIn(s.Usage),
		"Events": p.result.Events, "Rows": p.result.Written, "Part": p.run.From > 0 || p.run.To > 0, "Partly": p.folded < p.result.Events,
		"Alerts": safeAlerts(p.run.Alerts), "Graph": graph.Draw(s), "Note": timeline.Sanitize(p.run.Note),
		"Tools": tools, "Models": models, "Bars": p.placeBars(), "Beyond": p.beyond,
		"Ticks": p.chartTicks(), "ChartHeight": len(p.order)*barHeight + axisHeight, "AxisY": len(p.order)*barHeight + axisHeight - 6, "AxisTop": len(p.order)*barHeight + 2,
		"Hash": p.result.Hash,
	}
}

// alertRow is an alert, for a page.
type alertRow struct{ Kind, Severity, Node, Clock, Text string }

func safeAlerts(alerts []wire.Alert) []alertRow {
	var rows []alertRow
	for _, a := range alerts {
		rows = append(rows, alertRow{
			Kind: timeline.Sanitize(a.Kind), Severity: string(a.Severity), Node: timeline.Sanitize(timeline.NodeName(a.NodeID)), Text: timeline.Sanitize(timeline.PlainAlert(a.Text)),
			Clock: time.UnixMilli(a.Timestamp).UTC().Format("2006-01-02 15:04:05"),
		})
	}
	return rows
}

func detailOf(v wire.Raw) *detail {
	text, cut := timeline.Cut(timeline.Sanitize(v.Plain()), maxDetail)
	if text == "" {
		return nil
	}
	return &detail{text, cut}
}

// elapsedText is a time of the run: minutes or hours, and seconds.
func elapsedText(first, at int64) string {
	d := (time.Duration(max(0, at-first)) * time.Millisecond).Truncate(100 * time.Millisecond)
	if d >= time.Hour {
		return fmt.Sprintf("%d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d:%04.1f", int(d.Minutes()), d.Seconds()-60*float64(int(d.Minutes())))
}

func formatDollars(x float64) string { return fmt.Sprintf("$%.4f", x) }

// groupDigits writes n in groups of three digits.
func groupDigits(n any) string {
	s := fmt.Sprint(n)
	if v, err := strconv.ParseInt(s, 10, 64); err != nil || v < 0 {
		return s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
