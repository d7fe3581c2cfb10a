package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// The formats of wake export.
const (
	formatJSONL       = "jsonl"
	formatOpenHarness = "openharness"
	formatKahn        = "kahn"
	formatClaude      = "claude"
	formatCodex       = "codex"
	formatSQLite      = "sqlite"
	formatHTML        = "html"
	formatOTLP        = "otlp"
)

// exportOptions are the flags of wake export.
type exportOptions struct {
	format   string
	file     string
	store    string // read this one, instead of a server's log
	follow   bool
	node     string
	rebuild  bool
	content  bool
	endpoint string
	headers  []string
	kahn     kahn.Projection
}

// exportSummary is what wake export says of itself with --json.
type exportSummary struct {
	export.Result
	Format string `json:"format"`
	File   string `json:"file,omitempty"`
	Source string `json:"source,omitempty"` // of a session: kept (its file) or log (written anew)

	// Dropped counts transitions that --strict left out, and lines of an imported run
	// that were none (kahn).
	Dropped int `json:"dropped,omitempty"`
}

func (a fileVerbs) exportCommand() *cobra.Command {
	o := exportOptions{}
	q := eventlog.Query{}
	cmd := &cobra.Command{
		Use:   "export RUN",
		Short: "Write a run in the format of something else",
		Long: `Write a run in the format of something else:

    jsonl        every event as it is stored, with a hash chain; wake import takes it
    openharness  events as the agent observability specification spells them
    kahn         agent transition events
    claude       the session file of an agent, for claude --resume
    codex        the conversation of an agent as a session of Codex, for codex resume
    sqlite       the recorder's tables with this run alone
    html         a page for people, which needs nothing but itself
    otlp         traces of OpenTelemetry in JSON, to a file or an endpoint

A second export of the same run is the same, byte for byte. What the stream has
dropped already is taken from the recorder, and everything from a recorder's store
if one is named. A file that is there is replaced, once
the new one is whole; it may hold secrets that agents have seen.`,
		Example: `    wake export @last -o run.jsonl
    wake export @last --format html -o run.html
    wake export @last --format otlp --endpoint http://localhost:4318/v1/traces`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if err := o.checkFlags(q); err != nil {
				return err
			}
			if o.store != "" {
				return interruptError(ctx, a.exportStore(ctx, args[0], q, o))
			}
			log, run, err := a.openRecord(ctx, args[0])
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			q.Run = run
			return interruptError(ctx, a.exportLog(ctx, log, q, o))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.format, "format", formatJSONL, "`format`: jsonl, openharness, kahn, claude, codex, sqlite, html or otlp")
	flags.StringVarP(&o.file, "output", "o", "", "write to this `file` instead of stdout")
	flags.Uint64Var(&q.From, "from", 0, "begin at this `position` of the log")
	flags.Uint64Var(&q.To, "to", 0, "end at this `position` of the log")
	flags.BoolVar(&o.follow, "follow", false, "go on until the run has ended")
	storeFlag(flags, &o.store, "read this `store` of a recorder, a SQLite file or postgres://…, instead of a server's log")
	flags.StringVar(&o.node, "node", "", "of claude and codex: the `node` whose session it is")
	flags.BoolVar(&o.rebuild, "rebuild", false, "of claude: write the session from the log, even if its own file was kept")
	flags.StringVar(&o.endpoint, "endpoint", "", "of otlp: send the spans to this `URL`, such as http://localhost:4318/v1/traces")
	flags.StringArrayVar(&o.headers, "header", nil, "of otlp: `name: value` of requests to the endpoint")
	flags.BoolVar(&o.content, "content", false, "of otlp: what tools were given and gave, too")
	kahnFlags(flags, &o.kahn)
	return cmd
}

