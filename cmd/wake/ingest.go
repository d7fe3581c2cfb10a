package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func (a fileVerbs) ingestCommand() *cobra.Command {
	var o ingest.Options
	var lines ingest.LinesOptions
	var format, transcript string
	var labels []string
	cmd := &cobra.Command{
		Use:   "ingest [FILE|FOLDER|-]",
		Short: "Make a run of what an agent printed, or of its session's files",
		Long: `Make a run of what an agent printed, or of its session's files, as it comes:

    claude -p "…" --output-format stream-json --verbose | wake ingest --node coder
    wake ingest ~/.claude/projects/…/5e551011.jsonl
    wake ingest ~/.claude/projects/…/5e551011
    wake ingest ~/.codex/sessions/2026/11/25/rollout-….jsonl
    wake ingest ~/.gemini/tmp/…/chats/session-….jsonl
    opencode export ses_… | wake ingest
    wake ingest --format kahn transitions.jsonl
    wake ingest stream.jsonl --transcript ~/.claude/projects/…/5e551011.jsonl

Of a session's folder, its file and those of its sub-agents are one run, in the
order of their times.

A stream of Claude Code whose session is watched (wake watch) joins the run of that:
each line is there once, and the run says whether the stream and the session file tell
the same. With --run, --node or --label it is a run of its own; so it is for the users
of a server with credentials, since ingesters may only add runs.

With --transcript it says whether the stream and the session file tell the same,
and names the messages, calls and results that only one of them has. The files of
sub-agents, in the folder beside it, are part of the session; a folder of sessions
can be named, too.

Lines of KAHN, agent transition events, name their runs and agents themselves; a
file that has grown is given again, and only what is new is added.

Lines that are no messages are kept too. The exit code doesn't say whether the
agent succeeded; the result does.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Format = ingest.Format(format)
			named := o.RunID
			if err := completeIngest(&o, labels); err != nil {
				return err
			}
			in, err := a.openFeed(args, &o)
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }() // it was only read
			var verdict *completeness.Verdict
			if transcript != "" {
				if verdict, err = compareFeeds(args, transcript); err != nil {
					return err
				}
			}
			o.Join = named == "" && transcript == "" && !cmd.Flags().Changed("node")
			lines.RunID, lines.Labels = named, o.Labels
			if o.Format == ingest.Kahn && cmd.Flags().Changed("node") {
				return usageError("", "--node: lines of kahn name their agents")
			}
			return a.ingestInput(cmd.Context(), in, o, lines, verdict)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.RunID, "run", "", "`id` of the run (default: a new ULID; of kahn what its lines say)")
	flags.StringVar(&o.NodeID, "node", "agent", "`node` that the agent is")
	flags.StringVar(&format, "format", string(ingest.Auto), "`format` of the input: "+ingest.Names())
	flags.StringArrayVar(&labels, "label", nil, "label of the run, `key=value`; name=… is how alerts call it")
	flags.StringVar(&transcript, "transcript", "", "session `file` or folder of the same session, to compare the stream with")
	flags.BoolVar(&lines.Strict, "strict", false, "of kahn: refuse the first line that isn't in order")
	flags.BoolVar(&lines.More, "more", false, "of kahn: more lines will come, so that runs aren't complete when their agents have ended")
	return cmd
}

func completeIngest(o *ingest.Options, labels []string) error {
	if !slices.Contains(ingest.Formats(), o.Format) {
		return usageError("it is "+ingest.Names(), "--format: %q is unknown", o.Format)
	}
	o.RunID = cmp.Or(o.RunID, newRunID())
	if err := subjects.CheckID(o.RunID); err != nil {
		return usageError("", "--run: %w", err)
	}
	if err := subjects.CheckID(o.NodeID); err != nil {
		return usageError("", "--node: %w", err)
	}
	var err error
	o.Labels, err = parseLabels(labels)
	return err
}

// openInput opens the file that is named, or stdin.
func (a fileVerbs) openInput(args []string) (io.ReadCloser, error) {
	if len(args) == 0 || args[0] == "-" {
		return io.NopCloser(a.in), nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, usageError("", "input: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close() // nothing was read
		return nil, usageError("", "input: %s is a folder", args[0])
	}
	return f, nil
}

// ingestInput reads the input in its format.
func (a fileVerbs) ingestInput(ctx context.Context, in io.Reader, o ingest.Options, lines ingest.LinesOptions, verdict *completeness.Verdict) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	size := sizeOf(in)
	buffered, format, err := ingest.Detect(in, o.Format)
	switch {
	case errors.Is(err, ingest.ErrEmpty):
		return usageError("pipe the agent's output in, or name a file", "%w", err)
	case errors.Is(err, ingest.ErrDatabase):
		return usageError("", "%w", err)
	case err != nil:
		return err
	case format == ingest.Kahn:
		return a.ingestLines(ctx, nc, buffered, size, lines)
	case lines.Strict || lines.More:
		return usageError("", "--strict and --more are about lines of kahn, and this is %s", format)
	case verdict != nil && format != ingest.StreamJSON:
		return usageError("", "--transcript is compared with a stream, and this is %s", format)
	}
	o.Format = format
	return a.ingestAgent(ctx, nc, buffered, size, o, verdict)
}

// ingestAgent makes a run of what one agent printed.
func (a fileVerbs) ingestAgent(ctx context.Context, nc *nats.Conn, in io.Reader, size int64, o ingest.Options, verdict *completeness.Verdict) error {
	if !a.json {
		a.printNote("run %s\n", o.RunID)
	}
	var r ingest.Result
	q := wire.IngestRequest{Format: string(o.Format), Run: o.RunID, Node: o.NodeID, Labels: o.Labels, Join: o.Join}
	if verdict != nil {
		var err error
		if q.Compared, err = wire.Marshal(verdict); err != nil {
			return err
		}
	}
	m := a.newMeter("ingest", unitBytes)
	err := inlet.Send(ctx, nc, a.names, q, newCounted(in, size, m), &r)
	m.eraseLine()
	switch {
	case err != nil && ctx.Err() != nil:
		return serviceError(codeDetached, "wake log "+o.RunID, "interrupted; what was read is run %s", o.RunID)
	case err != nil:
		return err
	case a.json && verdict != nil:
		return a.printJSON(comparedResult{r, verdict})
	case a.json:
		return a.printJSON(r)
	}
	for next := &r; next != nil; next = next.Next {
		compared := verdict
		if next.Verdict != nil {
			a.printNote("its session is run %s already: it was added to that\n", next.RunID)
			compared = next.Verdict
		}
		if err := a.printIngested(*next); err != nil {
			return err
		}
		if compared == nil {
			continue
		}
		if err := printVerdict(a.out, *compared); err != nil {
			return err
		}
	}
	return nil
}

func (a fileVerbs) printIngested(r ingest.Result) error {
	how := "complete"
	if r.Failed {
		how = "failed: " + r.Error
	}
	line := fmt.Sprintf("%s/%s: %d lines of %s, %d events, %d lines kept as they are, agent %s", r.RunID, r.NodeID, r.Lines, r.Format, r.Events, r.Raw, how)
	_, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage))
	return err
}
