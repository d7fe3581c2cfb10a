package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/eventlog"
	"wake/internal/replay"
)

func (a *app) replayCommand() *cobra.Command {
	var o replay.Options
	q := eventlog.Query{}
	cmd := &cobra.Command{
		Use:   "replay RUN",
		Short: "Watch a run again; nothing is executed",
		Long: `Watch a run again, as it happened or faster. Only the log is read. With --json
each event is one line, in the JSON form of the wire.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if !(o.Speed >= 0) || math.IsInf(o.Speed, 1) { // NaN is neither
				return usage("such as 10; 0 is at once", "--speed: %v is no speed", o.Speed)
			}
			log, err := a.openLog(ctx)
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			if q.Run, err = a.runID(ctx, log, args[0]); err != nil {
				return err
			}
			return interrupted(ctx, a.replay(ctx, log, q, o))
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&o.Speed, "speed", 1, "how many `times` as fast as it happened; 0 is at once")
	flags.DurationVar(&o.MaxGap, "max-gap", 10*time.Second, "cut times in which nothing happened to `this long`; 0 doesn't")
	flags.Uint64Var(&q.From, "from", 0, "begin at this `position` of the log")
	flags.Uint64Var(&q.To, "to", 0, "end at this `position` of the log")
	flags.StringVar(&q.Node, "node", "", "only events of this `node`")
	return cmd
}

func (a *app) replay(ctx context.Context, log *eventlog.Log, q eventlog.Query, o replay.Options) error {
	show, done := a.shower(ctx, log, q.Run)
	var failed error
	for e, err := range replay.Play(ctx, log.Read(ctx, q), o) {
		switch {
		case err != nil:
			failed = err
		case e.Event == nil:
			a.log.WarnContext(ctx, "event can't be read", "position", e.Pos, "subject", e.Subject, "error", e.Err)
		default:
			failed = show(e)
		}
		if failed != nil {
			break
		}
	}
	return errors.Join(failed, done())
}