// checkFlags refuses flags that don't fit together.
func (o *exportOptions) checkFlags(q eventlog.Query) error {
	if o.file == "-" {
		o.file = ""
	}
	formats := []string{formatJSONL, formatOpenHarness, formatKahn, formatClaude, formatCodex, formatSQLite, formatHTML, formatOTLP}
	only := func(set bool, flag string, of ...string) error {
		if set && !slices.Contains(of, o.format) {
			return usageError("", "--%s: it is of --format %s", flag, strings.Join(of, " and "))
		}
		return nil
	}
	switch {
	case !slices.Contains(formats, o.format):
		return usageError(strings.Join(formats, ", ")+" are known", "--format: %q is unknown", o.format)
	case o.format == formatSQLite && o.file == "":
		return usageError("wake export RUN --format sqlite -o run.db", "--output: a database needs a file")
	case q.To > 0 && q.To < q.From:
		return usageError("", "--to %d is before --from %d", q.To, q.From)
	case o.format == formatKahn && q.From > 0:
		return usageError("", "--from: where an agent is follows from its beginning")
	case o.store != "" && (o.follow || o.format == formatClaude || o.format == formatCodex || o.format == formatSQLite):
		return usageError("", "--store: --follow and the formats claude, codex and sqlite want a server")
	case o.follow && q.To > 0:
		return usageError("", "--follow and --to contradict each other")
	}
	if o.endpoint != "" {
		if u, err := url.Parse(o.endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usageError("such as http://localhost:4318/v1/traces", "--endpoint: %q is no URL", o.endpoint)
		}
	}
	return errors.Join(
		only(o.node != "", "node", formatClaude, formatCodex), only(o.rebuild, "rebuild", formatClaude), only(o.content, "content", formatOTLP),
		only(o.endpoint != "", "endpoint", formatOTLP), only(len(o.headers) > 0, "header", formatOTLP),
		only(o.kahn.Strict, "strict", formatKahn), only(o.kahn.AuditScore, "audit-score", formatKahn),
	)
}

// source is where the events of a run come from.
type source struct {
	app   *app
	log   *feed.Reader // nil: there is a file
	file  *recorder.Store
	is    string // the incarnation of the file's stream
	query eventlog.Query
	until bool // the run has ended
	store bool // the recorder, since the stream has dropped some
}

// findSource finds out whether the stream still has what is asked for.
func (a fileVerbs) findSource(ctx context.Context, log *feed.Reader, q eventlog.Query, follow bool) (source, error) {
	s := source{app: a.app, log: log, query: q, until: follow}
	first, _, err := log.Bounds(ctx)
	if err != nil {
		return s, err
	}
	if q.From >= first && q.From > 0 {
		return s, nil
	}
	s.store = true
	for e, err := range log.Read(ctx, eventlog.Query{Run: q.Run, Node: wire.RunNode}) {
		if err != nil {
			return s, err
		}
		if e.Event != nil {
			s.store = e.Event.Seq > 1
			break
		}
	}
	if s.store && follow {
		return s, serviceError(codeFailed, "export it without --follow", "the stream has dropped the beginning of run %s", q.Run)
	}
	return s, nil
}

// readEvents yields the events of the run, as they are stored.
func (s source) readEvents(ctx context.Context, kinds ...wire.Kind) export.Events {
	q := s.query
	q.Kinds = kinds
	switch {
	case s.file != nil:
		return ofKinds(s.file.Answers.Entries(ctx, recorder.Query{Run: q.Run, From: q.From, To: q.To}), kinds)
	case s.store:
		return history.Recorded(ctx, s.log, q)
	case s.until && len(kinds) == 0:
		return s.followEvents(ctx, q)
	}
	return s.log.Read(ctx, q)
}

// ofKinds leaves out what is of no kind that is wanted, if any are named.
func ofKinds(events export.Events, kinds []wire.Kind) export.Events {
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range events {
			if (err != nil || len(kinds) == 0 || slices.Contains(kinds, e.Kind)) && !yield(e, err) {
				return
			}
		}
	}
}

// followEvents yields events until the run has ended.
func (s source) followEvents(ctx context.Context, q eventlog.Query) export.Events {
	return func(yield func(eventlog.Entry, error) bool) {
		fenced := claims{}
		for e, err := range s.log.Follow(ctx, q) {
			if !yield(e, err) || err != nil {
				return
			}
			if e.Event == nil {
				continue
			}
			if over, err := fenced.areOver(ctx, s.log, e); over || err != nil {
				if err != nil {
					yield(eventlog.Entry{}, err)
				}
				return
			}
		}
	}
}

func (a fileVerbs) exportLog(ctx context.Context, log *feed.Reader, q eventlog.Query, o exportOptions) error {
	src, err := a.findSource(ctx, log, q, o.follow)
	if err != nil {
		return err
	}
	return a.exportRun(ctx, src, o)
}

