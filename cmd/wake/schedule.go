package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func (a runVerbs) scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Begin runs of a flow at times that a cron expression says",
		Long: `Begin runs of a flow at times that a cron expression says. Any runner begins them, each once
however many runners there are: its id is the schedule's name and the time in UTC, such as
nightly-20270131t0330z, and its label schedule=NAME. Schedules are the installation's: where
the server has users, the user with the credentials of init keeps them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.scheduleAddCommand(), a.scheduleListCommand(), a.scheduleRemoveCommand(),
		a.schedulePauseCommand("pause", "Begin no runs of a schedule until it is resumed", true),
		a.schedulePauseCommand("resume", "Begin runs of a schedule again, from now on", false))
	return cmd
}

func (a runVerbs) scheduleAddCommand() *cobra.Command {
	var o runOptions
	var s schedule.Schedule
	var catchUp string
	cmd := &cobra.Command{
		Use:   "add NAME FLOW",
		Short: "Add a schedule",
		Long: `Add a schedule of a flow, a YAML or JSON file, which is stored with it.

    wake schedule add nightly flows/review.yaml --cron '30 3 * * 1-5' --zone Europe/Berlin

--catch-up says what becomes of times at which no runner was there: last, the default, begins
one run for all of them; none begins none, unless it is less than a minute late; all begins one
for each.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := a.limitedRequest(args[1], o, cmd.Flags())
			if err != nil {
				return err
			}
			if catchUp != "last" {
				s.CatchUp = schedule.CatchUp(catchUp)
			}
			request.RunID, request.By = "", senderName()
			now := time.Now()
			s.Name, s.Request, s.Since = args[0], request, now.UnixMilli()
			if err := s.Check(now); err != nil {
				return usageError("wake schedule add --help", "%w", err)
			}
			return withStore(cmd.Context(), a, schedule.Open, func(ctx context.Context, store *schedule.Store) error {
				if err := store.Add(ctx, s); err != nil {
					return scheduleError(s.Name, err)
				}
				return a.sayNext("added", s, now)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.Cron, "cron", "", "`expression`: minute hour day month weekday, or @hourly, @daily, @weekly")
	flags.StringVar(&s.Zone, "zone", "", "time `zone`, such as Europe/Berlin (default: UTC)")
	flags.StringVar(&catchUp, "catch-up", "last", "what becomes of times at which no runner was there: `last`, none or all")
	flags.StringVar(&o.input, "input", "", "input of the runs: `JSON`, @FILE, or - for stdin")
	flags.StringArrayVar(&o.sets, "set", nil, "set a field of the flow's state, `key=value`, as for wake run")
	flags.StringArrayVar(&o.labels, "label", nil, "label of the runs, `key=value`")
	flags.StringVar(&o.workspace, "workspace", "", "`folder` in which the runs work (default: one of its own for each)")
	flags.StringVar(&o.fixtures, "fixtures", "", "`folder` of recorded calls that stand in for every agent")
	a.flowSecretsFlag(flags)
	o.budget.addFlags(cmd)
	return cmd
}

func (a runVerbs) scheduleListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List schedules, and when they are next due",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), a, schedule.Open, func(ctx context.Context, store *schedule.Store) error {
				all, err := store.All(ctx)
				if err != nil {
					return err
				}
				return a.printSchedules(all, time.Now())
			})
		},
	}
}

// scheduleRow is a schedule as programs are told of it.
type scheduleRow struct {
	Name    string `json:"name"`
	Cron    string `json:"cron"`
	Zone    string `json:"zone"`
	CatchUp string `json:"catchUp"`
	Paused  bool   `json:"paused"`
	Next    int64  `json:"next,omitempty"`  // Unix ms; absent while it is paused
	Fired   int64  `json:"fired,omitempty"` // Unix ms: up to here it is settled what is due
	LastRun string `json:"lastRun,omitempty"`
	By      string `json:"by"`
	Error   string `json:"error,omitempty"` // why it can't be read
}

