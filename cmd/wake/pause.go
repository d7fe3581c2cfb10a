package main

import (
	"github.com/spf13/cobra"

	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) pauseCommand() *cobra.Command {
	c := wire.Command{Type: "pause"}
	cmd := &cobra.Command{
		Use:   "pause RUN",
		Short: "Interrupt the agents of a run, and begin nothing new",
		Long: `Interrupt the agents of a run, and begin nothing new. Commands that run come to
their end. wake resume goes on where the run was.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sendOrder(cmd.Context(), args[0], c, "paused")
		},
	}
	cmd.Flags().StringVar(&c.Reason, "reason", "", "`why`, for readers of the run")
	return cmd
}

func (a orderVerbs) abortCommand() *cobra.Command {
	c := wire.Command{Type: "abort"}
	cmd := &cobra.Command{
		Use:   "abort RUN",
		Short: "End a run",
		Long: `End a run: its agents and commands are ended, and it can't be resumed. What it
has come to can be forked.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			done := "aborted"
			if c.Resumable {
				done = "paused"
			}
			return a.sendOrder(cmd.Context(), args[0], c, done)
		},
	}
	cmd.Flags().StringVar(&c.Reason, "reason", "", "`why`, for readers of the run")
	cmd.Flags().BoolVar(&c.Resumable, "resumable", false, "only pause it")
	return cmd
}
