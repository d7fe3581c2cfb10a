package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// recorderFlags adds the settings of a recorder to a set of flags.
func recorderFlags(flags *pflag.FlagSet, c *recorder.Config) {
	storeFlag(flags, &c.Path, "record into this `store`: a SQLite file, or postgres://USER@HOST/DATABASE (default: DIR/recorder.db)")
	flags.IntVar(&c.Live, "live-lines", 1000, "last `lines` of each run that goes on which are held in memory, so that asking again is cheap; -1: none")
	flags.Var((*daysFlag)(&c.Retain.Age), "retain-age", "delete runs that ended this `time` ago, such as 90d (default: none)")
	flags.Var((*byteSize)(&c.Retain.Size), "retain-size", "delete the oldest runs while the store is larger than this `size`, such as 50GB (default: any size)")
	flags.Var((*byteSize)(&c.Retain.Folders), "retain-folders", "drop the snapshots of folders of the oldest runs while all snapshots take more than this `size`, such as 50GB (default: any size)")
	flags.Var((*daysFlag)(&c.Retain.Grace), "retain-grace", "`how long` a deleted run can be read and restored before its events are removed (default: 7d)")
}

// daysFlag is a flag's span of time, which may be in days.
type daysFlag time.Duration

func (d *daysFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *daysFlag) Type() string { return "time" }

func (d *daysFlag) Set(text string) error {
	ago, err := wire.ParseAgo(text)
	if err != nil {
		return errors.New("want a span of time, such as 90d or 36h")
	}
	*d = daysFlag(time.Duration(ago) * time.Millisecond)
	return nil
}

// storeFlag adds the flag that names a recorder's store, which is also known by
// its name from when a store was always a file.
func storeFlag(flags *pflag.FlagSet, store *string, usage string) {
	flags.StringVar(store, "store", "", usage)
	flags.StringVar(store, "recorder-file", "", usage)
	flags.Lookup("recorder-file").Hidden = true
}

func (a hostVerbs) newRecorder(c *recorder.Config) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		c := *c
		c.Removing = a.newMeter("recorder", "runs").showRemoval
		c.Health, c.Trial = p.health, p.trial("recorder")
		p.keepPart("feed", feed.NewServer(p.log, p.serviceLogger("recorder")).Run)
		c.Path = cmp.Or(c.Path, filepath.Join(p.dir, "recorder.db"))
		r, err := recorder.New(c, p.log, p.serviceLogger("recorder"))
		if err != nil {
			return nil, usageError("", "%w", err)
		}
		return r, nil
	}
}

func (a hostVerbs) recorderCommand() *cobra.Command {
	var c recorder.Config
	cmd := a.serviceCommand("recorder", "Keep the log beyond the age of the stream, and answer questions about it",
		func(flags *pflag.FlagSet) { recorderFlags(flags, &c) }, a.newRecorder(&c))
	cmd.PreRunE = func(*cobra.Command, []string) error { // before anything is waited for
		if c.Path == "" {
			return nil
		}
		if err := recorder.CheckStore(c.Path); err != nil {
			return usageError("wake recorder --help", "%w", err)
		}
		return nil
	}
	return cmd
}

// showRemoval shows how many of the runs that are past their time are removed, while that takes.
func (m *meter) showRemoval(done, of int64) {
	switch {
	case of == 0:
		m.eraseLine()
	case done == 0:
		m.part = "removal"
		m.begun, m.shown = time.Now(), time.Now()
		m.note(0, of)
	default:
		m.note(done, of)
	}
}
