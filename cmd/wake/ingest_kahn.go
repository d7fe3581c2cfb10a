package main

import (
	"context"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// maxFindings bounds the findings that are printed.
const maxFindings = 20

// ingestLines makes runs of agent transition events.
func (a fileVerbs) ingestLines(ctx context.Context, nc *nats.Conn, in io.Reader, o ingest.LinesOptions) error {
	var r ingest.LinesResult
	q := wire.IngestRequest{Format: string(ingest.Kahn), Run: o.RunID, Labels: o.Labels, Strict: o.Strict, More: o.More}
	err := inlet.Send(ctx, nc, a.names, q, in, &r)
	if !a.json {
		if err := a.printFindings(r); err != nil {
			return err
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
	for _, run := range r.Runs {
		if err := a.printLinesRun(run); err != nil {
			return err
		}
	}
	return nil
}

func (a fileVerbs) printFindings(r ingest.LinesResult) error {
	for i, f := range r.Findings {
		if i == maxFindings {
			break
		}
		line := fmt.Sprintf("line %d: %s: %s: %s", f.Line, f.RunID, f.Severity, f.Problem)
		if _, err := fmt.Fprintln(a.errOut, timeline.Line(line, maxMessage)); err != nil {
			return err
		}
	}
	if more := r.Found - min(len(r.Findings), maxFindings); more > 0 {
		if _, err := fmt.Fprintf(a.errOut, "and %d more\n", more); err != nil {
			return err
		}
	}
	return nil
}

func (a fileVerbs) printLinesRun(r *ingest.LinesRun) error {
	state := "goes on"
	if r.Complete {
		state = "complete"
	}
	line := fmt.Sprintf("%s: %d lines of kahn, %d new, %d lines kept as they are, %s", r.RunID, r.Lines, r.Added, r.Raw, state)
	if _, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage)); err != nil {
		return err
	}
	for _, agent := range r.Agents {
		if err := a.printLinesAgent(r.RunID, agent); err != nil {
			return err
		}
	}
	return nil
}

func (a fileVerbs) printLinesAgent(runID string, g kahn.Agent) error {
	line := fmt.Sprintf("%s/%s: %s, %d steps, %d tool calls, %d audits", runID, g.AgentID, g.Outcome, g.Steps, g.ToolCalls, g.Audits)
	_, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage))
	return err
}