func (a runVerbs) printSchedules(all []schedule.Entry, now time.Time) error {
	rows := make([]scheduleRow, 0, len(all))
	for _, e := range all {
		rows = append(rows, rowOf(e, now))
	}
	if a.json {
		return a.printJSON(map[string]any{"schedules": rows})
	}
	if len(rows) == 0 {
		_, err := io.WriteString(a.out, "there are no schedules\n")
		return err
	}
	t := newTable(a.out, "NAME", "CRON", "ZONE", "NEXT", "LAST RUN", "CATCH UP")
	for _, r := range rows {
		next := timeOf(r.Next)
		switch {
		case r.Error != "":
			next = r.Error
		case r.Paused:
			next = "paused"
		}
		t.addRow(r.Name, r.Cron, r.Zone, next, r.LastRun, r.CatchUp)
	}
	return t.flush()
}

func rowOf(e schedule.Entry, now time.Time) scheduleRow {
	if e.Err != nil {
		return scheduleRow{Name: e.Key, Error: e.Err.Error()}
	}
	r := scheduleRow{Name: e.Name, Cron: e.Cron, Zone: e.Zone, CatchUp: string(e.CatchUp), Paused: e.Paused, Fired: e.Fired, By: e.Request.By}
	r.Zone = cmp.Or(r.Zone, "UTC")
	r.CatchUp = cmp.Or(r.CatchUp, "last")
	if e.Asked > 0 {
		r.LastRun = schedule.RunID(e.Name, time.UnixMilli(e.Asked))
	}
	settled := e.Settled(now)
	if next, err := e.Next(time.UnixMilli(max(now.UnixMilli(), settled.UnixMilli()))); err == nil && !e.Paused {
		r.Next = next.UnixMilli()
	}
	return r
}

func timeOf(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).Local().Format("2006-01-02 15:04 MST")
}

func (a runVerbs) scheduleRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a schedule; runs that it has begun go on",
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd.Context(), a, schedule.Open, func(ctx context.Context, store *schedule.Store) error {
				if err := store.Remove(ctx, args[0]); err != nil {
					return scheduleError(args[0], err)
				}
				return a.printAnswer(map[string]any{"name": args[0], "removed": true}, "removed schedule "+args[0])
			})
		},
	}
}

func (a runVerbs) schedulePauseCommand(verb, short string, pause bool) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " NAME",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd.Context(), a, schedule.Open, func(ctx context.Context, store *schedule.Store) error {
				for {
					e, err := store.Get(ctx, args[0])
					if err != nil {
						return scheduleError(args[0], err)
					}
					now := time.Now()
					if e.Paused && !pause {
						e.Since = now.UnixMilli() // what was due meanwhile isn't caught up with
					}
					e.Paused = pause
					if err = store.Update(ctx, e); errors.Is(err, schedule.ErrChanged) {
						continue // by a runner, for what was due
					}
					if err != nil {
						return scheduleError(args[0], err)
					}
					return a.sayNext(verb+"d", e.Schedule, now)
				}
			})
		},
	}
}

// sayNext says what was done to a schedule, and when it is next due.
func (a runVerbs) sayNext(done string, s schedule.Schedule, now time.Time) error {
	row := rowOf(schedule.Entry{Schedule: s}, now)
	text := done + " schedule " + s.Name
	if row.Next > 0 {
		text += ", next due " + timeOf(row.Next)
	}
	return a.printAnswer(row, text)
}

// withStore opens a store of the installation's, such as that of its schedules.
func withStore[S any](ctx context.Context, a runVerbs, open func(context.Context, jetstream.JetStream, subjects.Names, *seal.Keys) (S, error), do func(context.Context, S) error) error {
	log, err := a.openLog(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	if err := log.CheckKeys(ctx); err != nil {
		return err // what is encrypted elsewhere would be readable here
	}
	store, err := open(ctx, log.JetStream(), a.names, log.Keys())
	if err != nil {
		return err
	}
	return do(ctx, store)
}

func scheduleError(name string, err error) error {
	switch {
	case errors.Is(err, schedule.ErrNone):
		return serviceError(string(wire.CodeNotFound), "wake schedule list", "there is no schedule %q", name)
	case errors.Is(err, schedule.ErrChanged):
		return serviceError(string(wire.CodeCommandRejected), "wake schedule remove "+name+" removes it", "there is a schedule %q", name)
	}
	return err
}
