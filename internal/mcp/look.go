package mcp

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// Bounds of what a line shows, in runes, and of how many there are.
const (
	maxLine  = 300
	maxBlock = 1000 // of a line of a log, which may have several
	maxList  = 100
	maxCall  = 1500 // of a call that waits; no longer one is approved here
)

// cleanLine makes what others wrote one safe line.
func cleanLine(s string) string { return timeline.Line(s, maxLine) }

// atMost returns how many of something to show.
func atMost(asked, normal int) int {
	if asked <= 0 {
		return normal
	}
	return min(asked, maxList)
}

func parseAgo(span string) (wire.Ago, error) {
	if span == "" {
		return 0, nil
	}
	a, err := wire.ParseAgo(span)
	if err != nil {
		return 0, badRequest("since: %q is no span of time, such as 30s, 5m or 2d", cleanLine(span))
	}
	return a, nil
}

func clockTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("15:04:05") }

type runsInput struct {
	Status string `json:"status,omitempty" jsonschema:"only these: active (not ended), running, paused, complete, failed or aborted"`
	Label  string `json:"label,omitempty" jsonschema:"only with this label: key=value or value"`
	Limit  int    `json:"limit,omitempty" jsonschema:"default 20, at most 100"`
}

// runsAnswer is a page of runs.
type runsAnswer struct {
	Runs []runAnswer `json:"runs"`
	More bool        `json:"more" jsonschema:"there are others that match"`
}

type runAnswer struct {
	Run     string  `json:"run"`
	State   string  `json:"state" jsonschema:"running, paused, complete, failed or aborted"`
	Name    string  `json:"name,omitempty"`
	CostUsd float64 `json:"costUsd"`
	Parent  string  `json:"parent,omitempty"`
}

func (p Pipeline) listRuns(ctx context.Context, in runsInput) (string, runsAnswer, error) {
	q := wire.RunsRequest{Label: in.Label, Limit: atMost(in.Limit, 20)}
	if in.Status != "" {
		q.Status = []string{in.Status}
	}
	page, err := p.Runs(ctx, q)
	if err != nil {
		return "", runsAnswer{}, err
	}
	answer := runsAnswer{Runs: []runAnswer{}, More: page.Cursor != ""}
	var b strings.Builder
	for _, r := range page.Runs {
		a := runAnswer{
			Run: cleanLine(r.RunID), State: cmp.Or(string(r.Result), string(r.Status)), Name: cleanLine(cmp.Or(r.Labels["name"], r.FlowName)),
			CostUsd: r.CostUsd, Parent: cleanLine(r.ParentRun),
		}
		answer.Runs = append(answer.Runs, a)
		fmt.Fprintf(&b, "%s %s%s %s %s", a.Run, a.State, inBrackets(r.Reason), a.Name, costText(r.CostUsd, r.CostBasis))
		if a.Parent != "" {
			fmt.Fprintf(&b, " parent %s", a.Parent)
		}
		if r.LastActivity != "" {
			fmt.Fprintf(&b, ": %s", cleanLine(r.LastActivity))
		}
		b.WriteByte('\n')
	}
	if answer.More {
		b.WriteString("… there are more: narrow it by status or label\n")
	}
	return cmp.Or(b.String(), "no runs"), answer, nil
}

// inBrackets is a text in brackets, "" for none.
func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + cleanLine(s) + ")"
}

type statusInput struct {
	Run  string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Node string `json:"node,omitempty" jsonschema:"only this node"`
}

// statusAnswer is how a run does; what waits for a person in it is in approvals.
type statusAnswer struct {
	Run     string       `json:"run"`
	Flow    string       `json:"flow"`
	State   string       `json:"state" jsonschema:"running, paused, complete, failed or aborted"`
	Reason  string       `json:"reason,omitempty"`
	Error   string       `json:"error,omitempty"`
	Waits   string       `json:"waits,omitempty" jsonschema:"what it waits for"`
	CostUsd float64      `json:"costUsd"`
	Basis   string       `json:"costBasis,omitempty" jsonschema:"where the cost comes from; unknown: no source tells it"`
	Input   int64        `json:"tokensIn"`
	Output  int64        `json:"tokensOut"`
	Tools   int64        `json:"tools" jsonschema:"how many calls"`
	Nodes   []nodeAnswer `json:"nodes"`
	More    int          `json:"more" jsonschema:"how many other nodes it has"`
}

