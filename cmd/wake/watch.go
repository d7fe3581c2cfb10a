package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
		m := a.newMeter("watch", unitBytes)
		m.part, m.shown = "history", time.Time{}
		return watcher.New(watcher.Config{
			ID: "watch-" + id, Folders: folders, Since: o.since, Idle: o.idle, Prices: prices, Progress: m.showHistory,
			Begun: func(run string, labels map[string]string) {
				m.eraseLine()
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

// showHistory shows how far the history of the sessions is.
func (m *meter) showHistory(p watcher.Progress) {
	m.begun = time.Now().Add(-p.Elapsed)
	m.files = fmt.Sprintf("%d of %d files, ", p.DoneFiles, p.Files)
	switch p.Files {
	case 0:
	case p.DoneFiles:
		m.conclude(p.DoneBytes, p.Bytes)
	default:
		m.note(p.DoneBytes, p.Bytes)
	}
}
