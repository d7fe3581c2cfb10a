package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

type tailOptions struct {
	node  string
	kinds []string
	from  uint64
	fresh bool
}

func (a viewVerbs) tailCommand() *cobra.Command {
	var o tailOptions
	cmd := &cobra.Command{
		Use:   "tail [RUN]",
		Short: "Follow a run from its beginning to its end, or all runs from now on",
		Long: `Follow a run from its beginning to its end, or all runs from now on. With --json
each event is one line, in the JSON form of the wire.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.tailEvents(cmd, args, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.node, "node", "", "only events of this `node`; RUN is needed")
	flags.StringSliceVar(&o.kinds, "kind", nil, "only events of this `kind`: flow, agent, tool, text or delta")
	flags.Uint64Var(&o.from, "from", 0, "begin at this `position` of the log")
	flags.BoolVar(&o.fresh, "new", false, "begin with what comes from now on")
	return cmd
}

func (a viewVerbs) tailEvents(cmd *cobra.Command, args []string, o tailOptions) error {
	ctx := cmd.Context()
	q := eventlog.Query{From: o.from}
	for _, k := range o.kinds {
		if !slices.Contains(wire.Kinds, wire.Kind(k)) {
			return usageError("flow, agent, tool, text and delta are known", "--kind: %q is no kind of event", k)
		}
		q.Kinds = append(q.Kinds, wire.Kind(k))
	}
	if len(q.Kinds) > 0 && len(args) > 0 && !slices.Contains(q.Kinds, wire.KindFlow) {
		q.Kinds = append(q.Kinds, wire.KindFlow) // it says when the run has ended
	}
	if o.fresh && o.from > 0 {
		return usageError("give one of them", "--from and --new contradict each other")
	}
	if o.node != "" && len(args) == 0 {
		return usageError("wake tail RUN --node "+o.node, "--node: of which run?")
	}
	log, err := a.openReader(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	if len(args) > 0 {
		if q.Run, err = a.runID(ctx, log, args[0]); err != nil {
			return err
		}
		if _, there, err := log.Last(ctx, q.Run, wire.RunNode); err != nil {
			return err
		} else if !there && q.Run != subjects.NoRun {
			return serviceError(codeFailed, "wake replay "+ask.ShellWord(q.Run), "the stream has dropped the events of run %s", q.Run)
		}
	}
	if o.fresh || q.Run == "" && o.from == 0 {
		_, last, err := log.Bounds(ctx)
		if err != nil {
			return err
		}
		q.From = last + 1
	}
	show, done := a.eventShower(q.Run, true, func(e *wire.Event) *wire.Event { return a.wholeEvent(ctx, log, e) })
	last, err := a.followRun(ctx, log, q, func(e eventlog.Entry) error {
		if !o.wantsEvent(e) {
			return nil
		}
		return show(e)
	})
	if closed := done(); err == nil {
		err = closed
	}
	if err == nil && last != nil {
		err = outcomeError(q.Run, last)
	}
	return interruptError(ctx, err)
}

// wantsEvent reports whether an event is one of those that were asked for.
func (o tailOptions) wantsEvent(e eventlog.Entry) bool {
	return (o.node == "" || e.Event.Node() == o.node) && (len(o.kinds) == 0 || slices.Contains(o.kinds, string(e.Kind)))
}

// eventShower returns what shows the events of one run, or of all if runID is empty,
// and what shows the rest in the end; live also shows what takes long while it does. Whole puts back the large fields of an
// event.
func (a viewVerbs) eventShower(runID string, live bool, whole func(*wire.Event) *wire.Event) (show func(eventlog.Entry) error, done func() error) {
	switch {
	case a.json:
		return a.showJSON, func() error { return nil }
	case runID == "":
		return a.showSummary, func() error { return nil }
	}
	s := a.newScreen()
	show = func(e eventlog.Entry) error { return s.showEvent(e.Pos, whole(e.Event)) }
	if !live {
		return show, s.close
	}
	stop := s.startClock()
	return show, func() error {
		stop()
		return s.close()
	}
}

func (a viewVerbs) showJSON(e eventlog.Entry) error {
	line, err := wire.EncodeJSON(e.Event)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

// showSummary is for the events of many runs: one line each.
func (a viewVerbs) showSummary(e eventlog.Entry) error {
	line := e.Time.Local().Format("15:04:05") + " " + padText(timeline.Line(e.RunID, runColumn), runColumn) + " " + timeline.Summary(e.Event)
	if useColor(a.out) {
		line = sgrText(lineColor(timeline.Class(e.Event)), line)
	}
	_, err := fmt.Fprintln(a.out, line)
	return err
}

const runColumn = 26 // of a ULID
