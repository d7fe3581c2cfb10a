package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/service"
	sessions "code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/services/watcher"
)

// watchOptions are the settings of a watcher.
type watchOptions struct {
	folders []string
	since   time.Duration
	idle    time.Duration
	prices  string // file
}

func (o *watchOptions) addFlags(flags *pflag.FlagSet) {
	o.since = 30 * 24 * time.Hour
	flags.Var((*daysFlag)(&o.since), "since", "`age` of the sessions that are told of from their beginning, such as 12h or 30d; older ones are once a user goes on with them")
	flags.DurationVar(&o.idle, "idle", 2*time.Minute, "`how long` after its last line the run of a session in which nothing goes on is paused")
}

func (a hostVerbs) watchCommand() *cobra.Command {
	var o processOptions
	var w watchOptions
	cmd := &cobra.Command{
		Use:   "watch [DIR...]",
		Short: "Follow the sessions of Claude Code on this machine as runs",
		Long: `Follow the sessions that people and programs have with Claude Code on this machine:
each is a run, live, whose id is that of the session. Nothing of them is changed.

    wake up --watch                      the server, all services, and this
    wake watch                           this alone, beside a server
    wake watch /home/*/.claude           the sessions of all users
    wake top                             all of them, live
    wake runs --label project=parser     those of a project

DIR is a folder of settings (default: CLAUDE_CONFIG_DIR, or ~/.claude). What is there
already is read first, the newest before the others; Ctrl-C ends it at any time, and the
next start goes on where the log says it was. Labels: name (the title), project, branch,
session, conversation (the same in sessions that were forked from one another) and
continues (the session that was cleared). What repeats requests to the model's API is
left out.`,
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{annotationService: "watcher"},
		RunE: func(cmd *cobra.Command, args []string) error {
			w.folders = args
			return a.runService(cmd.Context(), "watcher", o, a.newWatcher(&w))
		},
	}
	o.addFlags(cmd.Flags())
	a.waitFlag(cmd.Flags())
	w.addFlags(cmd.Flags())
	pricesFlag(cmd.Flags(), &w.prices)
	a.redactFlag(cmd.Flags())
	completeRedact(cmd)
	return cmd
}

func (a hostVerbs) newWatcher(o *watchOptions) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		folders, err := sessions.Folders(o.folders, os.LookupEnv)
		if err != nil {
			return nil, usageError("name a folder of settings, such as ~/.claude", "%w", err)
		}
		id, err := runnerID(p.locked)
		if err != nil {
			return nil, err
		}
		prices, err := readPrices(o.prices)
		if err != nil {
			return nil, err
		}
		m := &watchMeter{screen: !a.json && service.IsTerminal(a.errOut), json: a.json, out: a.errOut}
		return watcher.New(watcher.Config{
			ID: "watch-" + id, Folders: folders, Since: o.since, Idle: o.idle, Prices: prices, Progress: m.showProgress,
			Begun: func(run string, labels map[string]string) {
				m.eraseMeter()
				if a.json {
					_ = a.printJSON(map[string]any{"runId": run, "labels": labels})
					return
				}
				name := strings.Join(strings.Fields(labels["project"]+" "+labels["branch"]+" "+labels["name"]), " ")
				_, _ = fmt.Fprintf(a.out, "%s  %s\n", run, timeline.Line(name, maxMessage))
			},
		}, p.log, p.serviceLogger("watcher"))
	}
}

// watchMeter shows how far the history is.
type watchMeter struct {
	out    io.Writer
	screen bool
	json   bool
	shown  time.Time
	open   bool // its line is there
}

func (m *watchMeter) showProgress(p watcher.Progress) {
	over := p.DoneFiles == p.Files
	if m.json && p.Files > 0 && (over || time.Since(m.shown) >= jsonPause) {
		m.shown = time.Now()
		writeProgress(m.out, progress{Verb: "watch", Part: "history", Done: p.DoneBytes, Of: p.Bytes, Unit: unitBytes, PerSecond: float64(p.DoneBytes) / max(p.Elapsed.Seconds(), 0.001)})
	}
	if !m.screen || p.Files == 0 || !over && time.Since(m.shown) < meterPause {
		return
	}
	m.shown, m.open = time.Now(), !over
	rate := float64(p.DoneBytes) / max(p.Elapsed.Seconds(), 0.001)
	rest := ""
	if rate > 0 && !over {
		rest = ", " + (time.Duration(float64(p.Bytes-p.DoneBytes)/rate) * time.Second).Round(time.Second).String() + " left"
	}
	end := ""
	if over {
		end = "\n"
	}
	_, _ = fmt.Fprintf(m.out, "\r\x1b[Khistory: %d of %d files, %d of %d MB, %.1f MB/s%s%s", p.DoneFiles, p.Files, p.DoneBytes>>20, p.Bytes>>20, rate/(1<<20), rest, end)
}

// eraseMeter removes the line, which comes again.
func (m *watchMeter) eraseMeter() {
	if m.open {
		m.open = false
		_, _ = io.WriteString(m.out, "\r\x1b[K")
	}
}
