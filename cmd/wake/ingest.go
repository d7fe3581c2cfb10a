package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"wake/internal/eventlog"
	"wake/internal/ingest"
	"wake/internal/timeline"
	"wake/pkg/subjects"
)

func (a *app) ingestCommand() *cobra.Command {
	var o ingest.Options
	var lines ingest.LinesOptions
	var format string
	var labels []string
	cmd := &cobra.Command{
		Use:   "ingest [FILE|-]",
		Short: "Make a run of what an agent printed, or of its session file",
		Long: `Make a run of what an agent printed, or of its session file, as it comes:

    claude -p "…" --output-format stream-json --verbose | wake ingest --node coder
    wake ingest ~/.claude/projects/…/5e551011.jsonl
    wake ingest --format kahn transitions.jsonl

Lines of KAHN, agent transition events, name their runs and agents themselves; a
file that has grown is given again, and only what is new is added.

Lines that are no messages are kept too. The exit code doesn't say whether the
agent succeeded; the result does.`,
		Args: arguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Format = ingest.Format(format)
			named := o.RunID
			if err := completeIngest(&o, labels); err != nil {
				return err
			}
			in, err := a.input(args)
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }() // it was only read
			lines.RunID, lines.Labels, lines.Runner = named, o.Labels, o.Runner
			if o.Format == ingest.Kahn && cmd.Flags().Changed("node") {
				return usage("", "--node: lines of kahn name their agents")
			}
			return a.ingest(cmd.Context(), in, o, lines)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.RunID, "run", "", "`id` of the run (default: a new ULID; of kahn what its lines say)")
	flags.StringVar(&o.NodeID, "node", "agent", "`node` that the agent is")
	flags.StringVar(&format, "format", string(ingest.Auto), "`format` of the input: auto, stream-json, transcript or kahn")
	flags.StringArrayVar(&labels, "label", nil, "label of the run, `key=value`; name=… is how alerts call it")
	flags.BoolVar(&lines.Strict, "strict", false, "of kahn: refuse the first line that isn't in order")
	flags.BoolVar(&lines.More, "more", false, "of kahn: more lines will come, so that runs aren't complete when their agents have ended")
	return cmd
}

func completeIngest(o *ingest.Options, labels []string) error {
	switch o.Format {
	case ingest.Auto, ingest.StreamJSON, ingest.Transcript, ingest.Kahn:
	default:
		return usage("auto, stream-json, transcript and kahn are known", "--format: %q is unknown", o.Format)
	}
	if o.RunID == "" {
		o.RunID = newRunID()
	}
	if err := subjects.CheckID(o.RunID); err != nil {
		return usage("", "--run: %w", err)
	}
	if err := subjects.CheckID(o.NodeID); err != nil {
		return usage("", "--node: %w", err)
	}
	host, _ := os.Hostname() // only to be recognized by
	o.Runner = fmt.Sprintf("ingest-%.40s-%d", host, os.Getpid())
	var err error
	o.Labels, err = parseLabels(labels)
	return err
}

// input opens the file that is named, or stdin.
func (a *app) input(args []string) (io.ReadCloser, error) {
	if len(args) == 0 || args[0] == "-" {
		return io.NopCloser(a.in), nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, usage("", "input: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close() // nothing was read
		return nil, usage("", "input: %s is a folder", args[0])
	}
	return f, nil
}

// ingest reads the input in its format.
func (a *app) ingest(ctx context.Context, in io.Reader, o ingest.Options, lines ingest.LinesOptions) error {
	log, err := a.openLog(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	buffered, format, err := ingest.Detect(in, o.Format)
	switch {
	case err != nil:
		return ingestError(err, o)
	case format == ingest.Kahn:
		return a.ingestLines(ctx, log, buffered, lines)
	case lines.Strict || lines.More:
		return usage("", "--strict and --more are about lines of kahn, and this is %s", format)
	}
	o.Format = format
	return a.ingestAgent(ctx, log, buffered, o)
}

// ingestAgent makes a run of what one agent printed.
func (a *app) ingestAgent(ctx context.Context, log *eventlog.Log, in io.Reader, o ingest.Options) error {
	if !a.json {
		a.note("run %s\n", o.RunID)
	}
	var r ingest.Result
	err := writing(ctx, log, func() (err error) {
		r, err = ingest.Run(ctx, log, in, o)
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return failure(codeDetached, "wake log "+o.RunID, "interrupted; what was read is run %s", o.RunID)
	case err != nil:
		return ingestError(err, o)
	case a.json:
		return a.printJSON(r)
	}
	return a.printIngested(r)
}

// ingestError says what can be done about an input that is refused.
func ingestError(err error, o ingest.Options) error {
	switch {
	case errors.Is(err, ingest.ErrExists):
		return failure(codeRunExists, "choose another --run", "run %s exists", o.RunID)
	case errors.Is(err, ingest.ErrEmpty):
		return usage("pipe the agent's output in, or name a file", "%w", err)
	}
	return err
}

func (a *app) printIngested(r ingest.Result) error {
	how := "complete"
	if r.Failed {
		how = "failed: " + r.Error
	}
	line := fmt.Sprintf("%s/%s: %d lines of %s, %d events, %d lines kept as they are, agent %s", r.RunID, r.NodeID, r.Lines, r.Format, r.Events, r.Raw, how)
	_, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage))
	return err
}

// writing runs f, which writes to the log, and returns when what it wrote is
// stored.
func writing(ctx context.Context, log *eventlog.Log, f func() error) error {
	if err := log.CheckKeys(ctx); err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- log.Run(running) }()
	err := f()
	stop()
	return errors.Join(err, <-done)
}
