package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) deleteCommand() *cobra.Command {
	var q wire.DeleteRequest
	cmd := &cobra.Command{
		Use:   "delete RUN",
		Short: "Delete a run from the recorder's store",
		Long: `Delete a run that has ended from the recorder's store. No list and no search has it
any more; until its time is over (--retain-grace of the recorder, 7 days) it can
be looked at by its id, exported, and restored by wake undelete. Then its events
are removed for good.

A run is kept if one that goes on descends from it, or if it has a labelled
bookmark. What the stream still has of it stays there until it ages out.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Run = args[0]
			return a.deleteRun(cmd.Context(), q)
		},
	}
	cmd.Flags().BoolVar(&q.Now, "now", false, "remove its events at once; that can't be undone")
	cmd.Flags().BoolVar(&q.Force, "force", false, "delete it also if something needs it")
	return cmd
}

func (a orderVerbs) undeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undelete RUN",
		Short: "Restore a run that was deleted",
		Long: `Restore a run that was deleted, as long as its events are there: wake runs --deleted
lists them.`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.deleteRun(cmd.Context(), wire.DeleteRequest{Run: args[0], Undo: true})
		},
	}
}

func (a orderVerbs) deleteRun(ctx context.Context, q wire.DeleteRequest) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	r, err := api.Call[wire.DeleteResponse](ctx, nc, a.names, wire.VerbDelete, q)
	if err != nil {
		return err
	}
	text := "deleted run " + r.RunID
	switch {
	case q.Undo:
		text = "restored run " + r.RunID
	case r.GoneAt > r.DeletedAt:
		text += "; its events are removed in " + timeline.Span(r.GoneAt-time.Now().UnixMilli()) + ", until then wake undelete restores it"
	default:
		text += "; its events are being removed"
	}
	return a.printAnswer(r, text)
}
