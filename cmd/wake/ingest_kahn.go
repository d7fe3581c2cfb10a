package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"wake/internal/eventlog"
	"wake/internal/ingest"
	"wake/internal/kahn"
	"wake/internal/timeline"
)

// maxFindings bounds the findings that are printed.
const maxFindings = 20

// ingestLines makes runs of agent transition events.
func (a *app) ingestLines(ctx context.Context, log *eventlog.Log, in io.Reader, o ingest.LinesOptions) error {
	var r ingest.LinesResult
	err := writing(ctx, log, func() (err error) {
		r, err = ingest.Lines(ctx, log, in, o)
		return err
	})
	if !a.json {
		if err := a.printFindings(r); err != nil {
			return err
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return failure(codeDetached, "give the input again: what is there is not added twice", "interrupted")
	case err != nil:
		return linesError(err)
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

// linesError says what can be done about lines that are refused.
func linesError(err error) error {
	changed, isChanged := errors.AsType[*ingest.ChangedError](err)
	refused, isRefused := errors.AsType[*ingest.LineError](err)
	switch {
	case isChanged:
		return failure(codeRunExists, "what is recorded stays; give the lines another --run", "%w", changed)
	case isRefused:
		return usage("without --strict it is recorded, and told", "%w", refused)
	case errors.Is(err, ingest.ErrExists), errors.Is(err, ingest.ErrComplete):
		return failure(codeRunExists, "give the lines another --run; a file that is going to grow needs --more", "%w", err)
	case errors.Is(err, ingest.ErrEmpty), errors.Is(err, ingest.ErrNoLine):
		return usage("pipe lines of KAHN in, or name a file", "%w", err)
	}
	return err
}

func (a *app) printFindings(r ingest.LinesResult) error {
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

func (a *app) printLinesRun(r *ingest.LinesRun) error {
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

func (a *app) printLinesAgent(runID string, g kahn.Agent) error {
	line := fmt.Sprintf("%s/%s: %s, %d steps, %d tool calls, %d audits", runID, g.AgentID, g.Outcome, g.Steps, g.ToolCalls, g.Audits)
	_, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage))
	return err
}
