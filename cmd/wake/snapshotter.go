package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/services/snapshotter"
)

func newSnapshotter(_ context.Context, p *process) (runnable, error) {
	return snapshotter.New(snapshotter.Config{Health: p.health, Trial: p.trial("snapshotter")}, p.log, p.serviceLogger("snapshotter"))
}

func (a hostVerbs) snapshotterCommand() *cobra.Command {
	return a.serviceCommand("snapshotter", "Fold the log into snapshots of runs", func(*pflag.FlagSet) {}, newSnapshotter)
}
