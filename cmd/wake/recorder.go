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
	flags.StringVar(&c.Path, "recorder-file", "", "SQLite `file` to record into (default: DIR/recorder.db)")
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
