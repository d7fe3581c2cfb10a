package main

import (
	"context"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// maxFindings bounds the findings that are printed.
const maxFindings = 20

// ingestLines makes runs of agent transition events.
func (a fileVerbs) ingestLines(ctx context.Context, nc *nats.Conn, in io.Reader, size int64, o ingest.LinesOptions) error {
	var r ingest.LinesResult
	q := wire.IngestRequest{Format: string(ingest.Kahn), Run: o.RunID, Labels: o.Labels, Strict: o.Strict, More: o.More}
	m := a.newMeter("ingest", unitBytes)
	err := inlet.Send(ctx, nc, a.names, q, newCounted(in, size, m), &r)
	m.eraseLine()
	if !a.json {
		found := printer{w: a.errOut}
		if found.printFindings(r); found.err != nil {
			return found.err
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return serviceError(codeDetached, "give the input again: what is there is not added twice", "interrupted")
	case err != nil:
		return err
	case a.json:
		return a.printJSON(r)
	}
	p := printer{w: a.out}
	for _, run := range r.Runs {
		p.printLinesRun(run)
	}
	return p.err
}

func (p *printer) printFindings(r ingest.LinesResult) {
	shown := r.Findings[:min(len(r.Findings), maxFindings)]
	for _, f := range shown {
		p.printLine("%s", timeline.Line(fmt.Sprintf("line %d: %s: %s: %s", f.Line, f.RunID, f.Severity, f.Problem), maxMessage))
	}
	if more := r.Found - len(shown); more > 0 {
		p.printLine("and %d more", more)
	}
}

func (p *printer) printLinesRun(r *ingest.LinesRun) {
	state := "goes on"
	if r.Complete {
		state = "complete"
	}
	line := fmt.Sprintf("%s: %d lines of kahn, %d new, %d lines kept as they are, %s", r.RunID, r.Lines, r.Added, r.Raw, state)
	p.printLine("%s", timeline.Line(line, maxMessage))
	for _, g := range r.Agents {
		line := fmt.Sprintf("%s/%s: %s, %d steps, %d tool calls, %d audits", r.RunID, g.AgentID, g.Outcome, g.Steps, g.ToolCalls, g.Audits)
		p.printLine("%s", timeline.Line(line, maxMessage))
	}
}
