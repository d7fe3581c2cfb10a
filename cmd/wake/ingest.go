package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/agent/claude"
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
		Use:   "ingest [FILE|FOLDER...|-]",
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
order of their times. Of several files or folders each is a run; the first that
can't be read ends it.

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
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Format = ingest.Format(format)
			if err := completeIngest(&o, labels); err != nil {
				return err
			}
			switch {
			case len(args) == 0:
				args = []string{"-"}
			case len(args) > 1 && (o.RunID != "" || transcript != ""):
				return usageError("give one after the other", "--run and --transcript are of one input, and there are %d", len(args))
			case len(args) > 1 && slices.Contains(args, "-"):
				return usageError("", "stdin is read by itself, not beside files")
			case o.Format == ingest.Kahn && cmd.Flags().Changed("node"):
				return usageError("", "--node: lines of kahn name their agents")
			}
			o.Join = o.RunID == "" && transcript == "" && !cmd.Flags().Changed("node")
			lines.RunID, lines.Labels = o.RunID, o.Labels
			for _, input := range args { // before anything is stored
				if _, err := os.Stat(input); input != "-" && err != nil {
					return usageError("", "input: %w", err)
				}
			}
			for _, input := range args {
				if err := a.ingestOne(cmd.Context(), input, o, lines, transcript); err != nil {
					return err
				}
			}
			return nil
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

// ingestOne makes a run of an input, or of kahn's lines several.
func (a fileVerbs) ingestOne(ctx context.Context, input string, o ingest.Options, lines ingest.LinesOptions, transcript string) error {
	o.RunID = cmp.Or(o.RunID, newRunID())
	in, err := a.openFeed(input, &o)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	var verdict *completeness.Verdict
	if transcript != "" {
		if verdict, err = compareFeeds(input, transcript); err != nil {
			return err
		}
	}
	return a.ingestInput(ctx, in, o, lines, verdict)
}

func completeIngest(o *ingest.Options, labels []string) error {
	if !slices.Contains(ingest.Formats(), o.Format) {
		return usageError("it is "+ingest.Names(), "--format: %q is unknown", o.Format)
	}
	if err := subjects.CheckNewRun(o.RunID); o.RunID != "" && err != nil {
		return usageError("", "--run: %w", err)
	}
	if err := subjects.CheckID(o.NodeID); err != nil {
		return usageError("", "--node: %w", err)
	}
	var err error
	o.Labels, err = parseLabels(labels)
	return err
}

// openInput opens the file of a name, or stdin, which is -.
func (a fileVerbs) openInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.in), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, usageError("", "input: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close() // nothing was read
		return nil, usageError("", "input: %s is a folder", name)
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
	case errors.Is(err, ingest.ErrDatabase), errors.Is(err, ingest.ErrBinary):
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
	err := inlet.Send(ctx, nc, a.names, q, a.newInput(in, size, m), &r)
	m.eraseLine()
	switch {
	case errors.Is(err, inlet.ErrUnstored):
		return serviceError(codeDetached, "wake doctor says what keeps it from that", "interrupted; the runner hasn't stored yet what it was given of run %s: it does when it can", o.RunID)
	case err != nil && ctx.Err() != nil:
		return serviceError(codeDetached, "wake delete "+o.RunID+" removes it; then give the input again", "interrupted; what was read is run %s", o.RunID)
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

// comparedResult is a result with what the comparison of both feeds has shown.
type comparedResult struct {
	ingest.Result

	Completeness *completeness.Verdict `json:"completeness"`
}

// compareFeeds compares the stream that is named with a session: its file, its folder, or the folder that has both.
func compareFeeds(input, transcript string) (*completeness.Verdict, error) {
	if input == "-" {
		return nil, usageError("name the file of the stream", "--transcript: what comes by stdin can't be read twice")
	}
	if info, err := os.Stat(input); err == nil && info.IsDir() {
		return nil, usageError("name the file of the stream", "--transcript is compared with a stream, and %s is a folder", input)
	}
	stream, err := readFeed(input)
	if err != nil {
		return nil, err
	}
	file, err := sessionFile(transcript, stream.Session())
	if err != nil {
		return nil, err
	}
	session, err := readFeed(file)
	if err != nil {
		return nil, err
	}
	agents, err := subAgents(file)
	if err != nil {
		return nil, usageError("", "--transcript: %w", err)
	}
	for _, a := range agents {
		session.ReadAgent(a.File, a.Call, claude.Lines(bytes.NewReader(a.Content), claude.MaxLine))
	}
	v := completeness.Compare(stream, session)
	return &v, nil
}

func readFeed(file string) (completeness.Feed, error) {
	f, err := os.Open(file)
	if err != nil {
		return completeness.Feed{}, usageError("", "--transcript: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return completeness.Read(claude.Lines(f, claude.MaxLine)), nil
}

// printVerdict writes the verdict and its evidence.
func printVerdict(w io.Writer, v completeness.Verdict) error {
	p := printer{w: w}
	p.printLine("feeds: %s (%d in both)", v, v.Shared)
	for _, side := range []struct {
		name  string
		items []completeness.Item
	}{{"stream", v.StreamLacks}, {"transcript", v.TranscriptLacks}} {
		for _, i := range side.items {
			p.printLine("  the %s lacks %s", side.name, timeline.Line(i.String(), maxMessage))
		}
	}
	return p.err
}

// newInput is an input of so many bytes, if that is known, which a meter counts. That the runner doesn't get on with it is said once.
func (a fileVerbs) newInput(in io.Reader, size int64, m *meter) inlet.Input {
	return inlet.Input{Reader: newCounted(in, size, m), Waits: func() {
		a.log.Warn("waiting for the runner to store what it was given; if it lasts, wake doctor says what is wrong")
	}}
}

// maxFindings bounds the findings that are printed.
const maxFindings = 20

// ingestLines makes runs of agent transition events.
func (a fileVerbs) ingestLines(ctx context.Context, nc *nats.Conn, in io.Reader, size int64, o ingest.LinesOptions) error {
	var r ingest.LinesResult
	q := wire.IngestRequest{Format: string(ingest.Kahn), Run: o.RunID, Labels: o.Labels, Strict: o.Strict, More: o.More}
	m := a.newMeter("ingest", unitBytes)
	err := inlet.Send(ctx, nc, a.names, q, a.newInput(in, size, m), &r)
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
