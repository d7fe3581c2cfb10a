package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/service"
)

type benchOptions struct {
	quick    bool
	replicas int
	only     string
	dir      string
	ages     []int
}

func (a hostVerbs) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure wake on this machine, or on a cluster",
		Long: `Measure wake against the server that it runs on: the same events are published
raw, in turn with those that wake stores, and the ratio is what counts. Beside
them is what one would use without wake: SQLite, and a file of JSON lines.

Without --nats-url the server is an embedded one in a temporary folder, or three
of them with --replicas 3. On a server of yours everything is in streams and
buckets WAKEBENCH-…, which are removed in the end, also after Ctrl-C.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runBench(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.quick, "quick", false, "take seconds, not minutes: fewer rounds, smaller runs")
	flags.IntVar(&o.replicas, "replicas", 1, "`number` of replicas of each stream")
	flags.StringVar(&o.only, "only", "", "`pattern` of the steps to run: "+strings.Join(stepNames(), ", "))
	flags.IntSliceVar(&o.ages, "ages", nil, "how many `runs` are stored when the step age measures one more, such as 0,1000,100000 (default 0,1000,10000)")
	flags.StringVar(&o.dir, "dir", "", "`folder` for the embedded server and the files that are compared, on a disk, not in memory (default: the system's for temporary files)")
	return cmd
}

// benchReport is what the verb prints as JSON.
type benchReport struct {
	Wake     string      `json:"wake"`
	Go       string      `json:"go"`
	Platform string      `json:"platform"`
	CPUs     int         `json:"cpus"`
	Server   string      `json:"server"` // its version
	Embedded bool        `json:"embedded"`
	Replicas int         `json:"replicas"`
	Quick    bool        `json:"quick,omitempty"`
	Rows     []bench.Row `json:"rows"`
}

// benchmark is one invocation of the verb.
type benchmark struct {
	app      *app
	o        benchOptions
	size     benchSize
	nc       *nats.Conn
	js       jetstream.JetStream
	dir      string // for files; removed in the end
	embedded bool
}

// benchSize says how much is measured.
type benchSize struct {
	rounds                  int
	events, alone, together int   // per round: stored by wake, raw or as files one by one, raw in batches
	acks, load              int   // acknowledgements per round; events/s meanwhile
	runs                    []int // events of the runs that are resumed
	backlog                 int   // events that a service catches up with
	alerts                  int
	lines                   []int // of the logs that are asked
	queries                 int
	stored, long            int   // runs, and events of one more, that a recorder is asked about
	incoming, asked         int   // events/s meanwhile; how often each question is asked
	active                  []int // runs in one runner
	subjects                int   // runs in the server
	ages                    []int // runs that are stored
	more                    int   // runs that are measured at each age, per round

	showEvery time.Duration // how often services show where they are; 0: as they do at work
}

func (o benchOptions) pickSize() benchSize {
	if o.quick {
		return benchSize{
			rounds: 2, events: 4000, alone: 200, together: 4000, acks: 50, load: 200, runs: []int{10, 1000},
			backlog: 3000, alerts: 5, lines: []int{1000}, queries: 3, stored: 40, long: 3000, incoming: 200, asked: 3, active: []int{1, 10}, subjects: 40, ages: []int{0, 50}, more: 10,
			showEvery: 100 * time.Millisecond, // what so few events show only in the end is waited for
		}
	}
	return benchSize{
		rounds: 5, events: 40_000, alone: 2000, together: 40_000, acks: 400, load: 300, runs: []int{10, 10_000, 1_000_000},
		backlog: 200_000, alerts: 300, lines: []int{1000, 1_000_000}, queries: 20, stored: 10_000, long: 1_000_000, incoming: 20_000, asked: 40, active: []int{1, 100, 10_000}, subjects: 5000, ages: []int{0, 1000, 10_000}, more: 100,
	}
}

// benchStep measures one thing, in an installation of its own.
type benchStep struct {
	name    string
	measure func(*benchmark, context.Context, *lab) ([]bench.Row, error)
}

func benchSteps() []benchStep {
	return []benchStep{
		{"ingest", (*benchmark).measureIngest},
		{"latency", (*benchmark).measureLatency},
		{"end-to-end", (*benchmark).endToEnd},
		{"catch-up", (*benchmark).catchUp},
		{"resume", (*benchmark).measureResume},
		{"queries", (*benchmark).measureQueries},
		{"answers", (*benchmark).measureAnswers},
		{"size", (*benchmark).measureSizes},
		{"server", (*benchmark).serverMemory},
		{"runs", (*benchmark).activeRuns},
		{"age", (*benchmark).measureAge},
	}
}

func stepNames() []string {
	var names []string
	for _, s := range benchSteps() {
		names = append(names, s.name)
	}
	return names
}

func (a hostVerbs) runBench(ctx context.Context, o benchOptions) (err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return usageError("", "--only: %w", err)
	}
	b := &benchmark{app: a.app, o: o, size: o.pickSize()}
	if len(o.ages) > 0 {
		b.size.ages = o.ages
	}
	if slices.Min(b.size.ages) < 0 || !slices.IsSorted(b.size.ages) {
		return usageError("such as --ages 0,1000,100000", "--ages: %v are not numbers that grow", b.size.ages)
	}
	if b.dir, err = os.MkdirTemp(o.dir, "wake-bench-"); err != nil {
		return usageError("choose another --dir", "folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	stop, err := b.connectServer(ctx)
	if err != nil {
		return err
	}
	defer stop()
	report := b.newReport()
	for _, s := range benchSteps() {
		if !only.MatchString(s.name) {
			continue
		}
		rows, err := b.runStep(ctx, s)
		if err != nil {
			return fmt.Errorf("bench: %s: %w", s.name, err)
		}
		for i := range rows {
			rows[i].Group = s.name
		}
		report.Rows = append(report.Rows, rows...)
	}
	if a.json {
		return a.printJSON(report)
	}
	return a.printBench(report)
}

func (b *benchmark) newReport() benchReport {
	return benchReport{
		Wake: versionOfThis().Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
		Server: b.nc.ConnectedServerVersion(), Embedded: b.embedded, Replicas: b.o.replicas, Quick: b.o.quick,
	}
}

// connectServer connects to the server, or to one of its own. Stop ends both.
func (b *benchmark) connectServer(ctx context.Context) (stop func(), err error) {
	a := b.app
	end := func() {}
	if a.server.URL == "" {
		b.embedded = true
		if a.server.URL, end, err = startServers(ctx, b.dir, b.o.replicas, a.log); err != nil {
			return nil, err
		}
	}
	if b.nc, err = a.connectServer(ctx); err != nil {
		end()
		return nil, err
	}
	if err := needStreams(b.nc, "wake bench makes streams of its own, which no role may; without --nats-url it has a server of its own"); err != nil {
		b.nc.Close()
		end()
		return nil, err
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		b.nc.Close()
		end()
		return nil, err
	}
	return func() { b.nc.Close(); end() }, nil
}

// lab is an installation that is removed after its step, and a process on it.
type lab struct {
	*bench.Scratch
	log *eventlog.Log
	dir string // of this step
}

// runStep runs a step in an installation of its own, and says so on a terminal.
func (b *benchmark) runStep(ctx context.Context, s benchStep) (rows []bench.Row, err error) {
	began := time.Now()
	if service.IsTerminal(b.app.errOut) {
		_, _ = fmt.Fprintf(b.app.errOut, "%-12s …", s.name)
		defer func() {
			_, _ = fmt.Fprintf(b.app.errOut, "\r%-12s %s\n", s.name, time.Since(began).Round(100*time.Millisecond))
		}()
	}
	l := &lab{}
	if l.dir, err = os.MkdirTemp(b.dir, s.name); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.dir)) }()
	id := strings.ToLower(rand.Text()[:8])
	if l.Scratch, err = bench.NewScratch(ctx, b.js, id, b.o.replicas); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Remove(ctx)) }()
	if l.log, err = eventlog.Open(ctx, b.nc, eventlog.Options{Names: l.Names, Logger: b.app.log, ShowEvery: b.size.showEvery}); err != nil {
		return nil, err
	}
	err = whileRunning(ctx, l.log.Run, func(ctx context.Context) error {
		rows, err = s.measure(b, ctx, l)
		return err
	})
	return rows, err
}

// whileRunning calls f while run runs. If run ends, so does the context of f.
func whileRunning(ctx context.Context, run, f func(context.Context) error) error {
	background, stop := context.WithCancel(ctx)
	foreground, cancel := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := run(background)
		cancel(err)
		ended <- err
	}()
	err := f(foreground)
	if cause := context.Cause(foreground); err != nil && cause != nil {
		err = cause
	}
	stop()
	if failed := <-ended; err == nil && !errors.Is(failed, context.Canceled) {
		err = failed
	}
	cancel(nil)
	return err
}

// printBench prints one table. Figures are medians; in brackets the least and
// the greatest of the rounds.
func (a hostVerbs) printBench(r benchReport) error {
	server := "nats-server " + r.Server
	if r.Embedded {
		server += ", embedded"
	}
	if _, err := fmt.Fprintf(a.out, "wake %s, %s, %s, %d CPUs, %s, replicas: %d\n\n", r.Wake, r.Go, r.Platform, r.CPUs, server, r.Replicas); err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "STEP\tWHAT\tFIGURE\tAGAINST\tITS FIGURE\tRATIO\tGOAL") // Flush returns the error
	for _, row := range r.Rows {
		_, _ = fmt.Fprintln(w, benchLine(row))
	}
	return w.Flush()
}

func benchLine(r bench.Row) string {
	line := fmt.Sprintf("%s\t%s\t%s\t", r.Group, r.Name, spreadText(r.Value, r.Unit))
	if r.Ratio == nil {
		return line
	}
	line += fmt.Sprintf("%s\t%s\t%s\t", r.Against, spreadText(*r.Baseline, r.Unit), spreadText(*r.Ratio, "×"))
	if r.Goal == nil {
		return line
	}
	goal := "≥ " + figureText(r.Goal.AtLeast)
	if r.Goal.AtMost > 0 {
		goal = "≤ " + figureText(r.Goal.AtMost)
	}
	if r.Goal.Met {
		return line + goal + " met"
	}
	return line + goal + " MISSED"
}

func spreadText(s bench.Spread, unit string) string {
	text := figureText(s.Median) + unit
	if s.Low < s.High {
		text += fmt.Sprintf(" (%s–%s)", figureText(s.Low), figureText(s.High))
	}
	return text
}

// figureText writes three digits that count.
func figureText(x float64) string {
	switch digits := math.Floor(math.Log10(math.Abs(x))); {
	case x == 0:
		return "0"
	case digits >= 6:
		return strconv.FormatFloat(x/1e6, 'f', 1, 64) + "M"
	case digits >= 4:
		return strconv.FormatFloat(x/1e3, 'f', 1, 64) + "k"
	default:
		return strconv.FormatFloat(x, 'f', max(0, min(4, 2-int(digits))), 64)
	}
}
