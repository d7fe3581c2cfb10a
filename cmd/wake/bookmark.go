package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) bookmarkCommand() *cobra.Command {
	c := wire.Command{Type: "bookmark"}
	cmd := &cobra.Command{
		Use:   "bookmark RUN",
		Short: "Keep a point of a run, to fork it there or look at it",
		Long: `Keep the present of a run, or a point at which it was, under a label, to fork it
there or to look at it, also when the server has dropped its events. Each message
to an agent and each result of a tool is a point to fork from without that: wake
bookmarks lists them all. Of a run that has ended the last one is kept. A run with
a label isn't deleted for its age.

    wake bookmark @last --label reviewed
    wake bookmark @last --at sfp-7 --label before-the-mess`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setBookmark(cmd.Context(), args[0], c)
		},
	}
	cmd.Flags().StringVar(&c.Label, "label", "", "its `name` (default: that of the point, sfp-N or pos-POSITION)")
	cmd.Flags().StringVar(&c.At, "at", "", "the `point`: a label, sfp-N, NODE#N:start, NODE#N:end or a position of the log (default: the present; of a run that has ended, its last sfp-N)")
	cmd.Flags().BoolVar(&c.Force, "force", false, "move a label that the run has already")
	completeFlag(cmd, "at", a.completeBookmark)
	return cmd
}

func (a orderVerbs) setBookmark(ctx context.Context, ref string, c wire.Command) error {
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	c.RunID = run
	r, err := s.giveCommand(ctx, c)
	if err != nil {
		return err
	}
	if c.Label == "" && r.Recorded { // the owner chose it
		state, err := s.State(ctx, c.RunID)
		if err != nil {
			return err
		}
		if last := len(state.Bookmarks) - 1; last >= 0 {
			c.Label = state.Bookmarks[last].Label
		}
	}
	return s.reportResponse(r, "bookmark "+c.Label+" in")
}

func (a orderVerbs) bookmarksCommand() *cobra.Command {
	var limit int
	var cursor uint64
	cmd := &cobra.Command{
		Use:   "bookmarks RUN",
		Short: "List the points from which a run can be forked",
		Long: `List the points from which a run can be forked: those that have a label, one
behind the prompt of an agent, each further message to it and each result of a tool (sfp-1, sfp-2 …),
and where each execution of a node began and ended (NODE#1:start, NODE#1:end).
With --limit the last ones, which a long run has at once, and what to go on with --cursor to those before them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cursor > 0 && limit == 0 {
				limit = pagePoints
			}
			return a.listBookmarks(cmd.Context(), args[0], limit, cursor)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "the last ones, at most this `many` (default: all)")
	cmd.Flags().Uint64Var(&cursor, "cursor", 0, "go on before the `position` where the page before began")
	return cmd
}

// pagePoints are the points of a page if the user doesn't say how many.
const pagePoints = 50

func (a orderVerbs) listBookmarks(ctx context.Context, ref string, limit int, before uint64) error {
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	var all []client.Point
	var cursor uint64
	if limit == 0 {
		all, err = s.Bookmarks(ctx, run)
	} else {
		all, cursor, err = s.BookmarksBefore(ctx, run, before, limit)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(wire.BookmarksResponse{Points: append([]client.Point{}, all...), Before: cursor})
	}
	if err := printBookmarks(a.out, run, all, time.Now()); err != nil || cursor == 0 {
		return err
	}
	_, err = fmt.Fprintf(a.out, "\nthose before: --limit %d --cursor %d\n", limit, cursor)
	return err
}

// printBookmarks lists points; those of run are shown without its name.
func printBookmarks(w io.Writer, run string, all []client.Point, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no bookmarks")
		return err
	}
	t := newTable(w, "LABEL", "POSITION", "WHEN", "NODE", "WHAT", "OF RUN")
	for _, p := range all {
		of := p.Run
		if of == run {
			of = ""
		}
		t.addRow(p.Label, fmt.Sprint(p.Position), agoText(now, p.Time), p.Node, p.Note, of)
	}
	return t.flush()
}

// completeBookmark completes the points of the run that is named, the newest
// first.
func (a *app) completeBookmark(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.askCompletions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		s, err := a.sessionOn(ctx, nc)
		if err != nil {
			return nil, err
		}
		run, err := s.Find(ctx, args[0])
		if err != nil {
			return nil, err
		}
		all, _, err := s.BookmarksBefore(ctx, run, 0, pagePoints)
		var labels []cobra.Completion
		for _, p := range slices.Backward(all) {
			labels = append(labels, completionOf(p.Label, p.Node+" "+p.Note))
		}
		return labels, err
	})
}
