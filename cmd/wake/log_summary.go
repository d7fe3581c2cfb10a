package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/summary"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

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
