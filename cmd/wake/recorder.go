package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wake/services/recorder"
)

// recorderFlags adds the settings of a recorder to a set of flags.
func recorderFlags(flags *pflag.FlagSet, c *recorder.Config) {
	storeFlag(flags, &c.Path, "record into this `store`: a SQLite file, or postgres://USER@HOST/DATABASE (default: DIR/recorder.db)")
	flags.IntVar(&c.Live, "live-lines", 1000, "last `lines` of each run that goes on which are held in memory, so that asking again is cheap; -1: none")
}

// storeFlag adds the flag that names a recorder's store, which is also known by
// its name from when a store was always a file.
func storeFlag(flags *pflag.FlagSet, store *string, usage string) {
	flags.StringVar(store, "store", "", usage)
	flags.StringVar(store, "recorder-file", "", usage)
	flags.Lookup("recorder-file").Hidden = true
}

func newRecorder(c *recorder.Config) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		c := *c
		if c.Path == "" {
			c.Path = filepath.Join(p.dir, "recorder.db")
		}
		return recorder.New(c, p.log, p.logger("recorder"))
	}
}

func (a *app) recorderCommand() *cobra.Command {
	var c recorder.Config
	return a.serviceCommand("recorder", "Keep the log beyond the age of the stream, and answer questions about it",
		func(flags *pflag.FlagSet) { recorderFlags(flags, &c) }, newRecorder(&c))
}
