package main

import (
	"context"
	"errors"
	"iter"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/replay"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

type replayOptions struct {
	replay.Options

	query eventlog.Query
	file  string
}

func (a viewVerbs) replayCommand() *cobra.Command {
	o := replayOptions{Options: replay.Options{Speed: 1}}
	cmd := &cobra.Command{
		Use:   "replay RUN",
		Short: "Watch a run again; nothing is executed",
		Long: `Watch a run again, as it happened or faster. Only the log is read: the stream,
and for what that has dropped the recorder; or a recorder's file, without a server.
With --json each event is one line, in the JSON form of the wire.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(o.Speed >= 0) || math.IsInf(o.Speed, 1) { // NaN is neither
				return usageError("such as 10, or max", "--speed: %v is no speed", o.Speed)
			}
			if q := o.query; q.To > 0 && q.From > q.To {
				return usageError("", "--from %d is behind --to %d", q.From, q.To)
			}
			if o.file != "" {
				return interruptError(cmd.Context(), a.replayFile(cmd.Context(), args[0], o))
			}
			return interruptError(cmd.Context(), a.replayLog(cmd.Context(), args[0], o))
		},
	}
	flags := cmd.Flags()
	flags.Var((*speed)(&o.Speed), "speed", "how many `times` as fast as it happened; max, or 0, is at once")
	flags.DurationVar(&o.MaxGap, "max-gap", 10*time.Second, "cut times in which nothing happened to `this long`; 0 doesn't")
	flags.Uint64Var(&o.query.From, "from", 0, "begin at this `position` of the log")
	flags.Uint64Var(&o.query.To, "to", 0, "end at this `position` of the log")
	flags.StringVar(&o.query.Node, "node", "", "only events of this `node`")
	storeFlag(flags, &o.file, "read this `store` of a recorder, a SQLite file or postgres://…, instead of a server's log")
	return cmd
}

// speed is a flag: a number, or max.
type speed float64

func (s *speed) String() string { return strconv.FormatFloat(float64(*s), 'g', -1, 64) }
func (*speed) Type() string     { return "float64" }

func (s *speed) Set(text string) error {
	if text == "max" {
		*s = 0
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	*s = speed(v)
	return err
}

func (a viewVerbs) replayLog(ctx context.Context, ref string, o replayOptions) error {
	log, run, err := a.openRecord(ctx, ref)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	o.query.Run = run
	whole := func(e *wire.Event) *wire.Event { return a.wholeEvent(ctx, log, e) }
	return a.playEntries(ctx, history.Read(ctx, log, o.query), whole, o)
}

func (a viewVerbs) replayFile(ctx context.Context, ref string, o replayOptions) (err error) {
	store, err := openStored(ctx, o.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if o.query.Run, err = store.Answers.Find(ctx, ref); err != nil {
		return err
	}
	q := recorder.Query{Run: o.query.Run, From: o.query.From, To: o.query.To}
	fetch := func(sum string) ([]byte, error) { return store.Answers.Blob(ctx, sum) }
	missing := func() { a.log.WarnContext(ctx, "event is shown without its large fields") }
	same := func(e *wire.Event) *wire.Event { return e }
	entries := store.Answers.Entries(ctx, q)
	if !a.json { // which shows events as they are stored
		entries = export.Whole(entries, fetch, missing)
	}
	return a.playEntries(ctx, ofNode(entries, o.query.Node), same, o)
}

// ofNode leaves out the events of other nodes than the named one, if one is.
func ofNode(entries iter.Seq2[eventlog.Entry, error], node string) iter.Seq2[eventlog.Entry, error] {
	if node == "" {
		return entries
	}
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range entries {
			if (err != nil || e.NodeID == node) && !yield(e, err) {
				return
			}
		}
	}
}

// playEntries shows entries in their time. Whole puts large fields back.
func (a viewVerbs) playEntries(ctx context.Context, entries iter.Seq2[eventlog.Entry, error], whole func(*wire.Event) *wire.Event, o replayOptions) error {
	show, done := a.eventShower(o.query.Run, false, whole)
	var failed error
	for e, err := range replay.Play(ctx, entries, o.Options) {
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