type nodeAnswer struct {
	Node   string `json:"node"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Waits  string `json:"waits,omitempty" jsonschema:"what it waits for"`
	Last   string `json:"last,omitempty" jsonschema:"what it did last"`
}

func statusFields(s wire.StatusResponse) statusAnswer {
	answer := statusAnswer{
		Run: cleanLine(s.RunID), Flow: cleanLine(s.FlowName), State: cmp.Or(string(s.Result), string(s.Status)), Reason: cleanLine(s.Reason),
		Error: cleanLine(s.Error), Waits: cleanLine(s.WaitingFor), CostUsd: s.CostUsd, Basis: s.CostBasis,
		Input: s.TokensIn, Output: s.TokensOut, Tools: s.ToolsUsed, Nodes: []nodeAnswer{}, More: max(0, len(s.Agents)-maxList),
	}
	for _, n := range s.Agents[:min(len(s.Agents), maxList)] {
		answer.Nodes = append(answer.Nodes, nodeAnswer{
			Node: cleanLine(n.AgentID), State: n.State, Reason: cleanLine(n.Reason), Error: cleanLine(n.Error),
			Waits: cleanLine(n.WaitingFor), Last: cleanLine(n.LastActivity),
		})
	}
	return answer
}

func (p Pipeline) showStatus(ctx context.Context, in statusInput) (string, statusAnswer, error) {
	s, err := p.Status(ctx, wire.StatusRequest{Run: in.Run, Node: in.Node})
	if err != nil {
		return "", statusAnswer{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "run %s (%s): %s%s, %s, tokens %d in %d out, %d tools, %s\n", cleanLine(s.RunID), cleanLine(s.FlowName),
		cmp.Or(string(s.Result), string(s.Status)), inBrackets(s.Reason), costText(s.CostUsd, s.CostBasis), s.TokensIn, s.TokensOut, s.ToolsUsed, s.Runtime)
	for _, fact := range [][2]string{
		{"error", s.Error}, {"waits for", s.WaitingFor}, {"last", s.LastActivity}, {"last alert", s.LastAlert},
	} {
		if fact[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", fact[0], cleanLine(fact[1]))
		}
	}
	for i, n := range s.Agents {
		if i == maxList {
			fmt.Fprintf(&b, "… %d more nodes: ask by node\n", len(s.Agents)-i)
			break
		}
		fmt.Fprintf(&b, "- %s: %s%s %s", cleanLine(n.AgentID), n.State, inBrackets(n.Reason), n.Runtime)
		if what := cmp.Or(n.Error, n.WaitingFor, n.LastActivity); what != "" {
			fmt.Fprintf(&b, ": %s", cleanLine(what))
		}
		b.WriteByte('\n')
	}
	return b.String() + p.listWaiting(ctx, s), statusFields(s), nil
}

// listWaiting lists what waits for a person in a run that goes on.
func (p Pipeline) listWaiting(ctx context.Context, s wire.StatusResponse) string {
	if s.Result != "" || s.Status == wire.RunAborted {
		return ""
	}
	waits, err := p.Approvals(ctx, wire.ApprovalsRequest{Run: s.RunID})
	if err != nil {
		return "" // what is known is worth telling
	}
	var b strings.Builder
	room := callRoom(len(waits.Approvals))
	for i, a := range waits.Approvals {
		if i == maxList {
			fmt.Fprintf(&b, "… %d more\n", len(waits.Approvals)-i)
			break
		}
		b.WriteString("waits: " + approvalLine(a, room) + "\n")
	}
	return b.String()
}

// approvalLine says in a line what waits, and by which id it is answered.
func approvalLine(a wire.Approval, room int) string {
	kind := string(a.Kind)
	if a.Priority != "" {
		kind = string(a.Priority)
	}
	return fmt.Sprintf("%s %s of %s: %s", kind, cleanLine(a.CallID), cleanLine(a.NodeID), approvalText(a, room))
}

// approvalText is the question, or the call that waits for permission, within room; what is cut says so.
func approvalText(a wire.Approval, room int) string {
	if a.Text != "" && a.Kind != wire.ApprovalCall {
		return cleanLine(a.Text)
	}
	input := timeline.WholeInput(a.ToolName, a.ToolInput)
	text := strings.ReplaceAll(input, "\n", " ⏎ ") // behind a comment, what a line hides is another command
	if utf8.RuneCountInString(input) > room {
		text = timeline.Line(text, room) + fmt.Sprintf(" (cut: it has %d bytes; ask for its run, or see `wake approvals`)", len(input))
	} else {
		text = timeline.Line(text, 3*room)
	}
	return strings.TrimSpace(cleanLine(a.ToolName) + " " + text)
}

// callRoom is how many characters of a call are told where some wait.
func callRoom(waiting int) int { return max(maxLine, min(maxCall, 3000/max(1, waiting))) }

// canBeTold reports whether approvals can tell all that a call is given, blanks included: behind many of them anything may stand.
func canBeTold(a wire.Approval) bool {
	return utf8.RuneCountInString(timeline.WholeInput(a.ToolName, a.ToolInput)) <= maxCall
}

type approvalsInput struct {
	Run   string `json:"run,omitempty" jsonschema:"only of this RUN; absent: of all runs that go on"`
	Limit int    `json:"limit,omitempty" jsonschema:"default 20, at most 100"`
}

// approvalsAnswer is what waits for a person.
type approvalsAnswer struct {
	Approvals []approvalAnswer `json:"approvals"`
	More      int              `json:"more" jsonschema:"how many others wait"`
	Paused    []pausedAnswer   `json:"paused" jsonschema:"runs that have paused by themselves until somebody decides how they go on"`
}

type pausedAnswer struct {
	Run        string `json:"run"`
	WaitingFor string `json:"waitingFor"`
}

type approvalAnswer struct {
	Run   string `json:"run"`
	Node  string `json:"node"`
	Kind  string `json:"kind"`
	ID    string `json:"id" jsonschema:"call of approve and deny, prompt of reply"`
	Text  string `json:"text"`
	Since int64  `json:"since" jsonschema:"Unix ms"`
}

func (p Pipeline) listApprovals(ctx context.Context, in approvalsInput) (_ string, answer approvalsAnswer, err error) {
	q := wire.ApprovalsRequest{}
	if in.Run != "" {
		if q.Run, err = p.Find(ctx, in.Run); err != nil {
			return "", answer, err
		}
	}
	waits, err := p.Approvals(ctx, q)
	if err != nil {
		return "", answer, err
	}
	limit := min(atMost(in.Limit, 20), len(waits.Approvals))
	answer = approvalsAnswer{Approvals: []approvalAnswer{}, More: len(waits.Approvals) - limit + waits.Omitted, Paused: []pausedAnswer{}}
	var b strings.Builder
	room := callRoom(limit)
	for _, a := range waits.Approvals[:limit] {
		answer.Approvals = append(answer.Approvals, approvalAnswer{
			Run: cleanLine(a.RunID), Node: cleanLine(a.NodeID), Kind: string(a.Kind), ID: cleanLine(a.CallID), Text: approvalText(a, room), Since: a.Since,
		})
		fmt.Fprintf(&b, "%s since %s: %s\n", cleanLine(a.RunID), clockTime(a.Since), approvalLine(a, room))
	}
	if answer.More > 0 {
		fmt.Fprintf(&b, "… %d more: narrow it by run\n", answer.More)
	}
	for _, r := range waits.Paused {
		answer.Paused = append(answer.Paused, pausedAnswer{Run: cleanLine(r.RunID), WaitingFor: r.WaitingFor})
		fmt.Fprintf(&b, "%s is paused and waits for %s\n", cleanLine(r.RunID), r.WaitingFor)
	}
	return cmp.Or(b.String(), "nothing waits"), answer, nil
}

type logInput struct {
	Run     string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Node    string `json:"node,omitempty" jsonschema:"only of this node"`
	Type    string `json:"type,omitempty" jsonschema:"only text, thinking, tool, error, system or user"`
	Grep    string `json:"grep,omitempty" jsonschema:"only lines that match this RE2 pattern, ignoring case"`
	Since   string `json:"since,omitempty" jsonschema:"only of this last span, such as 5m"`
	Offset  *int64 `json:"offset,omitempty" jsonschema:"first line from 0; absent: the last lines"`
	Limit   int    `json:"limit,omitempty" jsonschema:"default 20, at most 100"`
	Summary bool   `json:"summary,omitempty" jsonschema:"in short what happened instead of lines"`
}

// logAnswer is a part of a log, or in short what happened.
type logAnswer struct {
	Summary string       `json:"summary,omitempty"`
	Lines   []lineAnswer `json:"lines"`
	Offset  int64        `json:"offset" jsonschema:"of the first line"`
	Total   int64        `json:"total" jsonschema:"how many lines there are"`
}

type lineAnswer struct {
	Time int64  `json:"time" jsonschema:"Unix ms"`
	Node string `json:"node"`
	Type string `json:"type"`
	Text string `json:"text"`
}

// maxFields bounds what is in the fields of lines beside their text, in bytes: they are there a second time.
const maxFields = maxText / 2

// logFields are the lines of a page as fields.
func logFields(page wire.LogResponse) logAnswer {
	answer := logAnswer{Lines: []lineAnswer{}, Offset: page.Offset, Total: page.TotalLines}
	for _, l := range page.Lines {
		answer.Lines = append(answer.Lines, lineFields(l))
	}
	return answer
}

func lineFields(l wire.LogLine) lineAnswer {
	return lineAnswer{Time: l.TS, Node: cleanLine(l.Node), Type: string(l.Type), Text: cleanLine(l.Text)}
}

func (p Pipeline) readLog(ctx context.Context, in logInput) (string, logAnswer, error) {
	since, err := parseAgo(in.Since)
	if err != nil {
		return "", logAnswer{}, err
	}
	if in.Type != "" && !wire.LineType(in.Type).Valid() {
		return "", logAnswer{}, badRequest("type is text, thinking, tool, error, system or user")
	}
	limit := atMost(in.Limit, 20)
	page, err := p.Log(ctx, wire.LogRequest{
		Run: in.Run, Node: in.Node, Type: wire.LineType(in.Type), Grep: in.Grep, Since: since,
		Offset: in.Offset, Limit: &limit, Details: true, Summary: in.Summary,
	})
	if err != nil {
		return "", logAnswer{}, err
	}
	if page.Summary != nil {
		text := timeline.Sanitize(page.Summary.Text)
		return text, logAnswer{Summary: boundText(text), Lines: []lineAnswer{}}, nil
	}
	page = fittingPage(page, in.Offset == nil)
	return pageText(page), logFields(page), nil
}

// fittingPage is as much of a page as an answer has room for, in its text and in its fields, in whole lines, at least one: the first ones, or
// the last ones.
func fittingPage(page wire.LogResponse, last bool) wire.LogResponse {
	fits, text, fields := 0, noteRoom, 0
	for i := range page.Lines {
		if last {
			i = len(page.Lines) - 1 - i
		}
		l := lineFields(page.Lines[i])
		text, fields = text+len(lineText(page.Lines[i])), fields+len(l.Node)+len(l.Text)
		if fits > 0 && (text > maxText || fields > maxFields) {
			break
		}
		fits++
	}
	if last {
		page.Offset += int64(len(page.Lines) - fits)
		page.Lines = page.Lines[len(page.Lines)-fits:]
	}
	page.Lines, page.ReturnedLines = page.Lines[:fits], fits
	return page
}

func pageText(page wire.LogResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "lines %d to %d of %d\n", page.Offset, page.Offset+int64(page.ReturnedLines), page.TotalLines)
	for _, l := range page.Lines {
		b.WriteString(lineText(l))
	}
	return b.String()
}

func lineText(l wire.LogLine) string {
	text := timeline.Sanitize(strings.TrimSpace(l.Text))
	if r := []rune(text); len(r) > maxBlock {
		text = string(r[:maxBlock]) + "…"
	}
	if l.Found != "" {
		text += "\n" + timeline.Sanitize(l.Found)
	}
	return fmt.Sprintf("%s %s %s: %s\n", clockTime(l.TS), cleanLine(l.Node), l.Type, text)
}

type searchInput struct {
	Text  string `json:"text" jsonschema:"words, \"phrases\", begin* and -without"`
	Run   string `json:"run,omitempty" jsonschema:"only in this RUN"`
	Since string `json:"since,omitempty" jsonschema:"only of this last span, such as 2d"`
	Limit int    `json:"limit,omitempty" jsonschema:"default 10, at most 100"`
}

// searchAnswer is what was found.
type searchAnswer struct {
	Hits []hitAnswer `json:"hits"`
	More bool        `json:"more" jsonschema:"there are others"`
}

type hitAnswer struct {
	Run  string `json:"run"`
	Node string `json:"node"`
	Time int64  `json:"time" jsonschema:"Unix ms"`
	Type string `json:"type"`
	Text string `json:"text"`
}

func (p Pipeline) searchLogs(ctx context.Context, in searchInput) (string, searchAnswer, error) {
	since, err := parseAgo(in.Since)
	if err != nil {
		return "", searchAnswer{}, err
	}
	q := wire.SearchRequest{Text: in.Text, Since: since, Limit: atMost(in.Limit, 10)}
	if in.Run != "" {
		if q.Run, err = p.Find(ctx, in.Run); err != nil {
			return "", searchAnswer{}, err
		}
	}
	found, err := p.Search(ctx, q)
	if err != nil {
		return "", searchAnswer{}, err
	}
	answer := searchAnswer{Hits: []hitAnswer{}, More: found.Cursor != ""}
	var b strings.Builder
	for _, h := range found.Hits {
		a := hitAnswer{Run: cleanLine(h.RunID), Node: cleanLine(h.Node), Time: h.TS, Type: string(h.Type), Text: cleanLine(h.Snippet)}
		answer.Hits = append(answer.Hits, a)
		fmt.Fprintf(&b, "%s %s %s %s: %s\n", a.Run, a.Node, clockTime(a.Time), a.Type, a.Text)
	}
	if answer.More {
		b.WriteString("… there are more: narrow it by words or run\n")
	}
	return cmp.Or(b.String(), "nothing was found"), answer, nil
}

type alertsInput struct {
	Run    string  `json:"run,omitempty" jsonschema:"only of this RUN"`
	Parent string  `json:"parent,omitempty" jsonschema:"only of the children of this RUN"`
	After  *uint64 `json:"after,omitempty" jsonschema:"only behind this one, as the answer before says; absent: the last ones"`
	Limit  int     `json:"limit,omitempty" jsonschema:"default 20, at most 100"`
	Wait   int     `json:"wait,omitempty" jsonschema:"seconds to wait if there is none, at most 300"`
}

// maxWait bounds, in seconds, how long a call waits for an alert.
const maxWait = 300

// alertsAnswer is what deserved attention.
type alertsAnswer struct {
	Alerts []alertAnswer `json:"alerts"`
	After  uint64        `json:"after" jsonschema:"to ask for what comes next"`
}

type alertAnswer struct {
	Run      string `json:"run"`
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Time     int64  `json:"time" jsonschema:"Unix ms"`
}

func (p Pipeline) listAlerts(ctx context.Context, in alertsInput) (_ string, answer alertsAnswer, err error) {
	q := AlertsQuery{After: in.After, Limit: atMost(in.Limit, 20), Wait: min(max(in.Wait, 0), maxWait)}
	if in.Run != "" {
		if q.Run, err = p.Find(ctx, in.Run); err != nil {
			return "", answer, err
		}
	}
	if in.Parent != "" {
		if q.Parent, err = p.Find(ctx, in.Parent); err != nil {
			return "", answer, err
		}
	}
	for {
		all, last, err := p.Alerts(ctx, q)
		if err != nil {
			return "", answer, err
		}
		answer = alertsAnswer{Alerts: []alertAnswer{}, After: last}
		var b strings.Builder
		fits := 0
		for _, a := range all {
			l := alertAnswer{Run: cleanLine(a.RunID), Severity: string(a.Severity), Text: cleanLine(a.Text), Time: a.Timestamp}
			answer.Alerts = append(answer.Alerts, l)
			fmt.Fprintf(&b, "%s %s %s %s\n", clockTime(l.Time), l.Severity, l.Run, l.Text)
			if b.Len() <= maxText-noteRoom {
				fits++
			}
		}
		if fits < len(all) && len(all) > 1 { // so that after is that of the last one in the answer
			q.Limit = max(1, fits)
			continue
		}
		if len(all) == 0 {
			b.WriteString("no alerts\n")
		}
		fmt.Fprintf(&b, "after: %d", last)
		return b.String(), answer, nil
	}
}

// costText is a cost and what is known of it.
func costText(usd float64, basis string) string { return cmp.Or(timeline.Cost(usd, basis), "$0.00") }