// exportStore exports from a recorder's store.
func (a fileVerbs) exportStore(ctx context.Context, ref string, q eventlog.Query, o exportOptions) (err error) {
	store, err := openStored(ctx, o.store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if q.Run, err = store.Answers.Find(ctx, ref); err != nil {
		return err
	}
	at, err := store.Archive.Position(ctx)
	if err != nil {
		return err
	}
	return a.exportRun(ctx, source{app: a.app, file: store, is: at.Incarnation, query: q}, o)
}

// exportRun writes a run and says what was written.
func (a fileVerbs) exportRun(ctx context.Context, src source, o exportOptions) error {
	out, err := a.newOutput(o.file)
	if err != nil {
		return err
	}
	defer out.discardFile()
	m := a.newMeter("export", "events").start()
	done := exportSummary{Format: o.format, File: o.file}
	switch o.format {
	case formatKahn:
		err = a.exportKahnTo(ctx, src, m, out, o, &done)
	case formatClaude, formatCodex:
		err = a.exportSession(ctx, src, m, out, o, &done)
	case formatSQLite:
		done.Result, err = a.exportSQLite(ctx, src, m, out)
	case formatOTLP:
		done.Result, err = a.exportOTLP(ctx, src, m, out, o)
	default:
		done.Result, err = a.exportText(ctx, src, m, out, o)
	}
	m.eraseLine()
	if err == nil && done.Events == 0 && done.Source == "" {
		err = serviceError(string(wire.CodeNotFound), "wake runs", "run %s has no events there", src.query.Run)
	}
	if err == nil {
		err = out.keepFile()
	}
	if err != nil {
		return err
	}
	return a.printExported(ctx, done, o)
}

// maxPageAlerts bounds the alerts of a page.
const maxPageAlerts = 500

// exportText writes the formats that are text.
func (a fileVerbs) exportText(ctx context.Context, src source, m *meter, out *exportOutput, o exportOptions) (export.Result, error) {
	run := src.runInfo()
	switch o.format {
	case formatJSONL:
		return export.JSONL(out, run, m.countEvents(src.readEvents(ctx)), src.blobFetcher(ctx))
	case formatOpenHarness:
		var first export.Events
		if !src.until {
			first = src.readEvents(ctx)
		}
		return src.exportWhole(ctx, m, func(events export.Events) (export.Result, error) { return export.OpenHarness(out, run, events, first) })
	default:
		var err error
		if run.Alerts, err = src.lastAlerts(ctx); err != nil {
			return export.Result{}, err
		}
		return src.exportWhole(ctx, m, func(events export.Events) (export.Result, error) { return export.HTML(out, run, events) })
	}
}

// lastAlerts returns the last alerts of the run, the oldest first.
func (s source) lastAlerts(ctx context.Context) ([]wire.Alert, error) {
	if s.file == nil {
		return s.log.LastAlerts(ctx, s.query.Run, maxPageAlerts)
	}
	r, err := s.file.Answers.Alerts(ctx, wire.AlertsRequest{Run: s.query.Run, Limit: maxPageAlerts}, math.MaxInt)
	slices.Reverse(r.Alerts)
	return r.Alerts, err
}

func (s source) runInfo() export.Run {
	is := s.is
	if s.file == nil {
		is = s.log.Incarnation()
	}
	return export.Run{ID: s.query.Run, Incarnation: is, From: s.query.From, To: s.query.To}
}

func (s source) blobFetcher(ctx context.Context) export.Fetch {
	if s.file != nil {
		return func(sum string) ([]byte, error) { return s.file.Answers.Blob(ctx, sum) }
	}
	return func(sum string) ([]byte, error) { return s.log.Blob(ctx, sum) }
}

// exportWhole calls f with the events and their large fields.
func (s source) exportWhole(ctx context.Context, m *meter, f func(export.Events) (export.Result, error)) (export.Result, error) {
	missing := 0
	r, err := f(export.Whole(m.countEvents(s.readEvents(ctx)), s.blobFetcher(ctx), func() { missing++ }))
	r.Missing = missing
	return r, err
}

func (a fileVerbs) exportKahnTo(ctx context.Context, src source, m *meter, out *exportOutput, o exportOptions, done *exportSummary) error {
	r, err := src.exportWhole(ctx, m, func(events export.Events) (export.Result, error) {
		k, dropped, err := a.exportKahn(ctx, src.query.Run, events, out, o.kahn)
		done.Dropped = dropped
		return k, err
	})
	done.Result = r
	return err
}

// exportOTLP writes spans to a file, or sends them.
func (a fileVerbs) exportOTLP(ctx context.Context, src source, m *meter, out *exportOutput, o exportOptions) (export.Result, error) {
	send := func(body []byte) error {
		_, err := out.Write(append(body, '\n'))
		return err
	}
	if o.endpoint != "" {
		header, err := headersOf(o.headers)
		if err != nil {
			return export.Result{}, err
		}
		endpoint := export.Endpoint{URL: o.endpoint, Header: header, Client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}}}
		defer endpoint.Client.CloseIdleConnections()
		write := send
		send = func(body []byte) error {
			if o.file != "" {
				if err := write(body); err != nil {
					return err
				}
			}
			if err := endpoint.Post(ctx, body); err != nil {
				return serviceError(codeFailed, "is it an endpoint of OTLP/HTTP that takes JSON? A second export sends the same spans", "export: %w", err)
			}
			return nil
		}
	}
	return src.exportWhole(ctx, m, func(events export.Events) (export.Result, error) {
		return export.OTLP(src.runInfo(), events, export.Spans{Content: o.content}, send)
	})
}

