package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/summary"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

type logOptions struct {
	q      wire.LogRequest
	since  string
	class  string
	offset int64
	limit  int
	follow bool

	modelURL, modelName string
}

func (a viewVerbs) logCommand() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:   "log RUN",
		Short: "Print the log of a run: its last lines, or those that match",
		Long: `Print the log of a run: its last lines, or those that match. Filters apply in the
order node, type, since, grep; offset and limit count what is left. --grep looks at
what calls were given and answered, too: of more than 20 KiB at the first 16 and the
last 4.

With --follow the lines to come are printed too, until the run has ended; with
--json each line is a value of its own then. With --summary it is told in short
what happened: what was asked, milestones, failures, files, builds, commits, cost
and the last words. With --summary-url a model tells it instead, from that and the
last lines of the log, without what looks like a secret; if it doesn't answer in
30 s, the summary is what it would be without. WAKE_SUMMARY_KEY is its key.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.q.Run = args[0]
			if cmd.Flags().Changed("offset") {
				o.q.Offset = &o.offset
			}
			return interruptError(cmd.Context(), a.showLog(cmd.Context(), o))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.q.Node, "node", "", "only lines of this `node`")
	flags.StringVar(&o.class, "type", "", "only lines of this `type`: text, thinking, tool, error, system or user")
	flags.StringVar(&o.since, "since", "", "only lines of this last `time`, such as 90s, 5m or 2d")
	flags.StringVar(&o.q.Grep, "grep", "", "only lines that match this `pattern` (RE2), ignoring case")
	flags.Int64Var(&o.offset, "offset", 0, "begin with this `line` instead of showing the last ones")
	flags.IntVar(&o.limit, "limit", wire.DefaultLogLimit, "at most this `many` lines")
	flags.BoolVar(&o.q.Summary, "summary", false, "tell in short what happened; only --node and --since apply")
	flags.StringVar(&o.modelURL, "summary-url", "", "`URL` of a model that tells the summary: …/messages (Anthropic) or …/chat/completions (OpenAI and others)")
	flags.StringVar(&o.modelName, "summary-model", "", "`name` of that model")
	flags.BoolVar(&o.follow, "follow", false, "go on with the lines to come")
	return cmd
}

// showLog prints a page of a log or its summary, and follows it.
func (a viewVerbs) showLog(ctx context.Context, o logOptions) error {
	var err error
	if o.q.Since, err = parseAgo("since", o.since); err != nil {
		return err
	}
	o.q.Details, o.q.Type, o.q.Limit = true, wire.LineType(o.class), &o.limit
	switch {
	case o.q.Type != "" && !o.q.Type.Valid():
		return usageError("text, thinking, tool, error, system and user are known", "--type: %q is no type of line", o.class)
	case o.limit < 1:
		return usageError("", "--limit: it is at least 1")
	case o.follow && o.q.Summary:
		return usageError("give one of them", "--summary and --follow contradict each other")
	case o.follow && o.q.Offset != nil:
		return usageError("give one of them", "--offset and --follow contradict each other")
	}
	model, asked, err := o.summaryModel()
	if err != nil {
		return err
	}
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	page, err := api.Call[wire.LogResponse](ctx, nc, a.names, wire.VerbLog, o.q)
	if err == nil && asked && page.Summary != nil {
		a.retellSummary(ctx, nc, o, model, page.Summary)
	}
	if !o.follow { // what is missing comes then
		a.noteLag(page.Behind)
	}
	switch {
	case err != nil:
		return err
	case o.follow:
		return a.followLog(ctx, nc, o, page)
	case a.json:
		return a.printJSON(page)
	case page.Summary != nil:
		_, err := fmt.Fprintln(a.out, timeline.Sanitize(page.Summary.Text))
		return err
	}
	return a.printLog(page)
}

func (a viewVerbs) printLog(page wire.LogResponse) error {
	s := a.newScreen()
	s.showPage(page)
	a.noteCut(page.Cut)
	switch {
	case s.err != nil:
	case page.ReturnedLines == 0 && page.TotalLines > 0:
		a.printNote("no lines behind line %d of %d\n", page.Offset, page.TotalLines)
	case int64(page.ReturnedLines) < page.TotalLines:
		a.printNote("lines %d to %d of %d\n", page.Offset+1, page.Offset+int64(page.ReturnedLines), page.TotalLines)
	}
	return s.err
}

// showPage writes the lines of a page.
func (s *screen) showPage(page wire.LogResponse) {
	for _, l := range page.Lines {
		text := strings.TrimRight(l.Text, "\n")
		if l.Found != "" {
			text += "\n" + l.Found
		}
		s.writePiece(l.Node, growingLine{pos: l.Pos, at: time.UnixMilli(l.TS), class: l.Type, exec: l.Exec, parent: l.Parent, text: text})
	}
}

// followLog prints a page and what comes after it, until the run has ended. What
// streams is printed line by line, and matched so.
func (a viewVerbs) followLog(ctx context.Context, nc *nats.Conn, o logOptions, page wire.LogResponse) error {
	wants, err := o.pieceFilter()
	if err != nil {
		return err
	}
	log, err := a.readerOn(ctx, nc)
	if err != nil {
		return err
	}
	run, err := a.runID(ctx, log, o.q.Run)
	if err != nil {
		return err
	}
	s := a.newScreen()
	if a.json {
		s.emit = func(node string, p growingLine) error {
			return a.printJSON(wire.LogLine{
				TS: p.at.UnixMilli(), Type: p.class, Text: timeline.Sanitize(p.text), Node: node, Exec: p.exec, Parent: p.parent, Pos: p.pos,
			})
		}
	}
	s.showPage(page)
	s.wants = wants
	if over, err := a.hasEnded(ctx, log, run, page.Position); over || err != nil {
		return err
	}
	_, err = a.followRun(ctx, log, eventlog.Query{Run: run, From: page.Position + 1}, func(e eventlog.Entry) error {
		return s.showEvent(e.Pos, a.wholeEvent(ctx, log, e.Event))
	})
	if closed := s.close(); err == nil {
		err = closed
	}
	return err
}

// pieceFilter returns which pieces of a log are wanted.
func (o logOptions) pieceFilter() (func(node string, p growingLine) bool, error) {
	pattern, err := regexp.Compile("(?i)" + o.q.Grep)
	if err != nil {
		return nil, usageError("", "--grep: %w", err) // the recorder has refused it already
	}
	tools := timeline.MeansTools(pattern)
	return func(node string, p growingLine) bool {
		switch {
		case o.q.Node != "" && node != o.q.Node && !strings.HasPrefix(node, o.q.Node+"/"):
			return false
		case o.q.Type != "" && p.class != o.q.Type:
			return false
		}
		matches := func(text string) bool { return pattern.MatchString(timeline.Sanitize(text)) }
		return o.q.Grep == "" || tools && p.class == wire.LineTool || slices.ContainsFunc([]string{p.text, p.call.Input, p.call.Output}, matches)
	}, nil
}

// hasEnded reports whether a run has ended, and no later than at a position. Behind its end there may be what it was told.
func (a viewVerbs) hasEnded(ctx context.Context, log *feed.Reader, run string, pos uint64) (bool, error) {
	state, err := presentState(ctx, log, run)
	if err != nil || state.Status != wire.RunComplete && state.Status != wire.RunAborted {
		return false, err
	}
	for e, err := range log.Read(ctx, eventlog.Query{Run: run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: pos + 1}) {
		if err != nil || e.Event != nil && endsRun(e.Event) {
			return false, err
		}
	}
	return true, nil
}

// summaryKey is the environment variable with the key of the endpoint that
// summarizes: a flag would show it to every user of the machine.
const summaryKey = "WAKE_SUMMARY_KEY"

// summaryLines is how many of the last lines of a log a model is told.
const summaryLines = 100

// summaryModel returns the model that summarizes, if there is one.
func (o logOptions) summaryModel() (m summary.Model, asked bool, err error) {
	if !o.q.Summary || o.modelURL == "" {
		return m, false, nil
	}
	m = summary.Model{URL: o.modelURL, Name: o.modelName, Key: os.Getenv(summaryKey)}
	if err := m.Check(); err != nil {
		return m, false, usageError("--summary-url and --summary-model, or WAKE_SUMMARY_URL and WAKE_SUMMARY_MODEL, name it", "the model that summarizes: %w", err)
	}
	return m, true, nil
}

// retellSummary has a model tell what happened. If it can't, what was taken from the
// events stays.
func (a viewVerbs) retellSummary(ctx context.Context, nc *nats.Conn, o logOptions, m summary.Model, s *wire.LogSummary) {
	q := o.q
	q.Summary, q.Limit = false, new(summaryLines)
	page, err := api.Call[wire.LogResponse](ctx, nc, a.names, wire.VerbLog, q)
	if err == nil {
		var text strings.Builder
		fmt.Fprintf(&text, "%s\n\nThe last lines:\n", s.Text)
		for _, l := range page.Lines {
			fmt.Fprintf(&text, "%s %s: %s\n", l.Node, l.Type, l.Text)
		}
		var told string
		if told, err = m.Tell(ctx, text.String()); err == nil {
			s.Text, s.Model = told, m.Name
			return
		}
	}
	s.Problem = timeline.Line(err.Error(), 300)
	a.printNote("the model didn't summarize, this is taken from the events: %s\n", s.Problem)
}