// headersOf reads "name: value" pairs.
func headersOf(pairs []string) (http.Header, error) {
	h := http.Header{}
	for _, p := range pairs {
		name, value, found := strings.Cut(p, ":")
		if name = strings.TrimSpace(name); !found || name == "" || strings.ContainsAny(p, "\r\n") {
			return nil, usageError("such as 'authorization: Bearer …'", "--header: %q is no header", name)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return h, nil
}

// printExported says what was written, unless it went to stdout.
func (a fileVerbs) printExported(ctx context.Context, done exportSummary, o exportOptions) error {
	if done.Skipped > 0 {
		a.log.WarnContext(ctx, "entries are left out", "run", done.RunID, "skipped", done.Skipped)
	}
	if done.Missing > 0 {
		a.log.WarnContext(ctx, "large fields are left out: the object store doesn't have them", "run", done.RunID, "missing", done.Missing)
	}
	to := cmp.Or(o.file, o.endpoint)
	switch {
	case to == "":
		return nil
	case a.json:
		return a.printJSON(done)
	}
	what := fmt.Sprintf("%d events", done.Events)
	if unit := "lines"; done.Written != done.Events && done.Session == "" { // of a session that is said below
		if done.Format == "otlp" {
			unit = "spans"
		}
		what = fmt.Sprintf("%d %s of %s", done.Written, unit, what)
	}
	lines := []string{fmt.Sprintf("%s: %s to %s, as %s", done.RunID, what, to, done.Format)}
	if done.Session != "" {
		lines = append(lines, sessionHint(done, o.file)...)
	}
	p := printer{w: a.out}
	for _, line := range lines {
		p.printLine("%s", timeline.Line(line, maxMessage))
	}
	return p.err
}

// exportOutput is where an export goes: stdout, or a file that takes the place of
// another when it is whole.
type exportOutput struct {
	io.Writer
	file *os.File
	path string // that it takes in the end
}

func (a fileVerbs) newOutput(path string) (*exportOutput, error) {
	if path == "" || path == "-" {
		return &exportOutput{Writer: a.out}, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, usageError("name a file", "--output: %s is no file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // readable by its owner only
	if err != nil {
		return nil, usageError("", "--output: %w", err)
	}
	return &exportOutput{Writer: f, file: f, path: path}, nil
}

// keepFile makes the file what it was to be.
func (o *exportOutput) keepFile() error {
	if o.file == nil {
		return nil
	}
	name := o.file.Name()
	if err := errors.Join(o.file.Sync(), o.file.Close()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := os.Rename(name, o.path); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	o.file = nil
	return nil
}

// discardFile removes what was not kept.
func (o *exportOutput) discardFile() {
	if o.file != nil {
		_ = o.file.Close() // it isn't kept
		_ = os.Remove(o.file.Name())
	}
}
